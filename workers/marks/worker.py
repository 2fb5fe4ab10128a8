"""Marks: writes taints and node conditions that repeat `deschedule` labels (`tas.enforcing.marks`).

The worker watches complete nodes, and keeps of each node only its labels and marks of policies. Before a patch it reads
the node and the verdict again. A patch has the whole list of taints or conditions as read, with the node's uid and
resource version: the API server refuses the patch if anybody has changed the node since. So nothing of others is lost,
and any number of replicas may run. A pause or a trip that the bus has stored is obeyed by every patch whose reads begin
later. While no policy has marks, the nodes are listed once at the start, for orphans, and
then neither watched nor patched.
"""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import structlog
from prometheus_client import CollectorRegistry

from bus.buckets import POLICIES, Bucket
from bus.connection import Bus, Epoch
from bus.errors import BusError
from bus.kinds import NODE_VERDICTS, REFUSED_MARKS
from bus.record_kind import Entry, Unreadable
from bus.records.policies import PolicyRecord
from tas.enforcing.labels import desired_labels
from tas.enforcing.managers import FIELD_MANAGER
from tas.enforcing.marks import (
    Basis,
    MarkChange,
    MarkKind,
    NodeMarks,
    WantedMarks,
    changed_conditions,
    changed_taints,
    is_settled,
    mark_changes,
    mark_policy,
    may_remove_mark,
    node_marks,
    wanted_marks,
)
from tas.enforcing.memory import Declined, DeclinedChange, PatchLimit
from tas.enforcing.refusals import Refusals
from tas.errors import InvalidInputError
from tas.policy.policy import Policy, PolicyKey, StrategyType
from tas.verdict.verdict import NodeVerdict, PolicyVerdict
from workers.following.freezes import Freezes
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubernetesError,
    NotFoundError,
    RejectedError,
    is_outdated,
)
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import WHOLE_NODES, WholeNode
from workers.marks.reports import MarkReports
from workers.process.tasks import together
from workers.reconcile.confirmation import Confirmation
from workers.reconcile.failed_requests import requeued
from workers.reconcile.inputs import Inputs
from workers.reconcile.lease_first import LeaseFirst
from workers.reconcile.node_patches import PATCHES, PATCHES_SECONDS, refusal_reason
from workers.reconcile.refusal_records import RefusalRecords
from workers.reconcile.work_queue import RequeueError, WorkQueue

log = structlog.get_logger("marks")

MAX_CONCURRENT = 8
"""Nodes that are patched at the same time."""

RESYNC_SECONDS = 600.0
"""The time after which a node with a refused or kept mark is reconciled again."""

HELD_BACK_SECONDS = 10.0
"""How long a node waits for marks without a label on other nodes, before a warning and another attempt."""


class Marks:
    """The worker. Its state can be rebuilt from the bus and the API server."""

    name = "marks"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        reflectors: Reflectors,
        *,
        registry: CollectorRegistry,
        default_stale_after: float,
    ) -> None:
        self._bus = bus
        self._client = client
        self._nodes: dict[str, NodeMarks] = {}
        self._policies: dict[PolicyKey, Policy] = {}
        self._wanted: dict[str, WantedMarks] = {}  # by name of the policies
        self._marked: set[str] = set()  # nodes with any mark
        self._strays: dict[str, set[str]] = {}  # nodes with a mark but without the label, by name of the policies
        self._held_back: dict[str, dict[str, float]] = {}  # nodes that wait for these, each with the first attempt
        self._refused = Declined(seconds=RESYNC_SECONDS)
        self._refusals = Refusals(mark_policy)
        self._kept = Declined(seconds=RESYNC_SECONDS)  # orphans that policies keep
        self._limit = PatchLimit(PATCHES, seconds=PATCHES_SECONDS)
        self._queue = WorkQueue(self._handle, max_concurrent=MAX_CONCURRENT)
        self._reports = MarkReports(registry, self._queue, without_label=lambda: sum(map(len, self._strays.values())))
        self._confirmation = Confirmation(bus, client, default_stale_after=default_stale_after)
        self._followed = reflectors.whole_nodes.consumer(on_list=self._take_in_list, on_change=self._take_in_change)
        self._is_needed = asyncio.Event()
        self._is_not_needed = asyncio.Event()
        self._is_needed.set()  # until the first list has shown that no node has a mark
        self._inputs = Inputs(
            bus,
            on_epoch=self._start_epoch,
            on_verdict=lambda entry: self._add(entry.key),
            on_policy=self._take_in_policy,
            on_policies=lambda _: self._check_need(),
            on_change=self._start_if_ready,
        )
        self._lease = LeaseFirst(bus, "marks", self._queue, on_held=self._add_all)
        self._freezes = Freezes(bus, on_change=self._take_in_freezes)
        self._records = RefusalRecords(bus, self._refusals, REFUSED_MARKS, is_active=lambda: self._lease.held)
        self._started = False

    def unready(self) -> str | None:
        """Why nothing is written yet."""
        is_listed = not self._wanted or self._followed.listed
        reasons = (
            None if is_listed else f"nodes: {self._followed.problem}",
            *self._inputs.unready(),
            # Without marks nothing can be frozen: `tas run all` is not ready later for their sake.
            self._freezes.unready() if self._wanted or self._marked else None,
        )
        return "; ".join(reason for reason in reasons if reason is not None) or None

    def concerns(self) -> Iterator[str]:
        """An API server that is silent, and nodes whose marks cannot be written."""
        yield from self._followed.concerns()
        yield from self._queue.concerns("node")

    async def run(self) -> None:
        """Follows until cancelled."""
        parts = self._inputs, self._lease, self._queue, self._freezes, self._records
        await together(self._follow_nodes(), *(part.run() for part in parts))

    async def _follow_nodes(self) -> None:
        """Follows the nodes while a policy has marks, or a node has a mark."""
        while True:
            await self._is_needed.wait()
            self._is_not_needed.clear()
            following = asyncio.create_task(self._followed.run())
            stop = asyncio.create_task(self._is_not_needed.wait())
            try:
                await asyncio.wait((following, stop), return_when=asyncio.FIRST_COMPLETED)
            finally:
                following.cancel()
                stop.cancel()
                await asyncio.wait((following, stop))
            if not following.cancelled():
                following.result()  # a bug
            log.info("marks_off", nodes=len(self._nodes))
            for name in list(self._nodes):
                self._drop_node(name)

    def _check_need(self) -> None:
        """Decides whether nodes are followed, once the policies and the nodes are known."""
        if self._wanted:
            self._is_needed.set()
        elif self._inputs.policies.synced and self._followed.listed and not self._marked:
            self._is_needed.clear()
            self._is_not_needed.set()

    async def _handle(self, name: str) -> float | None:
        try:
            return await self._reconcile(name)
        except (KubernetesError, BusError, InvalidInputError) as error:
            self._reports.failed(name, error)
            raise requeued(error, self._bus) from error

    async def _reconcile(self, name: str) -> float | None:
        """Reconciles one node; returns the seconds until it must be reconciled again, or None."""
        node = self._nodes.get(name)
        if node is None or self.unready() is not None or is_settled(node, self._wanted):
            return None
        policies = await self._verdicts(name, node.uid)
        changes = self._changes(name, node, policies, labels=None)
        if not self._undeclined(name, changes):
            self._note_refusals(name, policies, changes)
        else:
            if (wait := self._limit.wait(name, at=time.monotonic())) > 0:
                self._reports.too_often(name, patches=PATCHES, seconds=PATCHES_SECONDS)
                return wait
            await self._patch(name)
        if self._warn_if_held_back(name):
            return HELD_BACK_SECONDS
        return RESYNC_SECONDS if name in self._kept or name in self._refused else None

    async def _verdicts(self, name: str, uid: str) -> Mapping[PolicyKey, PolicyVerdict]:
        """The stored verdicts of the node with this uid. Raises BusError, InvalidInputError."""
        verdict: NodeVerdict | Unreadable | None = (await NODE_VERDICTS.get(self._bus, name)).read()
        if isinstance(verdict, Unreadable):
            raise verdict.error
        return verdict.policies if verdict is not None and verdict.node_uid == uid else {}

    def _changes(
        self,
        name: str,
        node: NodeMarks,
        policies: Mapping[PolicyKey, PolicyVerdict],
        *,
        labels: Mapping[str, str] | None,
    ) -> Sequence[MarkChange]:
        """The changes of a node."""
        since = {policy: nodes.pop(name) for policy, nodes in self._held_back.items() if name in nodes}
        return mark_changes(
            node,
            self._wanted,
            desired_labels(policies, self._confirmation.claims),
            labels,
            is_stray=lambda policy: self._is_stray(policy, name, since),
            is_frozen=self._is_frozen,
        )

    def _undeclined(self, name: str, changes: Collection[MarkChange]) -> list[MarkChange]:
        """Those of `changes` that neither the API server nor a policy declined lately."""
        now = time.monotonic()
        declined = {**self._kept.of(name, at=now), **self._refused.of(name, at=now)}
        return [each for each in changes if each.mark not in declined or declined[each.mark] != each.text]

    async def _patch(self, name: str) -> None:
        """Reads the node, and patches what differs. Raises KubernetesError, BusError, RequeueError."""
        read_at = time.monotonic()
        try:
            found = await self._client.get(WHOLE_NODES, name)
        except NotFoundError as error:
            if not is_outdated(error, name):
                raise
            self._reports.attempted("gone")
            return
        # After the read of the node: so marks of other replicas come from this verdict or an earlier one.
        policies = await self._verdicts(name, found.metadata.uid)
        if not await self._freezes.are_current():
            raise RequeueError("a pause or a trip may not be known yet")
        labels = found.metadata.labels
        wanted = self._changes(name, _marks_of(found), policies, labels=labels)
        changes = self._undeclined(name, wanted)
        requested = {each.policy: each.owner for each in changes if each.owner is not None}
        confirmed = await self._confirmation.confirmed(name, requested, policies, labels)
        allowed = [
            each
            for each in changes
            if each.basis is Basis.LABEL or (each.basis is Basis.VERDICT and each.policy in confirmed)
        ]
        orphans = [each for each in changes if each.basis is Basis.LIST]
        if orphans and allowed:
            self._add(name)  # they wait: the list of policies may take longer than the other reads are valid
        elif orphans:
            listed, listed_at = await self._confirmation.listed_policies()
            read_at = min(read_at, listed_at)
            allowed = [each for each in orphans if may_remove_mark(each.kind, each.policy, listed)]
            self._keep(name, [each for each in orphans if each not in allowed], listed_at)
        await self._send_all(name, found, allowed, read_at=read_at)
        self._note_refusals(name, policies, wanted)
        if unconfirmed := requested.keys() - confirmed:
            self._reports.unconfirmed(name, unconfirmed)
            raise RequeueError("the end of a violation is not confirmed")

    async def _send_all(self, name: str, found: WholeNode, changes: Sequence[MarkChange], *, read_at: float) -> None:
        """Sends one patch for the taints and one for the conditions: these are different rights."""
        forbidden: list[MarkChange] = []
        error: ForbiddenError | None = None
        for kind in MarkKind:
            if of_kind := [each for each in changes if each.kind is kind]:
                try:
                    found = await self._send(name, found, of_kind, read_at=read_at)
                except ForbiddenError as found_error:
                    forbidden, error = [*forbidden, *of_kind], found_error
        if error is not None:
            self._forbidden(name, forbidden, error)
            raise error

    async def _send(self, name: str, found: WholeNode, changes: Sequence[MarkChange], *, read_at: float) -> WholeNode:
        """The node after changes of one kind. Changes that the API server refuses are left out; raises as `_patch`."""
        metadata = {"uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version}
        is_taint = changes[0].kind is MarkKind.TAINT
        if is_taint:
            patch: dict[str, object] = {"spec": {"taints": changed_taints(found.spec.taints, changes)}}
        else:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            patch = {"status": {"conditions": changed_conditions(found.status.conditions, changes, now=now)}}
        try:
            patched = await self._client.merge_patch(
                WHOLE_NODES,
                name,
                {"metadata": metadata, **patch},
                subresource="" if is_taint else "status",
                field_manager=FIELD_MANAGER,
                read_at=read_at,
            )
        except (InvalidError, RejectedError) as error:
            if is_outdated(error, name):
                raise ConflictError(str(error), code=error.code, status=error.status) from error
            if len(changes) == 1:
                reason = refusal_reason(error, name)
                self._refused.add(name, changes[0].mark, changes[0].text, at=time.monotonic(), reason=reason)
                self._reports.refused(name, changes[0], error)
                return found
        else:
            self._limit.patched(name, at=time.monotonic())
            self._reports.patched(name, changes, age=round(time.monotonic() - read_at, 4))
            return patched
        for each in changes:  # to find the refused ones
            found = await self._send(name, found, [each], read_at=read_at)
        return found

    def _keep(self, name: str, orphans: Collection[MarkChange], listed_at: float) -> None:
        """Remembers orphans that policies keep, unless a policy has changed since the list was requested."""
        if orphans and not self._confirmation.is_current(listed_at):
            self._add(name)
            return
        for each in orphans:
            self._kept.add(name, each.mark, None, at=time.monotonic())

    # Refused marks

    def _forbidden(self, name: str, changes: Collection[MarkChange], error: ForbiddenError) -> None:
        """Notes that a whole patch is not allowed; the queue tries again. 401 passes: it is about the credentials."""
        if error.code == 403 and name in self._nodes:
            reason = refusal_reason(error, name)
            self._refusals.set(name, {each.mark: DeclinedChange(each.text, reason) for each in changes})

    def _note_refusals(
        self, name: str, policies: Mapping[PolicyKey, PolicyVerdict], wanted: Collection[MarkChange]
    ) -> None:
        """Notes which of the wanted changes are refused, unless the node is gone or has no verdict."""
        if policies and name in self._nodes:
            self._refusals.set(name, self._refused.among(name, {each.mark: each.text for each in wanted}))
        self._refusals.checked(name)

    # Marks without a label

    def _is_stray(self, policy: str, name: str, since: Mapping[str, float]) -> bool:
        """Whether some node has a mark of the policy without the label: then the node `name` waits, maybe `since`."""
        if policy not in self._strays:
            return False
        self._held_back.setdefault(policy, {})[name] = since.get(policy, time.monotonic())
        return True

    def _warn_if_held_back(self, name: str) -> bool:
        """Whether the node waits for marks of others; warns if it has waited for long."""
        waits = False
        for policy, nodes in self._held_back.items():
            if name in nodes:
                waits = True
                if time.monotonic() - nodes[name] >= HELD_BACK_SECONDS:
                    self._reports.held_back(name, policy, self._strays.get(policy, ()))
        return waits

    def _note_strays(self, name: str, strays: Collection[str]) -> None:
        """Notes for which policies a node has a mark without the label; nodes that waited for this are added."""
        for policy in strays:
            self._strays.setdefault(policy, set()).add(name)
        for policy in [policy for policy, nodes in self._strays.items() if name in nodes and policy not in strays]:
            self._strays[policy].discard(name)
            if not self._strays[policy]:
                del self._strays[policy]
                for each in self._held_back.pop(policy, ()):
                    self._add(each)

    def _is_frozen(self, policy: str) -> bool:
        # The breaker of deleted policies freezes nothing.
        return self._freezes.are_frozen(policy if self._confirmation.claims.named(policy) else None)

    # What the worker follows

    def _add(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        if is_settled(node, self._wanted):
            self._refusals.set(name, {})
        else:
            self._lease.add(name)

    def _add_all(self) -> None:
        for name in self._nodes:
            self._add(name)

    def _start_if_ready(self) -> None:
        """Adds every node when the worker has become ready."""
        ready = self.unready() is None
        if ready and not self._started:
            self._refusals.begin([name for name, node in self._nodes.items() if not is_settled(node, self._wanted)])
            self._add_all()
        self._started = ready

    def _start_epoch(self, bucket: Bucket, _: Epoch) -> None:
        if bucket is POLICIES:
            self._confirmation.claims.clear()  # removals wait for the complete list
            self._policies.clear()
            self._wanted.clear()
        else:
            self._records.check_all()  # the whole bus may have been wiped

    def _take_in_freezes(self) -> None:
        self._start_if_ready()
        self._add_all()

    def _take_in_list(self, listing: Listing[WholeNode]) -> None:
        for name in self._nodes.keys() - {each.metadata.name for each in listing.items}:
            self._drop_node(name)
        for each in listing.items:
            self._take_in_node(each)
        self._check_need()
        self._start_if_ready()

    def _take_in_change(self, change: Change[WholeNode]) -> None:
        if change.type is ChangeType.DELETED:
            self._drop_node(change.object.metadata.name)
        else:
            self._take_in_node(change.object)
        self._check_need()

    def _take_in_node(self, found: WholeNode) -> None:
        name, node = found.metadata.name, _marks_of(found)
        if self._nodes.get(name) != node:
            self._nodes[name] = node
            if node.taints or node.conditions:
                self._marked.add(name)
            else:
                self._marked.discard(name)
            self._note_strays(name, node.strays)
            self._add(name)

    def _drop_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._marked.discard(name)
        self._refusals.set(name, {})
        self._note_strays(name, ())
        for nodes in self._held_back.values():
            nodes.pop(name, None)
        for each in (self._kept, self._refused, self._limit, self._queue):
            each.forget(name)

    def _take_in_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        self._confirmation.take_in_policy(entry)
        self._policies.pop(entry.key, None)
        if (record := entry.readable()) is not None:
            self._policies[entry.key] = record.policy
        name = entry.key.name
        owner = self._confirmation.claims.owner(name, StrategyType.DESCHEDULE)
        wanted = None if owner is None else wanted_marks(self._policies[owner])
        before = self._wanted.pop(name, None)
        if wanted is not None:
            self._wanted[name] = wanted
        for node in self._kept.clear():
            self._add(node)
        if wanted != before:
            self._add_all()
        self._check_need()


def _marks_of(found: WholeNode) -> NodeMarks:
    return node_marks(found.metadata.uid, found.metadata.labels, found.spec.taints, found.status.conditions)
