"""A `tas.view.view.View` that is kept up to date from the bus, for the workers and commands that need the view.

The process builds it, and hands it to all its workers that read it. The view follows NODES and POLICIES, and is kept
while the bus is unavailable. After a wipe of the bus, policies and labels are dropped when a complete list of the new
epoch does not contain them; samples, when they are stale.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from typing import NamedTuple

import structlog

from bus.buckets import NODES, POLICIES
from bus.connection import Bus, Epoch
from bus.kinds import NODE_FACTS, NODE_RELEASES, NODE_SAMPLES, NODE_TABLES, POLICY_RECORDS
from bus.record_kind import Entry
from bus.records.nodes import NodeFacts, NodeRelease, StoredSamples
from bus.records.policies import PolicyRecord
from bus.records.synced import Synced
from bus.shared_task import SharedTask
from bus.watch import WatchStatus
from tas.policy.directory import FileProblems
from tas.policy.policy import PolicyKey
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples
from tas.samples.table import Table, TableKey
from tas.verdict.watched import is_gap
from tas.view.epoch_keys import EpochKeys
from tas.view.view import View
from workers.following.placed_pods import PlacedPods
from workers.following.synced import SyncedWatch

log = structlog.get_logger("view")

ADVANCE_SECONDS = 0.25
"""The time until the next advance after a change, which may bring an earlier deadline: changes come in bursts."""

IDLE_SECONDS = 5.0
"""The longest time between two advances of the view: the clock of the machine may be set."""

LEAST_ADVANCE_SECONDS = 0.01
"""The shortest time between two advances, however many samples become stale one after the other."""


MAX_SOURCES = 64
"""Of so many sources that publish samples by node the time of the newest value is known: anybody may invent names."""


class Unseen(NamedTuple):
    """Nodes of which values of some metrics may have come and gone that the view has never had."""

    nodes: Collection[str]
    metrics: Collection[str]


class FollowedView:
    """The view, kept up to date from the bus.

    Attributes:
        view: The state of nodes and policies.
        watches: The state of the watch of each bucket, by its name.
        records: The stored record of each policy, with its problems.
        changed_records: With `verdicts`: the keys of `records` that have changed; its reader clears it.
        node_uids: The uid of each node of the API server.
        nodes_since: Since when the view has had the node of this uid, in seconds since 1970 by this replica's clock.
        node_revisions: The last revision of the entries of each node with facts or samples, in the current epoch of
            NODES, deletions included.
        tables: With `verdicts`: the tables that have come, True, or were deleted, in this order; its reader clears it.
        unseen: With `verdicts`: what the view may have missed, in the order of the gaps; its reader clears it.
        completed: Set once both lists were complete; stays set in later epochs.
    """

    name = "view"

    def __init__(
        self,
        bus: Bus,
        *,
        default_stale_after: float,
        verdicts: bool = False,
        pods: bool = False,
    ) -> None:
        """With `verdicts` the view has `touched`, for one reader; with `pods` it has the costs of pods (`podCost`)."""
        self.view = View(default_stale_after=default_stale_after, verdicts=verdicts)
        self._listeners: list[Callable[[], None]] = []
        self._changed = asyncio.Event()
        self._following = SharedTask(self._follow)
        self.records: dict[PolicyKey, PolicyRecord] = {}
        self.changed_records: set[PolicyKey] = set()
        self.node_uids: dict[str, str] = {}
        self.nodes_since: dict[str, float] = {}
        self.node_revisions: dict[str, int] = {}
        self.completed = asyncio.Event()
        self.unseen: list[Unseen] = []
        self.tables: list[tuple[TableKey, bool]] = []
        self._notes_unseen = verdicts
        self._revisions: dict[str | TableKey, int] = {}  # with `verdicts`: the last one of the samples under each key
        self._newest: dict[TableKey, float] = {}
        self._newest_by_node: dict[str, float] = {}  # of samples by node: by source
        self._last_update_at = time.monotonic()
        self._policy_keys: EpochKeys[PolicyKey] = EpochKeys()
        self._node_keys: EpochKeys[str] = EpochKeys()
        self._policies = SyncedWatch(
            bus,
            POLICY_RECORDS.to(self._apply_policy),
            on_epoch=self._start_policies_epoch,
            on_complete=self._policies_complete,
        )
        self._nodes = SyncedWatch(
            bus,
            NODE_SAMPLES.to(self._apply_samples),
            NODE_TABLES.to(self._apply_table),
            NODE_FACTS.to(self._apply_facts),
            NODE_RELEASES.to(self._apply_release),
            on_epoch=self._start_nodes_epoch,
            on_complete=self._nodes_complete,
        )
        self.watches: dict[str, WatchStatus] = {
            POLICIES.name: self._policies.status,
            NODES.name: self._nodes.status,
        }
        self._pods = PlacedPods(bus, self.view) if pods else None

    def unready(self) -> str | None:
        """Why the view is not complete yet; None once both lists of the current epoch were received."""
        reasons = [reason for watch in (self._policies, self._nodes) if (reason := watch.unready()) is not None]
        return "; ".join(reasons) or None

    @property
    def cluster(self) -> bool:
        """Whether the list of nodes is complete, and comes from a Kubernetes API: then there are no other nodes."""
        return self._nodes.synced is not None and self._nodes.synced.cluster

    @property
    def file_problems(self) -> FileProblems:
        """The problems of policy files, as stored with the list of policies."""
        return FileProblems() if self._policies.synced is None else self._policies.synced.file_problems

    @property
    def value_times(self) -> dict[str, float]:
        """For each source, the time of the newest value that it has measured of any node, in seconds since 1970.

        Of a source with tables it is that of the part which is most behind; the parts of another number of parts than
        the newest one are those of before the source had grown. Values older than any policy could use are left out.
        """
        parts: dict[str, dict[int, list[float]]] = {}
        for key, newest in self._newest.items():
            parts.setdefault(key.source, {}).setdefault(key.part.of, []).append(newest)
        found = dict(self._newest_by_node)
        for source, by_count in parts.items():
            found[source] = max(min(max(by_count.values(), key=max)), found.get(source, 0.0))
        oldest = time.time() - MAX_SAMPLE_AGE
        return {source: newest for source, newest in found.items() if newest >= oldest}

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last entry was received from the bus: the age of the view."""
        return time.monotonic() - self._last_update_at

    def call(self, on_change: Callable[[], None]) -> None:
        """Has `on_change` called after each change, also of readiness."""
        self._listeners.append(on_change)

    def _on_change(self) -> None:
        self._changed.set()
        for each in self._listeners:
            each()

    async def run(self) -> None:
        """Follows until cancelled, together with all others who run it."""
        await self._following.run()

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._policies.run())
            tasks.create_task(self._nodes.run())
            if self._pods is not None:
                tasks.create_task(self._pods.run())
            tasks.create_task(self._advance())

    async def _advance(self) -> None:
        while True:
            now = time.time()
            self.view.advance(now)
            if self.view.touched:
                self._on_change()
            self._changed.clear()
            next_stale = self.view.next_deadline()
            wait = IDLE_SECONDS if next_stale is None else min(IDLE_SECONDS, next_stale - time.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait, LEAST_ADVANCE_SECONDS)):
                    await self._changed.wait()
                    await asyncio.sleep(ADVANCE_SECONDS)

    def _start_policies_epoch(self, epoch: Epoch) -> None:
        self._policy_keys.start_epoch(epoch.created)
        self._on_change()

    def _start_nodes_epoch(self, epoch: Epoch) -> None:
        self._node_keys.start_epoch(epoch.created)
        self.node_revisions.clear()
        self._revisions.clear()
        self._on_change()

    def _apply_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        self._last_update_at = time.monotonic()
        key = entry.key
        if not entry.present:
            self._policy_keys.discard(key)
            self._drop_policy(key)
        else:
            self._policy_keys.add(key)
            record = entry.readable()
            if record is not None:
                self._set_policy(key, record)
        self._on_change()

    def _set_policy(self, key: PolicyKey, record: PolicyRecord) -> None:
        known = self.records.get(key)
        self.records[key] = record
        self._note_record(key)
        if self.completed.is_set():
            self.view.set_policy(record.policy, time.time())
            self._follow_pods()
        if known is not None and (known.uid, known.generation) != (record.uid, record.generation):
            self.view.touch_policy(key)

    def _is_gap(self, entry: Entry[str, StoredSamples] | Entry[TableKey, Table]) -> bool:
        """Notes the revision; whether versions before it were never delivered. False until all have been read once."""
        if not self._notes_unseen:
            return False
        seen = self._revisions.get(entry.key, 0)
        self._revisions[entry.key] = entry.revision
        return self._nodes.status.caught_up and is_gap(entry.previous, seen)

    def _apply_samples(self, entry: Entry[str, StoredSamples]) -> None:
        self._note_node(entry)
        stored = entry.readable()
        if self._is_gap(entry):
            scrapes = (*self.view.samples(entry.key), *(stored or StoredSamples()).samples)
            self.unseen.append(Unseen((entry.key,), {metric for scrape in scrapes for metric in scrape.metrics}))
        elif stored is not None and stored.left_out and self._notes_unseen:
            self.unseen.append(Unseen((entry.key,), stored.left_out))
        if stored is not None:
            self._set_samples(entry.key, stored.samples)
        elif not entry.present:
            self.view.drop_samples(entry.key)
            self._forget_if_gone(entry.key)
        self._on_change()

    def _apply_table(self, entry: Entry[TableKey, Table]) -> None:
        self._last_update_at = time.monotonic()
        if self._notes_unseen:
            self.tables.append((entry.key, entry.present))
        before, columns = self._rows_of(entry.key), self._columns_of(entry.key)
        table = entry.readable()
        if table is not None:
            now = self._advance_before_values()
            self.view.set_table(entry.key, table, now)
            self._newest[entry.key] = table.newest
        elif not entry.present:
            self.view.drop_table(entry.key)
            self._newest.pop(entry.key, None)
        rows = self._rows_of(entry.key)
        if self._is_gap(entry):
            self.unseen.append(Unseen(before | rows, columns | self._columns_of(entry.key)))
        elif table is not None and table.left_out and self._notes_unseen:
            self.unseen.append(Unseen(rows, table.left_out))
        self.node_revisions.update(dict.fromkeys(before | rows, entry.revision))
        for node in before - rows:
            self._forget_if_gone(node)
        self._on_change()

    def _rows_of(self, key: TableKey) -> Set[str]:
        """The nodes that have a row in a table of the view."""
        table = self.view.table(key)
        return frozenset() if table is None else table.rows.keys()

    def _columns_of(self, key: TableKey) -> Set[str]:
        """The metrics of a table of the view."""
        table = self.view.table(key)
        return frozenset() if table is None else table.columns.keys()

    def _apply_facts(self, entry: Entry[str, NodeFacts]) -> None:
        self._note_node(entry)
        node = entry.key
        if not entry.present:
            self._node_keys.discard(node)
            self._drop_facts(node)
            self._forget_if_gone(node)
        else:
            self._node_keys.add(node)
            facts = entry.readable()
            if facts is not None:
                self._set_facts(node, facts)
        self._on_change()

    def _apply_release(self, entry: Entry[str, NodeRelease]) -> None:
        self._note_node(entry)
        release = entry.readable()
        if release is not None:
            self.view.release(entry.key, min(release.time.timestamp(), time.time()))
        elif not entry.present:
            self.view.drop_release(entry.key)
            self._forget_if_gone(entry.key)
        self._on_change()

    def _note_node(self, entry: Entry[str, StoredSamples] | Entry[str, NodeFacts] | Entry[str, NodeRelease]) -> None:
        self._last_update_at = time.monotonic()
        self.node_revisions[entry.key] = entry.revision

    def _forget_if_gone(self, node: str) -> None:
        """Drops the revision of a node with neither facts nor samples: a cluster may have new names every day."""
        if node not in self.node_uids and not self.view.has_samples(node):
            self.node_revisions.pop(node, None)
            self._revisions.pop(node, None)

    def _set_facts(self, node: str, facts: NodeFacts) -> None:
        self.view.set_labels(node, facts.complete_labels, created=facts.created_at)
        if self.node_uids.get(node) != facts.uid:
            self.node_uids[node] = facts.uid
            self.nodes_since[node] = time.time()
            self.view.touch_node(node)

    def _set_samples(self, node: str, samples: NodeSamples) -> None:
        now = self._advance_before_values()
        self.view.add_samples(node, samples, now)
        for scrape in samples:
            self._note_newest(scrape.source, scrape.time)

    def _advance_before_values(self) -> float:
        """Moves the view to the present time, which is returned, and tells the listeners what has become stale.

        Old values become stale at their deadline, also if new ones arrive before the next advance: `clearFor` does not
        count time without a fresh value.
        """
        now = time.time()
        self.view.advance(now)
        if self.view.touched:
            self._on_change()
        return now

    def _note_newest(self, source: str, newest: float) -> None:
        """Notes the time of a value; of more than `MAX_SOURCES` the one that was silent longest is forgotten."""
        times = self._newest_by_node
        if newest > times.get(source, 0.0):
            times[source] = newest
            if len(times) > MAX_SOURCES:
                del times[min(times, key=times.__getitem__)]

    def _policies_complete(self, synced: Synced) -> None:
        for key in self._policy_keys.complete_epoch(synced.epoch, self.view.policies.keys()):
            log.info("policy_gone", policy=str(key), reason="not in the complete list of the new epoch of the bus")
            self._drop_policy(key)
        self._note_complete()

    def _nodes_complete(self, synced: Synced) -> None:
        for node in self._node_keys.complete_epoch(synced.epoch, self.view.labelled_nodes):
            log.info("node_gone", node=node, reason="not in the complete list of the new epoch of the bus")
            self._drop_facts(node)
        self._note_complete()

    def _note_complete(self) -> None:
        if self.unready() is None:
            self.view.set_cluster(cluster=self.cluster)
            if not self.completed.is_set():
                # Only now: to evaluate all nodes at once takes a tenth of the time of one by one on arrival.
                self.view.set_policies([record.policy for record in self.records.values()], time.time())
            self.completed.set()
            self._follow_pods()
            log.info("view_complete", policies=len(self.view.policies), nodes=len(self.view.nodes))
        self._on_change()

    def _follow_pods(self) -> None:
        if self._pods is not None:
            self._pods.start_if_wanted()

    def _drop_policy(self, key: PolicyKey) -> None:
        self.records.pop(key, None)
        self._note_record(key)
        self.view.drop_policy(key)

    def _note_record(self, key: PolicyKey) -> None:
        if self._notes_unseen:
            self.changed_records.add(key)

    def _drop_facts(self, node: str) -> None:
        self.node_uids.pop(node, None)
        self.nodes_since.pop(node, None)
        self.view.drop_labels(node)
