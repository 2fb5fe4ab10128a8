"""Prometheus remote write 1.0, received over HTTP.

A sender sends again after 5xx and never after 4xx (n25): so 5xx stands for what may go well later, as when the bus is
away, and 4xx for what can never be taken. What policies do not use is left out, and that is no error.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.errors import BusError
from tas.errors import shortened
from tas.sources.reading import Batch, Gathering, Refused, combined
from tas.sources.remote_write import SeriesBook
from tas.sources.write_request import WriteError, decode_write_request
from workers.logs import Throttle
from workers.runtime import Address, listening
from workers.sources.config import ConfigFile

log = structlog.get_logger("collect")

PATH = "/api/v1/write"
"""As of Prometheus' own receiver."""

MAX_BODY_BYTES = 8 << 20
"""The largest body as it comes, compressed."""

MAX_HELD_BYTES = 64 << 20
"""Of all bodies in hand together: beyond it, senders are asked to come again."""

BODY_SECONDS = 10.0
"""How long a body may take to arrive."""

MESSAGE = "prometheus.WriteRequest"

Take = Callable[[Batch], Awaitable[None]]


class RemoteWriteMetrics:
    """What is received, by all such sources of a process."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.requests = Counter(
            "tas_remote_write_requests", "Requests by HTTP status.", ["source", "code"], registry=registry
        )
        self.series = Gauge("tas_remote_write_series", "Series that are alive and kept.", ["source"], registry=registry)


class _RefusedError(Exception):
    """The request gets `status`; `close` if the rest of it is not worth waiting for."""

    def __init__(self, status: HTTPStatus, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close


class RemoteWrite:
    """The source.

    Attributes:
        name: As of every source.
        url: Where it is written to; empty while it does not listen.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        config: ConfigFile,
        *,
        metrics: RemoteWriteMetrics | None = None,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.name = name
        self.url = ""
        self._address = address
        self._config = config
        self._metrics = metrics or RemoteWriteMetrics(None)
        self._body_seconds = body_seconds
        self._book: SeriesBook | None = None
        self._mappings: object = None
        self._turn = asyncio.Lock()
        self._held = 0
        self._lines = Throttle()
        self._metrics.series.labels(name).set_function(lambda: float(self._book.series if self._book else 0))

    async def listen(self, metrics: Callable[[], frozenset[str]], take: Take) -> None:
        """As of every listener. Raises StartError if the address cannot be listened on."""
        app = web.Application()

        async def handle(request: web.Request) -> web.Response:
            return await self._answer(request, metrics, take)

        app.router.add_route("*", "/{path:.*}", handle)
        async with listening(app, self._address, purpose=f"source {self.name}") as address:
            self.url = f"http://{address}{PATH}"
            log.info("remote_write_listening", source=self.name, url=self.url)
            try:
                await asyncio.Event().wait()
            finally:
                self.url = ""

    async def _answer(self, request: web.Request, metrics: Callable[[], frozenset[str]], take: Take) -> web.Response:
        try:
            _admit(request)
            await self._write(request, metrics(), take)
            response = web.Response(status=HTTPStatus.NO_CONTENT)
        except _RefusedError as error:
            response = self._refused(request, error)
        except Exception:  # a bug in one request must not reach any other; it may go well later
            log.exception("remote_write_failed", source=self.name)
            response = web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="a bug, see the log\n")
        self._metrics.requests.labels(self.name, str(response.status)).inc()
        return response

    async def _write(self, request: web.Request, metrics: frozenset[str], take: Take) -> None:
        """Takes a request in, and returns when what counts of it is published. Raises _RefusedError."""
        body = await self._body(request)
        try:
            batch, invalid = await self._read(body, metrics)
        except WriteError as error:
            batch, invalid = _refusal(1, str(error)), str(error)
        finally:
            self._held -= len(body)
        try:
            await take(batch)
        except BusError as error:
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"not published, send it again: {error}") from error
        if invalid is not None:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, invalid)

    async def _read(self, body: bytes, metrics: frozenset[str]) -> tuple[Batch, str | None]:
        """What a body says of `metrics`, and what in it breaks the protocol. Raises WriteError."""
        mappings = (await self._config.current()).mappings
        async with self._turn:  # one at a time: so memory is bounded, and the book has one reader
            if self._book is None or mappings is not self._mappings:
                self._book, self._mappings = SeriesBook(mappings), mappings
            return await asyncio.to_thread(_taken, self._book, body, metrics)

    async def _body(self, request: web.Request) -> bytes:
        """The body; its bytes count as held until the caller lets go of them. Raises _RefusedError."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._held += len(chunk)
                    self._check_size(len(body))
            return bytes(body)
        except BaseException as error:  # whatever it was, also a cancellation: its bytes are not held any more
            self._held -= len(body)
            if isinstance(error, TimeoutError):
                told = f"body: {len(body)} bytes in {self._body_seconds:g} s: too slow, send it again"
                raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, told, close=True) from None
            if isinstance(error, ConnectionError | web.RequestPayloadError):
                raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"body: {error}", close=True) from error
            raise

    def _check_size(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise _too_large(size)
        if self._held > MAX_HELD_BYTES:
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too much at once, send it again", close=True)

    def _refused(self, request: web.Request, error: _RefusedError) -> web.Response:
        held_back = self._lines.admit(error.status, time.monotonic())
        if held_back is not None:
            sender = request.headers.get("User-Agent", "")
            log.warning(
                "remote_write_refused",
                source=self.name,
                status=int(error.status),
                reason=str(error),
                peer=request.remote,
                sender=shortened(sender),
                alike_before=held_back,
            )
        response = web.Response(status=error.status, text=f"{error}\n")
        if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = "POST"
        elif error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            response.headers["Retry-After"] = "1"
        if error.close:
            response.force_close()
        return response


def _taken(book: SeriesBook, body: bytes, metrics: frozenset[str]) -> tuple[Batch, str | None]:
    batch, invalid = book.take(decode_write_request(body), metrics, now=time.time())
    if invalid is None:
        return batch, None
    return combined([batch, _refusal(invalid.number, invalid.example)]), invalid.example


def _refusal(count: int, reason: str) -> Batch:
    gathering = Gathering()
    gathering.refuse(Refused.SHAPE, "remote write", "request", "unreadable", reason, count=count)
    return gathering.batch()


def _admit(request: web.Request) -> None:
    """What can be told from the headers, and before any work. Raises _RefusedError."""
    if request.path != PATH:
        raise _RefusedError(HTTPStatus.NOT_FOUND, f"path = {shortened(request.path)}: it is written to {PATH}")
    if request.method != "POST":
        raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"method = {shortened(request.method)}: must be POST")
    for header, reason in (
        ("Content-Encoding", _encoding_fault(request)),
        ("Content-Type", _type_fault(request)),
        ("X-Prometheus-Remote-Write-Version", _version_fault(request)),
    ):
        if reason is not None:
            told = f"{header} = {shortened(request.headers.get(header, ''))}: {reason}"
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, told, close=True)
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large(request.content_length or 0)


def _encoding_fault(request: web.Request) -> str | None:
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    return None if encoding == "snappy" else "must be snappy"


def _type_fault(request: web.Request) -> str | None:
    kind, _, parameters = request.headers.get("Content-Type", "").partition(";")
    message = dict(_parameters(parameters)).get("proto", MESSAGE)
    if kind.strip().lower() == "application/x-protobuf" and message == MESSAGE:
        return None
    return f"must be application/x-protobuf, and its message {MESSAGE} (remote write 1.0)"


def _parameters(text: str) -> list[tuple[str, str]]:
    parts = (part.partition("=") for part in text.split(";"))
    return [(name.strip().lower(), value.strip().strip('"')) for name, _, value in parts]


def _version_fault(request: web.Request) -> str | None:
    version = request.headers.get("X-Prometheus-Remote-Write-Version", "0.1.0").strip()
    return None if version.startswith(("0.", "1.")) else "must be 0.1.0 (remote write 1.0)"


def _too_large(size: int) -> _RefusedError:
    told = f"body = {size} bytes: must be at most {MAX_BODY_BYTES}, send fewer samples at once"
    return _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, told, close=True)
