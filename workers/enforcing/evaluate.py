"""Evaluate: reads nodes and policies, and writes each node's verdict.

Any number of replicas follow NODES, POLICIES and VERDICTS. A replica evaluates every node at its start, later the nodes
and policies that a change affects or whose `for` or `clearFor` has ended. If the result differs from the stored
verdict, the replica reads that verdict and the node from the stream's leader, evaluates again, and writes if the
verdict's revision is still the same. So a replica that is behind overwrites nothing newer, and an unchanged verdict is
not written.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.buckets import NODES, POLICIES, VERDICTS
from bus.connection import Bus, Epoch
from bus.errors import BusError, ConflictError, ExpiredError, FullError
from bus.history import purge_history
from bus.kinds import NODE_FACTS, NODE_SAMPLES, NODE_VERDICTS
from bus.record_kind import Entry, Unreadable
from bus.watch import Watch
from tas.policy.policy import PolicyKey
from tas.samples.sample import NodeSamples
from tas.verdict.evaluation import evaluate_policy, met_labels
from tas.verdict.knowledge import (
    NEVER_STORED,
    Action,
    Known,
    StoredVerdict,
    action,
    evaluation_time,
    is_confirmed,
    is_outdated,
    of_node,
)
from tas.verdict.pending import PendingNodes, Touched
from tas.verdict.verdict import NodeVerdict, PolicyVerdict
from tas.verdict.watched import UnmetLabels, Watched
from workers.enforcing.work_queue import RequeueError, WorkQueue
from workers.following.followed_view import FollowedView
from workers.process.logs import ThrottledLog

log = structlog.get_logger("evaluate")

MAX_CONCURRENT = 32
"""Nodes that are evaluated at the same time."""

POLICY_BATCH = 20
"""After so many policies other tasks may run: an extender may answer requests in the same process."""


MAX_QUEUED = 100
"""While all nodes are evaluated, at most so many wait in the queue: changed nodes are added behind these."""

EPOCH_CHECK_SECONDS = 0.2
"""The wait between checks whether every watch has reached the current epoch of its bucket."""


PURGE_INTERVAL_SECONDS = 5.0
"""The shortest time between two purges of the history of verdicts."""


BEHIND_RETRY_SECONDS = 1.0
"""The wait before a node is evaluated again whose stored verdict is newer than what this replica knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node as read from the stream's leader; `uid` as in `Known.node_uid`."""

    uid: str | None
    revision: int
    samples: NodeSamples
    labels: Mapping[str, str] | None


class Evaluate:
    """The worker. Its state can be rebuilt from the bus."""

    name = "evaluate"

    def __init__(self, bus: Bus, *, registry: CollectorRegistry, default_stale_after: float) -> None:
        self._bus = bus
        self._followed = FollowedView(
            bus, default_stale_after=default_stale_after, verdicts=True, on_change=self._wake_up
        )
        self._stored: dict[str, StoredVerdict] = {}
        self._pending = PendingNodes()
        self._policies_applied = 0
        self._ready_since = inf
        self._unmet = UnmetLabels()
        self._epoch: Epoch | None = None
        self._ready = False
        self._purge_after = float("-inf")
        self._wake = asyncio.Event()
        self._all_requested = asyncio.Event()
        self._handled = asyncio.Event()
        self._unqueued = 0
        self._throttled = ThrottledLog(log)
        self._watch = Watch(bus, NODE_VERDICTS.to(self._apply), on_epoch=self._start_epoch, on_batch=self._wake_up)
        self._queue = WorkQueue(self._handle, max_concurrent=MAX_CONCURRENT)
        self._metrics = _Metrics(registry)
        self._metrics.verdicts.set_function(
            lambda: float(sum(stored.verdict is not None for stored in self._stored.values()))
        )
        self._metrics.pending.set_function(lambda: float(len(self._pending) + self._unqueued))

    def unready(self) -> str | None:
        """Why nothing is written yet: both lists must be complete, and the stored verdicts known."""
        reasons = [reason] if (reason := self._followed.unready()) is not None else []
        if not self._watch.status.caught_up:
            reasons.append(f"{VERDICTS.name}: not caught up with the bus")
        return "; ".join(reasons) or None

    async def run(self) -> None:
        """Evaluates until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._followed.run(),
                self._watch.run(),
                self._note_touched(),
                self._queue_all(),
                self._queue.run(),
            ):
                tasks.create_task(work)

    def _wake_up(self) -> None:
        if self._ready:
            self._take_touched()  # at once: the next entry may end an interruption of `clearFor`
        self._wake.set()

    def _take_touched(self) -> None:
        """Queues the nodes and policies that changes have affected."""
        view = self._followed.view
        touched = dict(view.touched)
        view.touched.clear()
        for node, policies in touched.items():
            self._add(node, policies)
            for key in policies:
                self._note_unmet(node, key)

    def _note_unmet(self, node: str, key: PolicyKey) -> None:
        """Notes which labels of a policy with `clearFor` have rules that are not met now."""
        view, record, stored = self._followed.view, self._followed.records.get(key), self._stored_verdict(node).verdict
        met: dict[str, bool] = {}
        now = time.time()
        if record is not None:
            met = met_labels(
                record.policy,
                uid=record.uid,
                samples=view.samples(node),
                labels=view.labels(node),
                default_stale_after=view.default_stale_after,
                before=None if stored is None else stored.policies.get(key),
                now=now,
            )
        # Before the first evaluation it is unknown whether the rules were met before this change.
        self._unmet.note(node, key, met, now, missed=self._unqueued > 0)

    async def _note_touched(self) -> None:
        """Queues what changes have affected, and all nodes whenever the lists have become complete. Never ends."""
        view = self._followed.view
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.unready() is not None:
                self._end_readiness()
                view.touched.clear()
                continue
            applied = self._followed.watches[POLICIES.name].applied
            if not self._ready or self._may_have_missed():
                if not await self._is_current_epoch():
                    asyncio.get_running_loop().call_later(EPOCH_CHECK_SECONDS, self._wake_up)
                    continue
                self._ready = True
                self._ready_since = time.time()
                log.info("verdicts_complete", nodes=len(view.nodes), policies=len(view.policies))
                view.touched.clear()
                self._pending.clear()
                self._unqueued = max(1, len(self._stored.keys() | view.nodes))
                self._all_requested.set()
            elif applied != self._policies_applied:
                for node in self._stored.keys() - view.nodes:  # nodes that are not in the view are never in `touched`
                    self._add_by_all(node)
            self._policies_applied = applied
            self._take_touched()

    def _may_have_missed(self) -> bool:
        """Whether the watch of nodes was interrupted since the last evaluation of all nodes."""
        return self._ready_since < self._followed.watches[NODES.name].attached < inf

    async def _queue_all(self) -> None:
        """Queues every node with every policy, whenever the lists have become complete. Never ends."""
        while True:
            await self._all_requested.wait()
            self._all_requested.clear()
            started = time.monotonic()
            nodes = self._stored.keys() | self._followed.view.nodes
            for queued, node in enumerate(nodes):
                self._unqueued = len(nodes) - queued
                self._add_by_all(node)
                for key in self._followed.records:
                    self._note_unmet(node, key)
                await self._wait_for_queue()
                if not self._ready:
                    break  # `_note_touched` starts this again
            self._unqueued = 0
            log.info("nodes_evaluated", nodes=len(nodes), seconds=round(time.monotonic() - started, 3))

    async def _wait_for_queue(self) -> None:
        """Lets other tasks run, and waits until few nodes are queued."""
        await asyncio.sleep(0)
        while self._ready and len(self._pending) > MAX_QUEUED:
            self._handled.clear()
            await self._handled.wait()

    async def _is_current_epoch(self) -> bool:
        """Whether the watches are in the current epochs of their buckets: a watch notices a wipe with a delay."""
        try:
            created = [(await self._bus.epoch(bucket)).created for bucket in (NODES, POLICIES, VERDICTS)]
        except BusError:
            return False
        known = [self._followed.watches[bucket.name].epoch for bucket in (NODES, POLICIES)]
        return self.unready() is None and created == [
            None if epoch is None else epoch.created for epoch in (*known, self._epoch)
        ]

    def _end_readiness(self) -> None:
        self._ready = False
        self._handled.set()

    def _add(self, node: str, policies: Collection[PolicyKey]) -> None:
        self._pending.add(node, policies, at=time.monotonic())
        self._queue.add(node)

    def _add_by_all(self, node: str) -> None:
        self._pending.add_by_all(node, at=time.monotonic())
        self._queue.add(node)

    def _start_epoch(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._stored.clear()
        self._end_readiness()

    def _apply(self, entry: Entry[str, NodeVerdict]) -> None:
        node = entry.key
        if self._stored_verdict(node).revision >= entry.revision:
            return  # our own write
        verdict = entry.readable()  # an invalid verdict is replaced
        self._remember(node, entry.revision, verdict, self._epoch)
        known = Known(
            self._followed.node_uids.get(node, ""),
            self._followed.node_revisions.get(node, 0),
            self._policies_applied,
        )
        if self._ready and is_outdated(verdict, known):
            self._add_by_all(node)

    def _stored_verdict(self, node: str) -> StoredVerdict:
        return self._stored.get(node, NEVER_STORED)

    def _remember(self, node: str, revision: int, verdict: NodeVerdict | None, epoch: Epoch | None) -> None:
        """Keeps the stored verdict, unless the epoch has changed or a newer verdict is known."""
        if epoch is self._epoch and self._stored_verdict(node).revision < revision:
            self._stored[node] = StoredVerdict(revision, verdict, time.time())

    async def _handle(self, node: str) -> float | None:
        """Evaluates a node; returns the seconds until it must be evaluated again, or None."""
        if not self._ready or self.unready() is not None:
            return None  # all nodes are queued when the lists are complete
        touched = self._pending.take(node, at=time.monotonic(), now=time.time())
        self._handled.set()
        try:
            due = await self._evaluate(node, touched)
        except BusError as error:
            self._pending.put_back(node, touched)
            if isinstance(error, ConflictError):
                self._metrics.conflicts.inc()
            elif isinstance(error, FullError):
                self._metrics.refused.inc()
                await self._purge_history(error)
            elif not isinstance(error, ExpiredError):
                self._throttled.warning("verdict_not_written", node=node, error=str(error))
            raise RequeueError(str(error)) from error
        self._pending.set_due(node, due)
        return None if due == inf else max(0.0, due - time.time())

    async def _evaluate(self, node: str, touched: Touched) -> float:
        """Updates the node's verdict; returns when time alone can change it next (`inf`: never)."""
        uid = self._followed.node_uids.get(node, None if self._followed.cluster else "")
        stored = self._stored_verdict(node).verdict
        if uid is None and stored is None:
            self._unmet.forget(node)  # without a verdict there is no desired label
            return inf
        before = of_node(stored, uid)
        if before is None:
            return await self._write(node, touched)
        keys, due_before = touched.policies, self._pending.due(node)
        if touched.by_all:
            keys, due_before = self._followed.records.keys() | before.policies.keys(), inf
        view = self._followed.view
        samples, labels, now = view.samples(node), view.labels(node), evaluation_time(before, time.time())
        evaluated, due = await self._evaluate_policies(node, keys, before, samples=samples, labels=labels, now=now)
        if is_confirmed(before, evaluated, keys, labels):
            return min(due, due_before)
        return await self._write(node, touched)

    async def _evaluate_policies(
        self,
        node: str,
        keys: Collection[PolicyKey],
        before: NodeVerdict | None,
        *,
        samples: NodeSamples,
        labels: Mapping[str, str] | None,
        now: float,
    ) -> tuple[dict[PolicyKey, PolicyVerdict], float]:
        """The verdict of each existing policy of `keys`, and when time alone can change one of them next."""
        evaluated: dict[PolicyKey, PolicyVerdict] = {}
        due = inf
        # Without a feed a change may be missed now: then the policy is evaluated again later.
        ahead = max(0.0, now - time.time())
        stored_until = 0.0 if before is None else min(before.time, self._stored_verdict(node).known_since)
        watched_since = min(now, max(self._ready_since, self._followed.watches[NODES.name].attached))
        for number, key in enumerate(sorted(keys), 1):
            record = self._followed.records.get(key)
            if record is not None:
                evaluated[key], waits = evaluate_policy(
                    record.policy,
                    uid=record.uid,
                    generation=record.generation,
                    samples=samples,
                    labels=labels,
                    default_stale_after=self._followed.view.default_stale_after,
                    before=None if before is None else before.policies.get(key),
                    now=now,
                    stale_deadlines=False,
                    watched=Watched(watched_since, self._unmet.until(node, key), stored_until, ahead),
                )
                due = min(due, inf if waits is None else waits)
            if number % POLICY_BATCH == 0:
                await asyncio.sleep(0)
        self._metrics.evaluations.inc(len(keys))
        return evaluated, due

    async def _write(self, node: str, touched: Touched) -> float:
        """Evaluates data of the stream's leader, and writes the verdict if it differs; returns as `_evaluate`.

        Raises BusError, to be tried again.
        """
        read_at = time.monotonic()
        stored = await self._read_verdict(node)
        # After the read of the verdict: then a later write from newer data makes this write conflict.
        policies_revision = self._followed.watches[POLICIES.name].applied
        found = await self._read_node(node)
        nodes_revision = max(found.revision, self._followed.watches[NODES.name].applied)
        match action(stored.verdict, Known(found.uid, nodes_revision, policies_revision)):
            case Action.WAIT:
                return time.time() + BEHIND_RETRY_SECONDS
            case Action.DELETE:
                await self._delete(node, stored, read_at)
                return inf
            case Action.LEAVE:
                return inf
            case Action.EVALUATE:
                pass
        before, keys = of_node(stored.verdict, found.uid), self._followed.records.keys()
        now = evaluation_time(before, time.time())
        evaluated, due = await self._evaluate_policies(
            node, keys, before, samples=found.samples, labels=found.labels, now=now
        )
        if before is not None and is_confirmed(
            before, evaluated, before.policies.keys() | evaluated.keys(), found.labels
        ):
            return due
        verdict = NodeVerdict(
            node_uid=found.uid or "",
            nodes_revision=found.revision,
            policies_revision=policies_revision,
            time=now,
            policies=evaluated,
        )
        epoch = self._epoch
        revision = await NODE_VERDICTS.put(self._bus, node, verdict, revision=stored.revision, read_at=read_at)
        self._remember(node, revision, verdict, epoch)
        self._metrics.writes.labels("put").inc()
        self._metrics.seconds.observe(time.monotonic() - touched.since)
        log.debug("verdict_written", node=node, revision=revision, node_revision=found.revision)
        return due

    async def _delete(self, node: str, stored: StoredVerdict, read_at: float) -> None:
        """Deletes the verdict of a node that the API server does not have. Raises BusError."""
        epoch = self._epoch
        revision = await NODE_VERDICTS.delete(self._bus, node, revision=stored.revision, read_at=read_at)
        self._remember(node, revision, None, epoch)
        self._unmet.forget(node)
        self._metrics.writes.labels("delete").inc()
        log.info("verdict_deleted", node=node)

    async def _purge_history(self, full: FullError) -> None:
        """Purges the history of verdicts: entries of VERDICT_LOG may be lost, but the verdicts stay complete."""
        now = time.monotonic()
        if now < self._purge_after:
            return
        self._purge_after = now + PURGE_INTERVAL_SECONDS
        try:
            forgotten = await purge_history(self._bus, VERDICTS)
        except BusError as error:
            self._throttled.warning("verdict_not_written", error=f"{full}; the history could not be purged: {error}")
            return
        self._throttled.warning("verdicts_full", error=str(full), forgotten=forgotten)

    async def _read_verdict(self, node: str) -> StoredVerdict:
        epoch = self._epoch
        entry = await NODE_VERDICTS.get(self._bus, node)
        if entry.revision == 0:
            return NEVER_STORED
        if epoch is self._epoch and entry.revision == self._stored_verdict(node).revision:
            return self._stored_verdict(node)
        stored = StoredVerdict(entry.revision, entry.readable(), time.time())
        self._remember(node, entry.revision, stored.verdict, epoch)
        return stored

    async def _read_node(self, node: str) -> _Node:
        metrics, facts = await asyncio.gather(NODE_SAMPLES.get(self._bus, node), NODE_FACTS.get(self._bus, node))
        # Samples of an earlier epoch count until they are stale or replaced. Invalid records change nothing.
        samples = metrics.read()
        if isinstance(samples, Unreadable) or metrics.revision == 0:
            samples = self._followed.view.samples(node)
        known, labels = facts.read(), None
        uid = None if self._followed.cluster else ""
        if isinstance(known, Unreadable):
            uid, labels = self._followed.node_uids.get(node, ""), self._followed.view.labels(node)
        elif known is not None:
            uid, labels = known.uid, known.labels
        revision = max(metrics.revision, facts.revision)
        return _Node(uid=uid, revision=revision, samples=samples or (), labels=labels)


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.evaluations = counter("tas_verdict_evaluations", "Evaluations of one policy for one node.")
        self.writes = counter("tas_verdict_writes", "Verdicts written to VERDICTS.", ["operation"])
        self.conflicts = counter("tas_verdict_write_conflicts", "Writes retried because another replica was first.")
        self.refused = counter("tas_verdict_writes_refused", "Writes postponed because the bucket was full.")
        self.seconds = Histogram(
            "tas_verdict_write_seconds",
            "Time from the receipt of a change until the verdict is stored.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        self.verdicts = gauge("tas_verdicts", "Nodes with a verdict.")
        self.pending = gauge("tas_verdict_nodes_pending", "Nodes that wait for their evaluation.")
        for operation in ("put", "delete"):
            self.writes.labels(operation)
