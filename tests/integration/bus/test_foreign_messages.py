"""Messages that the product never sends: no other message and no connection is lost because of them."""

import asyncio
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest

from bus.buckets import NODES, SAMPLES, Bucket, Stream
from bus.connection import Bus
from bus.consumer import Message, SharedConsumer
from tests.integration.bus.followers import following
from tests.integration.servers import Server, answered, eventually

SUBJECT = {SAMPLES: b"tas.samples.%b.mine", NODES: b"$KV.NODES.%b"}
MESSAGES = pytest.mark.parametrize(
    ("name", "headers"),
    [
        pytest.param(b"\xff\xfe", b"", id="subject-not-utf8"),
        pytest.param(b"\xe2\x82", b"", id="subject-that-ends-within-a-character"),
        pytest.param(b"a", b"anything", id="invalid-headers"),
        pytest.param(b"a", b"NATS/1.0\r\nStatus: 409\r\n\r\n", id="status-like-that-of-the-server"),
    ],
)
pytestmark = pytest.mark.usefixtures("long_limits")


async def send(server: Server, of: Stream | Bucket, name: bytes, headers: bytes) -> None:
    """Publishes an empty message by the plain protocol; on return the server has handled it."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    subject = SUBJECT[of] % name
    size = len(headers)
    message = b"HPUB %b %d %d\r\n%b\r\n" % (subject, size, size, headers) if headers else b"PUB %b 0\r\n\r\n" % subject
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + message + b"PING\r\n")
    answer = b""
    while not answer.startswith((b"PONG", b"-ERR")):
        answer = await asyncio.wait_for(reader.readline(), 120)
    assert answer == b"PONG\r\n"
    writer.close()
    await writer.wait_closed()


@MESSAGES
async def test_a_consumer_of_a_stream_gets_them_like_any_other_message(
    name: bytes, headers: bytes, server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.link.BEAT_SECONDS", 20.0)  # a busy server may send its heartbeats late
    handled: list[Message] = []

    async def handler(messages: Sequence[Message]) -> None:
        handled.extend(messages)

    task = asyncio.create_task(SharedConsumer(bus, SAMPLES, "test", handler, ack_wait_seconds=30).run())
    await send(server, SAMPLES, name, headers)
    after = await bus.publish(SAMPLES, "tas.samples.b.mine", b"{}")
    await eventually(lambda: [message.sequence for message in handled] == [after - 1, after])
    assert [message.deliveries for message in handled] == [1, 1]
    task.cancel()
    await asyncio.wait([task])


@MESSAGES
async def test_a_watch_of_a_bucket_delivers_them_and_the_entries_after_them(
    name: bytes, headers: bytes, server: Server, bus: Bus
) -> None:
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        await send(server, NODES, name, headers)
        await bus.put(NODES, "b.facts", b"1", revision=0, read_at=time.monotonic())
        await eventually(lambda: len(follower.entries) == 2)
        assert [entry.key for entry in follower.entries] == [name.decode(errors="replace"), "b.facts"]
        assert follower.view["b.facts"] == b"1"
    entries = await answered(lambda: bus.entries(NODES))
    assert [entry.key for entry in entries] == [entry.key for entry in follower.entries]


async def test_a_list_with_a_key_that_is_not_utf8_is_complete(server: Server, bus: Bus) -> None:
    """The server names it with two replacement characters, and it is delivered with one."""
    await send(server, NODES, b"\xe2\x82", b"")
    assert await bus.keys(NODES, ">") == ["\ufffd\ufffd"]
    async with following(bus, NODES) as follower:
        await follower.caught_up()
        assert [entry.key for entry in follower.entries] == ["\ufffd"]
