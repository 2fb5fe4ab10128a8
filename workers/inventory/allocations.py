"""The part of `inventory` that writes what the pods of each node request to NODES, for agents and people.

A node is written again when a pod comes or goes. A burst of pods is gathered, so that it costs few writes. The record
of a node is deleted only if the API server has reported the deletion, or a complete list without the node.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import NODES
from bus.connection import Bus
from bus.errors import BusError, ConflictError, ExpiredError
from bus.kinds import NODE_ALLOCATION
from tas.allocation.node import NodeAllocation, allocated, is_same
from tas.allocation.pod import read_amounts
from tas.errors import InvalidInputError
from workers.following.records import Records, Write
from workers.inventory.pods_on_nodes import PodsOnNodes
from workers.kubernetes.client import Change, ChangeType
from workers.kubernetes.followers import Gathered
from workers.kubernetes.resources import GpuNode
from workers.process.logs import MAX_NAMES, ThrottledLog
from workers.process.tasks import set_within, together

log = structlog.get_logger("allocations")

GATHER_SECONDS = 0.25
"""The shortest time between two passes: a scheduler places hundreds of pods a second."""

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus."""

CHECK_ALL_SECONDS = 30.0
"""How often every node is compared."""

NODES_AT_ONCE = 100
"""How many nodes are compared without a pause: to compare all of a large cluster takes half a second."""


class _Node(NamedTuple):
    """The amounts of a node."""

    uid: str
    capacity: dict[str, int]
    allocatable: dict[str, int]


class Allocations:
    """Writes allocations while `is_active()`.

    Attributes:
        nodes: Takes the nodes of `inventory` in.
        pods: Takes the pods in.
    """

    def __init__(
        self,
        bus: Bus,
        registry: CollectorRegistry,
        *,
        is_active: Callable[[], bool],
        forget_seconds: float,
        gather_seconds: float = GATHER_SECONDS,
    ) -> None:
        self._is_active = is_active
        self._forget_seconds = forget_seconds
        self._gather_seconds = gather_seconds
        self._nodes: dict[str, _Node] | None = None  # None: not listed yet
        self.nodes: Gathered[GpuNode, _Node] = Gathered(
            lambda found: (found.metadata.name, self._read_node(found)),
            on_list=self._list_nodes,
            on_change=self._change_node,
        )
        self.pods = PodsOnNodes(on_list=self._touch_all, on_node=self._touch, log=log)
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._records = Records(
            bus, NODE_ALLOCATION, on_epoch=self._touch_all, on_entry=self._touch, on_batch=self._wake.set, packed=True
        )
        Gauge(
            "tas_allocation_pods", "Pods on nodes that have not ended, as far as `inventory` knows.", registry=registry
        ).set_function(lambda: self.pods.count)
        Gauge(
            "tas_allocation_unreadable_pods", "Pods on nodes with a quantity that cannot be read.", registry=registry
        ).set_function(lambda: self.pods.unreadable)
        self._writes = Counter("tas_allocation_writes", "Allocations of nodes written to NODES.", registry=registry)

    async def run(self) -> None:
        """Follows the bucket and writes until cancelled."""
        await together(
            self._records.run(),
            self._records.forget_deleted(self._forget_seconds, ThrottledLog(log, bucket=NODES.name)),
            self._write(),
        )

    def begin(self) -> None:
        """Compares every node: this replica is active from now on."""
        self._touch_all()

    def get(self, name: str) -> NodeAllocation | None:
        """The allocation of a node as it is stored; None if it is not known."""
        return self._records.get(name).record

    # What `inventory` follows

    def _list_nodes(self, nodes: dict[str, _Node]) -> None:
        self._nodes = nodes
        self._touch_all()

    def _change_node(self, change: Change[GpuNode]) -> None:
        if self._nodes is None:
            return
        name = change.object.metadata.name
        if change.type is ChangeType.DELETED:
            self._nodes.pop(name, None)
        else:
            node = self._read_node(change.object)
            if self._nodes.get(name) == node:
                return  # the status of a node changes all the time
            self._nodes[name] = node
        self._touch(name)

    def _read_node(self, found: GpuNode) -> _Node:
        amounts = []
        for field in ("capacity", "allocatable"):
            readable: dict[str, int] = {}
            for resource, quantity in getattr(found.status, field).items():
                try:
                    readable |= read_amounts({resource: quantity}, f"status.{field}", subject="node")
                except InvalidInputError as error:
                    name = found.metadata.name
                    self._throttled.warning("amount_of_node_unreadable", name, node=name, error=str(error))
            amounts.append(readable)
        return _Node(found.metadata.uid, *amounts)

    # Writing

    def _touch(self, name: str) -> None:
        self._dirty.add(name)
        self._wake.set()

    def _touch_all(self) -> None:
        self._dirty.update(self._nodes or (), self._records.stored)
        self._wake.set()

    async def _write(self) -> None:
        ready_at = all_at = -inf
        while True:
            await set_within(self._wake, CHECK_ALL_SECONDS)
            await asyncio.sleep(max(0.0, ready_at - time.monotonic()))
            ready_at = time.monotonic() + self._gather_seconds
            self._wake.clear()
            if not self._is_active():
                self._dirty.clear()  # `begin` touches every node
                continue
            if self._nodes is None or not self.pods.are_listed:
                continue
            if not self._records.caught_up:
                continue
            if (now := time.monotonic()) - all_at >= CHECK_ALL_SECONDS:
                all_at = now
                self._touch_all()
            changed, self._dirty = self._dirty, set()
            failed = await self._write_nodes(changed)
            if failed:
                self._dirty |= failed.keys()
                others = [error for error in failed.values() if not isinstance(error, ConflictError | ExpiredError)]
                if others:
                    nodes = sorted(failed)[:MAX_NAMES]
                    self._throttled.warning("allocations_not_written", nodes=nodes, error=str(others[0]))
                ready_at = time.monotonic() + RETRY_SECONDS
                self._wake.set()

    async def _write_nodes(self, names: Iterable[str]) -> dict[str, BusError]:
        failed: dict[str, BusError] = {}
        left = sorted(names)
        while left and self._is_active():  # the next replica compares every node
            failed |= await self._write_some(left[:NODES_AT_ONCE])
            del left[:NODES_AT_ONCE]
            await asyncio.sleep(0)
        return failed

    async def _write_some(self, names: Iterable[str]) -> dict[str, BusError]:
        assert self._nodes is not None
        read_at, now = time.monotonic(), time.time()
        writes: dict[str, Write[NodeAllocation]] = {}
        for name in names:
            stored, node = self._records.get(name), self._nodes.get(name)
            if node is None:
                if stored.present:
                    writes[name] = Write(record=None, revision=stored.revision, read_at=read_at)
                continue
            wanted = allocated(node.uid, node.capacity, node.allocatable, self.pods.on(name), now)
            record = stored.record
            if record is None or not is_same(record, wanted):
                writes[name] = Write(record=wanted, revision=stored.revision, read_at=read_at)
        failed = await self._records.write(writes)
        self._writes.inc(len(writes) - len(failed))
        return failed
