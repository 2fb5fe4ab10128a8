"""The server of a worker that answers kube-scheduler: it listens, counts, and keeps the last answers."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from tas.errors import line_of
from tas.extender.verbs import Answer
from workers.http.address import Address
from workers.http.certificates import Certificates
from workers.http.connections import ConnectionMetrics
from workers.http.limits import Limits
from workers.http.listening import first_ready, listening
from workers.scheduler.http import MAX_BODY_BYTES, AnswerRing, Route, VerbHandler, build_app
from workers.scheduler.metrics import ExtenderMetrics

MAX_LINES = 20
"""The most lines of one process in a second."""

MAX_EXAMPLES = 3
"""The most nodes, and the most reasons, of a line."""

MAX_TEXT = 300
"""The most characters of a text of a line."""

OnAnswer = Callable[[Answer], None]


def with_request_lines(logger: str, on_answer: OnAnswer, *, clock: Callable[[], float] = time.monotonic) -> OnAnswer:
    """`on_answer` with a line of the logger for each answer. Above level debug it is `on_answer` itself.

    `clock` is in seconds of a monotonic clock. The level is the one that holds now.
    """
    if not logging.getLogger(logger).isEnabledFor(logging.DEBUG):
        return on_answer
    lines = _RequestLines(structlog.get_logger(logger), clock)

    def both(answer: Answer) -> None:
        on_answer(answer)
        lines.write(answer)

    return both


class _RequestLines:
    """At most `MAX_LINES` in each second; the first line after others were suppressed has their number."""

    def __init__(self, log: structlog.stdlib.BoundLogger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._second = -1
        self._written = 0
        self._suppressed = 0

    def write(self, answer: Answer) -> None:
        if (second := int(self._clock())) != self._second:
            self._second, self._written = second, 0
        if self._written >= MAX_LINES:
            self._suppressed += 1
            return
        self._written += 1
        self._log.debug("request_answered", **fields_of(answer), suppressed=self._suppressed)
        self._suppressed = 0


def fields_of(answer: Answer) -> dict[str, object]:
    """The fields of the line about an answer: what every request has, then what this decision has."""
    texts = {
        "path": answer.path,
        "verb": answer.verb,
        "pod": f"{answer.namespace}/{answer.pod}" if answer.pod else "",
        "policy": answer.policy,
        "node": answer.node,
        "outcome": "" if answer.outcome is None else str(answer.outcome),
        "error": answer.error,
    }
    lists = {
        "best": [f"{host}={score}" for host, score in answer.best[:MAX_EXAMPLES]],
        "rejected": answer.rejected[:MAX_EXAMPLES],
        "reasons": [f"{count} × {reason}" for reason, count in list(answer.reasons.items())[:MAX_EXAMPLES]],
    }
    return {
        **{name: line_of(text, MAX_TEXT) for name, text in texts.items() if text},
        "status": answer.status,
        "milliseconds": round(answer.seconds * 1000, 1),
        "candidates": answer.candidates,
        "passed": answer.passed,
        "unknown": answer.unknown + answer.unknown_rejected,
        **{name: [line_of(text, MAX_TEXT) for text in texts] for name, texts in lists.items() if texts},
    }


class SchedulerServer:
    """Part of the worker `name`. With `certificates` it serves HTTPS to admitted clients only.

    `purpose` and `setting` are what errors call the server and its address. `shared`: other processes may listen there
    as well, so it listens only once it is ready.

    Attributes:
        metrics: Of requests.
        answers: The last ones.
    """

    def __init__(
        self,
        name: str,
        listen: Address,
        registry: CollectorRegistry,
        *,
        purpose: str = "",
        setting: str = "",
        max_body_bytes: int = MAX_BODY_BYTES,
        shared: bool = False,
        limits: Limits | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.metrics = ExtenderMetrics(registry)
        self.answers = AnswerRing()
        self._name = name
        self._listen = listen
        self._purpose = purpose or name
        self._setting = setting
        self._max_body_bytes = max_body_bytes
        self._shared = shared
        self._limits = limits
        self._certificates = certificates
        self._connections = ConnectionMetrics(registry)

    @asynccontextmanager
    async def serving(
        self,
        served: Mapping[str, Mapping[str, VerbHandler]],
        *,
        unready: Callable[[], str | None],
        routes: Iterable[web.RouteDef],
        on_answer: Callable[[Answer], None] = lambda _: None,
        changing: Mapping[str, Route] = MappingProxyType({}),
    ) -> AsyncIterator[None]:
        """Serves within the body, then finishes current requests. Arguments as of `build_app`. Raises StartError."""

        def answered(answer: Answer) -> None:
            self.answers.add(answer)
            on_answer(answer)

        app = build_app(
            served,
            unready=unready,
            max_body_bytes=self._max_body_bytes,
            on_answer=with_request_lines(self._name, answered),
            metrics=self.metrics,
            routes=routes,
            changing=changing,
        )
        if self._shared:
            await first_ready(unready)
        async with listening(
            app,
            self._listen,
            purpose=self._purpose,
            setting=self._setting,
            limits=self._limits,
            certificates=self._certificates,
            metrics=self._connections,
            shared=self._shared,
        ) as address:
            scheme = "http" if self._certificates is None else "https"
            url = f"{scheme}://{address}{next(iter(served))}"
            structlog.get_logger(self._name).info("extender_listening", url=url)
            yield

    def answers_route(self) -> web.RouteDef:
        """The route for the last answers."""

        async def answers(_request: web.Request) -> web.Response:
            return web.Response(body=self.answers.to_json(), content_type="application/json")

        return web.get("/answers", answers)
