"""Resources: nodes offer `telemetry/scheduling`, and go on offering it when something resets it.

It follows whole nodes by a watch of its own, which is why it runs only where it is asked for. Switched off it takes
nothing away: what nodes offer stays until somebody removes it, since absence never acts.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.connection import Bus
from bus.errors import BusError
from bus.lease import Lease
from tas.node_resource import RESOURCE, is_offered
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import FULL_NODES, NodeObject
from workers.logs import Throttle
from workers.node_patches import FIELD_MANAGER
from workers.reconciling import Reconciling, RetryError

log = structlog.get_logger("resources")

AT_ONCE = 8
"""Nodes that are patched at the same time."""

HOLD_BACK_SECONDS = 1.0
"""How much later a replica acts that does not hold the lease: by then there is nothing left to do."""

PATCH_SECONDS = 1.0
"""At most one patch of a node in so long: whoever resets it again and again is not answered faster."""

LEASE_KEY = "resources"
LEASE_SECONDS = 5


class Resources:
    """The worker. It keeps nothing but which nodes are to be looked at."""

    name = "resources"

    def __init__(self, bus: Bus, client: KubernetesClient, *, registry: CollectorRegistry, count: int) -> None:
        self._client = client
        self._count = count
        self._patched: dict[str, float] = {}
        self._lines = Throttle()
        self._lease = Lease(bus, LEASE_KEY, f"{socket.gethostname()}-{os.getpid()}", ttl_seconds=LEASE_SECONDS)
        self._queue = Reconciling(self._handle, at_once=AT_ONCE)
        self._reflector = Reflector(client, FULL_NODES, on_list=self._listed, on_change=self._change)
        self._patches = Counter(
            "tas_node_resource_patches",
            "Attempts to patch a node's status, by what became of them.",
            ["result"],
            registry=registry,
        )
        for result in ("patched", "conflict", "gone", "failed"):
            self._patches.labels(result)

    def unready(self) -> str | None:
        """Why it does not know the nodes yet."""
        return None if self._reflector.listed else f"nodes: {self._reflector.problem}"

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._reflector.run(), self._queue.run(), self._keep_lease()):
                tasks.create_task(work)

    async def _handle(self, name: str) -> float | None:
        try:
            return await self._offer(name)
        except (ConflictError, ExpiredError) as error:
            self._patches.labels("conflict").inc()
            raise RetryError(str(error)) from error
        except KubernetesError as error:
            self._patches.labels("failed").inc()
            held_back = self._lines.admit(name, time.monotonic())
            if held_back is not None:
                log.warning("node_resource_failed", node=name, error=str(error), alike_before=held_back)
            pause = error.retry_after if isinstance(error, ThrottledError) else 0.0
            raise RetryError(str(error), pause=pause) from error

    async def _offer(self, name: str) -> float | None:
        """Lets one node offer the resource. Raises KubernetesError."""
        wait = self._patched.get(name, float("-inf")) + PATCH_SECONDS - time.monotonic()
        if wait > 0:
            return wait
        read_at = time.monotonic()
        try:
            node = await self._client.get(FULL_NODES, name)
            if self._is_right(node):
                return None
            await self._client.merge_patch(
                FULL_NODES, name, self._patch(node), subresource="status", field_manager=FIELD_MANAGER, read_at=read_at
            )
        except NotFoundError as error:
            if not error.names(group="", plural="nodes", name=name):
                raise
            self._patches.labels("gone").inc()
            return None
        self._patched[name] = time.monotonic()
        self._patches.labels("patched").inc()
        log.info("node_resource_offered", node=name, resource=RESOURCE, count=self._count)
        return None

    def _patch(self, node: NodeObject) -> Mapping[str, Any]:
        offer = {RESOURCE: str(self._count)}
        return {
            "metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version},
            "status": {"capacity": offer, "allocatable": offer},
        }

    def _is_right(self, node: NodeObject) -> bool:
        return is_offered(self._count, node.status.capacity, node.status.allocatable)

    def _listed(self, listing: Listing[NodeObject]) -> None:
        names = {node.metadata.name for node in listing.items}
        self._patched = {name: when for name, when in self._patched.items() if name in names}
        for node in listing.items:
            self._look(node)

    def _change(self, change: Change[NodeObject]) -> None:
        if change.type is ChangeType.DELETED:
            self._patched.pop(change.object.metadata.name, None)
            self._queue.forget(change.object.metadata.name)
        else:
            self._look(change.object)

    def _look(self, node: NodeObject) -> None:
        if not self._is_right(node):
            self._queue.note(node.metadata.name, after=0.0 if self._lease.held else HOLD_BACK_SECONDS)

    async def _keep_lease(self) -> None:
        while True:
            try:
                async with self._lease.hold():
                    self._reflector.list_again()  # whoever went first before may have ended in the middle
                    await asyncio.Event().wait()
            except BusError as error:
                log.info("resources_lease_lost", error=str(error))
