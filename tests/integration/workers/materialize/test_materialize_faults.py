"""A replica of materialize that is killed, paused or disconnected at a critical line."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import NANOSECONDS, NODES, SAMPLES, SAMPLES_CONSUMER
from bus.connection import WRITE_SECONDS, Bus, RawEntry
from bus.consumer import Message
from bus.errors import ConflictError
from bus.kinds import NODE_SAMPLES
from bus.records.nodes import decode_node_samples
from bus.subjects import samples_subject
from tas.values.quantity import NANO
from tests.integration.published import SECOND, now, text_of
from tests.integration.replicas import Replica, metric, replica, tas
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.halting import InterruptedBus
from tests.integration.workers.running import (
    all_handled,
    both_wait_for_messages,
    consumer_state,
    entry_on,
    running,
    samples_on,
)
from workers.materialize.worker import Materialize

NODE = "node-1.example"
ACK_SECONDS = 1.0
"""The ack wait in tests that do not depend on the 10 s of the product."""


def body(value: int, *, at: int) -> bytes:
    """A sample measured at this microsecond."""
    return json.dumps({"metrics": {"load1": value}, "measured": text_of(at)}).encode()


async def publish(bus: Bus, source: str, value: int, *, at: int) -> int:
    return await answered(lambda: bus.publish(SAMPLES, samples_subject(NODE, source), body(value, at=at)))


def message(source: str, value: int, *, at: int, sequence: int) -> Message:
    """A message as a consumer gives it to the handler."""
    return Message(
        subject=samples_subject(NODE, source),
        data=body(value, at=at),
        sequence=sequence,
        arrived=time.time(),
        deliveries=1,
        reply="",
    )


async def stored(bus: Bus) -> dict[str, int]:
    """The value of each source in NODES."""
    return {scrape.source: scrape.metrics["load1"] // NANO for scrape in await samples_on(bus, NODE) or ()}


async def eventually_stored(bus: Bus, values: dict[str, int]) -> None:
    async def are_stored() -> bool:
        return await stored(bus) == values

    await eventually(are_stored)


async def entry(bus: Bus) -> RawEntry | None:
    return await entry_on(bus, NODES, NODE_SAMPLES.key(NODE))


async def unacknowledged(bus: Bus) -> int:
    """The number of messages that were delivered and not acknowledged."""
    state = await consumer_state(bus)
    assert state is not None
    return int(state["num_ack_pending"])


@pytest.fixture
async def impatient(bus: Bus) -> Bus:
    """A bus with a short ack wait: the durable is created before the first replica."""
    config = {
        "durable_name": SAMPLES_CONSUMER,
        "name": SAMPLES_CONSUMER,
        "ack_policy": "explicit",
        "ack_wait": int(ACK_SECONDS * NANOSECONDS),
        "max_ack_pending": 4096,
        "max_deliver": -1,
        "deliver_policy": "all",
    }
    request = {"stream_name": SAMPLES.stream, "config": config}
    await answered(lambda: bus.api(f"CONSUMER.CREATE.{SAMPLES.stream}.{SAMPLES_CONSUMER}", request))
    return bus


@contextmanager
def halting(server: Server, folder: Path, *, signal: str, line: str) -> Iterator[Replica]:
    command = ["-m", "tests.integration.workers.halting", server.url, signal, line]
    with replica("halting", command, folder=folder) as halting:
        yield halting


async def has_finished(one: Replica, messages: int) -> None:
    """Waits until so many messages were merged, with or without a write."""

    async def merged() -> bool:
        return await metric(one, "tas_sample_messages_total") >= messages

    await eventually(merged)


class Other:
    """The handler of another replica, which takes no messages from the consumer."""

    def __init__(self, bus: Bus) -> None:
        self.registry = CollectorRegistry()
        self.worker = Materialize(bus, registry=self.registry)

    async def handle(self, *messages: Message) -> None:
        await answered(lambda: self.worker.handle(messages))

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


@asynccontextmanager
async def another(bus: Bus) -> AsyncIterator[Other]:
    """A complete second replica."""
    other = Other(bus)
    async with running(other.worker):
        yield other


async def test_killed_before_the_write_the_message_is_redelivered(
    server: Server, impatient: Bus, tmp_path: Path
) -> None:
    with halting(server, tmp_path, signal="KILL", line="before") as killed:
        await killed.ready()
        await publish(impatient, "a", 1, at=now())
        await eventually(lambda: killed.ended)
        assert await stored(impatient) == {}
        assert await unacknowledged(impatient) == 1
        async with another(impatient):
            await all_handled(impatient)
            assert await stored(impatient) == {"a": 1}


async def test_killed_between_write_and_acknowledgement_nothing_is_written_twice(
    server: Server, impatient: Bus, tmp_path: Path
) -> None:
    with halting(server, tmp_path, signal="KILL", line="after") as killed:
        await killed.ready()
        await publish(impatient, "a", 1, at=now())
        await eventually(lambda: killed.ended)
        written = await entry(impatient)
        assert await stored(impatient) == {"a": 1}
        assert await unacknowledged(impatient) == 1
        async with another(impatient) as other:
            await all_handled(impatient)
            assert other.count("tas_sample_messages_total") >= 1
            assert other.count("tas_node_writes_total") == 0
            assert await entry(impatient) == written


async def test_paused_before_the_write_until_another_replica_has_handled_the_message(
    server: Server, impatient: Bus, tmp_path: Path
) -> None:
    """It continues with a write that is older than the stored record, and with a value that nobody will see."""
    with halting(server, tmp_path, signal="STOP", line="before") as stopped:
        await stopped.ready()
        sequence = await publish(impatient, "a", 1, at=now())
        await eventually(lambda: stopped.paused)
        began = time.monotonic()
        other = Other(impatient)
        await other.handle(message("a", 2, at=now(), sequence=sequence + 1))
        await other.handle(message("b", 3, at=now(), sequence=sequence + 2))
        await eventually(lambda: time.monotonic() - began > WRITE_SECONDS + ACK_SECONDS)
        stopped.resume()
        await has_finished(stopped, 1)
        assert await stored(impatient) == {"a": 2, "b": 3}
        marked = await entry(impatient)
        assert marked is not None
        assert decode_node_samples(marked.value or b"").left_out == {"load1"}
        assert await metric(stopped, "tas_node_writes_total") == 1
        # A write whose reads are so old is not sent at all, so it cannot conflict.
        assert await metric(stopped, "tas_node_write_conflicts_total") == 0
        await all_handled(impatient)
        assert await entry(impatient) == marked


async def test_paused_before_the_write_it_merges_with_newer_records(
    server: Server, impatient: Bus, tmp_path: Path
) -> None:
    with halting(server, tmp_path, signal="STOP", line="before") as stopped:
        await stopped.ready()
        sequence = await publish(impatient, "a", 1, at=now())
        await eventually(lambda: stopped.paused)
        other = Other(impatient)
        await other.handle(message("a", 0, at=now() - SECOND, sequence=sequence + 1))
        await other.handle(message("b", 3, at=now(), sequence=sequence + 2))
        assert await stored(impatient) == {"a": 0, "b": 3}
        stopped.resume()
        await has_finished(stopped, 1)
        assert await stored(impatient) == {"a": 1, "b": 3}
        await all_handled(impatient)


async def test_paused_between_write_and_acknowledgement_beyond_the_ack_wait(
    server: Server, impatient: Bus, tmp_path: Path
) -> None:
    """Another replica handles the message again, and then a newer one; then the first replica acknowledges."""
    with halting(server, tmp_path, signal="STOP", line="after") as stopped:
        await stopped.ready()
        measured = now()
        await publish(impatient, "a", 1, at=measured)
        await eventually(lambda: stopped.paused)
        first = await entry(impatient)
        async with another(impatient) as other:
            await eventually(lambda: other.count("tas_sample_messages_total") >= 1)
            assert await entry(impatient) == first
            await publish(impatient, "a", 2, at=measured + SECOND)
            await eventually_stored(impatient, {"a": 2})
            written = await entry(impatient)
            stopped.resume()
            await has_finished(stopped, 1)
            await all_handled(impatient)
            assert await entry(impatient) == written


async def test_paused_longer_than_the_ack_wait_it_overwrites_nothing_newer(
    server: Server, bus: Bus, tmp_path: Path
) -> None:
    """With the ack wait of the product: the other replica gets the messages of the paused one after 10 s."""
    values: list[int] = []
    with (
        replica("paused", tas("materialize", bus=server.url), folder=tmp_path) as first,
        replica("other", tas("materialize", bus=server.url), folder=tmp_path) as second,
    ):
        await first.ready()
        await second.ready()
        last, seconds, tries = 0, 0.0, 0
        while seconds < 9:
            tries += 1
            assert tries < 10, "the paused replica got no message"
            await eventually(lambda: both_wait_for_messages(bus))  # so the first one gets some of them
            first.pause()
            await eventually(lambda: first.paused)
            began = time.monotonic()
            for _ in range(20):
                last += 1
                await publish(bus, "a", last, at=now())

            async def handled_by_the_other(value: int = last) -> bool:
                values.append((await stored(bus)).get("a", -1))
                return values[-1] == value and await unacknowledged(bus) == 0

            # The request of the paused replica expires, so the other one gets its messages at the next delivery. If it
            # expired before the messages came, the paused one got none, and nobody waited.
            await eventually(handled_by_the_other, every=0.05)
            seconds = time.monotonic() - began
            written = await samples_on(bus, NODE)
            first.resume()
        assert values == sorted(values)
        await has_finished(first, 1)
        # It may add which metrics had values that it found replaced: no other version says so.
        assert await samples_on(bus, NODE) == written
        await publish(bus, "a", last + 1, at=now())
        await eventually_stored(bus, {"a": last + 1})


async def test_a_write_of_an_earlier_epoch_is_not_accepted(server: Server) -> None:
    """The node is the first key of both epochs, so only the first sequence of the stream distinguishes them."""
    async with InterruptedBus.connect(server.url, name="late") as late, Bus.connect(server.url, name="other") as bus:
        assert isinstance(late, InterruptedBus)
        await late.wait_connected()
        await bus.wait_connected()
        replica = Other(late)
        await replica.handle(message("old", 1, at=now(), sequence=1))

        async def wipe_and_write() -> None:
            await server.restart(wiped=True)
            await late.wait_connected()
            await bus.wait_connected()
            await Other(bus).handle(message("fresh", 2, at=now(), sequence=2))

        late.interruptions["before"] = wipe_and_write
        await replica.handle(message("in-hand", 3, at=now(), sequence=3))
        assert await stored(bus) == {"fresh": 2, "in-hand": 3}


async def test_samples_of_an_earlier_epoch_are_not_written_again(server: Server, bus: Bus) -> None:
    """The watch has not delivered the new epoch yet: only the condition of the write prevents this."""
    replica = Other(bus)
    await replica.handle(message("old", 1, at=now(), sequence=1), message("a", 2, at=now(), sequence=2))
    await server.restart(wiped=True)
    await eventually(lambda: bus.connected)
    await replica.handle(message("a", 3, at=now(), sequence=3))
    assert await stored(bus) == {"a": 3}
    assert replica.count("tas_node_write_conflicts_total") >= 1


async def test_after_a_wipe_an_older_sample_is_accepted(server: Server, bus: Bus) -> None:
    """After a wipe a late sample is the newest that there is."""
    measured = now()
    async with another(bus):
        await publish(bus, "a", 1, at=measured)
        await eventually_stored(bus, {"a": 1})
        await server.restart(wiped=True)
        await eventually(lambda: bus.connected)

        async def older_is_stored() -> bool:
            await publish(bus, "a", 2, at=measured - SECOND)
            return await stored(bus) == {"a": 2}

        await eventually(older_is_stored, every=0.1)


async def test_paused_with_a_batch_while_the_bus_is_wiped(server: Server, bus: Bus, tmp_path: Path) -> None:
    """It continues on a bus without its batch, and handles what is published there."""
    with halting(server, tmp_path, signal="STOP", line="before") as stopped:
        await stopped.ready()
        await publish(bus, "a", 1, at=now())
        await eventually(lambda: stopped.paused)
        await server.restart(wiped=True)
        await eventually(lambda: bus.connected)
        await Other(bus).handle(message("b", 2, at=now(), sequence=2))
        written = await entry(bus)
        stopped.resume()
        await publish(bus, "a", 3, at=now())
        await eventually_stored(bus, {"a": 3, "b": 2})
        last = await entry(bus)
        assert written is not None
        assert last is not None
        assert last.revision == written.revision + 1  # so its batch was not written
        stopped.must_run()


async def test_a_write_that_was_too_late_is_made_with_new_reads(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.connection.WRITE_SECONDS", 0.3)
    async with InterruptedBus.connect(server.url, name="late") as late:
        assert isinstance(late, InterruptedBus)
        await late.wait_connected()
        began = time.monotonic()

        async def too_late() -> None:
            await eventually(lambda: time.monotonic() - began > 0.3)

        late.interruptions["before"] = too_late
        replica = Other(late)
        await replica.worker.handle([message("a", 1, at=now(), sequence=1)])
        assert await stored(bus) == {"a": 1}
        assert late.interruptions == {}


async def test_a_node_that_others_always_write_first_is_left_to_the_next_delivery(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.materialize.worker.BATCH_SECONDS", 0.1)

    class Overtaken(Bus):
        async def put(self, *_: object, **__: object) -> int:
            raise ConflictError("another was first")

    async with Overtaken.connect(server.url, name="overtaken") as overtaken:
        await overtaken.wait_connected()
        replica = Other(overtaken)
        async with asyncio.timeout(60):
            with pytest.raises(ConflictError):
                await replica.worker.handle([message("a", 1, at=now(), sequence=1)])
        assert replica.count("tas_node_write_conflicts_total") >= 1
