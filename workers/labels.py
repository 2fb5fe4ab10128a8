"""Labels: the only writer of node labels. It brings nodes to what their verdicts wish, and wakes waiting pods.

It follows its destination: each node's own labels, by a watch of its own, against the verdict. Where they differ it
reads the verdict anew from the stream's leader, has every removal confirmed by what is read just then, and sends one
patch that stands on the node's uid and resource version; only if the node is another by then is it read. So any number
of replicas may do this at once, and a copy that wakes after a minute patches nothing. One of them, by a lease, goes
first: only to spare the API server the questions of the others.
"""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.buckets import NODES as NODES_BUCKET
from bus.buckets import PODS, POLICIES, SYNCED, VERDICTS, Bucket
from bus.connection import Bus, Entry, Epoch
from bus.errors import BusError
from bus.lease import Lease
from bus.messages import (
    PolicyRecord,
    Synced,
    decode_node_samples,
    decode_pod,
    decode_policy,
    decode_synced,
    decode_verdict,
)
from bus.subjects import (
    node_metrics_key,
    parse_pod_key,
    parse_policy_key,
    parse_verdict_key,
    policy_key,
    verdict_key,
)
from bus.watch import Watch
from tas.errors import InvalidInputError
from tas.labels import LabelPatch, Orphan, label_patch, orphans
from tas.names import is_label_key, is_label_value
from tas.orphan import may_go
from tas.policy import LABEL_PREFIX, PolicyKey
from tas.sample import NodeSamples
from tas.verdict import NodeVerdict, PolicyVerdict, confirms_removal, has_word
from tas.waking import ANNOTATION, Recoveries, Recovery, Waiting
from workers.events import Reason, record_event
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import (
    ConflictError,
    ExpiredError,
    KubernetesError,
    NotFoundError,
    ThrottledError,
)
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import NODES, Metadata, Object
from workers.logs import Throttle
from workers.node_patches import FIELD_MANAGER, NodeLabels, NodePatch, PolicyLists, is_outdated, send_patch
from workers.reconciling import Reconciling, RetryError
from workers.synced import SyncedWatch

log = structlog.get_logger("labels")

OWN_MANAGERS = (FIELD_MANAGER, "extender")
"""Who sets labels as ours: this product, and the original, by the name of its binary."""

AT_ONCE = 16
"""Nodes that are patched at the same time."""

HOLD_BACK_SECONDS = 1.0
"""How much later a replica acts that does not hold the lease: by then there is nothing left to do."""

LEASE_KEY = "labels"
LEASE_SECONDS = 5

LOOK_AGAIN_SECONDS = 600.0
"""After which a label that was left is looked at again: an orphan that a policy keeps, and one that was refused."""

PATCHES, PATCHES_SECONDS = 50, 5.0
"""A node that was patched so often in so long waits: somebody puts back whatever we change."""

PROBE_SECONDS = 0.5
"""How often is looked whether the list of nodes is complete, until it is."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A verdict as it stands in VERDICTS; decoded when it is needed, since that is seldom."""

    revision: int
    value: bytes
    created: float


@dataclass(slots=True)
class _Step:
    """What is to be done with one node now."""

    patch: LabelPatch
    orphans: tuple[Orphan, ...]
    wake: Recovery | None

    @property
    def empty(self) -> bool:
        return not self.patch.changes and not self.orphans and self.wake is None


@dataclass(slots=True)
class _Changes:
    """What is sent, with the monotonic time of the oldest read behind it."""

    read_at: float
    labels: dict[str, str | None] = field(default_factory=dict)
    wake: str | None = None
    orphans: frozenset[str] = frozenset()
    unconfirmed: tuple[str, ...] = ()


class Labels:
    """The worker. What it keeps any other copy of it could rebuild."""

    name = "labels"

    def __init__(
        self, bus: Bus, client: KubernetesClient, *, registry: CollectorRegistry, default_stale_after: float
    ) -> None:
        self._bus = bus
        self._client = client
        self._default_stale_after = default_stale_after
        self._nodes: dict[str, NodeLabels] = {}
        self._verdicts: dict[str, _Verdict] = {}
        self._waiting = Waiting()
        self._recoveries = Recoveries(self._waiting)
        self._policies: dict[str, set[PolicyKey]] = {}  # those that stand, by name
        self._kept: dict[str, frozenset[Orphan]] = {}  # orphans that the API server's policies keep, by node
        self._patched: dict[str, deque[float]] = {}
        self._refused: dict[str, dict[str, tuple[str | None, float]]] = {}
        self._foreign: dict[str, frozenset[str]] = {}
        self._nodes_synced = False
        self._policies_complete = False
        self._probe = asyncio.Event()
        self._probe.set()
        self._lines = Throttle()
        self._lists = PolicyLists(client)
        self._lease = Lease(bus, LEASE_KEY, f"{socket.gethostname()}-{os.getpid()}", ttl_seconds=LEASE_SECONDS)
        self._queue = Reconciling(self._handle, at_once=AT_ONCE)
        self._reflector = Reflector(client, NODES, on_list=self._listed, on_change=self._changed)
        self._verdict_watch = Watch(
            bus, VERDICTS, on_entry=self._verdict_entry, on_epoch=self._verdicts_began, on_batch=self._look_if_ready
        )
        self._policy_watch = SyncedWatch(
            bus,
            POLICIES,
            on_entry=self._policy_entry,
            on_epoch=lambda _: self._policies.clear(),  # nothing is removed before the list is complete again
            on_complete=self._policies_taken_in,
            on_invalid=self._invalid,
        )
        self._pod_watch = SyncedWatch(
            bus,
            PODS,
            on_entry=self._pod_entry,
            on_epoch=lambda _: self._waiting.clear(),
            on_complete=lambda _: None,
            on_invalid=self._invalid,
        )
        self._was_ready = False
        self._metrics = _Metrics(registry)
        self._metrics.pending.set_function(lambda: float(len(self._queue)))
        self._metrics.failing.set_function(lambda: float(self._queue.failing))
        self._metrics.foreign.set_function(lambda: float(sum(map(len, self._foreign.values()))))

    def unready(self) -> str | None:
        """Why nothing is written yet."""
        reasons = []
        if not self._reflector.listed:
            reasons.append(f"nodes: {self._reflector.problem}")
        if (reason := self._policy_watch.unready()) is not None:
            reasons.append(reason)
        synced = self._policy_watch.synced
        if synced is not None and not synced.cluster:
            reasons.append(f"{POLICIES.name}: its policies are not those of a cluster")
        if not self._nodes_synced:
            reasons.append(f"{NODES_BUCKET.name}: no complete list of a cluster yet (key {SYNCED})")
        if not self._verdict_watch.status.caught_up:
            reasons.append(f"{VERDICTS.name}: not caught up with the bus")
        return "; ".join(reasons) or None

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._reflector.run(),
                self._verdict_watch.run(),
                self._policy_watch.run(),
                self._pod_watch.run(),
                self._probe_nodes(),
                self._keep_lease(),
                self._queue.run(),
            ):
                tasks.create_task(work)

    # One node

    async def _handle(self, name: str) -> float | None:
        try:
            return await self._reconcile(name)
        except ThrottledError as error:
            self._tell_failure(name, error)
            raise RetryError(str(error), pause=error.retry_after) from error
        except (ConflictError, ExpiredError) as error:
            self._metrics.patches.labels("conflict" if isinstance(error, ConflictError) else "expired").inc()
            log.debug("node_patch_repeated", node=name, error=str(error))
            raise RetryError(str(error)) from error
        except (KubernetesError, BusError, InvalidInputError) as error:
            self._tell_failure(name, error)
            raise RetryError(str(error)) from error

    async def _reconcile(self, name: str) -> float | None:
        """Brings one node to its verdict; returns after how many seconds to look again by itself."""
        if self.unready() is not None:
            return None  # all are looked at once it is
        node = self._nodes.get(name)
        if node is None:
            return None
        stands = self._verdicts.get(name)
        verdict = None if stands is None else decode_verdict(stands.value)
        policies = _policies_of(verdict, node.uid)
        step = self._step(name, policies, node)
        if verdict is not None and verdict.node_uid == node.uid:  # else it is not known what is a policy's
            self._note_foreign(name, policies, node)
        if step.empty:
            return self._next_look(name)
        recent = self._patched.setdefault(name, deque(maxlen=PATCHES))
        if len(recent) == PATCHES and (wait := recent[0] + PATCHES_SECONDS - time.monotonic()) > 0:
            self._warn("node_patched_too_often", node=name, patches=PATCHES, seconds=PATCHES_SECONDS)
            return wait
        await self._patch(name, node)
        return self._next_look(name)

    async def _patch(self, name: str, known: NodeLabels) -> None:
        """Patches what differs from the verdict: on the node as it is known, or as it is read if that is outdated.

        That the API server takes a patch says that the node was until then as the patch's resource version has it. To
        read it first would say no more, and cost a question for each label.

        Raises:
            KubernetesError, BusError: to be tried again.
            RetryError: if a removal is not confirmed by what is known now.
        """
        try:
            await self._patch_as(name, known, read_at=time.monotonic())
        except KubernetesError as error:
            if not is_outdated(error, name):
                raise
        else:
            return
        self._metrics.patches.labels("conflict").inc()
        known_now, read_at = self._nodes.get(name), time.monotonic()
        try:
            found = await self._client.get(NODES, name)
        except NotFoundError as error:
            if not is_outdated(error, name):
                raise
            self._metrics.patches.labels("gone").inc()
            if self._nodes.get(name) is known_now:
                self._nodes.pop(name, None)  # by now another of its name may have been told
            return
        await self._patch_as(name, NodeLabels.of(found.metadata), read_at=read_at)

    async def _patch_as(self, name: str, node: NodeLabels, *, read_at: float) -> None:
        """Reads the verdict anew, and patches what differs while the node is still as `node` says.

        `read_at` is the monotonic time before anything was read that the patch will stand on. Raises as `_patch`.
        """
        # Read after the node: so whatever another replica has put there follows from this verdict or an earlier one.
        entry = await self._bus.get(VERDICTS, verdict_key(name))
        verdict = None if entry is None or entry.value is None else decode_verdict(entry.value)
        policies = _policies_of(verdict, node.uid)
        step = self._step(name, policies, node)
        changes = await self._confirmed(name, step, policies, node, read_at)
        if changes.labels or changes.wake is not None:
            await self._send(name, node, changes)
            self._tell_patched(name, node, step, changes, created=entry.created if entry else None)
            await self._report_overwritten(name, node, step.patch, changes)
        if step.wake is not None:
            self._recoveries.said(name, step.wake)
        if changes.unconfirmed:
            self._metrics.unconfirmed.inc()
            self._warn("label_removal_unconfirmed", node=name, labels=list(changes.unconfirmed))
            raise RetryError("a removal is not confirmed")

    def _step(self, name: str, policies: Mapping[PolicyKey, PolicyVerdict], node: NodeLabels) -> _Step:
        """What is to be done with a node that is as `node` says."""
        patch = label_patch(policies, node.labels)
        refused = self._standing_refusals(name)
        changes = {
            label: value for label, value in patch.changes.items() if not self._is_refused(name, label, value, refused)
        }
        patch = msgspec.structs.replace(patch, changes=changes)
        found = orphans(policies, node.labels, managers=node.managers, own_managers=OWN_MANAGERS)
        kept = self._kept.get(name, frozenset()).intersection(found)
        if kept:
            self._kept[name] = kept
        else:
            self._kept.pop(name, None)
        due = tuple(
            orphan for orphan in found if orphan not in kept and not self._is_refused(name, orphan.label, None, refused)
        )
        return _Step(patch, due, self._recoveries.due(name, node.recovered, at=time.monotonic()))

    async def _confirmed(
        self,
        name: str,
        step: _Step,
        policies: Mapping[PolicyKey, PolicyVerdict],
        node: NodeLabels,
        read_at: float,
    ) -> _Changes:
        """The changes that may be sent: what is set, and what is removed as far as it is confirmed now."""
        changes = _Changes(read_at=read_at, wake=None if step.wake is None else step.wake.value)
        removals = {label: by for label, by in step.patch.removed_by.items() if label in step.patch.changes}
        confirmed = await self._confirmed_removals(name, removals, policies, node) if removals else frozenset()
        changes.labels = {
            label: value for label, value in step.patch.changes.items() if value is not None or label in confirmed
        }
        changes.unconfirmed = tuple(sorted(removals.keys() - confirmed))
        if step.orphans:
            listed_at, specs = await self._lists.get()
            changes.read_at = min(changes.read_at, listed_at)
            going = {orphan for orphan in step.orphans if may_go(orphan, specs)}
            self._keep(name, frozenset(step.orphans) - going, listed_at)
            changes.orphans = frozenset(orphan.label for orphan in going)
            changes.labels |= dict.fromkeys(changes.orphans)
        return changes

    async def _confirmed_removals(
        self,
        name: str,
        removals: Mapping[str, tuple[PolicyKey, ...]],
        policies: Mapping[PolicyKey, PolicyVerdict],
        node: NodeLabels,
    ) -> frozenset[str]:
        """The labels of `removals` whose every policy confirms, by its record and the samples that stand now.

        A policy of the same name that has a word in the label, and was not judged with the others yet, keeps it.
        """
        keys = sorted({key for label in removals for key in (*removals[label], *self._named(label))})
        metrics, *records = await asyncio.gather(
            self._bus.get(NODES_BUCKET, node_metrics_key(name)),
            *(self._bus.get(POLICIES, policy_key(key)) for key in keys),
        )
        samples = self._samples(metrics)
        known = {
            key: record
            for key, entry in zip(keys, records, strict=True)
            if (record := self._record(key, entry)) is not None
        }
        unclear = {
            key for key, entry in zip(keys, records, strict=True) if entry is not None and entry.value is not None
        }
        unclear -= known.keys()
        now = time.time()

        def confirms(key: PolicyKey, label: str) -> bool:
            return (
                key in known
                and known[key].uid == policies[key].uid
                and confirms_removal(
                    known[key].policy,
                    label,
                    samples=samples,
                    labels=node.labels,
                    stale_after=self._default_stale_after,
                    now=now,
                )
            )

        def keeps(key: PolicyKey, label: str) -> bool:
            return key in unclear or (key in known and has_word(known[key].policy, label))

        return frozenset(
            label
            for label, by in removals.items()
            if by
            and all(confirms(key, label) for key in by)
            and not any(keeps(key, label) for key in self._named(label) if key not in by)
        )

    def _named(self, label: str) -> Collection[PolicyKey]:
        """The policies that share a label by their name, as far as the bus has told here."""
        return self._policies.get(label.removeprefix(LABEL_PREFIX).partition("/")[0], ())

    def _samples(self, entry: Entry | None) -> NodeSamples:
        """None at all where they do not stand, or nobody can read them: they confirm nothing."""
        try:
            return () if entry is None or entry.value is None else decode_node_samples(entry.value)
        except InvalidInputError as error:
            self._invalid(error)
            return ()

    def _record(self, key: PolicyKey, entry: Entry | None) -> PolicyRecord | None:
        try:
            return None if entry is None or entry.value is None else decode_policy(key, entry.value)
        except InvalidInputError as error:
            self._invalid(error)
            return None

    async def _send(self, name: str, node: NodeLabels, changes: _Changes) -> None:
        """Sends what is to change, without what the API server refuses for itself. Raises KubernetesError."""
        annotations = {} if changes.wake is None else {ANNOTATION: changes.wake}
        patch = NodePatch(labels=changes.labels, annotations=annotations)
        metadata = Metadata(name=name, uid=node.uid, resource_version=node.resource_version)
        known = self._nodes.get(name)
        patched, refused = await send_patch(self._client, metadata, patch, read_at=changes.read_at)
        # Not if the watch has told of it meanwhile, and maybe of more since; nor if all of it was refused.
        if known is not None and self._nodes.get(name) is known and patched is not metadata:
            self._nodes[name] = NodeLabels.of(patched)
        self._patched.setdefault(name, deque(maxlen=PATCHES)).append(time.monotonic())
        self._metrics.patches.labels("patched").inc()
        for label, error in refused.items():
            self._refuse(name, label, changes.labels.pop(label), str(error))

    # What stands, and what follows

    def _listed(self, listing: Listing[Object]) -> None:
        names = {each.metadata.name for each in listing.items}
        for name in self._nodes.keys() - names:
            self._drop_node(name)
        for each in listing.items:
            self._take_node(each.metadata)
        self._kept.clear()  # a complete list is as good a time as any to ask again
        self._look_if_ready()

    def _changed(self, change: Change[Object]) -> None:
        if change.type is ChangeType.DELETED:
            self._drop_node(change.object.metadata.name)
        else:
            self._take_node(change.object.metadata)

    def _take_node(self, metadata: Metadata) -> None:
        node = NodeLabels.of(metadata)
        known = self._nodes.get(metadata.name)
        self._nodes[metadata.name] = node
        if known != node:
            self._note(metadata.name)

    def _drop_node(self, name: str) -> None:
        for known in (self._nodes, self._kept, self._refused, self._foreign, self._patched):
            known.pop(name, None)
        self._recoveries.forget(name)
        self._queue.forget(name)

    def _verdicts_began(self, epoch: Epoch) -> None:
        log.info("verdicts_began", epoch=epoch.created)
        self._verdicts.clear()
        self._was_ready = False
        self._nodes_synced = False
        self._probe.set()

    def _verdict_entry(self, entry: Entry) -> None:
        try:
            name = parse_verdict_key(entry.key)
            if entry.value is None:
                self._verdicts.pop(name, None)
                self._note(name)
                return
            verdict = decode_verdict(entry.value)
        except InvalidInputError as error:
            self._invalid(error)
            return
        self._verdicts[name] = _Verdict(entry.revision, entry.value, entry.created)
        self._recoveries.judged(name, entry.revision, verdict.policies, at=time.monotonic(), now=time.time())
        self._note(name)

    def _policy_entry(self, entry: Entry) -> None:
        """A policy changed: nodes that have labels because of one of that name are looked at again."""
        self._lists.forget()
        try:
            key = parse_policy_key(entry.key)
        except InvalidInputError as error:
            self._invalid(error)
            return
        name = key.name
        if entry.value is None:
            self._policies[name] = self._policies.get(name, set()) - {key}
            if not self._policies[name]:
                del self._policies[name]
        else:
            self._policies.setdefault(name, set()).add(key)
        for node, kept in list(self._kept.items()):
            left = frozenset(orphan for orphan in kept if orphan.policy_name != name)
            if left != kept:
                self._kept[node] = left
                self._note(node)

    def _policies_taken_in(self, synced: Synced) -> None:
        log.info("policies_complete", cluster=synced.cluster, count=synced.count, by=synced.by)
        for node in list(self._kept):
            del self._kept[node]
            self._note(node)
        self._look_if_ready()

    def _look_if_ready(self) -> None:
        """Notes every node once all that is needed is known."""
        ready = self.unready() is None
        if ready and not self._was_ready:
            log.info("labels_ready", nodes=len(self._nodes), verdicts=len(self._verdicts))
            for name in self._nodes:
                self._note(name)
        self._was_ready = ready

    def _note(self, name: str) -> None:
        self._queue.note(name, after=0.0 if self._lease.held else HOLD_BACK_SECONDS)

    def _next_look(self, name: str) -> float | None:
        """After how many seconds the node wants to be looked at again, if nothing happens."""
        times = []
        wake = self._recoveries.next(name)
        if wake is not None:
            late = 0.0 if self._lease.held else HOLD_BACK_SECONDS
            times.append(max(0.0, wake + late - time.monotonic()))
        if name in self._kept or name in self._refused:
            times.append(LOOK_AGAIN_SECONDS)
        return min(times, default=None)

    def _keep(self, name: str, kept: frozenset[Orphan], listed_at: float) -> None:
        """Notes what policies keep, so that it is not asked again before one of them changes."""
        if not kept:
            return
        self._metrics.kept.inc(len(kept))
        log.debug("orphans_kept", node=name, labels=sorted(orphan.label for orphan in kept))
        if self._lists.is_current(listed_at):
            self._kept[name] = self._kept.get(name, frozenset()) | kept
        else:
            self._note(name)

    async def _probe_nodes(self) -> None:
        """Looks whether the list of nodes is complete, whenever that is not known."""
        while True:
            await self._probe.wait()
            try:
                self._nodes_synced = await _is_synced(self._bus, NODES_BUCKET)
            except BusError as error:
                log.debug("nodes_synced_unknown", error=str(error))
            if self._nodes_synced:
                self._probe.clear()
                self._look_if_ready()
            else:
                await asyncio.sleep(PROBE_SECONDS)

    async def _keep_lease(self) -> None:
        while True:
            try:
                async with self._lease.hold():
                    for name in self._nodes:
                        self._note(name)  # whoever went first before may have ended in the middle
                    await asyncio.Event().wait()
            except BusError as error:
                log.info("labels_lease_lost", error=str(error))

    def _pod_entry(self, entry: Entry) -> None:
        self._waiting.drop(entry.key)
        if entry.value is None:
            return
        try:
            key = parse_pod_key(entry.key)
            pod = decode_pod(entry.value)
        except InvalidInputError as error:
            self._invalid(error)
            return
        if pod.waiting_since is not None:
            self._waiting.set(entry.key, PolicyKey(key.namespace, pod.policy))

    # What is refused, and what is told

    def _is_refused(
        self, name: str, label: str, value: str | None, refused: Mapping[str, tuple[str | None, float]]
    ) -> bool:
        """Whether a label cannot be, or was refused as it is a while ago."""
        found = refused.get(label)
        if found is not None and found[0] == value:
            return True
        if value is not None and not (is_label_key(label) and is_label_value(value)):
            self._refuse(name, label, value, "no label can be called so")
            return True
        return False

    def _standing_refusals(self, name: str) -> Mapping[str, tuple[str | None, float]]:
        """What was refused of a node not too long ago."""
        since = time.monotonic() - LOOK_AGAIN_SECONDS
        standing = {label: each for label, each in self._refused.pop(name, {}).items() if each[1] > since}
        if standing:
            self._refused[name] = standing
        return standing

    def _refuse(self, name: str, label: str, value: str | None, reason: str) -> None:
        self._refused.setdefault(name, {})[label] = (value, time.monotonic())
        self._metrics.refused.inc()
        self._warn("label_refused", node=name, label=label, value=value, reason=reason)

    def _note_foreign(self, name: str, policies: Mapping[PolicyKey, PolicyVerdict], node: NodeLabels) -> None:
        """Tells of labels that look like ours and are not: they stay."""
        spoken = {
            label
            for policy in policies.values()
            for strategy in policy.strategies.values()
            for label in strategy.labels
        }
        foreign = frozenset(
            label
            for label, managers in node.managers.items()
            if label not in spoken and not set(managers).intersection(OWN_MANAGERS)
        )
        before = self._foreign.get(name, frozenset())
        if foreign:
            self._foreign[name] = foreign
        else:
            self._foreign.pop(name, None)
        if foreign - before:
            log.info("label_not_ours", node=name, labels=sorted(foreign - before))

    def _tell_patched(
        self, name: str, node: NodeLabels, step: _Step, changes: _Changes, *, created: float | None
    ) -> None:
        put = {label: value for label, value in changes.labels.items() if value is not None}
        removed = sorted(changes.labels.keys() - put.keys())
        for kind, count in (
            ("set", len(put)),
            ("removed", len(changes.labels) - len(put) - len(changes.orphans)),
            ("orphan_removed", len(changes.orphans.intersection(changes.labels))),
        ):
            self._metrics.changes.labels(kind).inc(count)
        if changes.wake is not None:
            self._metrics.wakes.inc()
        if created is not None and changes.labels and not changes.orphans:
            self._metrics.seconds.observe(max(0.0, time.time() - created))
        log.info(
            "node_patched",
            node=name,
            set=put,
            removed=removed,
            orphans=sorted(changes.orphans),
            recovered=changes.wake,
            age=round(time.monotonic() - changes.read_at, 4),
            conflicts=[str(conflict.label) for conflict in step.patch.conflicts],
        )

    async def _report_overwritten(self, name: str, node: NodeLabels, patch: LabelPatch, changes: _Changes) -> None:
        """A warning Event on the node for each value of somebody else that gave way to ours."""
        for label, value in patch.overwritten.items():
            if changes.labels.get(label) is None:
                continue
            self._metrics.changes.labels("overwritten").inc()
            message = f"Label {label}={value} was overwritten with {changes.labels[label]}: the key belongs to a policy"
            self._warn("label_overwritten", node=name, label=label, value=value)
            try:
                await record_event(
                    self._client, node=name, uid=node.uid, reason=Reason.LABEL_OVERWRITTEN, message=message
                )
            except KubernetesError as error:
                self._warn("event_not_recorded", node=name, reason=Reason.LABEL_OVERWRITTEN.value, error=str(error))

    def _tell_failure(self, name: str, error: Exception) -> None:
        self._metrics.patches.labels("failed").inc()
        self._warn("node_patch_failed", node=name, error=str(error))

    def _invalid(self, error: InvalidInputError) -> None:
        self._warn("entry_invalid", object=error.subject, field=error.field, value=error.value, reason=error.reason)

    def _warn(self, event: str, **fields: object) -> None:
        held_back = self._lines.admit((event, fields.get("node")), time.monotonic())
        if held_back is not None:
            log.warning(event, alike_before=held_back, **fields)


def _policies_of(verdict: NodeVerdict | None, uid: str) -> Mapping[PolicyKey, PolicyVerdict]:
    """What a verdict says of a node; nothing if it is another node's of this name."""
    return verdict.policies if verdict is not None and verdict.node_uid == uid else {}


async def _is_synced(bus: Bus, bucket: Bucket) -> bool:
    """Whether a complete list of a cluster stands in the present life of a bucket. Raises BusError."""
    epoch = await bus.epoch(bucket)
    entry = await bus.get(bucket, SYNCED)
    if entry is None or entry.value is None:
        return False
    try:
        synced = decode_synced(entry.value)
    except InvalidInputError:
        return False
    return synced.cluster and synced.epoch == epoch.created


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.patches = Counter(
            "tas_label_patches", "Attempts to patch a node, by what became of them.", ["result"], registry=registry
        )
        self.changes = Counter("tas_label_changes", "Labels changed on nodes.", ["change"], registry=registry)
        self.refused = Counter("tas_labels_refused", "Labels that cannot be, or were refused.", registry=registry)
        self.unconfirmed = Counter(
            "tas_label_removals_unconfirmed",
            "Removals put off: what was read just then did not say so.",
            registry=registry,
        )
        self.kept = Counter(
            "tas_label_orphans_kept", "Labels no verdict speaks of that a policy's text keeps.", registry=registry
        )
        self.wakes = Counter("tas_node_wakes", "Nodes annotated to wake waiting pods.", registry=registry)
        self.seconds = Histogram(
            "tas_label_seconds",
            "From a verdict's arrival on the bus until its labels stand.",
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        self.pending = Gauge("tas_label_nodes_pending", "Nodes still to be looked at.", registry=registry)
        self.failing = Gauge("tas_label_nodes_failing", "Nodes that could not be patched last.", registry=registry)
        self.foreign = Gauge("tas_labels_foreign", "Labels like ours that somebody else has set.", registry=registry)
        for result in ("patched", "conflict", "expired", "gone", "failed"):
            self.patches.labels(result)
        for change in ("set", "removed", "orphan_removed", "overwritten"):
            self.changes.labels(change)
