"""The extender: answers requests of kube-scheduler from the view.

It has no Kubernetes credentials and sends no request to answer one. It becomes ready once its view has complete lists,
and stays ready: without the bus it answers from the last view, in which samples become stale as each policy says.
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from bus.connection import Bus
from tas.extender.decision import Outcome
from tas.extender.node_view import NodeView
from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import VERBS, Answer
from tas.processes.process import LastAnswer
from workers.extender.debug import ExplainHandler
from workers.extender.instant_query import InstantQueryHandler
from workers.following.followed_allocations import FollowedAllocations
from workers.following.followed_cards import FollowedCards
from workers.following.followed_view import FollowedView
from workers.process.logs import ThrottledLog
from workers.runtime import json_response, version_route
from workers.scheduler.extensions import TELEMETRY, Extension, load
from workers.scheduler.http import verb_handlers
from workers.scheduler.mounted import EXTENSION_SECONDS, MountedExtension, entered
from workers.scheduler.server import SchedulerServer

log = structlog.get_logger("extender")

PREFIX = "/scheduler"
"""The path prefix of the telemetry extender, as in the original."""


class ExtenderWorker:
    """Serves filter, prioritize and preempt."""

    name = "extender"

    def __init__(
        self,
        bus: Bus,
        followed: FollowedView,
        server: SchedulerServer,
        *,
        registry: CollectorRegistry,
        unknown_policy_fails: bool = False,
        unresolvable: bool = True,
        debug_explain: bool = False,
        prometheus_query: bool = False,
        extensions: Iterable[EntryPoint] = (),
        only: str | None = None,
        extension_seconds: float = EXTENSION_SECONDS,
    ) -> None:
        """`followed` has the costs of pods.

        All `extensions` are mounted beside telemetry; with `only`, just the one with that name. A call of an extension
        is cancelled after `extension_seconds`. Raises StartError if `only` cannot be mounted.
        """
        self._server = server
        self._followed = followed
        self._decider = TelemetryDecider(
            self._followed.view, unknown_policy_fails=unknown_policy_fails, unresolvable=unresolvable
        )
        self._explain = ExplainHandler(self._followed.view, self._decider)
        self._debug_explain = debug_explain
        self._queries = (
            InstantQueryHandler(self._followed.view, unready=self.unready, registry=registry)
            if prometheus_query
            else None
        )
        self._served = {PREFIX: verb_handlers(self._decider)} if only in (None, TELEMETRY) else {}
        nodes = NodeView(self._followed.view)
        self._extensions = [
            MountedExtension(
                extension,
                extension.nodes or nodes,
                limit=extension_seconds,
                incomplete=partial(self._incomplete, extension),
            )
            for extension in load(extensions, nodes, only=only)
        ]
        self._only = None if PREFIX in self._served else self._extensions[0].extension
        cards = nodes.followed_cards
        self._cards = None if cards is None else FollowedCards(bus, cards)
        allocations = nodes.followed_allocations
        self._allocations = None if allocations is None else FollowedAllocations(bus, allocations)
        self._served |= {path: mounted.verbs for mounted in self._extensions if (path := mounted.extension.path)}
        self._throttled = ThrottledLog(log)
        self._export(registry)

    def unready(self) -> str | None:
        """Why requests are refused with 503; once None, it stays None.

        What an extension reads is only waited for if the extension is alone: else telemetry has answers before.
        """
        if not self._followed.completed.is_set():
            return self._followed.unready()
        return None if self._only is None else self._incomplete(self._only)

    def _incomplete(self, extension: Extension) -> str | None:
        """Why what the extension reads beside samples and labels is not complete; None if it is."""
        if extension.nodes is None:
            return None
        if extension.nodes.reads_cards and self._cards is not None and (reason := self._cards.unready()) is not None:
            return reason
        if extension.nodes.reads_allocations and self._allocations is not None:
            return self._allocations.unready()
        return None

    async def run(self) -> None:
        """Serves until cancelled, then finishes current requests."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._followed.run())
            for part in (self._cards, self._allocations):
                if part is not None:
                    tasks.create_task(part.run())
            async with (
                self._server.serving(
                    self._served,
                    unready=self.unready,
                    routes=[version_route(), *([self._explain.route()] if self._debug_explain else [])],
                    on_answer=self._answered,
                ),
                entered(self._extensions),
            ):
                await asyncio.Event().wait()

    def health_routes(self) -> Iterable[web.RouteDef]:
        """Routes for the last answers, the explanation of current answers, the extensions, and queries."""
        return [
            self._server.answers_route(),
            web.get("/extensions", self._list_extensions),
            self._explain.route(),
            *([] if self._queries is None else self._queries.routes()),
        ]

    def _answered(self, answer: Answer) -> None:
        if answer.outcome is Outcome.POLICY_NOT_FOUND:
            self._throttled.warning("policy_not_found", answer.policy, policy=answer.policy, pod=answer.pod)

    def last_answers(self) -> Mapping[str, LastAnswer]:
        """The last answer by verb."""
        return self._server.answers.last

    async def _list_extensions(self, _request: web.Request) -> web.Response:
        telemetry = {"name": TELEMETRY, "path": PREFIX, "verbs": list(VERBS), "problem": None}
        own = [telemetry] if PREFIX in self._served else []
        return json_response([*own, *(mounted.describe() for mounted in self._extensions)])

    def _export(self, registry: CollectorRegistry) -> None:
        """Gauges that are computed when scraped, so that they cost nothing otherwise."""
        followed = self._followed
        for name, text, read in (
            ("tas_view_nodes", "Nodes in the view", lambda: len(followed.view.nodes)),
            ("tas_view_policies", "Policies in the view", lambda: len(followed.view.policies)),
            ("tas_view_placed_pods", "Pods whose podCost may still count", lambda: followed.view.placed_pods),
            (
                "tas_view_update_age_seconds",
                "Seconds since the view last received anything from the bus",
                lambda: followed.idle_seconds,
            ),
        ):
            Gauge(name, text, registry=registry).set_function(read)
        mounted = Gauge(
            "tas_extension_mounted", "1 while the extension is served, 0 if not.", ["extension"], registry=registry
        )
        for extension in self._extensions:
            mounted.labels(extension.extension.name).set_function(extension.is_mounted)
        lag = Gauge(
            "tas_view_lag",
            "Entries of the bucket that the view has not applied yet; -1: unknown",
            ["bucket"],
            registry=registry,
        )
        for bucket in followed.watches:
            lag.labels(bucket).set_function(partial(_lag, followed, bucket))


def _lag(followed: FollowedView, bucket: str) -> float:
    lag = followed.watches[bucket].lag
    return -1.0 if lag is None else float(lag)
