"""What a hostile server can make its client do, over real sockets: the work is counted, not timed."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import aiohttp
import pytest
from aiohttp.connector import Connection

from workers.process.http_body import MAX_INFORMATIONAL, PAUSE_SECONDS, BoundedResponse, TooLargeError, whole_body

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
PIECES = 300


class Counted(BoundedResponse):
    """Counts how often something has come from the server."""

    received = 0
    came = threading.Event()

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        assert protocol is not None
        receive = protocol.data_received

        def counted(data: bytes) -> None:
            Counted.received += bool(data)  # aiohttp calls itself without data to go on
            Counted.came.set()
            receive(data)

        protocol.data_received = counted  # type: ignore[method-assign]
        return await super().start(connection)


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server in a thread, which answers the first request."""

    def serve() -> None:
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
async def getting(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    Counted.received = 0
    async with aiohttp.ClientSession(response_class=Counted) as session, session.get(url) as response:
        yield response


async def test_answers_before_the_final_one_are_read_only_a_few_times() -> None:
    sent = 0

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        for _ in range(1_000_000):
            connection.sendall(CONTINUE * 100)
            sent += 100

    with serving(endless) as url, pytest.raises(aiohttp.ClientResponseError, match="informational answers"):
        async with getting(url):
            pass
    assert 0 < sent < 1_000_000, "the client closes the connection"


async def test_a_few_answers_before_the_final_one_are_well() -> None:
    def few(connection: socket.socket) -> None:
        connection.sendall(CONTINUE * MAX_INFORMATIONAL + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with serving(few) as url:
        async with getting(url) as response:
            assert await whole_body(response, max_bytes=10) == b"ok"


async def test_a_body_in_tiny_pieces_wakes_the_client_seldom() -> None:
    """Each piece is sent as soon as the client has received the one before, or does not read for a moment."""

    def tiny(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(PIECES):
            Counted.came.clear()
            connection.sendall(b"1\r\nx\r\n")
            Counted.came.wait(PAUSE_SECONDS / 20)
        connection.sendall(b"0\r\n\r\n")

    with serving(tiny) as url:
        async with getting(url) as response:
            assert await whole_body(response, max_bytes=2 * PIECES) == b"x" * PIECES
    assert Counted.received < PIECES / 3


async def test_a_body_that_is_too_large_is_not_read_on() -> None:
    def large(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(100_000):
            connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")

    with serving(large) as url:
        async with getting(url) as response:
            with pytest.raises(TooLargeError):
                await whole_body(response, max_bytes=10_000)
    await asyncio.sleep(0)
