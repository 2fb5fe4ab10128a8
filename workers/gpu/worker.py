"""The extender for GPU cards: an extension with filter, prioritize and bind, at a path and a port of its own.

It is ready only while the holds of the current epoch of the bus are complete. Before, nobody knows who has which card.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.connection import Bus
from tas.extender.decision import FilterDecision, Pod
from tas.extender.gpu import CardsDecider
from tas.extension import Hooks, NodeView
from tas.gpu.card_score import CardScore
from tas.gpu.claim import Options
from tas.gpu.refusal import Why
from tas.processes.process import LastAnswer
from tas.view.view import View
from workers.following.followed_cards import FollowedCards
from workers.gpu.binder import CardBinder
from workers.kubernetes.client import KubernetesClient
from workers.runtime import json_response, version_route
from workers.scheduler.extensions import Extension
from workers.scheduler.mounted import MountedExtension, entered
from workers.scheduler.server import SchedulerServer

NAME = "gpu"
PREFIX = "/scheduler"
"""The path prefix of the extender, as in the original."""

BIND_SECONDS = 20.0
"""How long a bind may take: longer than a request to the API server may take, so that its outcome becomes known."""


class GpuExtender:
    """Serves filter, prioritize and bind."""

    name = NAME

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        server: SchedulerServer,
        *,
        registry: CollectorRegistry,
        options: Options,
        by: CardScore = CardScore.PACK,
        one_start: bool = False,
    ) -> None:
        """`by` says by what nodes are scored; `one_start` is as in `CardBinder`."""
        self._server = server
        nodes = NodeView(View())
        self._decider = CardsDecider(nodes.cards(), options=options, by=by)
        assert nodes.followed_cards is not None
        self._followed = FollowedCards(bus, nodes.followed_cards)
        binder = CardBinder(
            bus,
            client,
            self._decider,
            options=options,
            synced=lambda: self._followed.synced,
            registry=registry,
            one_start=one_start,
        )
        self._refused = Counter(
            "tas_gpu_refused_nodes", "Nodes that filter refused for pods with GPU requests.", ["why"], registry=registry
        )
        for why in Why:
            self._refused.labels(why)
        Gauge("tas_gpu_nodes", "Nodes whose cards and hold are known.", registry=registry).set_function(
            partial(len, nodes.cards())
        )
        hooks = Hooks(
            filter=self._filter,
            score=lambda pod, candidates, _now: self._decider.score(pod, candidates),
            bind=binder.bind,
        )
        extension = Extension(name=NAME, package="", target=f"{__name__}:{type(self).__name__}", hooks=hooks, at=PREFIX)
        self._mounted = MountedExtension(extension, nodes, limit=BIND_SECONDS)

    def unready(self) -> str | None:
        """Why requests are refused with 503."""
        return self._followed.unready()

    async def run(self) -> None:
        """Serves until cancelled, then finishes current requests."""
        served = {PREFIX: self._mounted.verbs}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._followed.run())
            async with (
                self._server.serving(served, unready=self.unready, routes=[version_route()]),
                entered([self._mounted]),
            ):
                await asyncio.Event().wait()

    def health_routes(self) -> Iterable[web.RouteDef]:
        """Routes for the last answers and the extension."""
        return [self._server.answers_route(), web.get("/extensions", self._list_extensions)]

    def _filter(self, pod: Pod, candidates: Collection[str], _now: float) -> FilterDecision:
        found = self._decider.filter(pod, candidates)
        for why, count in found.refused.items():
            self._refused.labels(why).inc(count)
        return found.decision

    def last_answers(self) -> Mapping[str, LastAnswer]:
        """The last answer by verb."""
        return self._server.answers.last

    async def _list_extensions(self, _request: web.Request) -> web.Response:
        return json_response([self._mounted.describe()])
