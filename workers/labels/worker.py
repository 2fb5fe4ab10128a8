"""Labels: the only writer of node labels. It sets and removes labels as verdicts desire.

The worker watches nodes and compares their labels with the verdicts. If they differ, it asks `BrakeLoop` for a permit,
reads the verdict again from the stream's leader, confirms each removal by new reads (`tas.enforcing.removal`), and
sends one patch, which is conditional on the node's uid and resource version. The node is read only if that patch
conflicts. So any number of replicas may do this, and a replica that was paused for a minute patches nothing. `Waking`
is a part of this worker, since both patch nodes, and nobody else needs the right to do so.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from math import inf

import structlog
from prometheus_client import CollectorRegistry

from bus.buckets import POLICIES, Bucket
from bus.connection import Bus, Epoch
from bus.errors import BusError
from bus.kinds import NODE_VERDICTS, REFUSED_LABELS
from bus.record_kind import Entry, Unreadable
from bus.records.policies import PolicyRecord
from bus.records.synced import Synced
from tas.enforcing.brake import DEFAULTS, BrakeSettings
from tas.enforcing.changes import LabelChanges, label_changes
from tas.enforcing.memory import Declined, DeclinedChange, PatchLimit
from tas.enforcing.refusals import Refusals
from tas.errors import InvalidInputError
from tas.policy.policy import PolicyKey
from tas.values.nouns import counted
from tas.verdict.verdict import NodeVerdict, PolicyVerdict
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import (
    ForbiddenError,
    KubernetesError,
    NotFoundError,
    is_outdated,
)
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import LABELLED_NODES, LabelledNode, NodeMetadata
from workers.labels.brake_loop import BrakeLoop
from workers.labels.reports import LabelReports
from workers.labels.waking import Waking
from workers.process.tasks import together
from workers.reconcile.confirmation import Confirmation
from workers.reconcile.failed_requests import requeued
from workers.reconcile.inputs import Inputs
from workers.reconcile.lease_first import LeaseFirst
from workers.reconcile.node_patches import (
    PATCHES,
    PATCHES_SECONDS,
    NodeLabels,
    refusal_reason,
    send_patch,
)
from workers.reconcile.refusal_records import RefusalRecords
from workers.reconcile.work_queue import RequeueError, WorkQueue

log = structlog.get_logger("labels")

MAX_CONCURRENT = 16
"""Nodes that are patched at the same time."""

RESYNC_SECONDS = 600.0
"""The time after which a node with a kept orphan or a refused label is reconciled again."""


class Labels:
    """The worker. Its state can be rebuilt from the bus and the API server."""

    name = "labels"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        reflectors: Reflectors,
        *,
        registry: CollectorRegistry,
        default_stale_after: float,
        overwrite: Collection[str] = (),
        brake: BrakeSettings = DEFAULTS,
    ) -> None:
        self._overwrite = frozenset(overwrite)
        self._bus = bus
        self._client = client
        self._nodes: dict[str, NodeLabels] = {}
        self._verdicts: dict[str, Entry[str, NodeVerdict]] = {}  # decoded when needed, which is seldom
        self._refused = Declined(seconds=RESYNC_SECONDS)
        self._refusals = Refusals()
        self._kept = Declined(seconds=RESYNC_SECONDS)  # orphans that policies keep
        self._contested: set[str] = set()  # nodes of policies that desire labels of others
        self._limit = PatchLimit(PATCHES, seconds=PATCHES_SECONDS)
        self._queue = WorkQueue(self._handle, max_concurrent=MAX_CONCURRENT)
        self._reports = LabelReports(client, registry, self._queue)
        self._confirmation = Confirmation(bus, client, default_stale_after=default_stale_after)
        self._followed = reflectors.nodes.consumer(
            on_list=self._take_in_list, on_change=self._take_in_change, before_list=self._note_list
        )
        self._list_asked_at = -inf  # the monotonic time before the request of the last list of nodes
        self._inputs = Inputs(
            bus,
            on_epoch=self._start_epoch,
            on_verdict=self._take_in_verdict,
            on_policy=self._take_in_policy,
            on_policies=self._policies_complete,
            on_change=self._note_change,
        )
        self._lease = LeaseFirst(bus, "labels", self._queue, on_held=self._add_all)
        self._brake = BrakeLoop(
            bus,
            brake,
            registry=registry,
            lease=self._lease,
            nodes=self._followed,
            inputs=self._inputs,
            is_ready=lambda: self.unready() is None,
            on_change=self._start_if_ready,
        )
        self._waking = Waking(bus, client, registry, is_active=lambda: self._lease.held)
        self._records = RefusalRecords(bus, self._refusals, REFUSED_LABELS, is_active=lambda: self._lease.held)
        self._started = False

    def unready(self) -> str | None:
        """Why nothing is written yet."""
        reasons = (
            None if self._followed.listed else f"nodes: {self._followed.problem}",
            *self._inputs.unready(),
            self._brake.unready(),
        )
        return "; ".join(reason for reason in reasons if reason is not None) or None

    def waiting_labels(self) -> Mapping[str, int]:
        """By name of the policies, how many nodes wait for their turn to get their first label."""
        return self._brake.waiting()

    def concerns(self) -> Iterator[str]:
        """An API server that is silent, labels that come and go, and nodes whose labels cannot be written."""
        yield from self._followed.concerns()
        if flapping := self._brake.flapping:
            many = counted(flapping, "label of a policy on a node is", "labels of policies on nodes are")
            yield f"{many} set and removed again and again"
        yield from self._queue.concerns("node")

    async def run(self) -> None:
        """Follows until cancelled."""
        parts = self._followed, self._inputs, self._lease, self._queue, self._brake, self._waking, self._records
        await together(*(part.run() for part in parts))

    async def _handle(self, name: str) -> float | None:
        verdict = self._verdicts.get(name)
        try:
            return await self._reconcile(name)
        except (KubernetesError, BusError, InvalidInputError) as error:
            self._reports.failed(name, error)
            raise requeued(error, self._bus) from error
        finally:
            if self._verdicts.get(name) is verdict:
                self._brake.note_handled(name)

    async def _reconcile(self, name: str) -> float | None:
        """Reconciles one node; returns the seconds until it must be reconciled again, or None."""
        node = self._nodes.get(name)
        if node is None:
            return None
        if self.unready() is not None:
            self._started = False  # so every node is added when all is ready, also if nobody else has noticed this
            return None
        stored = self._verdicts.get(name)
        verdict = None if stored is None else _verdict_of(stored)
        changes = self._changes(name, _policies_of(verdict, node.uid), node)
        if changes.contested:
            self._contested.add(name)
        if verdict is not None and verdict.node_uid == node.uid:  # else it is unknown which labels belong to policies
            self._reports.foreign(name, changes.foreign)
            self._reports.foreign_values(name, changes.foreign_values)
            self._reports.dropped(name, changes.dropped)
        permit = await self._brake.permit(name, node, changes.values)
        if self._verdicts.get(name) is stored:  # else it has changed meanwhile
            self._brake.note_handled(name)
        if permit.is_asked and not permit.labels:
            return None
        again = permit.wait
        if permit.labels:
            if (wait := self._limit.wait(name, at=time.monotonic())) > 0:
                self._reports.warning("node_patched_too_often", name, patches=PATCHES, seconds=PATCHES_SECONDS)
                return wait
            again = await self._patch(name, node)
        else:
            self._note_refusals(name, node, verdict, changes)
        if again is not None:
            return again
        self._refusals.checked(name)
        return RESYNC_SECONDS if name in self._kept or name in self._refused else None

    def _changes(self, name: str, policies: Mapping[PolicyKey, PolicyVerdict], node: NodeLabels) -> LabelChanges:
        now = time.monotonic()
        return label_changes(
            policies,
            self._confirmation.claims,
            node.labels,
            managers=node.managers,
            overwrite=self._overwrite,
            kept=self._kept.of(name, at=now),
            refused=self._refused.of(name, at=now),
        )

    async def _patch(self, name: str, known: NodeLabels) -> float | None:
        """Patches the differences from the verdict: first with the known state of the node, then with its read state.

        The API server accepts the first patch only if the known state is current, so a read before it is unnecessary.
        Returns the seconds until the node must be reconciled again: until the flap budget or the rate allows what they
        did not allow for this state, or 0 if labels are left that need a patch of their own. None: nothing waits.
        Raises KubernetesError, BusError, to be tried again. Raises RequeueError if a removal is not confirmed by what
        is known now.
        """
        try:
            return await self._patch_as(name, known, read_at=time.monotonic())
        except KubernetesError as error:
            if not is_outdated(error, name):
                raise
        self._reports.attempted("conflict")
        known_now, read_at = self._nodes.get(name), time.monotonic()
        try:
            found = await self._client.get(LABELLED_NODES, name)
        except NotFoundError as error:
            if not is_outdated(error, name):
                raise
            self._reports.attempted("gone")
            if self._nodes.get(name) is known_now:
                self._nodes.pop(name, None)  # unless the watch has delivered another node of this name
            return None
        node = NodeLabels.of(found.metadata)
        if known_now is not None and self._nodes.get(name) is known_now:
            self._know(name, node)
        return await self._patch_as(name, node, read_at=read_at)

    async def _patch_as(self, name: str, node: NodeLabels, *, read_at: float) -> float | None:
        """Reads the verdict again, and patches the differences if the node still has the state `node`.

        `read_at` is the monotonic time of the oldest read behind the patch. Returns and raises as `_patch`.
        """
        # After the read of the node: so labels of other replicas come from this verdict or an earlier one.
        entry = await NODE_VERDICTS.get(self._bus, name)
        verdict = _verdict_of(entry)
        policies = _policies_of(verdict, node.uid)
        changes = self._changes(name, policies, node)
        permit = await self._brake.permit(name, node, changes.values)
        changes, read_at = changes.only(permit.labels), min(read_at, permit.read_at)
        confirmed = await self._confirmation.confirmed(name, changes.removals, policies, node.labels)
        orphans: frozenset[str] = frozenset()
        if (values := changes.allowed(confirmed)) and changes.orphans:
            # The orphans wait: the list of policies may take longer than the other reads are valid.
            self._lease.add(name)
        else:
            orphans, listed_at = await self._confirmation.orphans_that_may_go(changes.orphans)
            read_at = min(read_at, listed_at)
            self._keep(name, changes.orphans - orphans, listed_at)
            values = changes.allowed(confirmed | orphans)
        is_complete = True
        if values:
            try:
                is_complete = await self._send(name, node, values, read_at=read_at)
            except ForbiddenError as error:
                self._forbidden(name, {label: values[label] for label in values if label in changes.desired}, error)
                raise
        if is_complete:
            self._note_refusals(name, node, verdict, changes)
        if values:  # else nothing was to be written, or everything was refused
            self._reports.patched(
                name,
                values,
                orphans=orphans,
                read_at=read_at,
                verdict_created=entry.created or None,
            )
            await self._reports.overwritten(name, node, values)
        if unconfirmed := changes.removals.keys() - confirmed:
            self._reports.unconfirmed(name, unconfirmed)
            raise RequeueError("a removal is not confirmed")
        return permit.wait if is_complete else 0.0

    async def _send(self, name: str, node: NodeLabels, values: dict[str, str | None], *, read_at: float) -> bool:
        """Sends the new values of labels, and removes refused and unsent labels from `values`.

        Returns whether all were sent. Raises KubernetesError.
        """
        metadata = NodeMetadata(name=name, uid=node.uid, resource_version=node.resource_version)
        known = self._nodes.get(name)
        patched = await send_patch(self._client, metadata, dict(values), read_at=read_at)
        # Not if the watch has delivered this or a later state, or if everything was refused.
        if known is not None and self._nodes.get(name) is known and patched.node is not metadata:
            self._know(name, NodeLabels.of(patched.node))
        self._limit.patched(name, at=time.monotonic())
        for label, error in patched.refused.items():
            self._refuse(name, label, values.pop(label), error)
        for label in patched.left:
            del values[label]
        return not patched.left

    def _keep(self, name: str, orphans: frozenset[str], listed_at: float) -> None:
        """Remembers orphans that policies keep, unless a policy has changed since the list was requested."""
        if not orphans:
            return
        self._reports.kept(name, orphans)
        if not self._confirmation.is_current(listed_at):
            self._lease.add(name)
            return
        for label in orphans:
            self._kept.add(name, label, None, at=time.monotonic())

    def _refuse(self, name: str, label: str, value: str | None, error: KubernetesError) -> None:
        self._refused.add(name, label, value, at=time.monotonic(), reason=refusal_reason(error, name))
        self._reports.refused(name, label, value, error)

    def _forbidden(self, name: str, values: Mapping[str, str | None], error: ForbiddenError) -> None:
        """Notes that a whole patch is not allowed; the queue tries again. 401 passes: it is about the credentials."""
        if error.code == 403 and name in self._nodes:
            reason = refusal_reason(error, name)
            self._refusals.set(name, {label: DeclinedChange(value, reason) for label, value in values.items()})

    def _note_refusals(self, name: str, node: NodeLabels, verdict: NodeVerdict | None, changes: LabelChanges) -> None:
        """Notes which desired changes are refused, unless the node is gone or what is desired is unknown."""
        if verdict is not None and verdict.node_uid == node.uid and name in self._nodes:
            self._refusals.set(name, self._refused.among(name, changes.desired))

    def _add_all(self) -> None:
        self._brake.add_all()

    def _note_change(self) -> None:
        self._start_if_ready()
        self._brake.note_change()

    def _start_if_ready(self) -> None:
        """Adds every node when the worker has become ready."""
        ready = self.unready() is None
        if ready and not self._started:
            log.info("labels_ready", nodes=len(self._nodes), verdicts=len(self._verdicts))
            self._add_all()
            self._refusals.begin(self._nodes)
        self._started = ready

    async def _note_list(self) -> None:
        self._list_asked_at = time.monotonic()

    def _take_in_list(self, listing: Listing[LabelledNode]) -> None:
        self._brake.begin_list(listing.resource_version, self._list_asked_at)
        for name in self._nodes.keys() - {each.metadata.name for each in listing.items}:
            self._drop_node(name, listing.resource_version)
        for each in listing.items:
            self._take_in_node(each.metadata)
        self._start_if_ready()

    def _take_in_change(self, change: Change[LabelledNode]) -> None:
        if change.type is ChangeType.DELETED:
            self._drop_node(change.object.metadata.name, change.resource_version)
        else:
            self._take_in_node(change.object.metadata)

    def _take_in_node(self, metadata: NodeMetadata) -> None:
        node = NodeLabels.of(metadata)
        known = self._nodes.get(metadata.name)
        self._know(metadata.name, node)
        if known != node:
            self._lease.add(metadata.name)

    def _know(self, name: str, node: NodeLabels) -> None:
        self._nodes[name] = node
        self._brake.state.set_node(name, node.resource_version, node.labels, time.monotonic())

    def _drop_node(self, name: str, resource_version: str) -> None:
        self._nodes.pop(name, None)
        self._brake.state.drop_node(name, resource_version, time.monotonic())
        self._brake.note_handled(name)
        self._contested.discard(name)
        self._refusals.set(name, {})
        for each in (self._kept, self._refused, self._limit, self._reports, self._queue):
            each.forget(name)

    def _start_epoch(self, bucket: Bucket, epoch: Epoch) -> None:
        if bucket is POLICIES:
            self._confirmation.claims.clear()  # removals wait for the complete list
            self._brake.state.forget_policies()
            return
        log.info("verdicts_epoch_changed", epoch=epoch.created)
        self._verdicts.clear()
        self._records.check_all()  # the whole bus may have been wiped

    def _take_in_verdict(self, entry: Entry[str, NodeVerdict]) -> None:
        if entry.present:
            self._verdicts[entry.key] = entry
        else:
            self._verdicts.pop(entry.key, None)
        self._brake.add(entry.key)
        self._waking.take_in_verdict(entry)

    def _take_in_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        if entry.present:
            if (record := entry.readable()) is None:
                self._brake.state.set_policy(entry.key, None)
            else:
                self._brake.state.set_policy(entry.key, record.policy, record.created)
        elif self._brake.state.drop_policy(entry.key):
            self._add_all()
        if self._confirmation.take_in_policy(entry):
            for node in self._contested:
                self._brake.add(node)
            self._contested.clear()
        self._recheck_kept()

    def _policies_complete(self, synced: Synced) -> None:
        log.info("policies_complete", cluster=synced.cluster, count=synced.count, writer=synced.writer)
        self._recheck_kept()

    def _recheck_kept(self) -> None:
        """Checks kept orphans again: the policies may not keep them any more."""
        for node in self._kept.clear():
            self._lease.add(node)


def _verdict_of(entry: Entry[str, NodeVerdict]) -> NodeVerdict | None:
    """The verdict; None if there is none. Raises InvalidInputError if it is invalid, which does not mean absence."""
    verdict = entry.read()
    if isinstance(verdict, Unreadable):
        raise verdict.error
    return verdict


def _policies_of(verdict: NodeVerdict | None, uid: str) -> Mapping[PolicyKey, PolicyVerdict]:
    """The policies' verdicts; empty if the verdict is of another node with this name."""
    return verdict.policies if verdict is not None and verdict.node_uid == uid else {}
