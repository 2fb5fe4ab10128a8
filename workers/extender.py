"""The extender: kube-scheduler asks, the view answers.

It holds no Kubernetes credential and calls nobody while answering. It becomes ready once, when its view has taken in
complete lists, and stays so: when the bus goes, the last view goes on answering, and each policy's staleness decides
from there.
"""

import asyncio
import time
from collections.abc import Iterable
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
from workers.certificates import Certificates
from workers.connections import ConnectionMetrics, Limits
from workers.extender_debug import ExplainHandler
from workers.extender_http import AnswerRing, answered_by, build_app
from workers.extender_metrics import ExtenderMetrics
from workers.extensions import TELEMETRY, load
from workers.followed_view import FollowedView
from workers.logs import Throttle
from workers.mounted import EXTENSION_SECONDS, MountedExtension, held
from workers.runtime import Address, json_response, listening, version_route

log = structlog.get_logger("extender")

PREFIX = "/scheduler"
"""Where telemetry's verbs are mounted, as in the original."""


class ExtenderWorker:
    """Serves filter, prioritize and preempt."""

    name = "extender"

    def __init__(
        self,
        bus: Bus,
        *,
        listen: Address,
        registry: CollectorRegistry,
        default_stale_after: float,
        max_body_bytes: int,
        unknown_policy_fails: bool = False,
        unresolvable: bool = True,
        debug_explain: bool = False,
        share_listen: bool = False,
        limits: Limits | None = None,
        certificates: Certificates | None = None,
        extensions: Iterable[EntryPoint] = (),
        only: str | None = None,
        extension_seconds: float = EXTENSION_SECONDS,
    ) -> None:
        """With `certificates` it answers by HTTPS, and only clients that they admit.

        Beside telemetry `extensions` are mounted, or `only` what has that name. A call of theirs is cut off after
        `extension_seconds`. Raises StartError if `only` cannot be mounted.
        """
        self._listen = listen
        self._limits = limits or Limits()
        self._certificates = certificates
        self._connections = ConnectionMetrics(registry)
        self._max_body_bytes = max_body_bytes
        self.answers = AnswerRing()
        self._followed = FollowedView(bus, default_stale_after=default_stale_after)
        self._decider = TelemetryDecider(
            self._followed.view, unknown_policy_fails=unknown_policy_fails, unresolvable=unresolvable
        )
        self._explain = ExplainHandler(self._followed.view, self._decider)
        self._debug_explain = debug_explain
        self._share_listen = share_listen
        nodes = NodeView(self._followed.view)
        self._extensions = [
            MountedExtension(each, nodes, limit=extension_seconds) for each in load(extensions, nodes, only=only)
        ]
        self._served = {PREFIX: answered_by(self._decider)} if only in (None, TELEMETRY) else {}
        self._served |= {path: each.verbs for each in self._extensions if (path := each.extension.path)}
        self._metrics = ExtenderMetrics(registry)
        self._told = Throttle()
        self._export(registry)

    def unready(self) -> str | None:
        """Why requests are refused with 503; once None, always None."""
        return None if self._followed.was_complete else self._followed.unready()

    async def run(self) -> None:
        """Serves until cancelled; requests in hand are finished first."""
        app = build_app(
            self._served,
            unready=self.unready,
            max_body_bytes=self._max_body_bytes,
            on_answer=self._answered,
            metrics=self._metrics,
            routes=[version_route(), *([self._explain.route()] if self._debug_explain else [])],
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._followed.run())
            if self._share_listen:
                await self._followed.completed.wait()  # until then others answer whoever connects there
            async with listening(
                app,
                self._listen,
                purpose="extender",
                setting="--listen, TAS_LISTEN",
                limits=self._limits,
                certificates=self._certificates,
                metrics=self._connections,
                shared=self._share_listen,
            ) as address:
                scheme = "http" if self._certificates is None else "https"
                log.info("extender_listening", url=f"{scheme}://{address}{next(iter(self._served))}")
                async with held(self._extensions):
                    await asyncio.Event().wait()

    def health_routes(self) -> Iterable[web.RouteDef]:
        """The last answers, oldest first, why they would be what they would be now, and what is mounted."""
        return [
            web.get("/answers", self._answers),
            web.get("/extensions", self._tell_extensions),
            self._explain.route(),
        ]

    def _answered(self, answer: Answer) -> None:
        self.answers.add(answer)
        if answer.outcome is Outcome.POLICY_NOT_FOUND:
            held_back = self._told.admit(answer.policy, time.monotonic())
            if held_back is not None:
                log.warning("policy_not_found", policy=answer.policy, pod=answer.pod, alike_before=held_back)

    async def _answers(self, _request: web.Request) -> web.Response:
        return web.Response(body=self.answers.to_json(), content_type="application/json")

    async def _tell_extensions(self, _request: web.Request) -> web.Response:
        telemetry = {"name": TELEMETRY, "path": PREFIX, "verbs": list(VERBS), "problem": None}
        own = [telemetry] if PREFIX in self._served else []
        return json_response([*own, *(each.told() for each in self._extensions)])

    def _export(self, registry: CollectorRegistry) -> None:
        """Gauges read when they are scraped, so that they cost nothing in between."""
        followed = self._followed
        for name, text, read in (
            ("tas_view_nodes", "Nodes in the view", lambda: len(followed.view.nodes)),
            ("tas_view_policies", "Policies in the view", lambda: len(followed.view.policies)),
            ("tas_view_silent_seconds", "Seconds since the bus was last heard", lambda: followed.silent_seconds),
            ("tas_view_invalid_entries", "Entries of the bus that could not be read", lambda: followed.invalid_entries),
        ):
            Gauge(name, text, registry=registry).set_function(read)
        mounted = Gauge(
            "tas_extension_mounted", "1 while the extension is served, 0 if not.", ["extension"], registry=registry
        )
        for each in self._extensions:
            mounted.labels(each.extension.name).set_function(each.is_mounted)
        lag = Gauge(
            "tas_view_lag", "Entries the view is behind its bucket; -1: not known", ["bucket"], registry=registry
        )
        for bucket in followed.watches:
            lag.labels(bucket).set_function(partial(_lag, followed, bucket))


def _lag(followed: FollowedView, bucket: str) -> float:
    lag = followed.watches[bucket].lag
    return -1.0 if lag is None else float(lag)
