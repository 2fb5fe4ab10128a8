"""Inventory: copies the GPU cards of nodes to NODES, and keeps the holds in HOLDS equal to the pods of the cluster.

One replica does this at a time, but binders write holds, too: so each write is conditional on the revision that was
read. After a wipe of the bus the holds are built again from the annotations of pods. This begins when every Binding
that was sent before can no longer take effect, and nobody binds before it is complete (`_synced`).

A pod loses its cards only after the API server was asked for the pod. Lists and watches only say for which pod to ask.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import HOLDS, SYNCED
from bus.connection import Bus
from bus.errors import BusError, ConflictError
from bus.kinds import NODE_HOLDS, NODE_INVENTORY, synced_of
from bus.lease import Lease
from bus.records.devices import NodeHold, NodeInventory
from tas.devices.claim import DevicePod
from tas.devices.hold import EMPTY, Held, Hold, HoldError, Phase
from tas.devices.inventory import read_inventory
from tas.devices.keeping import Ending, adopted, answered, drifting, is_on_node, requests_cards, to_ask_for
from tas.devices.names import RESOURCE_PREFIX
from tas.devices.policy_facts import read_policy_facts
from tas.devices.reserving import RESERVED_SECONDS
from workers.following.records import Records, Stored, Write
from workers.following.synced import write_synced
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import KubernetesError, NotFoundError
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import GPU_NODES, GPU_PODS, GpuNode, GpuPod
from workers.process.logs import ThrottledLog
from workers.process.runtime import json_response
from workers.watching.card_waking import CardWaking

log = structlog.get_logger("inventory")

LEASE_KEY = "inventory"
WRITER = "inventory"

CHECK_SECONDS = 0.5
"""How often reservations are checked."""

CHECK_ALL_SECONDS = 30.0
"""How often every node is compared."""

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus or the API server."""

GONE_SECONDS = 600.0
"""How long the empty hold of a node without cards is kept."""


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


class Inventory:
    """The worker. Its state can be rebuilt from the API server and the bus."""

    name = "inventory"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        *,
        registry: CollectorRegistry,
        new_bus_wait: float = RESERVED_SECONDS,
        reserved_seconds: float = RESERVED_SECONDS,
    ) -> None:
        """Holds are complete no sooner than `new_bus_wait` seconds after the creation of HOLDS.

        A reservation that this process has seen unchanged for `reserved_seconds` is over.
        """
        self._bus = bus
        self._client = client
        self._new_bus_wait = new_bus_wait
        self._reserved_seconds = reserved_seconds
        self._lease = Lease(bus, LEASE_KEY)
        self._nodes: dict[str, NodeInventory] = {}
        self._pods: dict[str, DevicePod] = {}  # those with GPU requests, by uid
        self._of_node: dict[str, set[str]] = {}
        self._reserved: dict[tuple[str, str], tuple[float | None, float]] = {}  # `until`, and since when it is known
        self._gone: dict[str, float] = {}
        self._drift: dict[str, tuple[str, ...]] = {}
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._listing_at = -inf
        self._pods_listed_at = -inf  # when the request of the last complete list of pods was sent
        self._complete = ""  # the epoch whose holds are complete
        self._waits_in = ""  # the epoch in which this was logged
        self._throttled = ThrottledLog(log)
        self._node_list = Reflector(client, GPU_NODES, on_list=self._list_nodes, on_change=self._change_node)
        self._pod_list = Reflector(
            client, GPU_PODS, on_list=self._list_pods, on_change=self._change_pod, before_list=self._before_pods
        )
        self._waking = CardWaking(client, registry, is_active=lambda: self._lease.held)
        self._inventories = Records(
            bus,
            NODE_INVENTORY,
            on_epoch=self._waking.drop_nodes,
            on_entry=self._take_in_record,
            on_batch=self._wake.set,
            on_written=lambda name, _record, _before: self._note_cards(name),
        )
        self._holds = Records(
            bus,
            NODE_HOLDS,
            on_epoch=self._waking.drop_nodes,
            on_entry=self._take_in_record,
            on_batch=self._wake.set,
            on_written=lambda name, _record, _before: self._note_cards(name),
        )
        self._metrics(registry)

    def _metrics(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        for name, text, function in (
            ("tas_inventory_nodes", "Nodes with GPU cards.", lambda: len(self._nodes)),
            ("tas_inventory_pods", "Pods with GPU requests.", lambda: len(self._pods)),
            ("tas_inventory_problems", "Labels and amounts of nodes that cannot be read.", self._count_problems),
            (
                "tas_inventory_drifting_pods",
                "Pods on a node with GPU requests, of which nobody knows the cards.",
                lambda: sum(map(len, self._drift.values())),
            ),
        ):
            gauge(name, text).set_function(function)
        self._ended = Counter(
            "tas_inventory_released",
            "Pods that have lost their cards in a hold, by reason.",
            ["reason"],
            registry=registry,
        )
        for reason in Ending:
            self._ended.labels(reason)
        self._adopted = Counter(
            "tas_inventory_adopted", "Pods whose cards are known only by their annotations.", registry=registry
        )
        self._confirmed = Counter(
            "tas_inventory_confirmed", "Reservations whose pod was found bound.", registry=registry
        )

    def unready(self) -> str | None:
        """Why the bus may differ from the API server; a replica without the lease is on standby."""
        reasons = [f"{name}: {each.problem}" for name, each in self._lists() if not each.listed]
        return "; ".join(reasons) or None

    def health_routes(self) -> Iterable[web.RouteDef]:
        """`/drift`: the pods on each node of which nobody knows the cards."""
        return [web.get("/drift", self._get_drift)]

    async def _get_drift(self, _request: web.Request) -> web.Response:
        return json_response({"drift": {node: list(pods) for node, pods in sorted(self._drift.items())}})

    def _lists(self) -> Iterable[tuple[str, Reflector[GpuNode] | Reflector[GpuPod]]]:
        return (("nodes", self._node_list), ("pods", self._pod_list))

    def _count_problems(self) -> int:
        return sum(len(each.inventory.problems) + len(each.facts.problems) for each in self._nodes.values())

    async def run(self) -> None:
        """Follows until cancelled, and writes while this replica holds the lease."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self._node_list, self._pod_list, self._inventories, self._holds, self._waking):
                tasks.create_task(part.run())
            tasks.create_task(self._write_with_lease())

    async def _write_with_lease(self) -> None:
        while True:
            await self._bus.wait_connected()
            try:
                async with self._lease.hold():
                    await self._keep()
            except BusError as error:
                log.info("inventory_lease_lost", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _keep(self) -> None:
        """Writes all differences, again and again. Raises BusError."""
        all_at = -inf
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if self.unready() is not None or not (self._inventories.caught_up and self._holds.caught_up):
                continue
            if (now := time.monotonic()) - all_at >= CHECK_ALL_SECONDS:
                all_at = now
                self._dirty.update(self._nodes, self._inventories.stored, self._holds.stored, self._of_node)
            await self._write_inventories()
            with suppress(ConflictError):  # another replica was faster
                if await self._are_holds_complete():
                    await self._keep_holds()

    # Inventories

    async def _write_inventories(self) -> None:
        read_at = time.monotonic()
        writes: dict[str, Write[NodeInventory]] = {}
        for name in self._dirty:
            stored, wanted = self._inventories.get(name), self._nodes.get(name)
            if wanted is None and stored.present:
                writes[name] = Write(record=None, revision=stored.revision, read_at=read_at)
            elif wanted is not None and stored.record != wanted:
                writes[name] = Write(record=wanted, revision=stored.revision, read_at=read_at)
        if writes:
            self._raise_first(await self._inventories.write(writes))

    def _raise_first(self, failures: Mapping[str, BusError]) -> None:
        """Raises the first failure that no later pass mends by itself."""
        for error in failures.values():
            if not isinstance(error, ConflictError):
                raise error

    # Holds

    async def _are_holds_complete(self) -> bool:
        """Builds the holds of a new epoch again. Returns whether those of this epoch are complete. Raises BusError."""
        assert self._holds.epoch is not None
        if self._complete == self._holds.epoch.created:
            return True
        epoch = await self._bus.epoch(HOLDS)
        if epoch.created != self._holds.epoch.created:
            return False
        synced = (await synced_of(HOLDS).get(self._bus, SYNCED)).readable()
        if synced is None or synced.epoch != epoch.created:
            if epoch.age < self._new_bus_wait:  # a Binding for a lost reservation may still arrive
                if self._waits_in != epoch.created:
                    self._waits_in = epoch.created
                    log.info("holds_wait", seconds=round(self._new_bus_wait - epoch.age, 1))
                return False
            over_at = time.monotonic() - (epoch.age - self._new_bus_wait)
            if self._pods_listed_at < over_at:
                self._pod_list.relist()
                return False
            for name in {*self._nodes, *self._of_node}:
                await self._change_hold(name, lambda hold, name=name: self._with_adopted(name, hold))  # type: ignore[misc]
            count = len(self._holds.stored)
            await write_synced(self._bus, HOLDS, epoch, count=count, writer=WRITER, cluster=True)
            log.info("holds_complete", nodes=count, pods=len(self._pods))
        self._complete = epoch.created
        self._dirty.update(self._nodes, self._of_node, self._holds.stored)
        return True

    async def _keep_holds(self) -> None:
        """Compares the holds of changed nodes, and of those with a reservation that is over. Raises as its parts."""
        now = time.monotonic()
        expired = self._expired(now)
        for name in sorted(self._dirty | expired.keys()):
            try:
                await self._keep_hold(name, expired.get(name, set()), now)
            except ConflictError as error:  # a binder was faster: the watch brings its hold
                log.debug("hold_not_written", node=name, error=str(error))
            except KubernetesError as error:
                self._throttled.warning("hold_not_checked", name, node=name, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                return
            else:
                self._dirty.discard(name)

    def _expired(self, now: float) -> dict[str, set[str]]:
        """The reservations by node that have not changed for so long that no Binding can be on its way."""
        found: dict[str, set[str]] = {}
        reserved: dict[tuple[str, str], tuple[float | None, float]] = {}
        for name, stored in self._holds.stored.items():
            if (record := stored.record) is None:
                continue
            for uid, held in record.pods.items():
                if held.phase is not Phase.RESERVED:
                    continue
                until, since = self._reserved.get((name, uid), (None, now))
                if until != held.until:  # new or renewed; by our own clock, since that of the binder may be wrong
                    since = now
                reserved[name, uid] = (held.until, since)
                if now - since >= self._reserved_seconds:
                    found.setdefault(name, set()).add(uid)
        self._reserved = reserved
        return found

    async def _keep_hold(self, name: str, expired: set[str], now: float) -> None:
        stored = self._holds.get(name)
        if stored.present and stored.record is None:
            self._throttled.warning("hold_unreadable", name, node=name)
            return  # it may have what nobody else knows
        hold = EMPTY if stored.record is None else stored.record.hold()
        if asked := to_ask_for(hold, self._pods, expired):
            await self._ask(name, hold, asked)
        await self._change_hold(name, lambda hold: self._with_adopted(name, hold))
        await self._drop_gone(name, now)
        self._note_drift(name)

    async def _ask(self, name: str, hold: Hold, uids: Iterable[str]) -> None:
        """Asks the API server for pods, and applies the answers. Raises KubernetesError, BusError."""
        for uid in uids:
            held = hold.pods[uid]
            pod = await self._pod(held)
            endings: list[Ending | None] = []

            def step(
                current: Hold,
                uid: str = uid,
                held: Held = held,
                pod: DevicePod | None = pod,
                endings: list[Ending | None] = endings,
            ) -> Hold:
                if (found := answered(current, uid, held, pod, name)) is None:
                    return current
                endings.append(found[1])
                return found[0]

            await self._change_hold(name, step)
            for ending in endings:
                if ending is None:
                    self._confirmed.inc()
                else:
                    self._ended.labels(ending).inc()
                log.info("hold_changed", node=name, pod=str(held.pod), ending=None if ending is None else ending.value)

    async def _pod(self, held: Held) -> DevicePod | None:
        """The pod of this name as the API server has it now; None if there is none. Raises KubernetesError."""
        try:
            found = await self._client.get(GPU_PODS, held.pod.name, namespace=held.pod.namespace)
        except NotFoundError as error:
            if not error.confirms_missing(group="", plural="pods", name=held.pod.name):
                raise
            return None
        return found.as_device_pod()

    def _with_adopted(self, name: str, hold: Hold) -> Hold:
        pods = [self._pods[uid] for uid in self._of_node.get(name, ())]
        found, problems = adopted(hold, pods)
        for uid, each in problems.items():
            pod = self._pods[uid].key
            self._throttled.warning(
                "cards_of_pod_unreadable", uid, node=name, pod=str(pod), problems=[str(problem) for problem in each[:3]]
            )
        return found

    async def _change_hold(self, name: str, step: Callable[[Hold], Hold]) -> None:
        """Writes what `step` makes of a hold, if anything; a node with cards has at least an empty one.

        Raises BusError.
        """
        read_at, stored = time.monotonic(), self._holds.get(name)
        if stored.present and stored.record is None:
            return
        record = stored.record
        uid = self._uid(name, record)
        if uid is None:
            return  # neither cards nor pods with cards
        try:
            hold = EMPTY if record is None else record.hold()
            following = NodeHold(uid=uid, pods=step(hold).pods)
        except HoldError as error:
            self._throttled.warning("hold_not_changed", name, node=name, error=str(error))
            return
        if record == following:
            return
        self._adopted.inc(len(following.pods.keys() - hold.pods.keys()))
        await self._holds.write_one(name, Write(record=following, revision=stored.revision, read_at=read_at))

    def _uid(self, name: str, record: NodeHold | None) -> str | None:
        """The uid of the node whose hold it is: pods stay on a node that was created again under its name."""
        if (node := self._nodes.get(name)) is not None:
            return node.uid
        return None if record is None else record.uid

    async def _drop_gone(self, name: str, now: float) -> None:
        """Deletes the hold of a node without cards that nobody uses, after a while."""
        stored = self._holds.get(name)
        if name in self._nodes or stored.record is None or stored.record.pods:
            self._gone.pop(name, None)
            return
        if now - self._gone.setdefault(name, now) >= GONE_SECONDS:
            await self._holds.write_one(name, _deletion(stored, now))
            self._gone.pop(name, None)

    def _note_drift(self, name: str) -> None:
        stored = self._holds.get(name)
        hold = EMPTY if stored.record is None else stored.record.hold()
        pods = [self._pods[uid] for uid in self._of_node.get(name, ())]
        found = tuple(str(pod.key) for pod in drifting(hold, pods))
        before = self._drift.pop(name, ())
        if found:
            self._drift[name] = found
        if found and found != before:
            self._throttled.warning("pods_without_claim", name, node=name, pods=found[:10], count=len(found))

    # What the worker follows

    def _touch(self, name: str) -> None:
        self._dirty.add(name)
        self._wake.set()

    def _take_in_record(self, name: str) -> None:
        self._touch(name)
        self._note_cards(name)

    def _note_cards(self, name: str) -> None:
        self._waking.set_node(name, self._inventories.get(name).record, self._holds.get(name).record)

    def _list_nodes(self, listing: Listing[GpuNode]) -> None:
        found = {each.metadata.name: record for each in listing.items if (record := node_inventory(each)) is not None}
        self._dirty.update(self._nodes, found)
        self._nodes = found
        self._report_problems(found)
        self._wake.set()

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
        self._touch(name)

    def _report_problems(self, nodes: Mapping[str, NodeInventory]) -> None:
        for name, record in nodes.items():
            if problems := (*record.inventory.problems, *record.facts.problems):
                self._throttled.warning(
                    "cards_of_node_unreadable", name, node=name, problems=[str(each) for each in problems[:3]]
                )

    async def _before_pods(self) -> None:
        self._listing_at = time.monotonic()

    def _list_pods(self, listing: Listing[GpuPod]) -> None:
        before = set(self._of_node)
        self._pods.clear()
        self._of_node.clear()
        for each in listing.items:
            self._take_in_pod(each.as_device_pod())
        self._waking.set_pods(listing.items)
        self._pods_listed_at = self._listing_at
        self._dirty.update(before, self._of_node)
        self._wake.set()

    def _change_pod(self, change: Change[GpuPod]) -> None:
        pod = change.object.as_device_pod()
        known = self._pods.pop(pod.uid, None)
        if known is not None and known.node is not None:
            self._of_node[known.node].discard(pod.uid)
            if not self._of_node[known.node]:
                del self._of_node[known.node]
            self._touch(known.node)
        if change.type is ChangeType.DELETED:
            self._waking.drop_pod(pod.uid)
        else:
            self._take_in_pod(pod)
            self._waking.set_pod(change.object)

    def _take_in_pod(self, pod: DevicePod) -> None:
        if not requests_cards(pod):
            return
        self._pods[pod.uid] = pod
        if is_on_node(pod) and pod.node is not None:
            self._of_node.setdefault(pod.node, set()).add(pod.uid)
            self._touch(pod.node)


def _deletion(stored: Stored[NodeHold], now: float) -> Write[NodeHold]:
    return Write(record=None, revision=stored.revision, read_at=now)
