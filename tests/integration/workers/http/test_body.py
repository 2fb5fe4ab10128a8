"""What a hostile server can make its client do, over real sockets: the work is counted, not timed."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import cast

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from tests.integration.servers import eventually
from workers.http.body import BYTES_ON_THE_WAY, TooLargeError, whole_body
from workers.http.protocol import (
    BURST,
    MAX_HEAD_BYTES,
    MAX_INFORMATIONAL,
    PAUSE_SECONDS,
    SLICE_BYTES,
    BoundedConnector,
    BoundedProtocol,
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
OK = HEAD + b"Content-Length: 2\r\n\r\nok"
PIECES = 300
READ_BYTES = 256 << 10
"""The most that an event loop reads at once."""


class Counted(BoundedProtocol):
    """Counts what has come from the server, and what of it was parsed."""

    came = threading.Event()
    last: "Counted"
    made = 0
    wakes = 0
    received = 0
    heads = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Counted.last = self
        Counted.made += 1
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        Counted.wakes += bool(data)  # aiohttp calls itself without data to go on
        Counted.received += len(data)
        Counted.came.set()
        super().data_received(data)

    def feed_data(self, data: tuple[aiohttp.http.RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        Counted.heads += 1
        super().feed_data(data, size)


@contextmanager
def serving(*answers: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server in a thread, which answers the first request of each connection."""

    def serve() -> None:
        for answer in answers:
            with suppress(OSError), listener.accept()[0] as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.recv(65536)
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    thread.join(60)
    assert not thread.is_alive()


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    Counted.made = Counted.wakes = Counted.received = Counted.heads = 0
    connector = BoundedConnector()
    connector._factory = cast("partial[ResponseHandler]", partial(Counted, loop=asyncio.get_running_loop()))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def body_of(url: str, *, max_bytes: int = 1 << 20) -> bytes:
    async with client() as session, session.get(url) as response:
        return await whole_body(response, max_bytes=max_bytes)


def endless(start: bytes, again: bytes) -> Callable[[socket.socket], None]:
    """Sends `again` until the client closes the connection, at most 1 GiB."""

    def send(connection: socket.socket) -> None:
        connection.sendall(start)
        large = again * (65536 // len(again))
        for _ in range(1 << 14):
            connection.sendall(large)

    return send


def sending(*parts: bytes) -> Callable[[socket.socket], None]:
    """Sends each part as soon as the client has received the one before, or does not read for a moment."""

    def send(connection: socket.socket) -> None:
        for part in parts:
            Counted.came.clear()
            connection.sendall(part)
            Counted.came.wait(PAUSE_SECONDS / 20)
        connection.recv(1)

    return send


async def test_answers_before_the_final_one_are_read_only_a_few_times() -> None:
    """One read brings 10,000 of them; not even those of one slice that are too many are believed."""
    with serving(endless(b"", CONTINUE)) as url, pytest.raises(aiohttp.ClientError, match="more than 8 informational"):
        await body_of(url)
    assert MAX_INFORMATIONAL < Counted.heads <= MAX_INFORMATIONAL + SLICE_BYTES / len(CONTINUE)


async def test_a_few_answers_before_the_final_one_are_well() -> None:
    with serving(sending(CONTINUE * MAX_INFORMATIONAL + OK)) as url:
        assert await body_of(url) == b"ok"


@pytest.mark.parametrize(
    ("start", "again", "most", "text"),
    [
        pytest.param(HEAD, b"a: b\r\n", MAX_HEAD_BYTES, "400", id="lines of a head"),
        pytest.param(HEAD + b"a: ", b"b", MAX_HEAD_BYTES, "400", id="one line of a head"),
        pytest.param(
            HEAD,
            b"a: " + b"b" * 8000 + b"\r\n",
            MAX_HEAD_BYTES,
            f"more than {MAX_HEAD_BYTES} bytes on the way before the head was complete",
            id="long lines of a head",
        ),
        pytest.param(CHUNKED + b"0\r\n", b"a: b\r\n", MAX_HEAD_BYTES, "400", id="lines after the body"),
        pytest.param(
            CHUNKED + b"1;",
            b"x",
            BYTES_ON_THE_WAY * 1000 + MAX_HEAD_BYTES,
            "bytes on the way before the body was complete",
            id="an extension of a chunk",
        ),
        pytest.param(
            HEAD + b"Content-Encoding: deflate\r\n\r\n",
            b"\x00\x00\x00\xff\xff",
            BYTES_ON_THE_WAY * 1000 + MAX_HEAD_BYTES,
            "bytes on the way before the body was complete",
            id="compressed nothing",
        ),
    ],
)
async def test_what_is_never_complete_is_read_up_to_a_bound(start: bytes, again: bytes, most: int, text: str) -> None:
    with serving(endless(start, again)) as url, pytest.raises(aiohttp.ClientError, match=text):
        await body_of(url, max_bytes=1000)
    assert Counted.received <= most + 2 * READ_BYTES


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            [*[bytes([each]) for each in HEAD + b"a: " + b"b" * PIECES], b"\r\n" + OK[len(HEAD) :]], id="head"
        ),
        pytest.param([CHUNKED, *[b"1\r\nx\r\n"] * PIECES, b"0\r\n\r\n"], id="chunks"),
        pytest.param([CHUNKED + b"1;", *[b"x"] * PIECES, b"\r\nx\r\n0\r\n\r\n"], id="extension"),
        pytest.param([CONTINUE, *[bytes([each]) for each in CONTINUE * 7], *[b"\r\n"] * PIECES, OK], id="before"),
    ],
)
async def test_tiny_pieces_wake_the_client_seldom(parts: list[bytes]) -> None:
    with serving(sending(*parts)) as url:
        assert await body_of(url) in (b"ok", b"x", b"x" * PIECES)
    assert len(parts) >= PIECES
    assert Counted.wakes < PIECES / 2


async def test_tiny_chunks_that_come_at_once_leave_turns_to_others() -> None:
    """Between two turns of a neighbour, only some slices of them are parsed."""
    chunks = 20_000
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(neighbour())
    with serving(lambda connection: connection.sendall(CHUNKED + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")) as url:
        assert await body_of(url) == b"x" * chunks
    beside.cancel()
    assert Counted.wakes < turns
    assert turns > 0.8 * 6 * chunks / SLICE_BYTES - BURST


async def test_an_honest_answer_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a head of its own, small chunks now and then, and reads that end anywhere."""
    found: list[int] = []
    pauses_after = BoundedProtocol._pauses_after

    def counted(protocol: BoundedProtocol, part: bytes) -> int:
        found.append(pauses_after(protocol, part))
        return found[-1]

    monkeypatch.setattr(BoundedProtocol, "_pauses_after", counted)
    body = b'{"metric":{"__name__":"load","instance":"node-1:9100"},"value":[1700000000.123,"0.25"]},' * 20_000
    parts = [body[start : start + 32_768] for start in range(0, len(body), 32_768)]
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
    with serving(sending(CHUNKED, *chunks, b"0\r\n\r\n")) as url:
        assert await body_of(url, max_bytes=len(body)) == body
    assert found
    assert not any(found)


async def test_an_answer_without_a_request_ends_the_connection_and_nothing_of_it_is_kept() -> None:
    """A pooled connection on which the server goes on; the next request has a connection of its own."""
    flood = OK * 20_000
    with serving(sending(OK + flood), sending(OK, flood), sending(OK)) as url:
        async with client() as session:
            for _ in range(3):
                async with session.get(url) as response:
                    assert await whole_body(response, max_bytes=10) == b"ok"
                last = Counted.last
                await eventually(lambda: last.transport is None or Counted.made == 3)  # noqa: B023 - called at once
    assert Counted.made == 3
    assert Counted.heads <= 3 + 2 * SLICE_BYTES / len(OK)


async def test_a_body_that_is_too_large_is_not_read_on() -> None:
    with serving(endless(CHUNKED, b"400\r\n" + b"x" * 1024 + b"\r\n")) as url, pytest.raises(TooLargeError):
        await body_of(url, max_bytes=10_000)
