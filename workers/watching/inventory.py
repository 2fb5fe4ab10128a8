"""Inventory: copies the GPU cards of nodes to NODES, and keeps the holds in HOLDS equal to the pods of the cluster.

One replica does this at a time, but binders write holds, too: so each write is conditional on the revision that was
read. After a wipe of the bus the holds are built again from the annotations of pods. This begins when every Binding
that was sent before can no longer take effect, and nobody binds before it is complete (`_synced`).

A pod loses its cards only after the API server was asked for the pod. Lists and watches only say for which pod to ask.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import inf

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import FORGET_SECONDS, HOLDS, NODES, SYNCED
from bus.connection import Bus
from bus.errors import BusError, ConflictError, ExpiredError
from bus.kinds import NODE_HOLDS, NODE_INVENTORY, synced_of
from bus.lease import Lease
from bus.records.devices import NodeHold, NodeInventory
from tas.devices.claim import DevicePod
from tas.devices.hold import EMPTY, Held, Hold
from tas.devices.inventory import read_inventory
from tas.devices.keeping import Ending, Reservations, adopted, answered, drifting, remembered, to_adopt, to_ask_for
from tas.devices.names import RESOURCE_PREFIX
from tas.devices.policy_facts import read_policy_facts
from tas.devices.reserving import RESERVED_SECONDS
from workers.following.records import Records, Stored, Write
from workers.following.synced import write_synced
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import GPU_NODES, GPU_PODS, GpuNode, GpuPod
from workers.process.logs import MAX_NAMES, ThrottledLog
from workers.process.runtime import json_response
from workers.watching.allocations import Allocations
from workers.watching.card_metrics import CardMetrics
from workers.watching.card_waking import CardWaking

log = structlog.get_logger("inventory")

LEASE_KEY = "inventory"
WRITER = "inventory"

CHECK_SECONDS = 0.5
"""How often reservations are checked, and nodes that are to be tried again."""

CHECK_ALL_SECONDS = 30.0
"""How often every node is compared."""

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus or the API server."""

NODES_AT_ONCE = 16
"""Nodes whose pods the API server is asked for at the same time."""

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
        card_metrics: int,
        new_bus_wait: float = RESERVED_SECONDS,
        reserved_seconds: float = RESERVED_SECONDS,
        forget_seconds: float = FORGET_SECONDS,
        allocations: bool = False,
    ) -> None:
        """Holds are complete no sooner than `new_bus_wait` seconds after the creation of HOLDS.

        A reservation that this process has seen unchanged for `reserved_seconds` is over. Tombstones are purged after
        `forget_seconds`. Of more than `card_metrics` nodes there are no metrics for each card. With
        `allocations` it also writes what the pods of each node request.
        """
        self._bus = bus
        self._client = client
        self._new_bus_wait = new_bus_wait
        self._forget_seconds = forget_seconds
        self._lease = Lease(bus, LEASE_KEY)
        self._nodes: dict[str, NodeInventory] = {}
        self._pods: dict[str, DevicePod] = {}  # those with GPU requests that have not ended, by uid
        self._of_node: dict[str, set[str]] = {}  # the uids of those that are bound
        self._reservations = Reservations(reserved_seconds)
        self._gone: dict[str, float] = {}
        self._drift: dict[str, tuple[str, ...]] = {}
        self._dirty: set[str] = set()
        self._retry_at: dict[str, float] = {}  # until when nothing is tried for the hold of a node that has failed
        self._wake = asyncio.Event()
        self._listing_at = -inf  # when the request of the last list of pods was sent, complete or not
        self._pods_listed_at = -inf  # when the request of the last complete list of pods was sent
        self._complete = ""  # the epoch whose holds are complete
        self._waits_in = ""  # the epoch in which this was logged
        self._throttled = ThrottledLog(log)
        self._node_list = Reflector(client, GPU_NODES, on_list=self._list_nodes, on_change=self._change_node)
        self._pod_list = Reflector(
            client, GPU_PODS, on_list=self._list_pods, on_change=self._change_pod, before_list=self._before_pods
        )
        self._card_metrics = CardMetrics(registry, most_nodes=card_metrics)
        self._allocations = (
            Allocations(bus, registry, is_active=lambda: self._lease.held, forget_seconds=forget_seconds)
            if allocations
            else None
        )
        self._waking = CardWaking(client, registry, is_active=lambda: self._lease.held)
        self._inventories = Records(
            bus,
            NODE_INVENTORY,
            on_epoch=self._begin_epoch,
            on_entry=self._take_in_record,
            on_batch=self._wake.set,
            on_written=lambda name, _record, _before: self._note_cards(name),
        )
        self._holds = Records(
            bus,
            NODE_HOLDS,
            on_epoch=self._begin_epoch_of_holds,
            on_entry=self._take_in_hold,
            on_batch=self._wake.set,
            on_written=lambda name, _record, _before: self._note_hold(name),
        )
        self._metrics(registry)

    def _metrics(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry)
        for name, text, function in (
            ("tas_inventory_nodes", "Nodes with GPU cards.", lambda: len(self._nodes)),
            ("tas_inventory_pods", "Pods with GPU requests that have not ended.", lambda: len(self._pods)),
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
            if self._allocations is not None:
                tasks.create_task(self._allocations.run())
            for part in (self._node_list, self._pod_list, self._inventories, self._holds, self._waking):
                tasks.create_task(part.run())
            for records, bucket in ((self._inventories, NODES), (self._holds, HOLDS)):
                tasks.create_task(records.forget_deleted(self._forget_seconds, ThrottledLog(log, bucket=bucket.name)))
            tasks.create_task(self._write_with_lease())

    async def _write_with_lease(self) -> None:
        while True:
            await self._bus.wait_connected()
            try:
                async with self._lease.hold():
                    if self._allocations is not None:
                        self._allocations.begin()
                    await self._keep()
            except BusError as error:
                log.info("inventory_lease_lost", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._drift.clear()  # another replica reports it

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
                self._touch_all()
            # What changes from here on is for the next pass: it may be too late for this one.
            changed, self._dirty = self._dirty, set()
            await self._write_inventories(changed)
            with suppress(ConflictError, ExpiredError):  # another replica was faster, or this one was stopped
                if await self._are_holds_complete():
                    await self._keep_holds(changed)

    # Inventories

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
            if not isinstance(error, (ConflictError, ExpiredError)):
                raise error
            self._dirty.add(name)

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
                if self._listing_at < over_at:  # else this list is on its way
                    self._pod_list.relist()
                return False
            if not await self._build_holds():
                return False
            count = len(self._holds.stored)
            await write_synced(self._bus, HOLDS, epoch, count=count, writer=WRITER, cluster=True)
            log.info("holds_complete", nodes=count, pods=len(self._pods))
        self._complete = epoch.created
        self._touch_all()
        return True

    async def _build_holds(self) -> bool:
        """Writes the holds of all nodes. Returns whether each hold that is stored is right. Raises BusError."""
        are_right = [await self._adopt(name) for name in {*self._nodes, *self._of_node}]
        return all(are_right)

    async def _keep_holds(self, names: set[str]) -> None:
        """Compares the holds of these nodes, of those with a reservation to ask for, and of those that had failed.

        Raises BusError.
        """
        now = time.monotonic()
        failures: list[BusError] = []
        left = iter(sorted({*names, *self._reservations.nodes(now, self._pods), *self._retry_at}))

        async def keep_on() -> None:
            for name in left:
                if self._retry_at.get(name, now) > now:
                    continue
                self._retry_at.pop(name, None)
                try:
                    await self._keep_hold(name)
                except (ConflictError, ExpiredError) as error:  # a binder was faster: the watch brings its hold
                    self._dirty.add(name)
                    log.debug("hold_not_written", node=name, error=str(error))
                except BusError as error:
                    failures.append(error)
                    return

        async with asyncio.TaskGroup() as tasks:
            for _ in range(NODES_AT_ONCE):
                tasks.create_task(keep_on())
        if failures:
            raise failures[0]

    async def _keep_hold(self, name: str) -> None:
        stored = self._holds.get(name)
        if stored.present and stored.record is None:
            self._throttled.warning("hold_unreadable", name, node=name)
            return  # it may have what nobody else knows
        # Both now: while this waited for other nodes, a binder may have renewed a reservation that was over before.
        pods, reserved = self._held(name), self._reservations.to_ask_for(name, time.monotonic(), self._pods)
        for uid in to_ask_for(pods, self._pods, reserved, name):
            await self._ask(name, uid, pods[uid], is_over=reserved.get(uid, False))
        await self._adopt(name)
        await self._drop_gone(name)
        self._note_drift(name)

    async def _ask(self, name: str, uid: str, held: Held, *, is_over: bool) -> None:
        """Asks the API server for a pod, and applies its answer; without one, this is tried again. Raises BusError."""
        try:
            pod = await self._pod(held)
        except KubernetesError as error:
            self._throttled.warning("hold_not_checked", error.code, node=name, pod=str(held.pod), error=str(error))
            wait = error.retry_after if isinstance(error, ThrottledError) else 0.0
            self._retry_at[name] = time.monotonic() + max(wait, RETRY_SECONDS)
            return
        self._reservations.answered(name, uid)
        stored = self._holds.get(name)
        if stored.record is None:
            return
        found = answered(stored.record.hold(), uid, held, pod, name, is_over=is_over)
        if found is None:
            return
        hold, ending = found
        await self._write_hold(name, stored.record.uid, hold)
        if ending is None:
            self._confirmed.inc()
        else:
            self._ended.labels(ending).inc()
        fields = {"node": name, "pod": str(held.pod), "ending": None if ending is None else ending.value}
        if ending is Ending.GONE:  # as every pod, some day
            log.debug("hold_changed", **fields)
        else:
            log.info("hold_changed", **fields)

    async def _pod(self, held: Held) -> DevicePod | None:
        """The pod of this name as the API server has it now; None if there is none. Raises KubernetesError."""
        try:
            found = await self._client.get(GPU_PODS, held.pod.name, namespace=held.pod.namespace)
        except NotFoundError as error:
            if not error.confirms_missing(group="", plural="pods", name=held.pod.name):
                raise
            return None
        return found.as_device_pod()

    async def _adopt(self, name: str) -> bool:
        """Writes the hold of a node with all pods that use its cards; a node with cards has at least an empty hold.

        Returns whether the hold is right. Without a hold, or with an unreadable one, nobody gets cards of the node:
        that is right, too. Raises BusError.
        """
        stored = self._holds.get(name)
        record = stored.record
        uid = self._uid(name, record)
        if (stored.present and record is None) or uid is None or self._was_just_deleted(name, stored):
            return True
        held = self._held(name)
        pods = to_adopt(held, self._on_node(name))
        if record is not None and record.uid == uid and not pods:
            return True
        found = adopted(EMPTY if record is None else record.hold(), pods)
        for pod in pods:
            if problems := found.problems.get(pod.uid):
                texts = [str(each) for each in problems[:3]]
                self._throttled.warning("cards_of_pod_unreadable", pod.uid, node=name, pod=str(pod.key), problems=texts)
        if found.missing:
            missing = [str(pod.key) for pod in found.missing]
            self._throttled.warning("hold_not_changed", name, node=name, pods=missing[:MAX_NAMES], count=len(missing))
            if record is None:
                return True
        await self._write_hold(name, uid, found.hold)
        self._adopted.inc(len(pods) - len(found.missing))
        return not found.missing

    def _was_just_deleted(self, name: str, stored: Stored[NodeHold]) -> bool:
        """Whether somebody has deleted the hold, and a Binding for a lost reservation may still be on its way."""
        if stored.present:
            return False
        left = self._new_bus_wait - (time.time() - stored.known_since)  # known since 1970 if there never was one
        if left > 0:
            self._retry_at[name] = time.monotonic() + min(left, self._new_bus_wait)
        return left > 0

    async def _write_hold(self, name: str, uid: str, hold: Hold) -> None:
        """Writes a hold that was computed from the known one, if it differs. Raises BusError."""
        stored = self._holds.get(name)
        record = NodeHold(uid=uid, pods=hold.pods)
        if record != stored.record:
            write = Write(record=record, revision=stored.revision, read_at=time.monotonic())
            for error in (await self._holds.write({name: write})).values():
                raise error

    def _held(self, name: str) -> Mapping[str, Held]:
        record = self._holds.get(name).record
        return {} if record is None else record.pods

    def _on_node(self, name: str) -> list[DevicePod]:
        return [self._pods[uid] for uid in self._of_node.get(name, ())]

    def _uid(self, name: str, record: NodeHold | None) -> str | None:
        """The uid of the node whose hold it is: pods stay on a node that was created again under its name."""
        if (node := self._nodes.get(name)) is not None:
            return node.uid
        return None if record is None else record.uid

    async def _drop_gone(self, name: str) -> None:
        """Deletes the hold of a node without cards that nobody uses, after a while. Raises BusError."""
        stored, now = self._holds.get(name), time.monotonic()
        if name in self._nodes or stored.record is None or stored.record.pods:
            self._gone.pop(name, None)
            return
        if now - self._gone.setdefault(name, now) >= GONE_SECONDS:
            await self._holds.write_one(name, Write(record=None, revision=stored.revision, read_at=now))
            self._gone.pop(name, None)

    def _note_drift(self, name: str) -> None:
        found = tuple(str(pod.key) for pod in drifting(self._held(name), self._on_node(name)))
        before = self._drift.pop(name, ())
        if found:
            self._drift[name] = found
        if found and found != before:
            self._throttled.warning("pods_without_claim", name, node=name, pods=found[:MAX_NAMES], count=len(found))

    # What the worker follows

    def _touch(self, name: str) -> None:
        self._dirty.add(name)
        self._wake.set()

    def _touch_all(self) -> None:
        self._dirty.update(self._nodes, self._inventories.stored, self._holds.stored, self._of_node)
        self._wake.set()

    def _begin_epoch(self) -> None:
        self._forget_cards()
        self._touch_all()

    def _begin_epoch_of_holds(self) -> None:
        self._reservations.clear()
        self._gone.clear()
        self._begin_epoch()

    def _take_in_record(self, name: str) -> None:
        self._touch(name)
        self._note_cards(name)

    def _take_in_hold(self, name: str) -> None:
        self._touch(name)
        self._note_hold(name)

    def _note_hold(self, name: str) -> None:
        self._reservations.set_node(name, self._held(name), at=time.monotonic())
        self._note_cards(name)

    def _note_cards(self, name: str) -> None:
        inventory, hold = self._inventories.get(name).record, self._holds.get(name).record
        for each in (self._waking, self._card_metrics):
            each.set_node(name, inventory, hold)

    def _forget_cards(self) -> None:
        for each in (self._waking, self._card_metrics):
            each.drop_nodes()

    def _list_nodes(self, listing: Listing[GpuNode]) -> None:
        found = {each.metadata.name: record for each in listing.items if (record := node_inventory(each)) is not None}
        self._dirty.update(self._nodes, found)
        self._nodes = found
        self._report_problems(found)
        self._wake.set()
        if self._allocations is not None:
            self._allocations.list_nodes(listing)

    def _change_node(self, change: Change[GpuNode]) -> None:
        if self._allocations is not None:
            self._allocations.change_node(change)
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
        self._dirty.update(self._of_node)
        self._pods.clear()
        self._of_node.clear()
        for each in listing.items:
            self._set_pod(each.metadata.uid, remembered(each.as_device_pod()))
        self._waking.set_pods(listing.items)
        self._pods_listed_at = self._listing_at
        self._touch_all()  # also the holds of pods that were bound and deleted unseen
        if self._allocations is not None:
            self._allocations.list_pods(listing)

    def _change_pod(self, change: Change[GpuPod]) -> None:
        if self._allocations is not None:
            self._allocations.change_pod(change)
        uid = change.object.metadata.uid
        if change.type is ChangeType.DELETED:
            self._set_pod(uid, None)
            self._waking.drop_pod(uid)
        else:
            self._set_pod(uid, remembered(change.object.as_device_pod()))
            self._waking.set_pod(change.object)

    def _set_pod(self, uid: str, pod: DevicePod | None) -> None:
        """Remembers a pod, or with None forgets it."""
        known = self._pods.pop(uid, None)
        if pod is not None:
            self._pods[uid] = pod
        if known == pod:
            return  # the status of a pod changes often
        if known is not None and known.node is not None:
            self._of_node[known.node].discard(uid)
            if not self._of_node[known.node]:
                del self._of_node[known.node]
            self._touch(known.node)
        if pod is not None and pod.node is not None:
            self._of_node.setdefault(pod.node, set()).add(uid)
            self._touch(pod.node)
