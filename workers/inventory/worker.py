"""Inventory: follows the nodes and pods of the cluster once, and gives them to the parts that write to the bus.

The parts are `cards.py` with `card_holds.py`, `allocations.py`, `outcomes.py`, and what brings annotations of nodes in;
each may be off. One replica, which has the lease, writes.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from bus.buckets import FORGET_SECONDS
from bus.connection import Bus
from bus.errors import BusError
from bus.lease import Lease
from tas.allocation.node import NodeAllocation
from tas.gpu.hold import RESERVED_SECONDS
from workers.inventory.allocations import Allocations
from workers.inventory.cards import Cards
from workers.inventory.outcomes import Outcomes
from workers.inventory.unkept_allocations import UnkeptAllocations
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.followers import Follower, Shared
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import GPU_NODES, GPU_PODS, OBSERVED_PODS, GpuNode, GpuPod, Resource
from workers.process.tasks import together
from workers.runtime import json_response

log = structlog.get_logger("inventory")

LEASE_KEY = "inventory"

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus."""


class Part(Protocol):
    """A part of `inventory` that writes by itself while this replica has the lease."""

    async def run(self) -> None:
        """Runs until cancelled."""
        ...

    def begin(self) -> None:
        """This replica has got the lease."""
        ...


class NodePart(Part, Protocol):
    """A part that follows nodes."""

    @property
    def nodes(self) -> Follower[GpuNode]:
        """What takes the nodes in."""
        ...


MakePart = Callable[[Callable[[], bool], Callable[[str], NodeAllocation | None]], NodePart]
"""Makes a part from whether this replica has the lease, and from the allocation of a node, if it is known."""


class Inventory:
    """The worker. Its state can be rebuilt from the API server and the bus."""

    name = "inventory"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        *,
        registry: CollectorRegistry,
        card_metrics: int,
        new_bus_wait: float = RESERVED_SECONDS,
        reserved_seconds: float = RESERVED_SECONDS,
        forget_seconds: float = FORGET_SECONDS,
        cards: bool = True,
        allocations: bool = False,
        outcomes: bool = False,
        more: Sequence[MakePart] = (),
        nodes: Resource[GpuNode] = GPU_NODES,
    ) -> None:
        """Holds are complete no sooner than `new_bus_wait` seconds after the creation of HOLDS.

        A reservation that this process has seen unchanged for `reserved_seconds` is over. Tombstones are purged after
        `forget_seconds`. Of more than `card_metrics` nodes there are no metrics for each card.

        `cards`: whether it writes the GPU cards of nodes and who has them; `allocations`: what the pods of each node
        request, else what is stored of it is deleted; `outcomes`: what becomes of pods; `more`: makes further parts,
        which read only nodes, from whether this replica has the lease. `nodes` has what the parts read of a node.
        """
        self._bus = bus
        self._lease = Lease(bus, LEASE_KEY)
        of_nodes: Shared[GpuNode] = Shared()
        of_pods: Shared[GpuPod] = Shared()
        self._node_list = Reflector(client, nodes).consumer(follower=of_nodes)
        pods: Reflector[GpuPod] = Reflector(client, OBSERVED_PODS if outcomes else GPU_PODS)
        self._pod_list = pods.consumer(follower=of_pods, before_list=self._before_pods)
        self._cards = (
            Cards(
                bus,
                client,
                registry,
                relist=self._pod_list.relist,
                is_active=lambda: self._lease.held,
                is_listed=lambda: self.unready() is None,
                card_metrics=card_metrics,
                new_bus_wait=new_bus_wait,
                reserved_seconds=reserved_seconds,
                forget_seconds=forget_seconds,
            )
            if cards
            else None
        )
        self._allocations = (
            Allocations(bus, registry, is_active=lambda: self._lease.held, forget_seconds=forget_seconds)
            if allocations
            else None
        )
        self._outcomes = Outcomes(bus, registry, is_active=lambda: self._lease.held) if outcomes else None
        allocation = (lambda _: None) if self._allocations is None else self._allocations.get
        further = [make(lambda: self._lease.held, allocation) for make in more]
        of_both = [part for part in (self._cards, self._allocations) if part is not None]
        unkept = (
            UnkeptAllocations(bus, is_active=lambda: self._lease.held, forget_seconds=forget_seconds)
            if self._allocations is None
            else None
        )
        writers = [part for part in (self._allocations, unkept, self._outcomes) if part is not None]
        pod_parts = [part for part in (self._cards, self._allocations, self._outcomes) if part is not None]
        self._writers: Sequence[Part] = [*writers, *further]
        self._parts = [*pod_parts, *further, *([] if unkept is None else [unkept])]
        of_nodes.followers += [part.nodes for part in (*of_both, *further)]
        of_pods.followers += [part.pods for part in pod_parts]
        self._lists = {"nodes": self._node_list} | ({"pods": self._pod_list} if pod_parts else {})

    def unready(self) -> str | None:
        """Why the bus may differ from the API server; a replica without the lease is on standby."""
        reasons = [f"{name}: {each.problem}" for name, each in self._lists.items() if not each.listed]
        return "; ".join(reasons) or None

    def concerns(self) -> Iterator[str]:
        """An API server that is silent."""
        for each in self._lists.values():
            yield from each.concerns()

    def health_routes(self) -> Iterable[web.RouteDef]:
        """`/drift`: the pods on each node of which nobody knows the cards."""
        return [web.get("/drift", self._get_drift)]

    async def _get_drift(self, _request: web.Request) -> web.Response:
        drift = {} if self._cards is None else self._cards.holds.drift
        return json_response({"drift": {node: list(pods) for node, pods in sorted(drift.items())}})

    async def run(self) -> None:
        """Follows until cancelled, and writes while this replica holds the lease."""
        await together(*(each.run() for each in (*self._lists.values(), *self._parts)), self._write_with_lease())

    async def _write_with_lease(self) -> None:
        while True:
            await self._bus.wait_connected()
            try:
                async with self._lease.hold():
                    for part in self._writers:
                        part.begin()
                    if self._cards is not None:
                        await self._cards.keep()
                    await asyncio.Event().wait()
            except BusError as error:
                log.info("inventory_lease_lost", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _before_pods(self) -> None:
        if self._cards is not None:
            self._cards.begin_list_of_pods()
