"""Part of `inventory`: keeps the holds in HOLDS equal to the pods of the cluster.

Binders write holds, too: so each write is conditional on the revision that was read. After a wipe of the bus the holds
are built again from the annotations of pods. This begins when every Binding that was sent before can no longer take
effect, and nobody binds before it is complete (`_synced`).

A pod loses its cards only after the API server was asked for the pod. Lists and watches only say for which pod to ask.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import HOLDS, SYNCED
from bus.connection import Bus
from bus.errors import BusError, ConflictError, ExpiredError, ForbiddenError, FullError, RefusedError
from bus.kinds import NODE_HOLDS, synced_of
from bus.records.devices import NodeHold, NodeInventory
from tas.gpu.claim import DevicePod
from tas.gpu.hold import EMPTY, Held, Hold
from tas.gpu.keeping import Ending, Reservations, adopted, answered, drifting, remembered, to_adopt, to_ask_for
from workers.following.records import Records, Stored, Write
from workers.following.synced import write_synced
from workers.kubernetes.client import Change, ChangeType, KubernetesClient
from workers.kubernetes.errors import KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.followers import Gathered
from workers.kubernetes.resources import GPU_PODS, GpuPod
from workers.process.logs import MAX_NAMES, ThrottledLog
from workers.process.tasks import together

log = structlog.get_logger("inventory")

WRITER = "inventory"

RETRY_SECONDS = 1.0
"""The wait after a failure of the API server."""

NODES_AT_ONCE = 16
"""Nodes whose pods the API server is asked for at the same time."""

GONE_SECONDS = 600.0
"""How long the empty hold of a node without cards is kept."""


def _named_pod(found: GpuPod) -> tuple[str, DevicePod] | None:
    pod = remembered(found.as_device_pod())
    return None if pod is None else (pod.uid, pod)


class CardHolds:
    """Gets the pods of the cluster and the nodes with cards. Only the replica with the lease calls `keep`.

    Attributes:
        pods: Takes the pods in.
    """

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        registry: CollectorRegistry,
        *,
        nodes: Mapping[str, NodeInventory],
        relist: Callable[[], None],
        wake: asyncio.Event,
        on_hold: Callable[[str], None],
        on_epoch: Callable[[], None],
        new_bus_wait: float,
        reserved_seconds: float,
    ) -> None:
        """`nodes` are those with cards; the mapping stays current. `relist` requests a list of all pods.

        `wake` is set when there is something to do. `on_hold` is called for each hold that has changed, `on_epoch` when
        all are unknown.
        """
        self._bus = bus
        self._client = client
        self._nodes = nodes
        self._relist = relist
        self._wake = wake
        self._on_hold = on_hold
        self._on_epoch = on_epoch
        self._new_bus_wait = new_bus_wait
        self._pods: dict[str, DevicePod] = {}  # those with GPU requests that have not ended, by uid
        self._of_node: dict[str, set[str]] = {}  # the uids of those that are bound
        self._reservations = Reservations(reserved_seconds)
        self._gone: dict[str, float] = {}
        self._drift: dict[str, tuple[str, ...]] = {}
        self._dirty: set[str] = set()
        self._retry_at: dict[str, float] = {}  # until when nothing is tried for the hold of a node that has failed
        self._listing_at = -inf  # when the request of the last list of pods was sent, complete or not
        self._pods_listed_at = -inf  # when the request of the last complete list of pods was sent
        self._complete = ""  # the epoch whose holds are complete
        self._waits_in = ""  # the epoch in which this was logged
        self._over_in = ""
        self._over_at = inf  # when the wait in that epoch is over
        self._throttled = ThrottledLog(log)
        self.pods: Gathered[GpuPod, DevicePod] = Gathered(
            _named_pod, on_list=self._list_pods, on_change=self._change_pod
        )
        self._records = Records(
            bus,
            NODE_HOLDS,
            on_epoch=self._begin_epoch,
            on_entry=self._take_in,
            on_batch=wake.set,
            on_written=lambda name, _record, _before: self._note(name),
        )
        self._metrics(registry)

    def _metrics(self, registry: CollectorRegistry) -> None:
        for name, text, function in (
            ("tas_inventory_pods", "Pods with GPU requests that have not ended.", lambda: len(self._pods)),
            (
                "tas_inventory_drifting_pods",
                "Pods on a node with GPU requests, of which nobody knows the cards.",
                lambda: sum(map(len, self._drift.values())),
            ),
        ):
            Gauge(name, text, registry=registry).set_function(function)
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

    @property
    def caught_up(self) -> bool:
        """Whether all holds of the current epoch have been read."""
        return self._records.caught_up

    @property
    def drift(self) -> Mapping[str, tuple[str, ...]]:
        """The pods on each node of which nobody knows the cards."""
        return self._drift

    def get(self, name: str) -> Stored[NodeHold]:
        """The stored hold of a node."""
        return self._records.get(name)

    async def run(self, forget_seconds: float) -> None:
        """Follows HOLDS until cancelled. Tombstones are purged after `forget_seconds`."""
        await together(
            self._records.run(), self._records.forget_deleted(forget_seconds, ThrottledLog(log, bucket=HOLDS.name))
        )

    async def keep(self) -> None:
        """Writes all differences that are known. Raises BusError."""
        with suppress(ConflictError, ExpiredError):  # another replica was faster, or this one was stopped
            if await self._are_complete():
                # What changes from here on is for the next pass: it may be too late for this one.
                changed, self._dirty = self._dirty, set()
                await self._keep(changed)

    def stop_keeping(self) -> None:
        """Another replica gets the lease, and reports the drift."""
        self._drift.clear()

    async def _are_complete(self) -> bool:
        """Builds the holds of a new epoch again. Returns whether those of this epoch are complete. Raises BusError."""
        assert self._records.epoch is not None
        if self._complete == self._records.epoch.created:
            return True
        epoch = await self._bus.epoch(HOLDS)
        if epoch.created != self._records.epoch.created:
            return False
        synced = (await synced_of(HOLDS).get(self._bus, SYNCED)).readable()
        if synced is None or synced.epoch != epoch.created:
            if epoch.age < self._new_bus_wait:  # a Binding for a lost reservation may still arrive
                if self._waits_in != epoch.created:
                    self._waits_in = epoch.created
                    log.info("holds_wait", seconds=round(self._new_bus_wait - epoch.age, 1))
                return False
            over_at = time.monotonic() - (epoch.age - self._new_bus_wait)
            if self._over_in == epoch.created:
                over_at = min(over_at, self._over_at)  # an answer of the bus that is late makes it later, none earlier
            self._over_in, self._over_at = epoch.created, over_at
            if self._pods_listed_at < over_at:
                if self._listing_at < over_at:  # else this list is on its way
                    self._relist()
                return False
            if not await self._build():
                return False
            count = len(self._records.stored)
            await write_synced(self._bus, HOLDS, epoch, count=count, writer=WRITER, cluster=True)
            log.info("holds_complete", nodes=count, pods=len(self._pods))
        self._complete = epoch.created
        self.touch_all()
        return True

    async def _build(self) -> bool:
        """Writes the holds of all nodes. Returns whether each hold that is stored is right. Raises BusError."""
        are_right = [await self._adopt(name) for name in {*self._nodes, *self._of_node}]
        return all(are_right)

    async def _keep(self, names: set[str]) -> None:
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
                    await self._keep_one(name)
                except (ConflictError, ExpiredError) as error:  # a binder was faster: the watch brings its hold
                    self._dirty.add(name)
                    log.debug("hold_not_written", node=name, error=str(error))
                except BusError as error:
                    failures.append(error)
                    return

        await together(*(keep_on() for _ in range(NODES_AT_ONCE)))
        if failures:
            raise failures[0]

    async def _keep_one(self, name: str) -> None:
        stored = self._records.get(name)
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
        stored = self._records.get(name)
        if stored.record is None:
            return
        found = answered(stored.record.hold, uid, held, pod, name, is_over=is_over)
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
        stored = self._records.get(name)
        record = stored.record
        uid = self._uid(name, record)
        if (stored.present and record is None) or uid is None or self._was_just_deleted(name, stored):
            return True
        held = self._held(name)
        pods = to_adopt(held, self._on_node(name))
        if record is not None and record.uid == uid and not pods:
            return True
        found = adopted(EMPTY if record is None else record.hold, pods)
        for pod in pods:
            if problems := found.problems.get(pod.uid):
                texts = [str(each) for each in problems[:3]]
                self._throttled.warning("cards_of_pod_unreadable", pod.uid, node=name, pod=str(pod.key), problems=texts)
        if found.missing:
            missing = [str(pod.key) for pod in found.missing]
            self._throttled.warning("hold_not_changed", name, node=name, pods=missing[:MAX_NAMES], count=len(missing))
            if record is None:
                return True
        try:
            await self._write_hold(name, uid, found.hold)
        except RefusedError as error:
            if isinstance(error, FullError | ForbiddenError):
                raise
            # Too large, with what binders have assigned: this holds up no other node.
            names = [str(pod.key) for pod in pods]
            self._throttled.warning(
                "hold_not_changed", name, node=name, pods=names[:MAX_NAMES], count=len(names), error=str(error)
            )
            return record is None
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
        stored = self._records.get(name)
        record = NodeHold(uid=uid, pods=hold.pods)
        if record != stored.record:
            write = Write(record=record, revision=stored.revision, read_at=time.monotonic())
            for error in (await self._records.write({name: write})).values():
                raise error

    def _held(self, name: str) -> Mapping[str, Held]:
        record = self._records.get(name).record
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
        stored, now = self._records.get(name), time.monotonic()
        if name in self._nodes or stored.record is None or stored.record.pods:
            self._gone.pop(name, None)
            return
        if now - self._gone.setdefault(name, now) >= GONE_SECONDS:
            await self._records.write_one(name, Write(record=None, revision=stored.revision, read_at=now))
            self._gone.pop(name, None)

    def _note_drift(self, name: str) -> None:
        found = tuple(str(pod.key) for pod in drifting(self._held(name), self._on_node(name)))
        before = self._drift.pop(name, ())
        if found:
            self._drift[name] = found
        if found and found != before:
            self._throttled.warning("pods_without_claim", name, node=name, pods=found[:MAX_NAMES], count=len(found))

    # What this part follows

    def touch(self, names: Iterable[str]) -> None:
        """Compares the holds of these nodes in the next pass."""
        self._dirty.update(names)
        self._wake.set()

    def touch_all(self) -> None:
        """Compares all holds in the next pass."""
        self.touch((*self._nodes, *self._records.stored, *self._of_node))

    def _begin_epoch(self) -> None:
        self._reservations.clear()
        self._gone.clear()
        self._on_epoch()
        self.touch_all()

    def _take_in(self, name: str) -> None:
        self.touch((name,))
        self._note(name)

    def _note(self, name: str) -> None:
        self._reservations.set_node(name, self._held(name), at=time.monotonic())
        self._on_hold(name)

    def begin_list(self) -> None:
        """The request of a list of pods is sent now."""
        self._listing_at = time.monotonic()

    def _list_pods(self, pods: dict[str, DevicePod]) -> None:
        self._dirty.update(self._of_node)
        self._pods.clear()
        self._of_node.clear()
        for uid, pod in pods.items():
            self._set_pod(uid, pod)
        self._pods_listed_at = self._listing_at
        self.touch_all()  # also the holds of pods that were bound and deleted unseen

    def _change_pod(self, change: Change[GpuPod]) -> None:
        is_gone = change.type is ChangeType.DELETED
        self._set_pod(change.object.metadata.uid, None if is_gone else remembered(change.object.as_device_pod()))

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
            self.touch((known.node,))
        if pod is not None and pod.node is not None:
            self._of_node.setdefault(pod.node, set()).add(uid)
            self.touch((pod.node,))
