"""What may stand between `tas doctor` and a server: a reverse proxy, and one of NATS that shifts its clock."""

import asyncio
import datetime as dt
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email.utils import format_datetime
from http import HTTPStatus

import aiohttp
from aiohttp import web

HOP = {"Connection", "Content-Length", "Host", "Keep-Alive", "Server", "Transfer-Encoding"}
"""Headers that a proxy does not forward."""

_TIME = re.compile(rb'"ts":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)')


class ReverseProxy:
    """Forwards requests to a server.

    Attributes:
        url: Where it listens.
        headers: Added to each answer.
        ahead: How far it puts the server's clock ahead, in seconds.
        status: The code with which it answers by itself; None: it forwards.
    """

    def __init__(self, upstream: str, session: aiohttp.ClientSession) -> None:
        self.url = ""
        self.headers: dict[str, str] = {}
        self.ahead = 0.0
        self.status: HTTPStatus | None = None
        self._upstream = upstream
        self._session = session

    async def answer(self, request: web.Request) -> web.Response:
        if self.status is not None:
            return web.Response(status=self.status, text=self.status.phrase, headers=self.headers)
        async with self._session.request(
            request.method,
            self._upstream + request.raw_path,
            headers={name: value for name, value in request.headers.items() if name not in HOP},
            data=await request.read() or None,
        ) as response:
            kept = {name: value for name, value in response.headers.items() if name not in HOP}
            time = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.ahead)
            kept |= {"Date": format_datetime(time, usegmt=True)} | self.headers
            return web.Response(status=response.status, body=await response.read(), headers=kept)


@asynccontextmanager
async def reverse_proxy(
    upstream: str, *, client: ssl.SSLContext, server: ssl.SSLContext
) -> AsyncIterator[ReverseProxy]:
    """Runs a proxy by HTTPS, with the certificate of `server`, and with that of `client` for requests upstream."""

    async def forget(_request: web.Request, response: web.StreamResponse) -> None:
        if "Server" not in proxy.headers:
            response.headers.pop("Server", None)  # of aiohttp itself

    connector = aiohttp.TCPConnector(ssl=client)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        proxy = ReverseProxy(upstream, session)
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", proxy.answer)
        app.on_response_prepare.append(forget)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server).start()
            proxy.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()


@asynccontextmanager
async def refusing_proxy() -> AsyncIterator[str]:
    """Runs a proxy that lets nobody through, and returns its URL."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())


@asynccontextmanager
async def other_clock(url: str, ahead: float) -> AsyncIterator[str]:
    """Forwards to a nats-server, whose answers of JetStream have times that are ahead; returns the address."""
    host, _, port = url.removeprefix("nats://").partition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(host, int(port))
        with suppress(OSError):
            await asyncio.gather(_copied(reader, ours, 0.0), _copied(theirs, writer, ahead))

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        yield "nats://{}:{}".format(*server.sockets[0].getsockname())


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ahead: float) -> None:
    waiting = b""
    while data := await reader.read(1 << 16):
        waiting += data
        if ahead and not waiting.endswith(b"\r\n"):
            continue  # a time may be cut in two
        writer.write(_TIME.sub(lambda found: _shifted(found[1], ahead), waiting))
        waiting = b""
        await writer.drain()
    writer.close()


def _shifted(time: bytes, ahead: float) -> bytes:
    there = dt.datetime.fromisoformat(time.decode()) + dt.timedelta(seconds=ahead)
    return f'"ts":"{there.isoformat(timespec="seconds")}'.encode()
