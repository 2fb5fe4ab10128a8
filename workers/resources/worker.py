"""Resources: makes nodes offer `telemetry/scheduling`, and again when something resets it.

The worker watches complete nodes, so it runs only on request. When it is switched off, nodes keep the resource until
somebody removes it.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.connection import Bus
from tas.enforcing.managers import FIELD_MANAGER
from tas.enforcing.node_resource import RESOURCE, is_offered
from tas.events.event import SOURCE
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import ConflictError, ExpiredError, KubernetesError, NotFoundError
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import WHOLE_NODES, WholeNode
from workers.process.logs import ThrottledLog
from workers.reconcile.failed_requests import requeued
from workers.reconcile.lease_first import LeaseFirst
from workers.reconcile.work_queue import WorkQueue
from workers.resources.reports import ResourceEvents

log = structlog.get_logger("resources")

MAX_CONCURRENT = 8
"""Nodes that are patched at the same time."""

PATCH_SECONDS = 1.0
"""The shortest time between two patches of a node, in case somebody else always resets the resource."""


class Resources:
    """The worker. Its only state is the queue of nodes to check."""

    name = "resources"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        reflectors: Reflectors,
        *,
        registry: CollectorRegistry,
        count: int,
        event_source: str = SOURCE,
    ) -> None:
        self._client = client
        self._count = count
        self._patched: dict[str, float] = {}
        self._throttled = ThrottledLog(log)
        self._queue = WorkQueue(self._handle, max_concurrent=MAX_CONCURRENT)
        self._followed = reflectors.whole_nodes.consumer(on_list=self._listed, on_change=self._change)
        self._lease = LeaseFirst(bus, "resources", self._queue, on_held=self._followed.relist)
        self._events = ResourceEvents(bus, source=event_source)
        self._patches = Counter(
            "tas_node_resource_patches",
            "Attempts to patch a node's status, by result.",
            ["result"],
            registry=registry,
        )
        for result in ("patched", "conflict", "gone", "failed"):
            self._patches.labels(result)

    def unready(self) -> str | None:
        """Why the nodes are not known yet."""
        return None if self._followed.listed else f"nodes: {self._followed.problem}"

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._followed.run(), self._queue.run(), self._lease.run(), self._events.run()):
                tasks.create_task(work)

    async def _handle(self, name: str) -> float | None:
        try:
            return await self._offer(name)
        except KubernetesError as error:
            if isinstance(error, (ConflictError, ExpiredError)):
                self._patches.labels("conflict").inc()
            else:
                self._patches.labels("failed").inc()
                self._throttled.warning("node_resource_failed", name, node=name, error=str(error))
            raise requeued(error) from error

    async def _offer(self, name: str) -> float | None:
        wait = self._patched.get(name, float("-inf")) + PATCH_SECONDS - time.monotonic()
        if wait > 0:
            return wait
        read_at = time.monotonic()
        try:
            node = await self._client.get(WHOLE_NODES, name)
            if self._is_correct(node):
                return None
            await self._client.merge_patch(
                WHOLE_NODES, name, self._patch(node), subresource="status", field_manager=FIELD_MANAGER, read_at=read_at
            )
        except NotFoundError as error:
            if not error.confirms_missing(group="", plural="nodes", name=name):
                raise
            self._patches.labels("gone").inc()
            return None
        self._patched[name] = time.monotonic()
        self._patches.labels("patched").inc()
        self._events.note(name, node.metadata.uid, self._count)
        log.info("node_resource_offered", node=name, resource=RESOURCE, count=self._count)
        return None

    def _patch(self, node: WholeNode) -> Mapping[str, Any]:
        offer = {RESOURCE: str(self._count)}
        return {
            "metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version},
            "status": {"capacity": offer, "allocatable": offer},
        }

    def _is_correct(self, node: WholeNode) -> bool:
        return is_offered(self._count, node.status.capacity, node.status.allocatable)

    def _listed(self, listing: Listing[WholeNode]) -> None:
        names = {node.metadata.name for node in listing.items}
        self._patched = {name: when for name, when in self._patched.items() if name in names}
        for node in listing.items:
            self._check(node, is_listed=True)

    def _change(self, change: Change[WholeNode]) -> None:
        if change.type is ChangeType.DELETED:
            self._patched.pop(change.object.metadata.name, None)
            self._queue.forget(change.object.metadata.name)
            self._events.forget(change.object.metadata.name)
        else:
            self._check(change.object)

    def _check(self, node: WholeNode, *, is_listed: bool = False) -> None:
        if self._is_correct(node):
            self._events.note(node.metadata.name, node.metadata.uid, self._count, is_listed=is_listed)
        else:
            self._lease.add(node.metadata.name)
