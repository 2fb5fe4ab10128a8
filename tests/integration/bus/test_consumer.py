"""Shared durables of a healthy server."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.consumer import REDELIVERY, Message, SharedConsumer
from bus.errors import ConflictError, MisconfiguredError, RefusedError, UnavailableError
from bus.link import Link
from bus.pull import BATCH_BYTES
from bus.requests import DELIVERED_AT_ONCE, EXPIRES_SECONDS
from tas.values.backoff import Backoff
from tests.integration.bus.limits import PULSE_SECONDS
from tests.integration.proxy import Proxy
from tests.integration.servers import Server, eventually

pytestmark = pytest.mark.usefixtures("long_limits", "late_pulse")


class Handler:
    """Records its messages, and raises the exceptions in `fail`."""

    def __init__(self) -> None:
        self.batches: list[list[Message]] = []
        self.fail: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.began: list[float] = []

    @property
    def begun(self) -> int:
        return len(self.began)

    async def __call__(self, messages: Sequence[Message]) -> None:
        self.began.append(time.monotonic())
        await self.gate.wait()
        if self.fail:
            raise self.fail.pop(0)
        self.batches.append(list(messages))

    @property
    def sequences(self) -> list[int]:
        return [message.sequence for batch in self.batches for message in batch]


@asynccontextmanager
async def consuming(bus: Bus, handler: Handler, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
    # On a busy machine the server would deliver a second time what is not acknowledged within the 10 s of the product.
    options = {"ack_wait_seconds": 600.0} | options
    task = asyncio.create_task(SharedConsumer(bus, SAMPLES, "test", handler, **options).run())
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def publish(bus: Bus, count: int) -> list[int]:
    return await asyncio.gather(
        *(bus.publish(SAMPLES, f"tas.samples.n{number}.machine", b"{}") for number in range(count))
    )


async def pending(bus: Bus) -> tuple[int, int]:
    """How many messages are delivered but not acknowledged, and how many are not delivered."""
    answer = await bus.api("CONSUMER.INFO.SAMPLES.test")
    return answer["num_ack_pending"], answer["num_pending"]


async def attached(bus: Bus, replicas: int) -> bool:
    """Whether `replicas` replicas wait for messages."""
    try:
        return bool((await bus.api("CONSUMER.INFO.SAMPLES.test"))["num_waiting"] == replicas)
    except RefusedError:  # no replica has created the durable yet
        return False


async def pending_is(bus: Bus, expected: tuple[int, int]) -> bool:
    return await pending(bus) == expected


async def nothing_pending(bus: Bus) -> bool:
    return await pending_is(bus, (0, 0))


async def test_each_message_is_delivered_once_in_order_and_acknowledged(bus: Bus) -> None:
    before = await publish(bus, 10)
    handler = Handler()
    async with consuming(bus, handler):
        after = await publish(bus, 1000)
        await eventually(lambda: len(handler.sequences) == 1010)
        assert handler.sequences == sorted(before + after)
        assert max(map(len, handler.batches)) <= 256
        first = handler.batches[0][0]
        assert (first.subject, first.data, first.deliveries) == ("tas.samples.n0.machine", b"{}", 1)
        assert abs(first.arrived - time.time()) < 60
        await eventually(lambda: nothing_pending(bus))


async def test_a_batch_of_large_messages_is_short_and_knows_how_many_are_behind_it(bus: Bus) -> None:
    body = b"x" * (BATCH_BYTES // 10)
    await bus.publish_all(SAMPLES, [(f"tas.samples.n{number}.machine", body) for number in range(60)])
    handler = Handler()
    handler.gate.clear()
    async with consuming(bus, handler, ack_wait_seconds=600):
        # A server that is slower than the handler would never let enough of them wait.
        await eventually(lambda: handler.begun == 1)
        await eventually(lambda: pending_is(bus, (60, 0)))
        handler.gate.set()
        await eventually(lambda: len(handler.sequences) == 60)
    assert max(map(len, handler.batches)) == 11  # the last one exceeds the size
    behind = 60
    for batch in handler.batches:
        behind -= len(batch)
        assert batch[-1].pending == behind


async def test_a_message_is_delivered_at_once(bus: Bus) -> None:
    handler = Handler()
    async with consuming(bus, handler):
        await publish(bus, 1)
        await eventually(lambda: len(handler.sequences) == 1)
        delays = []
        for count in range(2, 52):
            began = time.monotonic()
            await publish(bus, 1)
            await eventually(lambda count=count: len(handler.sequences) == count, every=0)  # type: ignore[misc]
            delays.append(time.monotonic() - began)
        assert (
            sorted(delays)[len(delays) // 2] < min(PULSE_SECONDS, EXPIRES_SECONDS) / 2
        )  # the message waited for neither of them


async def test_replicas_share_the_messages(server: Server, bus: Bus) -> None:
    handlers = [Handler(), Handler()]
    async with Bus.connect(server.url, name="other") as other:
        await other.wait_connected()
        async with consuming(bus, handlers[0], batch=16), consuming(other, handlers[1], batch=16):
            await eventually(lambda: attached(bus, 2))
            sent = await publish(bus, 2000)
            await eventually(lambda: sum(len(handler.sequences) for handler in handlers) >= 2000)
            assert sorted(handlers[0].sequences + handlers[1].sequences) == sorted(sent)
            assert all(handler.sequences for handler in handlers)


async def test_after_a_bus_error_the_batch_is_delivered_again(bus: Bus) -> None:
    handler = Handler()
    handler.fail = [ConflictError("once"), ConflictError("twice")]
    async with consuming(bus, handler):
        sent = await publish(bus, 1)
        await eventually(lambda: handler.sequences == sent)
        assert handler.batches[0][0].deliveries == 3
        await eventually(lambda: nothing_pending(bus))
    first, second, third = handler.began
    least = REDELIVERY.first / 2  # the jitter subtracts at most half
    assert second - first >= least
    assert third - second >= 2 * least


async def test_a_batch_comes_again_however_often_it_fails(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.consumer.REDELIVERY", Backoff(first=0.001, longest=0.001))
    handler = Handler()
    handler.fail = [ConflictError("again")] * 50
    async with consuming(bus, handler):
        sent = await publish(bus, 1)
        await eventually(lambda: handler.sequences == sent)
    assert handler.batches[0][0].deliveries == 51


async def test_a_slow_handler_fetches_at_most_one_batch_in_advance(bus: Bus) -> None:
    handler = Handler()
    handler.gate.clear()
    await publish(bus, 60)
    async with consuming(bus, handler, batch=5, ack_wait_seconds=600):

        async def fetched() -> bool:
            return await pending(bus) == (10, 50)

        await eventually(lambda: handler.begun == 1)
        await eventually(fetched)
        for _ in range(20):  # each an exchange with the server, in which it could have sent the rest
            assert await pending(bus) == (10, 50)
        handler.gate.set()
        await eventually(lambda: len(handler.sequences) == 60)


async def test_a_request_without_messages_is_followed_by_the_next_one(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.requests.HEARTBEAT_SECONDS", 0.5)
    monkeypatch.setattr("bus.requests.EXPIRES_SECONDS", 1.1)  # the server requires more than twice the heartbeat
    handler = Handler()
    requests = 0
    send = Link.send

    async def counted(link: Link, subject: str, payload: bytes, *, reply: str = "") -> None:
        nonlocal requests
        requests += subject.startswith("$JS.API.CONSUMER.MSG.NEXT.")
        await send(link, subject, payload, reply=reply)

    monkeypatch.setattr(Link, "send", counted)
    with capture_logs() as logs:
        async with consuming(bus, handler):
            await eventually(lambda: requests >= 3)  # another one follows soon
            sent = await publish(bus, 1)
            await eventually(lambda: handler.sequences == sent)
    assert "consumer_interrupted" not in {line["event"] for line in logs}


async def test_a_bug_in_the_handler_ends_the_consumer_and_acknowledges_nothing(bus: Bus) -> None:
    handler = Handler()
    handler.fail = [ZeroDivisionError()]
    async with consuming(bus, handler) as task:
        await publish(bus, 1)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(asyncio.shield(task), 120)
        assert await pending(bus) == (1, 0)


async def test_when_cancelled_the_current_batch_is_finished_and_the_rest_is_delivered_to_others(bus: Bus) -> None:
    handler, other = Handler(), Handler()
    handler.gate.clear()
    sent = await publish(bus, 20)
    async with consuming(bus, handler, batch=5, ack_wait_seconds=600) as task:
        await eventually(lambda: handler.begun == 1)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        handler.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert handler.begun == 1
    async with consuming(bus, other, ack_wait_seconds=600):  # so the server by itself gives nothing back
        await eventually(lambda: sorted(set(handler.sequences + other.sequences)) == sent)
        await eventually(lambda: nothing_pending(bus))
    assert len(handler.sequences) + len(other.sequences) == 20


async def test_when_cancelled_messages_under_way_are_delivered_to_others(server: Server, bus: Bus) -> None:
    slow, other = Handler(), Handler()
    async with Proxy.before(server.url) as proxy, Bus.connect(proxy.url, name="far") as far:
        async with consuming(far, slow, batch=5, ack_wait_seconds=600) as task:
            await eventually(lambda: attached(bus, 1))
            proxy.flowing.clear()
            sent = await publish(bus, DELIVERED_AT_ONCE)
            await eventually(lambda: pending_is(bus, (DELIVERED_AT_ONCE, 0)))  # the server has sent all of them
            assert slow.begun == 0
            task.cancel()
            proxy.flowing.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert slow.begun == 0
        async with consuming(bus, other, ack_wait_seconds=600):
            await eventually(lambda: sorted(other.sequences) == sent, within=60)


async def test_a_handler_that_does_not_return_is_cancelled_after_the_time_to_acknowledge(bus: Bus) -> None:
    handler = Handler()
    handler.gate.clear()
    await publish(bus, 1)
    async with consuming(bus, handler, ack_wait_seconds=0.2) as task:
        await eventually(lambda: handler.begun == 1)
        task.cancel()
        assert (await asyncio.wait([task], timeout=60))[1] == set()
        assert task.cancelled()


async def test_a_message_that_is_not_acknowledged_in_time_is_delivered_again(bus: Bus) -> None:
    handler, other = Handler(), Handler()
    handler.gate.clear()
    sent = await publish(bus, 3)
    async with consuming(bus, handler, ack_wait_seconds=0.5):
        await eventually(lambda: handler.begun == 1)
        async with consuming(bus, other, ack_wait_seconds=0.5):
            await eventually(lambda: sorted(set(other.sequences)) == sent)
        handler.gate.set()


async def test_a_durable_with_wrong_settings_is_reported_and_left_unchanged(bus: Bus) -> None:
    config = {"durable_name": "test", "name": "test", "ack_policy": "none", "deliver_policy": "all"}
    await bus.api("CONSUMER.CREATE.SAMPLES.test", {"stream_name": "SAMPLES", "config": config})
    async with consuming(bus, Handler()):
        await eventually(lambda: isinstance(bus.problem, MisconfiguredError))
        assert "ack_policy is none, must be explicit" in str(bus.problem)
        assert (await bus.api("CONSUMER.INFO.SAMPLES.test"))["config"]["ack_policy"] == "none"


async def test_a_slow_replica_leaves_messages_to_the_others_facts_n17(server: Server, bus: Bus) -> None:
    slow, other = Handler(), Handler()
    slow.gate.clear()
    async with Bus.connect(server.url, name="other") as connection:
        await connection.wait_connected()
        async with consuming(bus, slow, batch=16, ack_wait_seconds=600):
            sent = await publish(bus, 200)
            await eventually(lambda: slow.begun == 1)
            async with consuming(connection, other, batch=16, ack_wait_seconds=600):
                await eventually(lambda: len(other.sequences) == len(sent) - 32)
                slow.gate.set()
                await eventually(lambda: sorted(slow.sequences + other.sequences) == sorted(sent))


async def test_received_messages_are_handled_although_the_next_request_fails(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = 0
    send = Link.send

    async def fail_once(link: Link, subject: str, payload: bytes, *, reply: str = "") -> None:
        nonlocal requests
        if subject.startswith("$JS.API.CONSUMER.MSG.NEXT."):
            requests += 1
            if requests == 2:
                raise UnavailableError("the second request is lost")
        await send(link, subject, payload, reply=reply)

    monkeypatch.setattr(Link, "send", fail_once)
    handler = Handler()
    async with consuming(bus, handler, batch=1, ack_wait_seconds=600):
        sent = await publish(bus, 1)
        await eventually(lambda: handler.sequences == sent)
        assert requests >= 2
        assert handler.batches[0][0].deliveries == 1
