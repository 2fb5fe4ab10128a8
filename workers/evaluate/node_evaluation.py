"""Evaluates one node, and writes its verdict if it differs.

The reads behind a verdict and their order live here, since they decide whether an older verdict can overwrite a newer
one. `evaluate` decides which nodes are evaluated, and when.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.buckets import NODES, POLICIES
from bus.connection import Bus
from bus.errors import ConflictError
from bus.record_kind import Unreadable
from tas.policy.policy import PolicyKey
from tas.samples.freshness import kept_from
from tas.samples.sample import NodeSamples
from tas.verdict.evaluation import (
    evaluate_policy,
    labels_with_clear_for,
    may_have_been_unmet,
    met_labels,
    needs_past,
)
from tas.verdict.knowledge import (
    Action,
    Known,
    LastRevisions,
    action,
    evaluation_time,
    is_ahead,
    is_confirmed,
    is_void,
    of_node,
)
from tas.verdict.outstanding import sets_more
from tas.verdict.pending import Touched
from tas.verdict.size import VerdictRoom, policy_size
from tas.verdict.verdict import NodeVerdict, PolicyVerdict
from tas.verdict.watched import UnmetLabels, watched
from workers.following.followed_view import FollowedView
from workers.following.next_call import NextCall
from workers.following.node_samples import NodeSamplesReads
from workers.following.records import Records, Stored, Write
from workers.process.logs import ThrottledLog

REACH_SECONDS = 0.5
"""How long the view may need. Longer, a read of the node is faster than the watch."""


class ReadIndex:
    """Asks the leader, and waits for the view."""

    def __init__(self, bus: Bus, followed: FollowedView) -> None:
        self._followed = followed
        self._last = NextCall(partial(bus.epoch, NODES))
        self._changed = asyncio.Event()
        followed.call(self._changed.set)

    async def reached(self) -> bool:
        """Whether the view now has all that the leader had at some time since this call. Raises BusError."""
        last = await self._last()
        nodes = self._followed.watches[NODES.name]
        if nodes.has_all(last):  # nearly always
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(REACH_SECONDS):
                while not nodes.has_all(last):
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return False


log = structlog.get_logger("evaluate")

POLICY_BATCH = 20
"""After so many policies other tasks may run: an extender may answer requests in the same process."""

LOG_SECONDS = 60.0
"""Of the policies of a namespace that are left out, one has a line in this time: an author may have thousands."""

BEHIND_SECONDS = 0.5
"""After so long, a stored verdict that is newer than what this replica knows is compared with the server."""

BEHIND_RETRY_SECONDS = 1.0
"""The wait before a node is evaluated again whose stored verdict is newer than what this replica knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What is known of a node: by the view, or with its revision by the stream's leader; `uid` as `Known.node_uid`.

    `kept_from` is since when its values are kept (`tas.samples.freshness`). `is_ahead`: the leader has more of the node
    than the view, so the view has not yet seen what came in between.
    """

    uid: str | None
    revision: int = 0
    samples: NodeSamples
    labels: Mapping[str, str] | None
    kept_from: float
    is_ahead: bool = False


class NodeEvaluation:
    """The evaluation of single nodes, with what this replica has seen of each for `clearFor`.

    Attributes:
        noted_since: Since when `note_unmet` was called for each change, in seconds since 1970; infinite: not now.
        unmet: The labels with `clearFor` whose rules were seen not met.
        left_out: The policies for which verdicts have no room.
    """

    def __init__(
        self,
        bus: Bus,
        followed: FollowedView,
        verdicts: Records[str, NodeVerdict],
        metrics: "Metrics",
        *,
        before_setting: Callable[[str, Touched], Awaitable[None]],
    ) -> None:
        """`before_setting` is called before a verdict is stored that sets a label."""
        self.noted_since = inf
        self.unmet = UnmetLabels()
        self.left_out: frozenset[PolicyKey] = frozenset()
        self._room = VerdictRoom()
        self._throttled = ThrottledLog(log, seconds=LOG_SECONDS)
        self._uids: dict[PolicyKey, str] = {}
        self._bus = bus
        self._followed = followed
        self._verdicts = verdicts
        self._index = ReadIndex(bus, followed)
        self._reads = NodeSamplesReads(bus)
        self._metrics = metrics
        self._before_setting = before_setting
        self._metrics.left_out.set_function(lambda: float(len(self.left_out)))

    def take_in_policies(self) -> frozenset[PolicyKey]:
        """Updates `unmet` and `left_out` after a change of policies or of the server.

        Returns the policies that are newly left out, or not any more.
        """
        changed, limit = self._followed.changed_records, self._bus.max_value_bytes
        now = time.time()
        for key in changed:
            record = self._followed.records.get(key)
            known_uid = self._uids.pop(key, None)
            if record is None or known_uid not in (None, record.uid):
                self.unmet.count(key, (), now)
            if record is None:
                self._room.remove(key)
            else:
                self._uids[key] = record.uid
                self._room.put(policy_size(record.policy, uid=record.uid, created=record.created))
                self.unmet.count(key, labels_with_clear_for(record.policy), now)
        changed.clear()
        before, self.left_out = self.left_out, self._room.left_out(limit)
        if self.left_out is before:
            return frozenset()
        self._log_left_out(self.left_out - before, limit)
        return self.left_out ^ before

    def _log_left_out(self, new: Collection[PolicyKey], limit: int) -> None:
        of_namespaces: dict[str, list[PolicyKey]] = {}
        for key in new:
            of_namespaces.setdefault(key.namespace, []).append(key)
        for namespace, keys in sorted(of_namespaces.items()):
            size, more = self._room.size_of(first := min(keys)), len(keys) - 1
            fields = {"policy": str(first), "bytes": size, "limit": limit, "more": more}
            self._throttled.warning("policy_left_out", namespace, **fields)

    def note_unmet(self, node: str, key: PolicyKey, *, missed: bool) -> None:
        """Notes which labels of a policy with `clearFor` have rules that are not met now; `missed` as `UnmetLabels`."""
        if not self.unmet.since(key) and not self.unmet.until(node, key):
            return  # most policies have no `clearFor`, and this is called for each change of each node
        view, record = self._followed.view, self._followed.records.get(key)
        met: dict[str, bool] = {}
        now = time.time()
        if record is not None:
            # Only if necessary: a new policy concerns all nodes at once, and each verdict would be decoded.
            stored = self._verdicts.get(node).record if needs_past(record.policy) else None
            met = met_labels(
                record.policy,
                uid=record.uid,
                samples=view.samples(node),
                labels=view.labels(node),
                default_stale_after=view.default_stale_after,
                before=None if stored is None else stored.policies.get(key),
                now=now,
            )
        self.unmet.note(node, key, met, now, missed=missed)

    def note_unseen(self, nodes: Collection[str], metrics: Collection[str]) -> None:
        """Notes that values of these metrics were never seen: `clearFor` of policies that use one begins anew."""
        for key, record in self._followed.records.items():
            if self.unmet.since(key) and may_have_been_unmet(record.policy, metrics):
                self._metrics.unseen.inc(len(nodes))
                for node in nodes:
                    self.note_unmet(node, key, missed=True)

    async def update(self, node: str, touched: Touched, due_before: float) -> float:
        """Updates the node's verdict; returns when time alone can change it next (`inf`: never), `due_before` counted.

        Raises BusError, to be tried again.
        """
        uid = self._followed.node_uids.get(node, None if self._followed.cluster else "")
        stored = self._verdicts.get(node)
        verdict = stored.record
        if uid is None and verdict is None:
            self.unmet.forget(node)  # without a verdict there is no desired label
            return inf
        before = of_node(verdict, uid)
        if before is None:
            return await self._write(node, touched, stored, verdict)
        keys = touched.policies
        if touched.by_all:
            keys, due_before = self._followed.records.keys() | before.policies.keys(), inf
        known = self._in_view(node, uid)
        evaluated, due = await self._evaluate(node, keys, before, known, evaluation_time(before, time.time()))
        if is_confirmed(before, evaluated, keys, known.labels):
            if not self.is_ahead(node):
                return min(due, due_before)
            if time.time() < self._verdicts.get(node).known_since + BEHIND_SECONDS:
                return min(due, due_before, time.time() + BEHIND_RETRY_SECONDS)
        return await self._write(node, touched, stored, verdict)

    def is_ahead(self, node: str) -> bool:
        """Whether the stored verdict has later revisions than this replica: then it may be void."""
        stored = self._verdicts.get(node).record
        return stored is not None and is_ahead(stored, self._known(stored.node_uid))

    def _known(self, uid: str | None, *, nodes_revision: int = 0) -> Known:
        watches = self._followed.watches
        return Known(uid, max(nodes_revision, watches[NODES.name].applied), watches[POLICIES.name].applied)

    def _node_since(self, node: str, uid: str | None) -> float:
        """Since when the view has had the node of this uid; infinite: not yet.

        A time in the verdict is no replacement: it is by the clock of another replica.
        """
        if not uid:
            return 0.0  # without a cluster, a name is a node
        return self._followed.nodes_since[node] if self._followed.node_uids.get(node) == uid else inf

    async def _evaluate(
        self, node: str, keys: Collection[PolicyKey], before: NodeVerdict | None, known: _Node, now: float
    ) -> tuple[dict[PolicyKey, PolicyVerdict], float]:
        """The verdict of each existing policy of `keys`, and when time alone can change one of them next."""
        evaluated: dict[PolicyKey, PolicyVerdict] = {}
        due = inf
        seen = watched(
            now=now,
            clock=time.time(),
            noted_since=self.noted_since,
            attached=inf if known.is_ahead else self._followed.watches[NODES.name].attached,
            node_since=self._node_since(node, known.uid),
            before=None if before is None else (before.time, self._verdicts.get(node).known_since),
        )
        for number, key in enumerate(sorted(keys), 1):
            record = None if key in self.left_out else self._followed.records.get(key)
            if record is not None:
                evaluated[key], waits = evaluate_policy(
                    record.policy,
                    uid=record.uid,
                    generation=record.generation,
                    samples=known.samples,
                    labels=known.labels,
                    default_stale_after=self._followed.view.default_stale_after,
                    before=None if before is None else before.policies.get(key),
                    now=now,
                    kept_from=known.kept_from,
                    stale_deadlines=False,
                    watched=self.unmet.watched(node, key, seen),
                )
                due = min(due, inf if waits is None else waits)
            if number % POLICY_BATCH == 0:
                await asyncio.sleep(0)
        self._metrics.evaluations.inc(len(keys))
        if known.is_ahead and any(self.unmet.since(key) for key in keys):
            due = min(due, now + BEHIND_RETRY_SECONDS)  # then the view has seen more
        return evaluated, due

    async def _write(
        self, node: str, touched: Touched, followed: Stored[NodeVerdict], decoded: NodeVerdict | None
    ) -> float:
        """Evaluates what the stream's leader has, writes the verdict if it differs; returns and raises as `update`.

        `followed` is the verdict that the watch delivered last, `decoded` its record. If the leader has a later one,
        the write conflicts: only then is the leader asked for it, once.
        """
        try:
            # To decode a verdict takes a third as long as to evaluate all policies.
            return await self._write_after(node, touched, followed, decoded)
        except ConflictError:
            self._metrics.conflicts.inc()
            stored = await self._verdicts.read(node)
            return await self._write_after(node, touched, stored, decoded if stored is followed else stored.record)

    async def _write_after(
        self, node: str, touched: Touched, stored: Stored[NodeVerdict], record: NodeVerdict | None
    ) -> float:
        """Evaluates and writes a verdict that follows on `stored`, and on no other; `record` is that of `stored`."""
        read_at = time.monotonic()
        # After the revision of the verdict is known: then a later write from newer data makes this write conflict.
        policies_revision = self._followed.watches[POLICIES.name].applied
        found = await self._read_node(node)
        known = self._known(found.uid, nodes_revision=found.revision)._replace(policies_revision=policies_revision)
        is_valid, last = True, None
        if record is not None and is_ahead(record, known):
            last = await self._last_revisions()
            is_valid = not is_void(record, last)
        match action(record, known, last):
            case Action.WAIT:
                return time.time() + BEHIND_RETRY_SECONDS
            case Action.DELETE:
                await self._delete(node, stored, read_at)
                return inf
            case Action.LEAVE:
                return inf
            case Action.EVALUATE:
                pass
        before, keys = of_node(record, found.uid) if is_valid else None, self._followed.records.keys()
        now = evaluation_time(before, time.time())
        evaluated, due = await self._evaluate(node, keys, before, found, now)
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
        if sets_more({} if before is None else before.policies, evaluated):
            await self._before_setting(node, touched)
        write = Write(record=verdict, revision=stored.revision, read_at=read_at)
        revision = await self._verdicts.write_one(node, write)
        self._metrics.writes.labels("put").inc()
        if not is_valid:
            log.warning("verdict_void", node=node, revision=stored.revision)
        self._metrics.seconds.observe(time.monotonic() - touched.since)
        log.debug("verdict_written", node=node, revision=revision, node_revision=found.revision)
        return due

    async def _delete(self, node: str, stored: Stored[NodeVerdict], read_at: float) -> None:
        """Deletes the verdict of a node that the API server does not have. Raises BusError."""
        await self._verdicts.write_one(node, Write(record=None, revision=stored.revision, read_at=read_at))
        if node not in self._followed.node_uids:  # else a new node has the name meanwhile
            self.unmet.forget(node)
        self._metrics.writes.labels("delete").inc()
        log.info("verdict_deleted", node=node)

    async def _last_revisions(self) -> LastRevisions:
        """The last sequences, by the server. Raises BusError."""
        nodes, policies = await asyncio.gather(self._bus.epoch(NODES), self._bus.epoch(POLICIES))
        return LastRevisions(nodes=nodes.last_sequence, policies=policies.last_sequence)

    async def _read_node(self, node: str) -> _Node:
        """What the leader has of a node: from the view, once the view has all that the leader had."""
        view = self._followed.view
        if await self._index.reached():
            uid = self._followed.node_uids.get(node, None if self._followed.cluster else "")
            revision = self._followed.node_revisions.get(node, 0)
            return self._in_view(node, uid, revision)
        metrics = await self._reads.read(node)
        # Samples of an earlier epoch count until they are stale or replaced. Invalid records change nothing.
        samples = metrics.samples
        if samples is None or metrics.revision == 0:
            samples = view.samples(node)
        known, labels = metrics.facts.read(), None
        uid = None if self._followed.cluster else ""
        created = None
        if isinstance(known, Unreadable):
            uid, labels = self._followed.node_uids.get(node, ""), view.labels(node)
        elif known is not None:
            uid, labels = known.uid, known.complete_labels
            created = known.created_at
        since = kept_from(
            listed=known is not None,
            created=created,
            cluster=self._followed.cluster,
            released=view.released(node),
        )
        revision = max(metrics.revision, metrics.facts.revision)
        is_ahead = revision > self._followed.node_revisions.get(node, 0)
        return _Node(uid=uid, revision=revision, samples=samples, labels=labels, kept_from=since, is_ahead=is_ahead)

    def _in_view(self, node: str, uid: str | None, revision: int = 0) -> _Node:
        view = self._followed.view
        return _Node(
            uid=uid,
            revision=revision,
            samples=view.samples(node),
            labels=view.labels(node),
            kept_from=view.kept_from(node),
        )


class Metrics:
    """The metrics of `evaluate`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.evaluations = counter("tas_verdict_evaluations", "Evaluations of one policy for one node.")
        self.writes = counter("tas_verdict_writes", "Verdicts written to VERDICTS.", ["operation"])
        self.conflicts = counter("tas_verdict_write_conflicts", "Writes retried because another replica was first.")
        self.refused = counter("tas_verdict_writes_refused", "Writes postponed because the bucket was full.")
        self.verdicts = gauge("tas_verdicts", "Nodes with a verdict.")
        self.unseen = counter(
            "tas_verdict_values_unseen",
            "Times that clearFor of one policy on one node began anew, since values may have come and gone unseen.",
        )
        self.left_out = gauge("tas_verdict_policies_left_out", "Policies for which verdicts have no room.")
        self.pending = gauge("tas_verdict_nodes_pending", "Nodes that wait for their evaluation.")
        self.pending_seconds = gauge(
            "tas_verdict_pending_seconds", "For how long the node waits that has waited the longest for its evaluation."
        )
        self.seconds = Histogram(
            "tas_verdict_write_seconds",
            "Time from the receipt of a change until the verdict is stored.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        for operation in ("put", "delete"):
            self.writes.labels(operation)
