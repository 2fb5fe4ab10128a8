"""The HTTP side of the extender: checks of headers, a body within limits, and the core's answer.

The scheduler calls once and waits for at most its `httpTimeout`. Any status but 200 is a failure, and the scheduler
does not read its body (facts.md c1, c2, c3): the error text is for people.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from tas.errors import InvalidInputError, shortened
from tas.extender.answers import error_body
from tas.extender.decision import Decider
from tas.extender.verbs import VERBS, Answer, Record, within_limits
from tas.processes.process import LastAnswer
from workers.http.connections import peer_of
from workers.scheduler.metrics import CLIENT_GONE, ExtenderMetrics

log = structlog.get_logger("extender")

MAX_BODY_BYTES = 64 << 20
"""Default limit of a request body: 5,000 full nodes take 35 MB."""

BODY_SECONDS = 10.0
"""How long a body may take to arrive; by default the scheduler waits 5 s for the whole exchange (facts.md c2)."""

UNFINISHED_BODIES = 4
"""How many of the longest bodies may be in memory unfinished, for all connections together."""

JSON = "application/json"


VerbHandler = Callable[[bytes, float], tuple[bytes, Record] | Awaitable[tuple[bytes, Record]]]
"""Answers a verb: from a request body and the time, to the response body and its record.

Raises InvalidInputError for an invalid request, RefusedError for one that is refused now.
"""


class Route(NamedTuple):
    """What answers one URL: a verb, with the path and the name of the verb in metrics and in records of answers."""

    path: str
    verb: str
    handler: VerbHandler


MAX_ANSWERS_BYTES = 4 << 20
"""Limit of all kept answers: an answer usually takes less than 2 kB."""


class AnswerRing:
    """The last answers as JSON, oldest first: at most `size` answers, and at most `max_bytes` together.

    Attributes:
        last: The last one by verb.
    """

    def __init__(self, size: int = 1000, *, max_bytes: int = MAX_ANSWERS_BYTES) -> None:
        self.last: dict[str, LastAnswer] = {}
        self._answers: deque[bytes] = deque()
        self._size = size
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: Answer) -> None:
        """Adds `answer`, and drops the oldest beyond the limits."""
        before = self.last.get(answer.verb)
        self.last[answer.verb] = LastAnswer(
            time=answer.time,
            status=answer.status,
            error=answer.error,
            requests=1 + (0 if before is None else before.requests),
            failed=(answer.status != 200 or bool(answer.error)) + (0 if before is None else before.failed),
        )
        encoded = msgspec.json.encode(answer)
        self._answers.append(encoded)
        self._bytes += len(encoded)
        while len(self._answers) > self._size or self._bytes > self._max_bytes:
            self._bytes -= len(self._answers.popleft())

    def to_json(self) -> bytes:
        """A JSON array of `tas.extender.verbs.Answer`."""
        return b"[" + b",".join(self._answers) + b"]"


class UnfinishedBodies:
    """The bodies that are being received: together at most `max_bytes`.

    Else the peer with most bytes loses its oldest body: many bodies of one peer cost another peer none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[asyncio.Timeout, int] = {}
        self._peers: dict[asyncio.Timeout, str] = {}

    def __contains__(self, body: asyncio.Timeout) -> bool:
        return body in self._sizes

    def begin(self, body: asyncio.Timeout, peer: str) -> None:
        """The body that `body` limits in time begins. `peer`: who sends it."""
        self._sizes[body] = 0
        self._peers[body] = peer

    def end(self, body: asyncio.Timeout) -> None:
        """The body is complete, or nothing more of it is read."""
        self._sizes.pop(body, None)
        self._peers.pop(body, None)

    def received(self, body: asyncio.Timeout, size: int) -> None:
        """So many more bytes have arrived. Ends the time of bodies beyond the limit."""
        if body in self._sizes:
            self._sizes[body] += size
        while sum(self._sizes.values()) > self._max_bytes:
            of_peers = Counter[str]()
            for each, received in self._sizes.items():
                of_peers[self._peers[each]] += received
            most = max(of_peers, key=of_peers.__getitem__)
            oldest = next(each for each in self._sizes if self._peers[each] == most)
            self.end(oldest)
            oldest.reschedule(0.0)


def verb_handlers(decider: Decider) -> Mapping[str, VerbHandler]:
    """The handlers of a decider for `build_app`, by the last part of the path."""
    return {name: partial(verb, decider) for name, verb in VERBS.items()}


def build_app(
    served: Mapping[str, Mapping[str, VerbHandler]],
    *,
    unready: Callable[[], str | None],
    on_answer: Callable[[Answer], None] = lambda _: None,
    metrics: ExtenderMetrics | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    body_seconds: float = BODY_SECONDS,
    clock: Callable[[], float] = time.time,
    routes: Iterable[web.RouteDef] = (),
    changing: Mapping[str, Route] = MappingProxyType({}),
) -> web.Application:
    """The app that answers verbs below each path of `served`, such as `/scheduler`.

    The paths have no trailing slash. `unready` returns why requests are refused with 503, or None. `on_answer` must not
    raise; it is called for each request to a verb, after its response. A longer request than `max_body_bytes` gets 413,
    a slower one than `body_seconds` 408, one of too many unfinished ones 503. `routes` are further routes, which
    are not counted. `changing` has routes that may come and go while the app runs, by URL.
    """
    metrics = metrics or ExtenderMetrics(CollectorRegistry())
    app = web.Application()
    unfinished = UnfinishedBodies(UNFINISHED_BODIES * max_body_bytes)

    def endpoint(path: str, name: str, verb: VerbHandler) -> _Endpoint:
        return _Endpoint(
            path=path,
            name=name,
            verb=verb,
            unready=unready,
            on_answer=on_answer,
            metrics=metrics,
            max_body_bytes=max_body_bytes,
            body_seconds=body_seconds,
            unfinished=unfinished,
            clock=clock,
        )

    async def others(request: web.Request) -> web.Response:
        route = changing.get(request.path)
        return _unknown_path(metrics, request) if route is None else await endpoint(*route).handle(request)

    for path, verbs in served.items():
        metrics.mount(path, verbs)
        for name, answer in verbs.items():
            app.router.add_route("*", f"{path}/{name}", endpoint(path, name, answer).handle)
    app.add_routes(routes)
    app.router.add_route("*", "/{path:.*}", others)
    return app


class RefusedError(Exception):
    """A request gets `status` instead of an answer; with `close` the connection is closed after that."""

    def __init__(self, status: int, error: str, *, close: bool = False) -> None:
        super().__init__(error)
        self.status = status
        self.close = close

    def response(self) -> web.Response:
        """The response to the client."""
        response = _response(error_body(str(self)), self.status)
        if self.status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = "POST"
        if self.close:
            response.force_close()
        return response


def _response(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={"Content-Type": JSON})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    path: str
    name: str
    verb: VerbHandler
    unready: Callable[[], str | None]
    on_answer: Callable[[Answer], None]
    metrics: ExtenderMetrics
    max_body_bytes: int
    body_seconds: float
    unfinished: UnfinishedBodies
    clock: Callable[[], float]

    async def handle(self, request: web.Request) -> web.Response:
        started = time.perf_counter()
        try:
            self._admit(request)
            answered = self.verb(await self._read_body(request), self.clock())
            body, record = answered if isinstance(answered, tuple) else await answered
            response = _response(body)
        except RefusedError as error:
            response, record = error.response(), self._refusal(error.status, str(error))
        except InvalidInputError as error:
            response, record = _response(error_body(str(error)), 400), self._refusal(400, str(error))
        except Exception as error:  # a bug in one answer must not reach any other
            log.exception("extender_answer_failed", path=self.path, verb=self.name)
            text = f"a bug, see the log: {type(error).__name__}"
            response, record = _response(error_body(text), 500), self._refusal(500, text)
        # Recorded in the loop's next turn, after the response is sent.
        asyncio.get_running_loop().call_soon(self._record, record, time.perf_counter() - started)
        return response

    def _record(self, record: Record, seconds: float) -> None:
        answer = within_limits(msgspec.structs.replace(record(), path=self.path, seconds=seconds))
        self.metrics.observe(answer)
        self.on_answer(answer)

    def _refusal(self, status: int, error: str) -> Record:
        return partial(Answer, time=self.clock(), verb=self.name, status=status, error=error)

    def _admit(self, request: web.Request) -> None:
        """Checks the headers, before any work. Raises RefusedError."""
        if (refused := _wrong_method(request)) is not None:
            raise refused
        content_type = request.headers.get("Content-Type")
        if not (content_type == JSON or (content_type or "").partition(";")[0].strip().lower() == JSON):
            text = f"Content-Type = {shortened(content_type)}: must be {JSON}"
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.strip().lower() != "identity":
            text = f"Content-Encoding = {shortened(encoding)}: must be absent, or identity"
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        if (request.content_length or 0) > self.max_body_bytes:
            raise self._too_large(request.content_length)
        if (reason := self.unready()) is not None:
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    async def _read_body(self, request: web.Request) -> bytes:
        """The body, whose declared length may be wrong or missing (chunked)."""
        content = request.content
        if content.is_eof() and 0 < content.total_bytes <= self.max_body_bytes:
            return content.read_nowait()  # arrived with the headers, as usual: needs no timer
        content.set_read_chunk_size(1 << 20)
        chunks, size, limit = [], 0, asyncio.timeout(self.body_seconds)
        self.unfinished.begin(limit, peer_of(request.remote or ""))
        try:
            async with limit:
                while chunk := await content.readany():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > self.max_body_bytes:
                        raise self._too_large(size)
                    self.unfinished.received(limit, len(chunk))
        except TimeoutError:
            if limit not in self.unfinished:
                text = "body: too many bytes of other requests have arrived meanwhile"
                raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, text, close=True) from None
            text = f"body: {size} bytes in {self.body_seconds:g} s: too slow"
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, text, close=True) from None
        except ConnectionError as error:
            raise RefusedError(CLIENT_GONE, "body: the client left", close=True) from error
        except web.RequestPayloadError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"body: {' '.join(str(error).split())}", close=True) from error
        finally:
            self.unfinished.end(limit)
        return b"".join(chunks)

    def _too_large(self, size: int | None) -> RefusedError:
        text = f"body = {size} bytes: the limit is {self.max_body_bytes}"
        return RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, close=True)


def _unknown_path(metrics: ExtenderMetrics, request: web.Request) -> web.Response:
    refused = _wrong_method(request)
    if refused is None:
        refused = RefusedError(HTTPStatus.NOT_FOUND, f"path = {shortened(request.path)}: no verb is answered here")
    metrics.count_unknown_path(refused.status)
    return refused.response()


def _wrong_method(request: web.Request) -> RefusedError | None:
    if request.method == "POST":
        return None
    return RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"method = {shortened(request.method)}: must be POST")
