"""A real HTTP server that receives what a sink sends, and answers as a test says."""

import asyncio
import base64
import hashlib
import hmac
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from tests.integration.servers import eventually

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""The answer to a request; None accepts the request."""


@dataclass
class Received:
    """One request."""

    headers: dict[str, str]
    body: bytes
    time: float

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def event_id(self) -> str:
        return str(self.json["id"])

    @property
    def data(self) -> Any:
        """The data of a CloudEvent."""
        return self.json["data"]

    def is_signed_with(self, secret: bytes) -> bool:
        """Checks the signature as a receiver of Standard Webhooks does, with code of its own."""
        content = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split()


@dataclass
class Receiver:
    """The server. `behaviour` answers each request; None accepts it."""

    url: str = ""
    behaviour: Behaviour | None = None
    requests: list[Received] = field(default_factory=list)
    accepted: list[Received] = field(default_factory=list)

    async def receives(self, count: int) -> None:
        """Waits until so many requests have been accepted."""
        await eventually(lambda: len(self.accepted) >= count)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(headers, await request.read(), time.monotonic())
        self.requests.append(received)
        if self.behaviour is not None and (answer := await self.behaviour(request)) is not None:
            return answer
        self.accepted.append(received)
        return web.Response(status=204)


@asynccontextmanager
async def receiving(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a free port of loopback; with `tls` by HTTPS."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/{tail:.*}", receiver._answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        port = runner.addresses[0][1]
        receiver.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/in"
        yield receiver
    finally:
        await runner.cleanup()


def answering(status: int, **headers: str) -> Behaviour:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="no", headers=headers)

    return answer


async def hanging(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def flooding(request: web.Request) -> web.StreamResponse:
    """An error with 10 MB, and no end after that."""
    response = web.StreamResponse(status=502)
    await response.prepare(request)
    for _ in range(160):
        await response.write(b"x" * 65536)
    await asyncio.Event().wait()
    return response
