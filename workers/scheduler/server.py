"""The server of a worker that answers kube-scheduler: it listens, counts, and keeps the last answers."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from tas.extender.verbs import Answer
from workers.http.address import Address
from workers.http.certificates import Certificates
from workers.http.connections import ConnectionMetrics
from workers.http.limits import Limits
from workers.http.listening import first_ready, listening
from workers.scheduler.http import MAX_BODY_BYTES, AnswerRing, Route, VerbHandler, build_app
from workers.scheduler.metrics import ExtenderMetrics
from workers.scheduler.request_log import with_request_lines


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
