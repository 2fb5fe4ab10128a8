"""Connections of an HTTP server within bounds: how many, how long, how large, and with whose certificate.

aiohttp bounds the size of headers and the time a connection may idle. Beside that, a client may neither send a
header nor take an answer as slowly as it likes, and many that say nothing keep nobody out: when there are too many, the
oldest that never asked goes first, then the one that has been idle for longest.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any, cast

import orjson
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from prometheus_client import CollectorRegistry, Counter, Gauge

from tas.errors import shortened
from workers.certificates import Certificates
from workers.logs import Throttle
from workers.tls import expires_of, refusal

log = structlog.get_logger("connections")

MAX_CONNECTIONS = 512
IDLE_SECONDS = 120.0
"""More than the 90 s after which Go's client, and so kube-scheduler, closes an idle connection itself: whoever closes
second does not run into a request that is on its way, and such a request is never sent again (protocol c1)."""

BACKLOG = 128
LINGER_SECONDS = 2.0
"""How long the rest of a refused body is read and forgotten, so that the client sees its answer."""

HALF_CLOSED_SECONDS = 0.5
"""How long a client that sends nothing more may be in the middle of a header: what has arrived is handled by then."""

SWEEPS = 5
"""How often the shortest limit is looked at while it passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may take. Times in seconds, sizes in bytes."""

    connections: int = MAX_CONNECTIONS
    idle_seconds: float = IDLE_SECONDS
    header_seconds: float = 5.0
    """From the first byte of a request to the end of its headers; also for a TLS handshake."""
    answer_seconds: float = 10.0
    """How long an answer may wait for its reader."""
    headers: int = 64
    header_bytes: int = 8190
    """Of one header line, or of the request line."""


class ConnectionMetrics:
    """Connections of one listener, in numbers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("tas_extender_connections", "Connections that are open.", registry=registry)
        self.closed = Counter(
            "tas_extender_connections_closed_total", "Connections closed by us.", ["reason"], registry=registry
        )
        for reason in CLOSED:
            self.closed.labels(reason)


CLOSED = ("certificate", "header_time", "answer_time", "limit", "unreadable")
"""Why we close a connection, beside its idle time and an orderly end."""


OVER = "its certificate has expired, or its authority is gone"


def _error(status: int, text: str) -> web.Response:
    return web.Response(body=orjson.dumps({"error": text}), status=status, content_type="application/json")


class Connection(web.RequestHandler):
    """One connection, from its handshake on."""

    def __init__(self, listener: "Listener", address: str, **options: Any) -> None:
        super().__init__(listener.server, loop=asyncio.get_running_loop(), **options)
        self._listener = listener
        self.address = address
        self.epoch = listener.certificates.epoch if listener.certificates else 0
        self.expires = inf
        self.since = time.monotonic()
        self.asked = False
        self._request: web.BaseRequest | None = None
        self._header_since = inf
        self._answer_since = inf
        self._half_closed = False
        self._open: asyncio.Transport | None = None

    # --- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over, if there was one."""
        self._open = cast("asyncio.Transport", transport)
        certificates = self._listener.certificates
        if certificates is not None:
            certificate = transport.get_extra_info("peercert")
            self.expires = expires_of(certificate)
            refused = certificates.check(certificate)
            if refused is not None:
                certificates.refused(refused, self.address)
                self.force_close()  # whatever it has sent already is not read
                transport.close()
                return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Whoever closed it."""
        self._listener.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a header, until a request begins."""
        if self._request is None and self._header_since == inf:
            self._header_since = time.monotonic()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override] # asyncio takes True as well
        """The client will send nothing more. What it asked completely is answered, and the rest is over."""
        if self._open is None or self._open.get_extra_info("sslcontext") is not None:
            return None  # TLS has no half of a connection
        request = self._request
        self._half_closed = self._header_since < inf if request is None else request.content.is_eof()
        return self._half_closed

    def pause_writing(self) -> None:
        """The client does not take what it is told."""
        super().pause_writing()
        self._answer_since = time.monotonic()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self._answer_since = inf

    # --- requests

    def began(self, request: web.BaseRequest) -> None:
        """The headers of a request are there."""
        self._request = request
        self._header_since = inf
        if self._half_closed and not request.content.is_eof():
            self.drop()

    def ended(self) -> None:
        """There is an answer, or will be none."""
        self._request = None
        self.asked = True
        self.since = time.monotonic()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What cannot be read as HTTP gets an answer and one line, no traceback: it is the client's."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self.ended()
        too_large = isinstance(exc, LineTooLong) or "many headers" in exc.message.lower()
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST
        text = shortened(exc.message.strip().partition("\n")[0].rstrip(":"))
        self._listener.closed(self, "unreadable", text)
        response = _error(status, f"request: {text}")
        response.force_close()
        return response

    # --- limits

    @property
    def is_busy(self) -> bool:
        """Whether a request is in hand."""
        return self._request is not None

    def is_last(self) -> bool:
        """Whether the client may ask nothing more after this."""
        return self._half_closed or self.is_over()

    def is_over(self) -> bool:
        """Whether the certificate that it was opened with is good no longer."""
        certificates = self._listener.certificates
        return certificates is not None and certificates.is_over(self.epoch, self.expires)

    def sweep(self, now: float, limits: Limits) -> None:
        """Closes it if it takes too long, or may go on no longer."""
        if self._open is None:
            return  # in its handshake, which has a limit of its own
        if now - self._answer_since > limits.answer_seconds:
            self._listener.closed(self, "answer_time", f"an answer not taken within {limits.answer_seconds:g} s")
            self.drop()
        elif self.is_busy:
            return
        elif self._half_closed and now - self._header_since > HALF_CLOSED_SECONDS:
            self.drop()  # it left in the middle of a header
        elif now - self._header_since > limits.header_seconds:
            self._listener.closed(self, "header_time", f"no complete header within {limits.header_seconds:g} s")
            self.drop()
        elif self.is_over():
            self._listener.closed(self, "certificate", OVER)
            self._open.close()

    def drop(self) -> None:
        """Ends it at once."""
        if self._open is not None:
            self._open.abort()


class Listener:
    """Accepts connections on sockets that listen, and serves `runner`'s app on each."""

    def __init__(
        self,
        runner: web.AppRunner,
        sockets: list[socket.socket],
        *,
        limits: Limits,
        certificates: Certificates | None = None,
        metrics: ConnectionMetrics | None = None,
    ) -> None:
        """`runner` has been set up."""
        assert runner.server is not None
        self.server = runner.server
        self.certificates = certificates
        self._sockets = sockets
        self._limits = limits
        self._metrics = metrics or ConnectionMetrics(CollectorRegistry())
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._told = Throttle()
        self._tasks: list[asyncio.Task[None]] = []
        self._answer = self.server.request_handler
        self.server.request_handler = self._handle
        self._metrics.open.set_function(lambda: len(self._connections))

    def start(self) -> None:
        """Begins to accept."""
        work: list[Callable[[], Awaitable[None]]] = [partial(self._accept, listener) for listener in self._sockets]
        work.append(self._sweep)
        if self.certificates is not None:
            work.append(self.certificates.run)
        self._tasks = [asyncio.create_task(_lasting(step)) for step in work]

    async def stop(self) -> None:
        """Accepts nobody any more; requests in hand are the runner's to finish."""
        handshakes = [task for connection, task in self._connections.items() if not connection.connected]
        for task in (*self._tasks, *handshakes):
            task.cancel()
        await asyncio.gather(*self._tasks, *handshakes, return_exceptions=True)
        for listener in self._sockets:
            listener.close()

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._connections.pop(connection, None)

    def closed(self, connection: Connection, reason: str, text: str) -> None:
        """Counts and logs that a connection is closed by us."""
        self._metrics.closed.labels(reason).inc()
        held_back = self._told.admit(reason, time.monotonic())
        if held_back is not None:
            log.warning(
                "connection_closed", reason=reason, error=text, address=connection.address, alike_before=held_back
            )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("Connection", request.protocol)
        connection.began(request)
        if connection.is_over():
            connection.ended()
            return self._forbidden(connection)
        try:
            response = await self._answer(request)
        finally:
            connection.ended()
        if connection.is_last():
            response.force_close()  # which tells the client
        return response

    def _forbidden(self, connection: Connection) -> web.Response:
        """What a client is told that may not ask any more; requests that were in hand are answered as ever."""
        self.closed(connection, "certificate", OVER)
        response = _error(HTTPStatus.FORBIDDEN, f"client: {OVER}")
        response.force_close()
        return response

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, peer = await loop.sock_accept(listener)
            except OSError as error:  # out of file descriptors, or a client that left at once
                if (held_back := self._told.admit("accept", time.monotonic())) is not None:
                    log.warning("accept_failed", error=error.strerror or str(error), alike_before=held_back)
                await asyncio.sleep(0.05)
                continue
            connection = self._new_connection(f"{peer[0]}:{peer[1]}")
            if len(self._connections) >= self._limits.connections and not self._make_room():
                self.closed(connection, "limit", f"{self._limits.connections} connections are open and busy")
                client.close()
                continue
            self._connections[connection] = loop.create_task(self._open(connection, client))

    def _new_connection(self, address: str) -> Connection:
        limits = self._limits
        return Connection(
            self,
            address,
            access_log=None,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=LINGER_SECONDS,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
        )

    def _make_room(self) -> bool:
        """Closes the connection that is missed least: of those that never asked the oldest, else the longest idle."""
        idle = [connection for connection in self._connections if not connection.is_busy]
        if not idle:
            return False
        least = min(idle, key=lambda connection: (connection.asked, connection.since))
        self.closed(least, "limit", f"{self._limits.connections} connections are open")
        self._connections.pop(least).cancel()
        least.drop()
        return True

    async def _open(self, connection: Connection, client: socket.socket) -> None:
        """The handshake, if there is one."""
        loop = asyncio.get_running_loop()
        certificates = self.certificates
        try:
            if certificates is None:
                await loop.connect_accepted_socket(lambda: connection, client)
            else:
                await loop.connect_accepted_socket(
                    lambda: connection,
                    client,
                    ssl=certificates.current.context,
                    ssl_handshake_timeout=self._limits.header_seconds,
                    ssl_shutdown_timeout=LINGER_SECONDS,
                )
        except OSError as error:  # ssl.SSLError among them
            self.forget(connection)
            if certificates is not None:
                certificates.refused(refusal(error), connection.address)
        except asyncio.CancelledError:
            self.forget(connection)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            raise

    async def _sweep(self) -> None:
        pause = min(self._limits.header_seconds, self._limits.answer_seconds) / SWEEPS
        while True:
            await asyncio.sleep(pause)
            now = time.monotonic()
            for connection in list(self._connections):
                connection.sweep(now, self._limits)


async def _lasting(work: Callable[[], Awaitable[None]]) -> None:
    """Whatever happens to one step: nobody would be heard any more."""
    while True:
        try:
            await work()
        except Exception:  # a bug in one step must not close the port to everybody
            log.exception("listener_failed")
        await asyncio.sleep(1.0)


async def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Sockets that listen on each address of `host`; port 0: any free one. Raises OSError.

    Where all who listen there say `shared`, the system spreads connections over them (SO_REUSEPORT).
    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listener = socket.socket(family, kind, protocol)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.settimeout(0)
            listener.bind(address)
            listener.listen(BACKLOG)
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets
