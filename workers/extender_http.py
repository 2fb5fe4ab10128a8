"""The extender's HTTP side: a gate, a body read within bounds, and the core's answer.

The scheduler calls once, waits for at most its `httpTimeout`, and takes any status but 200 for a failure whose body it
does not read (protocol c1 to c3); what stands in there is for people.
"""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from math import inf

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tas.errors import InvalidInputError, shortened
from tas.extender.answers import error_body
from tas.extender.decision import Decider, Outcome
from tas.extender.verbs import VERBS, Answer

log = structlog.get_logger("extender")

MAX_BODY_BYTES = 64 << 20
"""Default limit of a request: 5,000 full nodes take 35 MB."""

BODY_SECONDS = 10.0
"""How long a body may take to arrive; the scheduler waits 5 s for the whole exchange unless told otherwise (c2)."""

JSON = "application/json"

CLIENT_GONE = 499
"""Stands in metrics for a client that left before it had an answer; never sent."""


class AnswerRing:
    """The last answers, oldest first."""

    def __init__(self, size: int = 1000) -> None:
        self._answers: deque[Answer] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: Answer) -> None:
        """Keeps `answer`, and forgets the oldest beyond the size."""
        self._answers.append(answer)

    def to_json(self) -> bytes:
        """A JSON array of `tas.extender.verbs.Answer`."""
        return msgspec.json.encode(list(self._answers))


BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, inf)
"""Upper bounds of the histogram, in seconds."""


class ExtenderMetrics(Collector):
    """What is asked and answered, in plain numbers that become metrics when they are scraped.

    The library's own counters, eight of them a request, took a tenth of the time of an answer to 500 names.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = {(verb, 200): 0 for verb in VERBS}
        self._decisions = {(verb, outcome): 0 for verb in VERBS for outcome in Outcome}
        self._candidates = dict.fromkeys(VERBS, 0)
        self._seconds = dict.fromkeys(VERBS, 0.0)
        self._buckets = {verb: [0] * len(BUCKETS) for verb in VERBS}
        self._rejected = 0
        self._unknown_passed = 0
        registry.register(self)

    def count(self, verb: str, code: int) -> None:
        """One request; `verb` is "" if its path means none."""
        self._requests[verb, code] = self._requests.get((verb, code), 0) + 1

    def observe(self, answer: Answer) -> None:
        """One request to a verb, and what became of it."""
        verb = answer.verb
        self.count(verb, answer.status)
        self._seconds[verb] += answer.seconds
        self._buckets[verb][bisect_left(BUCKETS, answer.seconds)] += 1
        if answer.outcome is None:
            return
        self._decisions[verb, answer.outcome] += 1
        self._candidates[verb] += answer.candidates
        if verb == "filter" and not answer.error:
            self._rejected += answer.candidates - answer.passed
            self._unknown_passed += answer.unknown

    def collect(self) -> Iterator[Metric]:
        """The metrics as they stand."""
        requests = CounterMetricFamily(
            "tas_extender_requests",
            f"Requests by verb and HTTP status; {CLIENT_GONE}: the client left.",
            labels=["verb", "code"],
        )
        for (verb, code), count in self._requests.items():
            requests.add_metric([verb, str(code)], count)
        yield requests
        seconds = HistogramMetricFamily(
            "tas_extender_request_seconds", "From a request's headers to its answer.", labels=["verb"]
        )
        for verb, counts in self._buckets.items():
            cumulative = zip(map(floatToGoString, BUCKETS), accumulate(counts), strict=True)
            seconds.add_metric([verb], buckets=list(cumulative), sum_value=self._seconds[verb])
        yield seconds
        decisions = CounterMetricFamily(
            "tas_extender_decisions", "Decisions by how they came about.", labels=["verb", "outcome"]
        )
        for (verb, outcome), count in self._decisions.items():
            decisions.add_metric([verb, outcome], count)
        yield decisions
        candidates = CounterMetricFamily("tas_extender_candidates", "Nodes asked about.", labels=["verb"])
        for verb, count in self._candidates.items():
            candidates.add_metric([verb], count)
        yield candidates
        yield CounterMetricFamily("tas_extender_rejected", "Nodes rejected by filter.", value=self._rejected)
        yield CounterMetricFamily(
            "tas_extender_unknown_passed", "Nodes that filter let pass on unknown.", value=self._unknown_passed
        )


def build_app(
    deciders: Mapping[str, Decider],
    *,
    unready: Callable[[], str | None],
    on_answer: Callable[[Answer], None] = lambda _: None,
    metrics: ExtenderMetrics | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    body_seconds: float = BODY_SECONDS,
    clock: Callable[[], float] = time.time,
    routes: Iterable[web.RouteDef] = (),
) -> web.Application:
    """The app that answers every verb below each prefix of `deciders`, such as `/scheduler`.

    Args:
        deciders: Who decides, by path without trailing slash.
        unready: Why requests are refused with 503, or None.
        on_answer: Told of every request to a verb, after it was answered. Must not raise.
        metrics: Told the same, and of requests to unknown paths.
        max_body_bytes: Longer requests get 413.
        body_seconds: Slower ones 408.
        clock: Seconds since 1970, for deciders.
        routes: What is answered besides, and counted nowhere.
    """
    metrics = metrics or ExtenderMetrics(CollectorRegistry())
    app = web.Application()
    for path, decider in deciders.items():
        for name, verb in VERBS.items():
            endpoint = _Endpoint(
                path=path,
                name=name,
                verb=partial(verb, decider),
                unready=unready,
                on_answer=on_answer,
                metrics=metrics,
                max_body_bytes=max_body_bytes,
                body_seconds=body_seconds,
                clock=clock,
            )
            app.router.add_route("*", f"{path}/{name}", endpoint.handle)
    app.add_routes(routes)
    app.router.add_route("*", "/{path:.*}", partial(_unknown_path, metrics))
    return app


class _RefusedError(Exception):
    """The request gets `status` instead of an answer; `close` if the rest of it is not worth waiting for."""

    def __init__(self, status: int, error: str, *, close: bool = False) -> None:
        super().__init__(error)
        self.status = status
        self.close = close

    def response(self) -> web.Response:
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
    """One verb below one path."""

    path: str
    name: str
    verb: Callable[[bytes, float], tuple[bytes, Answer]]
    unready: Callable[[], str | None]
    on_answer: Callable[[Answer], None]
    metrics: ExtenderMetrics
    max_body_bytes: int
    body_seconds: float
    clock: Callable[[], float]

    async def handle(self, request: web.Request) -> web.Response:
        started = time.perf_counter()
        try:
            self._admit(request)
            body, answer = self.verb(await self._read_body(request), self.clock())
            response = _response(body)
        except _RefusedError as error:
            response, answer = error.response(), self._refusal(error.status, str(error))
        except InvalidInputError as error:
            response, answer = _response(error_body(str(error)), 400), self._refusal(400, str(error))
        except Exception as error:  # a bug in one answer must not reach any other
            log.exception("extender_answer_failed", path=self.path, verb=self.name)
            text = f"a bug, see the log: {type(error).__name__}"
            response, answer = _response(error_body(text), 500), self._refusal(500, text)
        answer = msgspec.structs.replace(answer, path=self.path, seconds=time.perf_counter() - started)
        self.metrics.observe(answer)
        self.on_answer(answer)
        return response

    def _refusal(self, status: int, error: str) -> Answer:
        return Answer(time=self.clock(), verb=self.name, status=status, error=error)

    def _admit(self, request: web.Request) -> None:
        """What can be told from the headers, and before any work."""
        if (refused := _wrong_method(request)) is not None:
            raise refused
        content_type = request.headers.get("Content-Type")
        if not (content_type == JSON or _media_type(content_type) == JSON):
            text = f"Content-Type = {shortened(content_type)}: must be {JSON}"
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        if (request.content_length or 0) > self.max_body_bytes:
            raise self._too_large(request.content_length)
        if (reason := self.unready()) is not None:
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    async def _read_body(self, request: web.Request) -> bytes:
        """The body, which may be announced wrongly or not at all (chunked)."""
        content = request.content
        if content.is_eof() and 0 < content.total_bytes <= self.max_body_bytes:
            return content.read_nowait()  # it came with the headers, as most do: spares a timer
        content.set_read_chunk_size(1 << 20)
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self.body_seconds):
                while chunk := await content.readany():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > self.max_body_bytes:
                        raise self._too_large(size)
        except TimeoutError:
            text = f"body: {size} bytes in {self.body_seconds:g} s: too slow"
            raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, text, close=True) from None
        except ConnectionError as error:
            raise _RefusedError(CLIENT_GONE, "body: the client left", close=True) from error
        except web.RequestPayloadError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"body: {error}", close=True) from error
        return b"".join(chunks)

    def _too_large(self, size: int | None) -> _RefusedError:
        text = f"body = {size} bytes: the limit is {self.max_body_bytes}"
        return _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, close=True)


async def _unknown_path(metrics: ExtenderMetrics, request: web.Request) -> web.Response:
    refused = _wrong_method(request)
    if refused is None:
        refused = _RefusedError(HTTPStatus.NOT_FOUND, f"path = {shortened(request.path)}: no verb is answered here")
    metrics.count("", refused.status)
    return refused.response()


def _media_type(content_type: str | None) -> str:
    """`application/json` of `Application/JSON; charset=utf-8`."""
    return (content_type or "").partition(";")[0].strip().lower()


def _wrong_method(request: web.Request) -> _RefusedError | None:
    if request.method == "POST":
        return None
    return _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"method = {shortened(request.method)}: must be POST")
