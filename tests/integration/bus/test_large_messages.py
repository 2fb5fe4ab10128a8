"""Messages that are together more than a server lets wait at one connection, which it then closes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from bus import requests as of_messages
from bus import server as embedded
from bus.buckets import NODES, SAMPLES
from bus.client import Msg
from bus.connection import Bus
from bus.consumer import Message, SharedConsumer
from bus.entry import RawEntry
from bus.feed import Feed
from bus.link import Link
from bus.requests import Pace, Requests
from tests.integration.servers import Server, eventually

# 67 MB are written before some of the calls are answered. A new attachment would get messages a second time.
pytestmark = pytest.mark.usefixtures("long_limits", "late_pulse")

MAX_PENDING = 8 << 20
"""An eighth of the default, so that fewer messages are enough."""

BYTES = SAMPLES.max_message_bytes - 1000
COUNT = 8 * MAX_PENDING // BYTES
"""A request of one batch may get them all."""


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(embedded, "_CONFIG", embedded._CONFIG + f"max_pending: {MAX_PENDING}\n")
    server = Server(tmp_path / "store")
    await server.start()
    yield server
    await server.stop()


async def keeps_its_connection(server: Server, came: Callable[[], bool]) -> None:
    """Waits until all came, over connections that the server does not close."""

    def holds() -> bool:
        assert "Slow Consumer" not in server.log.read_text()
        return came()

    await eventually(holds)


async def test_large_messages_of_one_publisher_do_not_end_the_connection_of_a_consumer(
    server: Server, bus: Bus
) -> None:
    """Nobody would get samples until they are too old for the stream: each connection would get them again."""
    await bus.publish_all(SAMPLES, [(f"tas.samples.n{number}.flood", bytes(BYTES)) for number in range(COUNT)])
    sequences: list[int] = []

    async def handle(messages: Sequence[Message]) -> None:
        sequences.extend(message.sequence for message in messages)

    consuming = asyncio.create_task(SharedConsumer(bus, SAMPLES, "test", handle, ack_wait_seconds=600.0).run())
    try:
        await keeps_its_connection(server, lambda: len(sequences) >= COUNT)
    finally:
        consuming.cancel()
        with suppress(asyncio.CancelledError):
            await consuming
    assert sequences == sorted(set(sequences))
    assert len(sequences) == COUNT


async def test_large_entries_of_a_bucket_do_not_end_the_connection_of_a_paced_feed(server: Server, bus: Bus) -> None:
    values = [(NODES.subject(f"n{number}.samples"), bytes(BYTES)) for number in range(COUNT)]
    await asyncio.gather(*(bus.link.send(subject, value) for subject, value in values))
    entries: list[RawEntry] = []
    feed = await Feed.open(bus.link, NODES, name="test", pace=0.1)
    try:
        await feed.release(entries.append)
        await keeps_its_connection(server, lambda: len(entries) >= COUNT)
    finally:
        await feed.close()
    assert len(entries) == COUNT


async def test_each_entry_that_alone_is_larger_than_a_request_is_requested_alone(
    bus: Bus, requests: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_payload` may have been larger when it was stored."""
    count = 20
    values = [(NODES.subject(f"n{number}.samples"), bytes(3 * of_messages.SPREAD_BYTES)) for number in range(count)]
    await asyncio.gather(*(bus.link.send(subject, value) for subject, value in values))
    monkeypatch.setattr(of_messages, "REQUEST_BYTES", 0)
    monkeypatch.setattr(Link, "max_payload", 1000)
    entries: list[RawEntry] = []
    feed = await Feed.open(bus.link, NODES, name="test", pace=0.01)
    try:
        await feed.release(entries.append)
        await eventually(lambda: len(entries) == count)
    finally:
        await feed.close()
    assert any(request["batch"] == 1 for request in requests)
    assert len(requests) <= 10 * count  # without end, if each were answered by another for many


async def test_a_status_before_the_messages_of_its_request_causes_no_other_request(
    bus: Bus, requests: list[dict[str, int]]
) -> None:
    """As of a consumer with replicas: a request for each such status made the server pass its limit all the same."""
    asked = asyncio.Event()

    async def note() -> None:
        asked.set()

    ended: list[Exception] = []
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{NODES.stream}.none"
    tested = Requests(
        bus.link, subject, "_INBOX.none", batch=100, pace=Pace(0.0, messages=4), end=ended.append, before=note
    )
    tested.start()
    await asked.wait()
    asked.clear()
    headers = {"Status": "409", "Description": "Message Size Exceeds MaxBytes", "Nats-Pending-Messages": "80"}
    assert not tested.received_status(Msg(bus.link._client, subject="_INBOX.none", headers=headers))
    for _ in range(20):
        assert not asked.is_set()
        assert len(requests) == 1
        tested.received()
        await asyncio.sleep(0)
    await asked.wait()
    await eventually(lambda: len(requests) == 2)
    assert requests[1]["batch"] == 100
    assert not ended
