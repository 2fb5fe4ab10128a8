"""Connections of an HTTP server, with limits of number, time and size, and with a check of client certificates.

aiohttp limits the size of headers and the idle time of a connection. This module adds limits for the time of sending a
header and of reading a response. Many connections cannot keep other clients out: at the limit, the peer address with
most connections loses one. Its oldest connection without an answer so far is closed first, also in the middle of a
body, then the connection whose last answer is oldest.
"""

import asyncio
import collections
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Network
from math import inf
from typing import Any, cast

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.ticks import tick
from tas.errors import shortened
from workers.http.certificates import Certificates
from workers.http.limits import Limits
from workers.http.tls import expires_of
from workers.process.logs import ThrottledLog

log = structlog.get_logger("connections")

BACKLOG = 128
LINGER_SECONDS = 2.0
"""How long the rest of a refused body is read and discarded, so that the client receives its response."""

HALF_CLOSED_SECONDS = 0.5
"""How long a half-closed connection may have an incomplete header: data that has arrived is handled by then."""

SWEEPS_PER_LIMIT = 5
"""How many sweeps fall into the shortest limit."""


class ConnectionMetrics:
    """Metrics of the connections of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("tas_extender_connections", "Connections that are open.", registry=registry)
        self.closed = Counter(
            "tas_extender_connections_closed_total",
            "Connections that the extender closed.",
            ["reason"],
            registry=registry,
        )
        for reason in CLOSED:
            self.closed.labels(reason)


CLOSED = ("certificate", "header_time", "answer_time", "limit", "unreadable")
"""Reasons for closing a connection, apart from its idle time and an orderly end."""

EXPIRED = "its certificate has expired"
ENDING = "its certificate expires, or its authority was removed"


async def without_server(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Removes the header `Server`, by which aiohttp names itself and Python with their versions."""
    response.headers.pop("Server", None)


class _ErrorResponse(web.Response):
    """A response before any app has the request, so that no signal of an app is sent."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.pop("Server", None)


def _error(status: int, text: str) -> web.Response:
    return _ErrorResponse(body=msgspec.json.encode({"error": text}), status=status, content_type="application/json")


class Connection(web.RequestHandler):
    """A connection, from its handshake on."""

    def __init__(self, acceptor: "Acceptor", address: str, peer: str, **options: Any) -> None:
        super().__init__(acceptor.server, loop=asyncio.get_running_loop(), **options)
        self._acceptor = acceptor
        self.address = address
        self.peer = peer
        self.epoch = acceptor.certificates.epoch if acceptor.certificates else 0
        self.expires = inf
        self.since = time.monotonic()
        self.has_requested = False
        self._request: web.BaseRequest | None = None
        self._body: StreamReader = EMPTY_PAYLOAD
        self._header_since = inf
        self._answer_since = inf
        self._half_closed = False
        self._open: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TLS handshake, if any, is complete."""
        self._open = cast("asyncio.Transport", transport)
        certificates = self._acceptor.certificates
        if certificates is not None and certificates.verifies_clients:
            certificate = transport.get_extra_info("peercert")
            self.expires = expires_of(certificate)
            refused = certificates.check(certificate)
            if refused is not None:
                certificates.record_refusal(refused, self.address, self.peer)
                self.force_close()  # data that it has already sent is not read
                transport.close()
                return
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Closed by either side."""
        self._acceptor.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a header, until a request begins; before them the rest of a body, also of one that nobody read.

        They may come behind a request that is not answered yet. aiohttp itself gives none, to have its parser go on.
        """
        if data and self._header_since == inf and self._body.is_eof():
            self._header_since = time.monotonic()
        super().data_received(data)

    def eof_received(self) -> bool | None:  # type: ignore[override] # asyncio takes True as well
        """The client sends nothing more. Complete requests are answered; an incomplete one is dropped."""
        if self._open is None or self._open.get_extra_info("sslcontext") is not None:
            return None  # TLS has no half-closed connections
        request = self._request
        self._half_closed = self._header_since < inf if request is None else request.content.is_eof()
        return self._half_closed

    def pause_writing(self) -> None:
        """The client does not read its response."""
        super().pause_writing()
        self._answer_since = time.monotonic()

    def resume_writing(self) -> None:
        """The client has read most of its response."""
        super().resume_writing()
        self._answer_since = inf

    def start_request(self, request: web.BaseRequest) -> None:
        """The headers of a request have arrived."""
        self._request = request
        self._body = request.content
        self._header_since = inf
        if self._half_closed and not request.content.is_eof():
            self.drop()

    def end_request(self) -> None:
        """The request is answered, or will not be."""
        if self.is_complete:
            self.has_requested = True
            self.since = time.monotonic()
        if self._header_since < inf:
            self._header_since = time.monotonic()  # no request is read before the one before it is answered
        self._request = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Invalid HTTP gets a response and a log line without a traceback: the error is the client's."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self.end_request()
        too_large = isinstance(exc, LineTooLong) or "many headers" in exc.message.lower()
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST
        text = shortened(exc.message.strip().partition("\n")[0].rstrip(":"))
        self._acceptor.record_closing(self, "unreadable", text)
        response = _error(status, f"request: {text}")
        response.force_close()
        return response

    @property
    def is_busy(self) -> bool:
        """Whether a request has begun and is not answered."""
        return self._request is not None

    @property
    def is_complete(self) -> bool:
        """Whether a request has arrived completely, with its body, and is not answered."""
        return self._request is not None and self._request.content.is_eof()

    def end(self, response: web.StreamResponse) -> None:
        """Closes the connection after this response, which says `Connection: close`, if it is the last one."""
        if self._half_closed or self.is_ending():
            response.force_close()

    def is_expired(self) -> bool:
        """Whether the client's certificate has expired: no request is answered any more."""
        certificates = self._acceptor.certificates
        return certificates is not None and certificates.is_expired(self.expires)

    def is_ending(self) -> bool:
        """Whether the client's certificate expires within seconds, or its authority was removed."""
        certificates = self._acceptor.certificates
        return certificates is not None and certificates.is_ending(self.epoch, self.expires)

    def sweep(self, now: float, limits: Limits) -> None:
        """Closes the connection if it exceeds a time limit, or if its certificate must not be used any longer."""
        if self._open is None:
            return  # in its handshake, which has its own limit
        if self._open.is_closing() and self._answer_since == inf:
            self._answer_since = now  # what is left of its answers is still to be read
        if now - self._answer_since > limits.answer_seconds:
            self._acceptor.record_closing(
                self, "answer_time", f"the client did not read its response within {limits.answer_seconds:g} s"
            )
            self.drop()
        elif self.is_busy:
            return
        elif self._half_closed and now - self._header_since > HALF_CLOSED_SECONDS:
            self.drop()  # the client left in the middle of a header
        elif now - self._header_since > limits.header_seconds:
            self._acceptor.record_closing(self, "header_time", f"no complete header within {limits.header_seconds:g} s")
            self.drop()
        elif self.is_ending() and self._header_since == inf:  # else a request is on its way, and is answered
            self._acceptor.record_closing(self, "certificate", ENDING)
            self._open.close()

    def drop(self) -> None:
        """Closes the connection at once, without an orderly end."""
        if self._open is not None:
            self._open.abort()


class Acceptor:
    """Accepts connections on listening sockets, and serves `runner`'s app on each."""

    def __init__(
        self,
        runner: web.AppRunner,
        sockets: list[socket.socket],
        *,
        limits: Limits,
        certificates: Certificates | None = None,
        metrics: ConnectionMetrics | None = None,
    ) -> None:
        """`runner` must be set up."""
        assert runner.server is not None
        self.server = runner.server
        self.certificates = certificates
        self._sockets = sockets
        self._limits = limits
        self._metrics = metrics or ConnectionMetrics(CollectorRegistry())
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._throttled = ThrottledLog(log)
        self._tasks: list[asyncio.Task[None]] = []
        self._answer = self.server.request_handler
        self.server.request_handler = self._handle
        self._metrics.open.set_function(lambda: len(self._connections))
        if certificates is not None and certificates.verifies_clients:
            certificates.observe_clients(lambda: [each.expires for each in self._connections if each.expires < inf])

    def start(self) -> None:
        """Starts to accept connections."""
        work: list[Callable[[], Awaitable[None]]] = [partial(self._accept, listener) for listener in self._sockets]
        work.append(self._sweep)
        if self.certificates is not None:
            work.append(self.certificates.run)
        self._tasks = [asyncio.create_task(_restarted_on_error(step)) for step in work]

    async def stop(self) -> None:
        """Stops accepting; the runner finishes current requests."""
        handshakes = [task for connection, task in self._connections.items() if not connection.connected]
        for task in (*self._tasks, *handshakes):
            task.cancel()
        await asyncio.gather(*self._tasks, *handshakes, return_exceptions=True)
        for listener in self._sockets:
            listener.close()

    def forget(self, connection: Connection) -> None:
        """Removes a closed connection."""
        self._connections.pop(connection, None)

    def record_closing(self, connection: Connection, reason: str, text: str) -> None:
        """Counts and logs that the server closes a connection."""
        self._metrics.closed.labels(reason).inc()
        self._throttled.warning("connection_closed", reason, reason=reason, error=text, address=connection.address)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("Connection", request.protocol)
        connection.start_request(request)
        if connection.is_expired():
            connection.end_request()
            return self._forbidden(connection)
        try:
            response = await self._answer(request)
        except web.HTTPException as error:  # a response, too
            connection.end(error)
            raise
        finally:
            connection.end_request()
        connection.end(response)
        return response

    def _forbidden(self, connection: Connection) -> web.Response:
        """The response to a new request after the certificate has expired; requests already started are answered."""
        self.record_closing(connection, "certificate", EXPIRED)
        response = _error(HTTPStatus.FORBIDDEN, f"client: {EXPIRED}")
        response.force_close()
        return response

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, peer = await loop.sock_accept(listener)
            except OSError as error:  # no file descriptors left, or the client left at once
                self._throttled.warning("accept_failed", error=error.strerror or str(error))
                await asyncio.sleep(0.05)
                continue
            connection = self._new_connection(f"{peer[0]}:{peer[1]}", peer_of(peer[0]))
            if len(self._connections) >= self._limits.connections and not self._close_one_for(connection):
                self.record_closing(connection, "limit", f"{self._limits.connections} connections are open and busy")
                client.close()
            else:
                self._connections[connection] = loop.create_task(self._open(connection, client))
            await asyncio.sleep(0)  # what has arrived on other connections is read before the next one is accepted

    def _new_connection(self, address: str, peer: str) -> Connection:
        limits = self._limits
        return Connection(
            self,
            address,
            peer,
            access_log=None,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=LINGER_SECONDS,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            auto_decompress=False,  # a few MB may become GB, and no client of the product compresses this way
        )

    def _close_one_for(self, newcomer: Connection) -> bool:
        """Whether a connection could be closed: of the peers with most connections, the one that is of least use.

        A complete request is dropped only for a peer with fewer connections.
        """
        counts = collections.Counter(connection.peer for connection in self._connections)
        counts[newcomer.peer] += 1
        most = max(counts.values())
        may_drop_requests = counts[newcomer.peer] < most
        victims = [
            connection
            for connection in self._connections
            if counts[connection.peer] == most and (may_drop_requests or not connection.is_complete)
        ]
        if not victims:
            return False
        victim = min(victims, key=lambda each: (each.is_complete, each.has_requested, each.since))
        self.record_closing(victim, "limit", f"{self._limits.connections} connections are open")
        self._connections.pop(victim).cancel()
        victim.drop()
        return True

    async def _open(self, connection: Connection, client: socket.socket) -> None:
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
        except Exception as error:  # noqa: BLE001 - OSError with ssl.SSLError, or of `getpeercert`: it reads every name
            self.forget(connection)
            if certificates is not None:
                certificates.record_refusal(certificates.refusal_of(error), connection.address, connection.peer)
        except asyncio.CancelledError:
            self.forget(connection)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            raise

    async def _sweep(self) -> None:
        pause = min(self._limits.header_seconds, self._limits.answer_seconds) / SWEEPS_PER_LIMIT
        while True:
            await tick(pause)
            now = time.monotonic()
            for connection in list(self._connections):
                connection.sweep(now, self._limits)


async def _restarted_on_error(work: Callable[[], Awaitable[None]]) -> None:
    """Runs `work` again after any error: otherwise the port would stay open and nobody would be served."""
    while True:
        try:
            await work()
        except Exception:  # a bug in one step must not stop the listener
            log.exception("listener_failed")
        await asyncio.sleep(1.0)


def peer_of(host: str) -> str:
    """Which addresses count as one peer: an IPv6 host has all addresses of its /64."""
    if ":" not in host:
        return host
    return str(IPv6Network((host.partition("%")[0], 64), strict=False))


async def bind(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Listening sockets for each address of `host`; port 0: any free one. Raises OSError.

    An empty host is every interface, of the families that this machine has. With `shared` several processes may listen
    there; the system distributes connections (SO_REUSEPORT).
    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            try:
                listener = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(infos) > 1:
                    continue  # a machine without IPv6
                raise
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.settimeout(0)
            chosen = sockets[0].getsockname()[1] if port == 0 and len(sockets) > 1 else port
            listener.bind((address[0], chosen, *address[2:]))
            listener.listen(BACKLOG)
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets
