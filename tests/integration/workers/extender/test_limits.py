"""The limits of connections over real sockets: each limit, and that other clients are answered meanwhile."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.integration.servers import eventually
from tests.integration.workers.extender.test_http import Connection, Reply, request
from workers.http.address import Address
from workers.http.connections import ConnectionMetrics
from workers.http.limits import Limits
from workers.http.listening import listening

PATIENCE = 120.0
LARGE = 32 << 20
SMALL = 8 << 10
"""Below what a transport holds back before it pauses its writer."""


@dataclass
class Served:
    address: Address
    registry: CollectorRegistry
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0
    held: int = 0
    transport: asyncio.Transport | None = None
    """Of the last request."""

    @asynccontextmanager
    async def connect(self, source: str = "127.0.0.1") -> AsyncIterator[Connection]:
        """A connection from `source`, an address of this machine."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port, local_addr=(source, 0))
        try:
            yield Connection(reader, writer)
        finally:
            writer.transport.abort()

    async def ask(self, path: str = "/quick") -> Reply:
        async with self.connect() as connection:
            await connection.send(request(path))
            return await connection.receive()

    async def still_answers(self) -> None:
        assert (await self.ask()).status == 200

    def closed(self, reason: str) -> float:
        return self.registry.get_sample_value("tas_extender_connections_closed_total", {"reason": reason}) or 0.0

    def open(self) -> float:
        return self.registry.get_sample_value("tas_extender_connections") or 0.0

    def waiting(self) -> int:
        """How many bytes of answers wait until the client reads."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    async def has_open(self, connections: int) -> None:
        """Waits until at most so many connections are open."""
        await eventually(lambda: self.open() <= connections)


async def is_closed(connection: Connection) -> None:
    """Reads until the connection is closed."""
    async with asyncio.timeout(PATIENCE):
        try:
            while await connection.reader.read(1 << 20):
                pass
        except ConnectionError:
            pass


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[Served]:
    served = Served(Address("127.0.0.1", 0), CollectorRegistry())

    async def answer(request: web.Request) -> web.Response:
        served.begun += 1
        served.transport = request.transport
        if request.path != "/unread":
            with suppress(ConnectionError):
                await request.read()
        if request.path == "/held":
            served.held += 1
            await served.holding.wait()
        return web.Response(body=bytes({"/large": LARGE, "/small": SMALL}.get(request.path, 0)) or b"{}")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    metrics = ConnectionMetrics(served.registry)
    async with listening(app, served.address, purpose="test", limits=Limits(**limits), metrics=metrics) as address:
        served.address = address
        yield served


@pytest.mark.parametrize(
    "part", [b"POST /quick", b"POST /quick HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["line", "header"]
)
async def test_slow_headers_close_the_connection(part: bytes) -> None:
    async with serving(header_seconds=1.0) as served, served.connect() as slow, served.connect() as dripping:
        await slow.send(part)
        await dripping.send(part)

        async def drip() -> None:
            while True:
                await dripping.send(b"x")
                await served.still_answers()

        with pytest.raises((ConnectionError, RuntimeError)):  # the latter is uvloop's
            async with asyncio.timeout(PATIENCE):
                await drip()
        await is_closed(slow)
        assert served.closed("header_time") == 2
        await served.still_answers()


async def test_headers_of_a_later_request_have_the_same_time_limit() -> None:
    async with serving(header_seconds=1.0) as served, served.connect() as slow:
        await slow.send(request("/quick"))
        assert (await slow.receive()).status == 200
        await slow.send(b"POST /quick")
        await is_closed(slow)
        assert served.closed("header_time") == 1


async def test_a_request_being_answered_is_not_a_slow_header() -> None:
    async with serving(header_seconds=0.5) as served, served.connect() as busy, served.connect() as slow:
        await busy.send(request("/held"))
        await slow.send(b"P")
        await is_closed(slow)  # the limit has passed for both

        served.holding.set()
        assert (await busy.receive()).status == 200
        assert served.closed("header_time") == 1


async def test_the_rest_of_a_refused_body_is_no_slow_header() -> None:
    """An answer before the body is complete: 404, 415, or 503 while the worker is not ready."""
    async with serving(header_seconds=1.0) as served, served.connect() as refused, served.connect() as slow:
        await refused.send(request("/unread", b"{", length=2))
        assert (await refused.receive()).status == 200
        await refused.send(b"}")
        await refused.send(request("/quick"))
        assert (await refused.receive()).status == 200, "the connection is used again"

        await refused.send(request("/unread", b"{", length=2))
        assert (await refused.receive()).status == 200
        await refused.send(b"}")
        await slow.send(b"P")
        await is_closed(slow)  # the limit has passed for both
        await refused.send(request("/quick"))
        assert (await refused.receive()).status == 200
        assert served.closed("header_time") == 1


async def test_an_idle_connection_is_closed() -> None:
    async with serving(idle_seconds=0.5) as served, served.connect() as fresh, served.connect() as used:
        await used.send(request("/quick"))
        assert (await used.receive()).status == 200
        await is_closed(used)
        await is_closed(fresh)
        await served.still_answers()


async def test_a_response_that_is_not_read_closes_the_connection() -> None:
    # The limit is long enough for the first response on a busy machine: server and clients share one loop.
    async with serving(answer_seconds=6.0) as served, served.connect() as reading:
        await reading.send(request("/large"))
        assert len((await reading.receive()).body) == LARGE
        with socket.socket() as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.setblocking(False)
            await asyncio.get_running_loop().sock_connect(greedy, (served.address.host, served.address.port))
            await asyncio.get_running_loop().sock_sendall(greedy, request("/large"))
            await eventually(lambda: served.closed("answer_time") == 1)
            # The limit has passed for both, but the first response was read.
            await reading.send(request("/quick"))
            assert (await reading.receive()).status == 200
            await served.has_open(1)


async def test_a_large_response_that_is_read_is_complete() -> None:
    async with serving() as served:
        assert len((await served.ask("/large")).body) == LARGE


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([f"X-{number}: y" for number in range(100)], 431),
        (["X-Large: " + "y" * 9000], 431),
        (["X-Odd\x00: y"], 400),
        (["no colon"], 400),
    ],
    ids=["many", "long", "control", "malformed"],
)
async def test_invalid_headers_get_an_error_response(lines: list[str], status: int) -> None:
    head = "\r\n".join(["POST /quick HTTP/1.1", "Host: x", *lines, "", ""]).encode()
    with capture_logs() as logs:
        async with serving() as served:
            for _ in range(3):
                async with served.connect() as connection:
                    await connection.send(head)
                    reply = await connection.receive()
                    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
                    assert reply.json["error"].startswith("request: ")
                    await is_closed(connection)
            await served.still_answers()
            assert served.closed("unreadable") == 3
    assert [(line["event"], line["reason"]) for line in logs] == [("connection_closed", "unreadable")]


async def test_a_too_long_request_line_gets_431() -> None:
    async with serving() as served:
        assert (await served.ask("/" + "x" * 9000)).status == 431


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GARBAGE\r\n\r\n", b"\x00" * 5000])
async def test_invalid_http_closes_only_its_own_connection(noise: bytes) -> None:
    async with serving(header_seconds=1.0) as served, served.connect() as connection:
        await connection.send(noise)
        await is_closed(connection)
        await served.still_answers()


async def test_at_the_limit_the_oldest_connection_without_a_request_is_closed_first() -> None:
    async with serving(connections=4) as served, served.connect() as first, served.connect() as second:
        await first.send(request("/quick"))
        assert (await first.receive()).status == 200
        async with served.connect() as third, served.connect() as fourth:
            await fourth.send(request("/held"))
            await eventually(lambda: served.held == 1)
            assert (await served.ask()).status == 200  # a fifth
            await is_closed(second)
            assert served.closed("limit") == 1

            await first.send(request("/quick"))
            assert (await first.receive()).status == 200, "the first connection has sent a request before"
            served.holding.set()
            assert (await fourth.receive()).status == 200, "a request in hand is finished"
            await third.send(request("/quick"))
            assert (await third.receive()).status == 200, "only one connection is closed"


async def test_with_all_connections_busy_a_new_connection_is_refused() -> None:
    async with serving(connections=2) as served, served.connect() as one, served.connect() as two:
        for connection in (one, two):
            await connection.send(request("/held"))
        await eventually(lambda: served.held == 2)
        async with served.connect() as three:
            await is_closed(three)
        served.holding.set()
        assert [(await one.receive()).status, (await two.receive()).status] == [200, 200]
        await served.still_answers()


async def test_many_silent_connections_do_not_block_other_clients() -> None:
    async with serving(connections=20) as served, served.connect() as scheduler:
        await scheduler.send(request("/quick"))
        assert (await scheduler.receive()).status == 200
        flood = [await asyncio.open_connection(served.address.host, served.address.port) for _ in range(200)]
        await served.still_answers()
        await scheduler.send(request("/quick"))
        assert (await scheduler.receive()).status == 200
        assert served.open() <= 20
        for _, writer in flood:
            writer.transport.abort()
        await served.has_open(1)


async def test_many_incomplete_bodies_do_not_block_other_clients() -> None:
    async with serving(connections=20) as served, served.connect() as scheduler:
        await scheduler.send(request("/quick"))
        assert (await scheduler.receive()).status == 200
        async with AsyncExitStack() as flood:
            for number in range(60):
                attacker = await flood.enter_async_context(served.connect())
                await attacker.send(request("/quick", b"{", length=1000))
                if number % 10 == 9:
                    await served.still_answers()
                    await scheduler.send(request("/quick"))
                    assert (await scheduler.receive()).status == 200
            await eventually(lambda: served.begun >= 60)
            assert served.closed("limit") >= 40, "most of these connections are closed again"
            await served.still_answers()
            await scheduler.send(request("/quick"))
            assert (await scheduler.receive()).status == 200
        await served.has_open(1)


async def test_a_body_that_is_not_complete_does_not_count_as_use() -> None:
    async with serving(connections=2) as served, served.connect() as used, served.connect() as incomplete:
        await used.send(request("/quick"))
        assert (await used.receive()).status == 200
        await incomplete.send(request("/unread", b"{", length=1000))
        assert (await incomplete.receive()).status == 200
        await served.still_answers()
        await is_closed(incomplete)
        await used.send(request("/quick"))
        assert (await used.receive()).status == 200


async def test_the_peer_with_most_connections_loses_one() -> None:
    async with serving(connections=4) as served, served.connect() as scheduler, AsyncExitStack() as others:
        await scheduler.send(request("/quick"))
        assert (await scheduler.receive()).status == 200
        for _ in range(5):
            attacker = await others.enter_async_context(served.connect("127.0.0.2"))
            await attacker.send(request("/quick"))
            assert (await attacker.receive()).status == 200
        assert served.closed("limit") == 2
        await scheduler.send(request("/quick"))
        assert (await scheduler.receive()).status == 200, "its last answer was the oldest of all"


async def test_complete_requests_of_one_peer_do_not_keep_other_peers_out() -> None:
    async with serving(connections=3) as served, AsyncExitStack() as others:
        attackers = [await others.enter_async_context(served.connect("127.0.0.2")) for _ in range(3)]
        for attacker in attackers:
            await attacker.send(request("/held"))
        await eventually(lambda: served.held == 3)
        async with served.connect("127.0.0.2") as fourth:
            await is_closed(fourth)
        await served.still_answers()
        assert served.closed("limit") == 2
        served.holding.set()
        assert [(await attacker.receive()).status for attacker in attackers[1:]] == [200, 200]


async def test_a_complete_request_on_a_half_closed_connection_is_answered() -> None:
    async with serving() as served, served.connect() as connection:
        await connection.send(request("/held"))
        connection.writer.write_eof()
        await eventually(lambda: served.held == 1)
        await served.still_answers()
        served.holding.set()
        reply = await connection.receive()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        await is_closed(connection)
        await served.has_open(0)


@pytest.mark.parametrize(
    "sent", [b"", b"POST /qui", request("/quick", length=1000)], ids=["nothing", "half a header", "half a body"]
)
async def test_an_incomplete_request_on_a_half_closed_connection_is_dropped(sent: bytes) -> None:
    with capture_logs() as logs:
        async with serving() as served, served.connect() as connection:
            await connection.send(sent)
            connection.writer.write_eof()
            async with asyncio.timeout(PATIENCE):
                assert await connection.reader.read() == b""
            await served.has_open(0)
            await served.still_answers()
    assert logs == []


async def test_an_idle_connection_is_removed_though_the_client_does_not_close_it() -> None:
    async with serving(idle_seconds=0.5) as served, served.connect() as connection:
        await connection.send(request("/quick"))
        assert (await connection.receive()).status == 200
        connection.reader._transport.pause_reading()  # type: ignore[attr-defined] # the client never sees the close
        await served.has_open(0)


async def test_a_closed_connection_whose_client_does_not_read_the_end_of_its_answers_is_removed() -> None:
    """So few bytes are left that the server could write more. A connection that is closed waits for their way out."""
    loop = asyncio.get_running_loop()
    async with serving(answer_seconds=1.0) as served:
        with socket.socket() as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.setblocking(False)
            await loop.sock_connect(greedy, (served.address.host, served.address.port))
            while not served.waiting():
                begun = served.begun
                await loop.sock_sendall(greedy, request("/small"))
                await eventually(lambda begun=begun: served.begun > begun)  # type: ignore[misc]
            await loop.sock_sendall(greedy, request("/quick", Connection="close"))
            await eventually(lambda: served.open() == 0)
        assert served.closed("answer_time") == 1


async def test_a_stop_closes_every_connection_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with serving() as served, served.connect() as idle, served.connect() as half:
        await idle.send(request("/quick"))
        assert (await idle.receive()).status == 200
        await half.send(b"POST")
        await eventually(lambda: served.open() == 2)
    await eventually(lambda: asyncio.all_tasks() <= before)


async def test_at_the_limit_the_connection_that_has_been_idle_for_longest_is_closed() -> None:
    async with serving(connections=2) as served, served.connect() as first, served.connect() as second:
        for connection in (first, second, first):
            await connection.send(request("/quick"))
            assert (await connection.receive()).status == 200
        assert (await served.ask()).status == 200
        await is_closed(second)
        await first.send(request("/quick"))
        assert (await first.receive()).status == 200
