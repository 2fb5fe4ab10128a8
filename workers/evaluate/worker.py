"""Evaluate: reads nodes and policies, and writes each node's verdict.

Which nodes are evaluated, and when, lives here; `node_evaluation` evaluates one node. Any number of replicas follow
NODES, POLICIES and VERDICTS. A replica evaluates every node at its start, later the nodes and policies that a change
affects or whose `for` or `clearFor` has ended. If the result differs from the stored verdict, the replica waits until
it has all of the node that the stream's leader had, evaluates again, and writes if the verdict's revision is still the
one that it knows. So a replica that is behind overwrites nothing newer, and an unchanged verdict is not written.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from math import inf

import structlog
from prometheus_client import CollectorRegistry

from bus.buckets import FORGET_SECONDS, NODES, POLICIES, VERDICTS
from bus.connection import Bus
from bus.errors import BusError, ConflictError, ExpiredError, FullError
from bus.kinds import NODE_VERDICTS
from tas.policy.policy import PolicyKey
from tas.samples.pace import LateMetric
from tas.verdict.knowledge import Known, is_outdated
from tas.verdict.outstanding import PollParts
from tas.verdict.pending import PendingNodes, Touched
from workers.evaluate.announcing import Announcing
from workers.evaluate.compared_sources import ComparedSources
from workers.evaluate.history import VerdictHistory
from workers.evaluate.late_metrics import LateMetrics
from workers.evaluate.node_evaluation import BEHIND_RETRY_SECONDS, Metrics, NodeEvaluation
from workers.following.followed_view import FollowedView
from workers.following.records import Records
from workers.process.logs import ThrottledLog
from workers.process.tasks import together
from workers.reconcile.work_queue import LOST_SECONDS, RequeueError, WorkQueue

MAX_QUEUED = 100
"""How many nodes may be queued before a pass waits."""

HANDLED = 2
"""For how many handled nodes a pass waits with each of its own: so at least half of the work is that of changes."""


class Turns:
    """The turns of one pass. `queued` says how many nodes are queued; 0 ends all waiting."""

    def __init__(self, queued: Callable[[], int]) -> None:
        self._queued = queued
        self._handled = asyncio.Event()

    def note_handled(self) -> None:
        """To be called when a node was taken off the queue, or when `queued` becomes 0."""
        self._handled.set()

    async def wait(self) -> None:
        """Lets other tasks run, and while many nodes are queued, waits until some have been handled.

        It does not wait for a short queue: under permanent overload the queue never gets short.
        """
        await asyncio.sleep(0)
        for _ in range(HANDLED):
            if self._queued() <= MAX_QUEUED:
                return
            self._handled.clear()
            await self._handled.wait()


log = structlog.get_logger("evaluate")

MAX_CONCURRENT = 32
"""Nodes that are evaluated at the same time."""

EPOCH_CHECK_SECONDS = 0.2
"""The wait between checks whether every watch has reached the current epoch of its bucket."""


class Evaluate:
    """The worker. Its state can be rebuilt from the bus."""

    name = "evaluate"

    def __init__(
        self,
        bus: Bus,
        followed: FollowedView,
        *,
        registry: CollectorRegistry,
        forget_seconds: float = FORGET_SECONDS,
    ) -> None:
        """`followed` has verdicts."""
        self._bus = bus
        self._forget_seconds = forget_seconds
        self._followed = followed
        self._verdicts = Records(
            bus,
            NODE_VERDICTS,
            on_epoch=self._end_readiness,
            on_entry=self._check_stored,
            on_batch=self._wake_up,
            packed=True,
        )
        self._history = VerdictHistory(bus, self._verdicts)
        self._metrics = Metrics(registry)
        self._compared = ComparedSources(bus, followed, registry=registry)
        self._late = LateMetrics(followed, registry=registry)
        self._parts = PollParts()
        self._announcing = Announcing(bus, self._are_outstanding)
        self._announced_by_time = False
        self._nodes = NodeEvaluation(bus, self._followed, self._verdicts, self._metrics, before_setting=self._announce)
        self._pending = PendingNodes()
        self._policies_applied = 0
        self._ready = False
        self._wake = asyncio.Event()
        self._all_requested = asyncio.Event()
        self._turns = Turns(lambda: len(self._pending) if self._ready else 0)
        self._unqueued = 0
        self._throttled = ThrottledLog(log)
        self._queue = WorkQueue(self._handle, max_concurrent=MAX_CONCURRENT)
        self._metrics.verdicts.set_function(
            lambda: float(sum(stored.content is not None for stored in self._verdicts.stored.values()))
        )
        self._metrics.pending.set_function(lambda: float(len(self._pending) + self._unqueued))
        self._metrics.pending_seconds.set_function(self._pending_seconds)
        followed.call(self._wake_up)

    def late_metrics(self) -> Sequence[LateMetric]:
        """The metrics whose newest values come late to the view."""
        return self._late.found

    def unready(self) -> str | None:
        """Why nothing is written yet: both lists must be complete, and the stored verdicts known."""
        reasons = [reason] if (reason := self._followed.unready()) is not None else []
        if not self._verdicts.caught_up:
            reasons.append(f"{VERDICTS.name}: not caught up with the bus")
        return "; ".join(reasons) or None

    async def run(self) -> None:
        """Evaluates until cancelled."""
        await together(
            self._followed.run(),
            self._verdicts.run(),
            self._note_touched(),
            self._queue_all(),
            self._queue.run(),
            self._announcing.run(),
            self._compared.run(),
            self._late.run(),
            self._history.run(),
            self._verdicts.forget_deleted(self._forget_seconds, ThrottledLog(log, bucket=VERDICTS.name)),
        )

    def _wake_up(self) -> None:
        if self._ready:
            self._take_touched()  # at once: the next entry may end an interruption of `clearFor`
        self._wake.set()

    def _take_touched(self) -> None:
        """Queues the nodes and policies that changes have affected."""
        view = self._followed.view
        self._take_tables()
        if moved := self._nodes.take_in_policies():
            for node in self._verdicts.stored.keys() | view.nodes:
                self._add(node, moved)
        touched = dict(view.touched)
        view.touched.clear()
        for nodes, metrics in self._followed.unseen:
            self._nodes.note_unseen(nodes, metrics)
        self._followed.unseen.clear()
        for node, policies in touched.items():
            self._add(node, policies)
            for key in policies:
                # Before the first evaluation it is unknown whether the rules were met before this change.
                self._nodes.note_unmet(node, key, missed=self._unqueued > 0)

    def _take_tables(self) -> None:
        """Notes which tables have come: also while the lists are not complete, or they would pile up."""
        for table, present in self._followed.tables:
            if present:
                self._parts.take_in(table, time.monotonic())
            else:
                self._parts.drop(table)
        self._followed.tables.clear()

    async def _note_touched(self) -> None:
        """Queues what changes have affected, and all nodes whenever the lists have become complete. Never ends."""
        view = self._followed.view
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.unready() is not None:
                self._end_readiness()
                self._take_tables()
                view.touched.clear()
                self._followed.unseen.clear()
                continue
            applied = self._followed.watches[POLICIES.name].applied
            if not self._ready or self._may_have_missed():
                if not await self._is_current_epoch():
                    # A wait, and not a timer: each wake-up would add a timer that adds the next one, without end.
                    await asyncio.sleep(EPOCH_CHECK_SECONDS)
                    self._wake.set()
                    continue
                self._ready = True
                self._nodes.take_in_policies()
                self._nodes.noted_since = time.time()
                log.info("verdicts_complete", nodes=len(view.nodes), policies=len(view.policies))
                view.touched.clear()
                self._followed.unseen.clear()
                self._pending.clear()
                self._unqueued = max(1, len(self._verdicts.stored.keys() | view.nodes))
                self._all_requested.set()
            elif applied != self._policies_applied:
                # Nodes that are not in the view are never in `touched`.
                for node in self._verdicts.stored.keys() - view.nodes:
                    self._add_by_all(node)
            self._policies_applied = applied
            self._take_touched()

    def _may_have_missed(self) -> bool:
        """Whether the watch of nodes was interrupted since the last evaluation of all nodes."""
        return self._nodes.noted_since < self._followed.watches[NODES.name].attached < inf

    async def _queue_all(self) -> None:
        """Queues every node with every policy, whenever the lists have become complete. Never ends."""
        while True:
            await self._all_requested.wait()
            self._all_requested.clear()
            started = time.monotonic()
            nodes = self._verdicts.stored.keys() | self._followed.view.nodes
            for queued, node in enumerate(nodes):
                self._unqueued = len(nodes) - queued
                before = len(self._pending)
                self._add_by_all(node)
                for key in self._followed.records:
                    self._nodes.note_unmet(node, key, missed=True)
                await (self._turns.wait() if len(self._pending) > before else asyncio.sleep(0))
                if not self._ready:
                    break  # `_note_touched` starts this again
            else:
                log.info("nodes_evaluated", nodes=len(nodes), seconds=round(time.monotonic() - started, 3))
            self._unqueued = 0

    async def _is_current_epoch(self) -> bool:
        """Whether the watches are in the current epochs of their buckets: a watch notices a wipe with a delay."""
        try:
            created = [(await self._bus.epoch(bucket)).created for bucket in (NODES, POLICIES, VERDICTS)]
        except BusError:
            return False
        known = [self._followed.watches[bucket.name].epoch for bucket in (NODES, POLICIES)]
        return self.unready() is None and created == [
            None if epoch is None else epoch.created for epoch in (*known, self._verdicts.epoch)
        ]

    def _end_readiness(self) -> None:
        self._ready = False
        self._turns.note_handled()

    def _add(self, node: str, policies: Collection[PolicyKey]) -> None:
        self._pending.add(node, policies, at=time.monotonic())
        self._queue.add(node)

    def _add_by_all(self, node: str) -> None:
        self._pending.add_by_all(node, at=time.monotonic())
        self._queue.add(node)

    def _are_others(self, node: str, *, is_due: bool = False) -> bool:
        """Whether verdicts of other nodes are outstanding that may follow from the same change as that of `node`."""
        at, now = time.monotonic(), time.time()
        if self._unqueued > 0 or self._parts.are_awaited(at):
            return True
        return self._pending.are_others(node, at=at, now=now, is_due=is_due)

    async def _announce(self, node: str, touched: Touched) -> None:
        """Announces outstanding verdicts before that of `node` sets a label."""
        if self._are_others(node, is_due=touched.by_all):
            self._announced_by_time |= touched.by_all
            await self._announcing.announce()

    def _are_outstanding(self) -> bool:
        """Whether verdicts that were announced are outstanding."""
        found = self._are_others("", is_due=self._announced_by_time)
        self._announced_by_time &= found
        return found

    def _pending_seconds(self) -> float:
        """Without all lists, nothing can be evaluated, and `unready` says so."""
        return self._pending.seconds(at=time.monotonic()) if self._ready else 0.0

    def _check_stored(self, node: str) -> None:
        """Queues a node whose verdict another replica has stored, if this one knows more."""
        followed = self._followed
        uid, revision = followed.node_uids.get(node, ""), followed.node_revisions.get(node, 0)
        known = Known(uid, revision, self._policies_applied)
        if self._ready and is_outdated(self._verdicts.get(node).record, known):
            self._add_by_all(node)
        elif self._ready and self._nodes.is_ahead(node):  # usually only until the watches have caught up
            self._queue.add(node, after=BEHIND_RETRY_SECONDS)

    async def _handle(self, node: str) -> float | None:
        """Evaluates a node; returns the seconds until it must be evaluated again, or None."""
        if not self._ready or self.unready() is not None:
            return None  # all nodes are queued when the lists are complete
        touched = self._pending.take(node, at=time.monotonic(), now=time.time())
        self._turns.note_handled()
        try:
            due = await self._nodes.update(node, touched, self._pending.due(node))
        except BusError as error:
            self._pending.put_back(node, touched)
            if isinstance(error, ConflictError):
                self._metrics.conflicts.inc()
            elif isinstance(error, FullError):
                self._metrics.refused.inc()
                await self._history.make_room(error)
            elif not isinstance(error, ExpiredError):
                self._throttled.warning("verdict_not_written", node=node, error=str(error))
            pause = 0.0 if self._bus.connected else LOST_SECONDS
            raise RequeueError(str(error), pause=pause, too_slow=isinstance(error, ExpiredError)) from error
        finally:
            self._pending.end(node)
            self._announcing.note_handled()
        self._pending.set_due(node, due)
        return None if due == inf else max(0.0, due - time.time())
