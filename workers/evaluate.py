"""Evaluate: what is known of nodes and policies in, each node's verdict out.

Any number of replicas follow NODES and POLICIES, and VERDICTS too. Each judges what a change touches, what waits for
`for` or `clearFor`, and at the beginning whatever is not surely as its verdict says. Where its judgement differs from
the verdict that stands, it reads that verdict and the node from the bus's leader, judges again, and writes on the
revision that it read: so a replica that slept, or is behind, changes nothing that another knows better, and a verdict
that is merely confirmed is not written.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.buckets import NODES, POLICIES, VERDICTS
from bus.connection import Bus, Entry, Epoch
from bus.errors import BusError, ConflictError, ExpiredError, FullError
from bus.history import forget_history
from bus.messages import decode_node_facts, decode_node_samples, decode_verdict, encode_verdict
from bus.subjects import node_facts_key, node_metrics_key, parse_verdict_key, verdict_key
from bus.watch import Watch
from tas.errors import InvalidInputError
from tas.policy import PolicyKey
from tas.sample import FUTURE_TOLERANCE, NodeSamples
from tas.settled import Settled
from tas.verdict import NodeVerdict, PolicyVerdict, evaluate_policy, same_meaning
from workers.followed_view import FollowedView
from workers.logs import Throttle
from workers.reconciling import Reconciling, RetryError

log = structlog.get_logger("evaluate")

AT_ONCE = 32
"""Nodes that are judged at the same time."""

POLICIES_AT_ONCE = 20
"""So many policies are judged before others get their turn: in one process an extender answers beside us."""


COMPARED_AT_ONCE = 1000
"""So many nodes are compared with their verdicts before others get their turn."""

AHEAD = 100
"""So many nodes wait to be judged at most while verdicts are compared: what changes meanwhile comes after these."""

LOOK_AGAIN_SECONDS = 0.2
"""When it is looked again whether every watch has come to the present life of its bucket."""


ROOM_SECONDS = 5.0
"""The history of verdicts is forgotten no sooner than so long after the last time."""


BEHIND_SECONDS = 1.0
"""When a node is judged again whose verdict knows of something that has not come here yet."""


@dataclass(frozen=True, slots=True)
class _Stands:
    """A node's verdict as it stands at `revision` (0: it never did); None if there is none that can be read."""

    revision: int
    verdict: NodeVerdict | None


_NEVER = _Stands(0, None)


@dataclass(slots=True)
class _Touched:
    """What of a node is to be judged: some policies or all, since a monotonic time."""

    since: float
    all: bool = False
    policies: set[PolicyKey] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node as it is read from the leader: `gone` if the API server does not have it."""

    uid: str
    revision: int
    samples: NodeSamples
    labels: Mapping[str, str] | None
    gone: bool


class Evaluate:
    """The worker. What it keeps any other copy of it could rebuild."""

    name = "evaluate"

    def __init__(self, bus: Bus, *, registry: CollectorRegistry, default_stale_after: float) -> None:
        self._bus = bus
        self._followed = FollowedView(
            bus, default_stale_after=default_stale_after, verdicts=True, on_change=self._wake_up
        )
        self._stands: dict[str, _Stands] = {}
        self._touched: dict[str, _Touched] = {}
        self._waiting: dict[str, float] = {}  # to when a node's wishes change by waiting alone, since 1970
        self._policies_applied = 0
        self._ready_since = inf
        # By node and policy: when each label's rules were last not met.
        self._unmet: dict[str, dict[PolicyKey, dict[str, float]]] = {}
        self._epoch: Epoch | None = None
        self._ready = False
        self._room_after = float("-inf")
        self._wake = asyncio.Event()
        self._compare = asyncio.Event()
        self._handled = asyncio.Event()
        self._uncompared = 0
        self._lines = Throttle()
        self._watch = Watch(bus, VERDICTS, on_entry=self._apply, on_epoch=self._begin_epoch, on_batch=self._wake_up)
        self._queue = Reconciling(self._handle, at_once=AT_ONCE)
        self._metrics = _Metrics(registry)
        self._metrics.verdicts.set_function(
            lambda: float(sum(stands.verdict is not None for stands in self._stands.values()))
        )
        self._metrics.pending.set_function(lambda: float(len(self._touched) + self._uncompared))

    def unready(self) -> str | None:
        """Why nothing is written yet: both lists must be complete, and what stands must be known."""
        reasons = [reason] if (reason := self._followed.unready()) is not None else []
        if not self._watch.status.caught_up:
            reasons.append(f"{VERDICTS.name}: not caught up with the bus")
        return "; ".join(reasons) or None

    async def run(self) -> None:
        """Judges until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._followed.run(),
                self._watch.run(),
                self._note_touched(),
                self._compare_all(),
                self._queue.run(),
            ):
                tasks.create_task(work)

    # What is to be judged

    def _wake_up(self) -> None:
        if self._ready:
            self._take_touched()  # at once: a break of `clearFor` may be over with the next entry
        self._wake.set()

    def _take_touched(self) -> None:
        """Notes what changes have touched."""
        view = self._followed.view
        touched = dict(view.touched)
        view.touched.clear()
        for node, policies in touched.items():
            self._note(node).policies |= policies
            for key in policies:
                self._note_unmet(node, key)

    def _note_unmet(self, node: str, key: PolicyKey) -> None:
        """Notes which labels of a policy with a `clearFor` have rules that are not met by what is known now."""
        record = self._followed.records.get(key)
        if record is None or not any(strategy.clear_for for strategy in record.policy.strategies.values()):
            self._unmet.get(node, {}).pop(key, None)
            return
        view, now = self._followed.view, time.time()
        found, _ = evaluate_policy(
            record.policy,
            uid=record.uid,
            generation=record.generation,
            samples=view.samples(node),
            labels=view.labels(node),
            stale_after=view.default_stale_after,
            before=None,
            now=now,
        )
        for strategy in found.strategies.values():
            for label, verdict in strategy.labels.items():
                # Of what was not compared yet nobody knows whether it was met before this change.
                if verdict.met_since is None or self._uncompared:
                    self._unmet.setdefault(node, {}).setdefault(key, {})[label] = now

    async def _note_touched(self) -> None:
        """Hands on what changes have touched, and has all compared as soon as lists are complete. Never ends."""
        view = self._followed.view
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.unready() is not None:
                self._end_readiness()
                view.touched.clear()
                continue
            applied = self._followed.watches[POLICIES.name].applied
            if not self._ready:
                if not await self._is_of_this_life():
                    asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._wake_up)
                    continue
                self._ready = True
                self._ready_since = time.time()
                log.info("verdicts_complete", nodes=len(view.nodes), policies=len(view.policies))
                view.touched.clear()
                self._touched.clear()
                self._uncompared = max(1, len(self._stands.keys() | view.nodes))
                self._compare.set()
            elif applied != self._policies_applied:
                self._note_all(self._stands.keys() - view.nodes)  # what is not in the view is touched by nothing
            self._policies_applied = applied
            self._take_touched()

    async def _compare_all(self) -> None:
        """Notes all that is not surely as its verdict says, each time that lists have become complete. Never ends."""
        while True:
            await self._compare.wait()
            self._compare.clear()
            began = time.monotonic()
            whole, left = self._parted(self._stands.keys() | self._followed.view.nodes)
            self._uncompared = len(whole) + len(left)
            for node in whole:
                self._note(node).all = True
                for key in self._followed.records:
                    self._note_unmet(node, key)
                await self._room()
            unsettled = 0
            for key in list(self._followed.records):
                unsettled += await self._compare_policy(key, left)
            self._uncompared = 0
            seconds = round(time.monotonic() - began, 3)
            log.info("verdicts_compared", nodes=len(left), anew=len(whole), unsettled=unsettled, seconds=seconds)

    def _parted(self, nodes: Iterable[str]) -> tuple[list[str], list[str]]:
        """The nodes to be judged by every policy, and those of which each policy's verdict can be compared."""
        policies = self._followed.records.keys()
        whole: list[str] = []
        left: list[str] = []
        for node in nodes:
            verdict, uid = self._standing(node).verdict, self._followed.node_uids.get(node)
            known = uid is not None or not self._followed.cluster
            same = verdict is not None and verdict.node_uid == (uid or "") and verdict.policies.keys() == policies
            (left if known and same else whole).append(node)
        return whole, left

    async def _compare_policy(self, key: PolicyKey, nodes: Iterable[str]) -> int:
        """Notes those of `nodes` that are to be judged again by one policy; returns how many.

        What changes from here on touches its node, so all may be compared with the states of one moment.
        """
        record = self._followed.records.get(key)
        if record is None or key not in self._followed.view.policies:
            return 0  # gone, which touches every node
        states = self._followed.view.states(key)
        settled = Settled(record.policy, uid=record.uid, generation=record.generation, states=states)
        now, unsettled = time.time(), 0
        for number, node in enumerate(nodes, 1):
            verdict = self._standing(node).verdict
            if verdict is None or not settled.is_settled(node, verdict.policies.get(key), now):
                self._note(node).policies.add(key)
                self._note_unmet(node, key)
                unsettled += 1
                await self._room()
            elif number % COMPARED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not self._ready:
                break  # all are compared again once it is
        return unsettled

    async def _room(self) -> None:
        """Lets others have their turn, and those be judged that were noted."""
        await asyncio.sleep(0)
        while self._ready and len(self._touched) > AHEAD:
            self._handled.clear()
            await self._handled.wait()

    async def _is_of_this_life(self) -> bool:
        """Whether the lists are those of the buckets as they are now: after a wipe a watch may not have noticed yet."""
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

    def _note(self, node: str) -> _Touched:
        touched = self._touched.setdefault(node, _Touched(time.monotonic()))
        self._queue.note(node)
        return touched

    def _note_all(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._note(node).all = True

    # Following VERDICTS

    def _begin_epoch(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._stands.clear()
        self._end_readiness()

    def _apply(self, entry: Entry) -> None:
        try:
            node = parse_verdict_key(entry.key)
        except InvalidInputError as error:
            self._invalid(error)
            return
        if self._standing(node).revision >= entry.revision:
            return  # our own write
        verdict = self._decoded(entry.value)
        self._remember(node, entry.revision, verdict, self._epoch)
        if self._ready and self._may_disagree(node, verdict):
            self._note(node).all = True

    def _may_disagree(self, node: str, verdict: NodeVerdict | None) -> bool:
        """Whether what another wrote is to be judged: equal knowledge is left alone, or two clocks would fight."""
        return (
            verdict is None
            or verdict.node_uid != self._followed.node_uids.get(node, "")
            or verdict.nodes_revision < self._followed.node_revisions.get(node, 0)
            or verdict.policies_revision < self._policies_applied
        )

    def _standing(self, node: str) -> _Stands:
        return self._stands.get(node, _NEVER)

    def _decoded(self, value: bytes | None) -> NodeVerdict | None:
        """What stands there; None too for what nobody can read, which the next judgement replaces."""
        try:
            return None if value is None else decode_verdict(value)
        except InvalidInputError as error:
            self._invalid(error)
            return None

    def _remember(self, node: str, revision: int, verdict: NodeVerdict | None, epoch: Epoch | None) -> None:
        """Keeps what stands, unless the bucket has begun anew or something newer is known."""
        if epoch is self._epoch and self._standing(node).revision < revision:
            self._stands[node] = _Stands(revision, verdict)

    # Judging

    async def _handle(self, node: str) -> float | None:
        """Judges what is to be judged of a node; returns after how many seconds to look again."""
        if not self._ready or self.unready() is not None:
            return None  # everything is noted once it is
        touched = self._touched.pop(node, None) or _Touched(time.monotonic())
        self._handled.set()
        try:
            due = await self._judge(node, touched)
        except BusError as error:
            again = self._touched.setdefault(node, touched)
            again.since, again.all = touched.since, True
            if isinstance(error, ConflictError):
                self._metrics.conflicts.inc()
            elif isinstance(error, FullError):
                self._metrics.refused.inc()
                await self._make_room(error)
            elif not isinstance(error, ExpiredError):
                self._warn("verdict_not_written", node=node, error=str(error))
            raise RetryError(str(error)) from error
        if due == inf:
            self._waiting.pop(node, None)
            return None
        self._waiting[node] = due
        return max(0.0, due - time.time())

    async def _judge(self, node: str, touched: _Touched) -> float:
        """Brings the verdict up to what is known; returns when something changes by waiting alone (`inf`: never)."""
        waiting = self._waiting.get(node, inf)
        everything = touched.all or waiting <= time.time()
        uid = self._followed.node_uids.get(node)
        if uid is None and self._followed.cluster:
            if self._standing(node).verdict is not None:
                return await self._write(node, touched)
            self._unmet.pop(node, None)  # there is no wish that it could hold back
            return inf
        verdict = self._standing(node).verdict
        if verdict is None or verdict.node_uid != (uid or ""):
            return await self._write(node, touched)
        keys: Collection[PolicyKey] = touched.policies
        if everything:
            keys, waiting = self._followed.records.keys() | verdict.policies.keys(), inf
        view = self._followed.view
        judged, due = await self._judge_policies(
            node, keys, verdict, samples=view.samples(node), labels=view.labels(node), now=_now(verdict)
        )
        if all(_same(verdict.policies.get(key), judged.get(key)) for key in keys):
            return min(due, waiting)
        return await self._write(node, touched)

    async def _judge_policies(
        self,
        node: str,
        keys: Collection[PolicyKey],
        before: NodeVerdict | None,
        *,
        samples: NodeSamples,
        labels: Mapping[str, str] | None,
        now: float,
    ) -> tuple[dict[PolicyKey, PolicyVerdict], float]:
        """The verdict of each policy of `keys` that there is, and when one of them changes by waiting alone."""
        judged: dict[PolicyKey, PolicyVerdict] = {}
        due = inf
        # Without a watch something may be missed just now: then it is looked again when that may have ended.
        watched_since = min(now, max(self._ready_since, self._followed.watches[NODES.name].attached))
        for number, key in enumerate(sorted(keys), 1):
            record = self._followed.records.get(key)
            if record is not None:
                judged[key], waits = evaluate_policy(
                    record.policy,
                    uid=record.uid,
                    generation=record.generation,
                    samples=samples,
                    labels=labels,
                    stale_after=self._followed.view.default_stale_after,
                    before=None if before is None else before.policies.get(key),
                    now=now,
                    stale_deadlines=False,
                    watched_since=watched_since,
                    unmet=self._unmet.get(node, {}).get(key, {}),
                )
                due = min(due, inf if waits is None else waits)
            if number % POLICIES_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._metrics.evaluations.inc(len(keys))
        return judged, due

    async def _write(self, node: str, touched: _Touched) -> float:
        """Judges by what the leader says, and writes what differs.

        Raises:
            BusError: to be tried again.
        """
        read_at = time.monotonic()
        stands = await self._read_verdict(node)
        # Only now, so that whoever writes the verdict from something newer makes our write conflict.
        policies_revision = self._followed.watches[POLICIES.name].applied
        found = await self._read_node(node)
        verdict = stands.verdict
        if verdict is not None and self._knows_more(verdict, found, policies_revision):
            return time.time() + BEHIND_SECONDS
        if found.gone:
            await self._remove(node, stands, read_at)
            return inf
        before = verdict if verdict is not None and verdict.node_uid == found.uid else None
        now = _now(before)
        judged, due = await self._judge_policies(
            node, self._followed.records.keys(), before, samples=found.samples, labels=found.labels, now=now
        )
        if before is not None and all(
            _same(before.policies.get(key), judged.get(key)) for key in before.policies.keys() | judged.keys()
        ):
            return due
        verdict = NodeVerdict(
            node_uid=found.uid,
            nodes_revision=found.revision,
            policies_revision=policies_revision,
            time=now,
            policies=judged,
        )
        epoch = self._epoch
        revision = await self._bus.put(
            VERDICTS, verdict_key(node), encode_verdict(verdict), revision=stands.revision, read_at=read_at
        )
        self._remember(node, revision, verdict, epoch)
        self._metrics.writes.labels("put").inc()
        self._metrics.seconds.observe(time.monotonic() - touched.since)
        log.debug("verdict_written", node=node, revision=revision, node_revision=found.revision)
        return due

    def _knows_more(self, verdict: NodeVerdict, found: _Node, policies_revision: int) -> bool:
        """Whether a verdict was computed from something that has not come here yet."""
        nodes_revision = max(found.revision, self._followed.watches[NODES.name].applied)
        return verdict.policies_revision > policies_revision or verdict.nodes_revision > nodes_revision

    async def _make_room(self, full: FullError) -> None:
        """Forgets what verdicts were before, for what they are now: an event may be missing in the log, no label."""
        now = time.monotonic()
        if now < self._room_after:
            return
        self._room_after = now + ROOM_SECONDS
        try:
            forgotten = await forget_history(self._bus, VERDICTS)
        except BusError as error:
            self._warn("verdict_not_written", error=f"{full}; and no room could be made: {error}")
            return
        self._warn("verdicts_full", error=str(full), forgotten=forgotten)

    async def _read_verdict(self, node: str) -> _Stands:
        epoch = self._epoch
        entry = await self._bus.get(VERDICTS, verdict_key(node))
        if entry is None:
            return _NEVER
        if epoch is self._epoch and entry.revision == self._standing(node).revision:
            return self._standing(node)
        stands = _Stands(entry.revision, self._decoded(entry.value))
        self._remember(node, entry.revision, stands.verdict, epoch)
        return stands

    async def _read_node(self, node: str) -> _Node:
        """The node by the stream's leader. Raises BusError."""
        metrics, facts = await asyncio.gather(
            self._bus.get(NODES, node_metrics_key(node)), self._bus.get(NODES, node_facts_key(node))
        )
        # What never stood in this life of the bus may be known from the one before: such samples count until they
        # are stale. What nobody can read leaves everything as it was.
        samples = self._followed.view.samples(node)
        if metrics is not None and metrics.value is None:
            samples = ()
        uid, labels = "", None
        if facts is not None and facts.value is not None:
            uid, labels = self._followed.node_uids.get(node, ""), self._followed.view.labels(node)
        try:
            if metrics is not None and metrics.value is not None:
                samples = decode_node_samples(metrics.value)
            if facts is not None and facts.value is not None:
                known = decode_node_facts(facts.value)
                uid, labels = known.uid, known.labels
        except InvalidInputError as error:
            self._invalid(error)
        return _Node(
            uid=uid,
            revision=max(0 if entry is None else entry.revision for entry in (metrics, facts)),
            samples=samples,
            labels=labels,
            gone=self._followed.cluster and (facts is None or facts.value is None),
        )

    async def _remove(self, node: str, stands: _Stands, read_at: float) -> None:
        """Removes the verdict of a node that the API server does not have. Raises BusError."""
        if stands.verdict is None:
            return
        epoch = self._epoch
        revision = await self._bus.delete(VERDICTS, verdict_key(node), revision=stands.revision, read_at=read_at)
        self._remember(node, revision, None, epoch)
        self._unmet.pop(node, None)
        self._metrics.writes.labels("remove").inc()
        log.info("verdict_removed", node=node)

    # What is told

    def _invalid(self, error: InvalidInputError) -> None:
        self._warn("entry_invalid", object=error.subject, field=error.field, value=error.value, reason=error.reason)

    def _warn(self, event: str, **fields: object) -> None:
        held_back = self._lines.admit(event, time.monotonic())
        if held_back is not None:
            log.warning(event, alike_before=held_back, **fields)


def _now(verdict: NodeVerdict | None) -> float:
    """The time to judge at: no earlier than whoever wrote what stands, or two clocks would take turns."""
    now = time.time()
    if verdict is not None:
        now = max(now, min(verdict.time, now + FUTURE_TOLERANCE))
    return round(now, 6)  # as exact as it is written, so that nothing differs from its own copy


def _same(one: PolicyVerdict | None, other: PolicyVerdict | None) -> bool:
    if one is None or other is None:
        return one is other
    return same_meaning(one, other)


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.evaluations = Counter(
            "tas_verdict_evaluations", "Policies judged for a node, whatever came of it.", registry=registry
        )
        self.writes = Counter("tas_verdict_writes", "Verdicts written to VERDICTS.", ["operation"], registry=registry)
        self.conflicts = Counter(
            "tas_verdict_write_conflicts", "Writes repeated since another was first.", registry=registry
        )
        self.refused = Counter(
            "tas_verdict_writes_refused", "Writes put off since there was no room for them.", registry=registry
        )
        self.seconds = Histogram(
            "tas_verdict_seconds",
            "From a change's arrival here until the verdict stands.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        self.verdicts = Gauge("tas_verdicts", "Nodes that have a verdict.", registry=registry)
        self.pending = Gauge("tas_verdict_nodes_pending", "Nodes that are to be judged.", registry=registry)
        for operation in ("put", "remove"):
            self.writes.labels(operation)
