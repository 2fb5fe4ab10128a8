"""Prometheus remote write 1.0, received over HTTP.

A sender retries after 5xx and never after 4xx (facts.md n25): so temporary failures, as an unreachable bus, get 5xx,
and invalid requests get 4xx. Series that no policy uses are ignored without an error.
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
from tas.sources.bearer_tokens import token_problem
from tas.sources.nodes import NodeNames, any_node
from tas.sources.remote_write import SeriesStore
from tas.sources.result import RefusalReason, ResultBuilder, SourceResult, combined
from tas.sources.write_request import WriteError, decode_write_request
from workers.collect.sources.config import ConfigFile
from workers.collect.sources.tokens import TokenFile
from workers.http.address import Address
from workers.http.certificates import Certificates
from workers.http.listening import listening
from workers.process.logs import ThrottledLog

log = structlog.get_logger("collect")

PATH = "/api/v1/write"
"""The path of Prometheus' own receiver."""

MAX_BODY_BYTES = 8 << 20
"""The largest compressed body."""

MAX_HELD_BYTES = 64 << 20
"""Limit of all current bodies together: above it, senders get 503 and retry."""

BODY_SECONDS = 10.0
"""How long a body may take to arrive."""

LOGGED_SENDERS = 32
"""How many refused senders and statuses the log distinguishes."""

MESSAGE = "prometheus.WriteRequest"

Publish = Callable[[SourceResult], Awaitable[None]]


class RemoteWriteMetrics:
    """Metrics of received requests, of all such sources of a process."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.requests = Counter(
            "tas_remote_write_requests", "Requests by HTTP status.", ["source", "code"], registry=registry
        )
        self.series = Gauge("tas_remote_write_series", "Active series.", ["source"], registry=registry)


class _RefusedError(Exception):
    """The request gets `status`; with `close` the connection is closed after that."""

    def __init__(self, status: HTTPStatus, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close


class RemoteWrite:
    """The source.

    Attributes:
        name: As for every source.
        url: The URL for senders; empty while it does not listen.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        config: ConfigFile,
        *,
        metrics: RemoteWriteMetrics | None = None,
        certificates: Certificates | None = None,
        tokens: TokenFile | None = None,
        body_seconds: float = BODY_SECONDS,
        nodes: Callable[[], NodeNames] = any_node,
    ) -> None:
        """`certificates`: None: plain HTTP. `tokens`: those of senders; None: every sender may write."""
        self.name = name
        self.url = ""
        self._address = address
        self._config = config
        self._metrics = metrics or RemoteWriteMetrics(None)
        self._certificates = certificates
        self._tokens = tokens
        self._body_seconds = body_seconds
        self._nodes = nodes
        self._store: SeriesStore | None = None
        self._mappings: object = None
        self._lock = asyncio.Lock()
        self._held = 0
        self._throttled = ThrottledLog(log, keys=LOGGED_SENDERS)
        self._metrics.series.labels(name).set_function(lambda: float(self._store.series if self._store else 0))

    async def listen(self, metrics: Callable[[], frozenset[str]], publish: Publish) -> None:
        """As for every listener. Raises StartError if the address cannot be used."""
        app = web.Application()

        async def handle(request: web.Request) -> web.Response:
            return await self._answer(request, metrics, publish)

        app.router.add_route("*", "/{path:.*}", handle)
        purpose = f"source {self.name}"
        async with listening(app, self._address, purpose=purpose, certificates=self._certificates) as address:
            self.url = f"{'https' if self._certificates else 'http'}://{address}{PATH}"
            log.info("remote_write_listening", source=self.name, url=self.url)
            if missing := self._missing_protection():
                log.warning("remote_write_unprotected", source=self.name, url=self.url, missing=missing)
            try:
                await asyncio.Event().wait()
            finally:
                self.url = ""

    def _missing_protection(self) -> list[str]:
        """The flags without which another machine can write, or read a token on its way."""
        if self._address.is_loopback:
            return []
        given = {"--remote-write-cert": self._certificates, "--remote-write-token": self._tokens}
        return [flag for flag, value in given.items() if value is None]

    async def _answer(
        self, request: web.Request, metrics: Callable[[], frozenset[str]], publish: Publish
    ) -> web.Response:
        try:
            await self._authenticate(request)
            _admit(request)
            await self._write(request, metrics(), publish)
            response = web.Response(status=HTTPStatus.NO_CONTENT)
        except _RefusedError as error:
            response = self._refused(request, error)
        except Exception:  # a bug in one request must not affect others; a retry may succeed
            log.exception("remote_write_failed", source=self.name)
            response = web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="a bug, see the log\n")
        self._metrics.requests.labels(self.name, str(response.status)).inc()
        return response

    async def _authenticate(self, request: web.Request) -> None:
        """Raises _RefusedError for a request without one of the tokens."""
        if self._tokens is None:
            return
        problem = token_problem(request.headers.get("Authorization"), await self._tokens.current())
        if problem is not None:
            raise _RefusedError(HTTPStatus.UNAUTHORIZED, f"Authorization: {problem}", close=True)

    async def _write(self, request: web.Request, metrics: frozenset[str], publish: Publish) -> None:
        """Returns when the used samples of the request are published. Raises _RefusedError."""
        body = await self._body(request)
        try:
            result, invalid = await self._read(body, metrics)
        except WriteError as error:
            result, invalid = _refusal(1, str(error)), str(error)
        finally:
            self._held -= len(body)
        try:
            await publish(result)
        except BusError as error:
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"not published, send it again: {error}") from error
        if invalid is not None:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, invalid)

    async def _read(self, body: bytes, metrics: frozenset[str]) -> tuple[SourceResult, str | None]:
        """The samples of `metrics` in a body, and its first protocol error. Raises WriteError."""
        mappings = (await self._config.current()).mappings
        async with self._lock:  # one at a time: so memory is bounded, and the store has one reader
            if self._store is None or mappings is not self._mappings:
                self._store, self._mappings = SeriesStore(mappings), mappings
            return await asyncio.to_thread(_read_samples, self._store, body, metrics, self._nodes())

    async def _body(self, request: web.Request) -> bytes:
        """The body; its bytes count as held until the caller releases them. Raises _RefusedError."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._held += len(chunk)
                    self._check_size(len(body))
            return bytes(body)
        except BaseException as error:  # any error or cancellation: its bytes are not held any more
            self._held -= len(body)
            if isinstance(error, TimeoutError):
                text = f"body: {len(body)} bytes in {self._body_seconds:g} s: too slow, send it again"
                raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, text, close=True) from None
            if isinstance(error, ConnectionError | web.RequestPayloadError):
                raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"body: {error}", close=True) from error
            raise

    def _check_size(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise _too_large(size)
        if self._held > MAX_HELD_BYTES:
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many bytes at once, send it again", close=True)

    def _refused(self, request: web.Request, error: _RefusedError) -> web.Response:
        self._throttled.warning(
            "remote_write_refused",
            (error.status, request.remote),  # one sender does not hide why another one is refused
            source=self.name,
            status=int(error.status),
            reason=str(error),
            peer=request.remote,
            sender=shortened(request.headers.get("User-Agent", "")),
        )
        response = web.Response(status=error.status, text=f"{error}\n")
        if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = "POST"
        elif error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            response.headers["Retry-After"] = "1"
        elif error.status == HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        if error.close:
            response.force_close()
        return response


def _read_samples(
    store: SeriesStore, body: bytes, metrics: frozenset[str], nodes: NodeNames
) -> tuple[SourceResult, str | None]:
    result, invalid = store.add_request(decode_write_request(body), metrics, now=time.time(), nodes=nodes)
    if invalid is None:
        return result, None
    return combined([result, _refusal(invalid.number, invalid.example)]), invalid.example


def _refusal(count: int, reason: str) -> SourceResult:
    builder = ResultBuilder()
    builder.refuse(RefusalReason.SHAPE, "remote write", "request", "unreadable", reason, count=count)
    return builder.result()


def _admit(request: web.Request) -> None:
    """Checks path, method and headers, before any work. Raises _RefusedError."""
    if request.path != PATH:
        raise _RefusedError(HTTPStatus.NOT_FOUND, f"path = {shortened(request.path)}: must be {PATH}")
    if request.method != "POST":
        raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"method = {shortened(request.method)}: must be POST")
    for header, reason in (
        ("Content-Encoding", _encoding_fault(request)),
        ("Content-Type", _type_fault(request)),
        ("X-Prometheus-Remote-Write-Version", _version_fault(request)),
    ):
        if reason is not None:
            text = f"{header} = {shortened(request.headers.get(header, ''))}: {reason}"
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text, close=True)
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large(request.content_length or 0)


def _encoding_fault(request: web.Request) -> str | None:
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    return None if encoding == "snappy" else "must be snappy"


def _type_fault(request: web.Request) -> str | None:
    kind, _, parameters = request.headers.get("Content-Type", "").partition(";")
    pairs = (part.partition("=") for part in parameters.split(";"))
    message = {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}.get("proto", MESSAGE)
    if kind.strip().lower() == "application/x-protobuf" and message == MESSAGE:
        return None
    return f"must be application/x-protobuf, and its message {MESSAGE} (remote write 1.0)"


def _version_fault(request: web.Request) -> str | None:
    version = request.headers.get("X-Prometheus-Remote-Write-Version", "0.1.0").strip()
    return None if version.startswith(("0.", "1.")) else "must be 0.1.0 (remote write 1.0)"


def _too_large(size: int) -> _RefusedError:
    text = f"body = {size} bytes: must be at most {MAX_BODY_BYTES}, send fewer samples at once"
    return _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, close=True)
