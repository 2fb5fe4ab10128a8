"""Part of `inventory`: copies the GPU cards of nodes to NODES, and hands pods and nodes on to the holds."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Gauge

from bus.buckets import NODES
from bus.connection import Bus
from bus.errors import ConflictError, ExpiredError, ForbiddenError, RefusedError
from bus.kinds import NODE_INVENTORY
from bus.records.devices import NodeInventory
from tas.gpu.inventory import read_inventory
from tas.gpu.names import RESOURCE_PREFIX
from tas.gpu.policy_facts import read_policy_facts
from workers.following.records import Records, Write
from workers.inventory.card_holds import CardHolds
from workers.inventory.card_metrics import CardMetrics
from workers.inventory.card_waking import CardWaking
from workers.kubernetes.client import Change, ChangeType, KubernetesClient
from workers.kubernetes.followers import Gathered, Shared
from workers.kubernetes.resources import GpuNode
from workers.process.logs import ThrottledLog
from workers.process.tasks import set_within, together

log = structlog.get_logger("inventory")

CHECK_SECONDS = 0.5
"""How often reservations are checked, and nodes that are to be tried again."""

CHECK_ALL_SECONDS = 30.0
"""How often every node is compared."""


def node_inventory(found: GpuNode) -> NodeInventory | None:
    """The record of a node; None if nothing of the node is about GPU cards."""
    allocatable = {
        name: str(amount) for name, amount in found.status.allocatable.items() if name.startswith(RESOURCE_PREFIX)
    }
    labels = found.metadata.labels
    if not allocatable and not any(label.startswith(RESOURCE_PREFIX) for label in labels):
        return None
    inventory = read_inventory(labels, allocatable)
    facts = read_policy_facts(labels, inventory.pci_groups)
    return NodeInventory(uid=found.metadata.uid, inventory=inventory, facts=facts)


def _named_inventory(found: GpuNode) -> tuple[str, NodeInventory] | None:
    return None if (record := node_inventory(found)) is None else (found.metadata.name, record)


class Cards:
    """Gets the nodes and the pods of the cluster. Only the replica with the lease calls `keep`.

    Attributes:
        nodes: Takes the nodes in.
        pods: Takes the pods in.
    """

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        registry: CollectorRegistry,
        *,
        relist: Callable[[], None],
        is_active: Callable[[], bool],
        is_listed: Callable[[], bool],
        card_metrics: int,
        new_bus_wait: float,
        reserved_seconds: float,
        forget_seconds: float,
    ) -> None:
        """`is_active` tells whether this replica has the lease, `is_listed` whether all nodes and pods are known.

        The rest is as in `CardHolds` and `Inventory`.
        """
        self._nodes: dict[str, NodeInventory] = {}
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._is_listed = is_listed
        self._forget_seconds = forget_seconds
        self._throttled = ThrottledLog(log)
        self._card_metrics = CardMetrics(registry, most_nodes=card_metrics)
        self._waking = CardWaking(client, registry, is_active=is_active)
        self._inventories = Records(
            bus,
            NODE_INVENTORY,
            on_epoch=self._begin_epoch,
            on_entry=self._take_in,
            on_batch=self._wake.set,
            on_written=lambda name, _record, _before: self._note(name),
        )
        self.holds = CardHolds(
            bus,
            client,
            registry,
            nodes=self._nodes,
            relist=relist,
            wake=self._wake,
            on_hold=self._note,
            on_epoch=self._begin_epoch,
            new_bus_wait=new_bus_wait,
            reserved_seconds=reserved_seconds,
        )
        self.nodes: Gathered[GpuNode, NodeInventory] = Gathered(
            _named_inventory, on_list=self._list_nodes, on_change=self._change_node
        )
        self.pods = Shared(self.holds.pods, self._waking.pods)
        for name, text, function in (
            ("tas_inventory_nodes", "Nodes with GPU cards.", lambda: len(self._nodes)),
            ("tas_inventory_problems", "Labels and amounts of nodes that cannot be read.", self._count_problems),
        ):
            Gauge(name, text, registry=registry).set_function(function)

    def _count_problems(self) -> int:
        return sum(len(each.inventory.problems) + len(each.facts.problems) for each in self._nodes.values())

    async def run(self) -> None:
        """Follows the bus until cancelled."""
        await together(
            self._inventories.run(),
            self._inventories.forget_deleted(self._forget_seconds, ThrottledLog(log, bucket=NODES.name)),
            self.holds.run(self._forget_seconds),
            self._waking.run(),
        )

    async def keep(self) -> None:
        """Writes all differences, again and again, while this replica has the lease. Raises BusError."""
        all_at = -inf
        try:
            while True:
                await set_within(self._wake, CHECK_SECONDS)
                self._wake.clear()
                if not (self._is_listed() and self._inventories.caught_up and self.holds.caught_up):
                    continue
                if (now := time.monotonic()) - all_at >= CHECK_ALL_SECONDS:
                    all_at = now
                    self._touch_all()
                await self._keep()
        finally:
            self.holds.stop_keeping()

    async def _keep(self) -> None:
        # What changes from here on is for the next pass: it may be too late for this one.
        changed, self._dirty = self._dirty, set()
        await self._write_inventories(changed)
        await self.holds.keep()

    async def _write_inventories(self, names: Iterable[str]) -> None:
        read_at = time.monotonic()
        writes: dict[str, Write[NodeInventory]] = {}
        for name in names:
            stored, wanted = self._inventories.get(name), self._nodes.get(name)
            if wanted is None and stored.present:
                writes[name] = Write(record=None, revision=stored.revision, read_at=read_at)
            elif wanted is not None and stored.record != wanted:
                writes[name] = Write(record=wanted, revision=stored.revision, read_at=read_at)
        for name, error in (await self._inventories.write(writes)).items():
            if isinstance(error, (ConflictError, ExpiredError)):
                self._dirty.add(name)
            elif isinstance(error, RefusedError) and not isinstance(error, ForbiddenError):
                # A record that is too large holds up no other node. But another replica may have the right to write.
                self._throttled.warning("cards_of_node_not_written", name, node=name, error=str(error))
            else:
                raise error

    # What this part follows

    def _touch_all(self) -> None:
        self._touch((*self._nodes, *self._inventories.stored))
        self.holds.touch_all()

    def _touch(self, names: Iterable[str]) -> None:
        self._dirty.update(names)
        self._wake.set()

    def _begin_epoch(self) -> None:
        for each in (self._waking, self._card_metrics):
            each.drop_nodes()
        self._touch((*self._nodes, *self._inventories.stored))

    def _take_in(self, name: str) -> None:
        self._touch((name,))
        self._note(name)

    def _note(self, name: str) -> None:
        inventory, hold = self._inventories.get(name).record, self.holds.get(name).record
        for each in (self._waking, self._card_metrics):
            each.set_node(name, inventory, hold)

    def _list_nodes(self, found: dict[str, NodeInventory]) -> None:
        changed = {*self._nodes, *found}
        self._nodes.clear()
        self._nodes.update(found)
        self._report_problems(found)
        self._note_nodes(changed)

    def _change_node(self, change: Change[GpuNode]) -> None:
        name = change.object.metadata.name
        record = None if change.type is ChangeType.DELETED else node_inventory(change.object)
        if self._nodes.get(name) == record:
            return  # a node changes all the time, its cards seldom
        if record is None:
            del self._nodes[name]
        else:
            self._nodes[name] = record
            self._report_problems({name: record})
        self._note_nodes((name,))

    def _note_nodes(self, names: Iterable[str]) -> None:
        self._touch(names)
        self.holds.touch(names)

    def _report_problems(self, nodes: Mapping[str, NodeInventory]) -> None:
        for name, record in nodes.items():
            if problems := (*record.inventory.problems, *record.facts.problems):
                self._throttled.warning(
                    "cards_of_node_unreadable", name, node=name, problems=[str(each) for each in problems[:3]]
                )

    def begin_list_of_pods(self) -> None:
        """The request of a list of pods is sent now."""
        self.holds.begin_list()
