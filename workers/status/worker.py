"""The status of TASPolicies: written by one replica at a time, rarely, and only if it differs.

The lease holder follows VERDICTS for the states, NODES for missing metrics, REFUSALS for labels and marks that the API
server refuses, BREAKERS for frozen labels, and the policies of the API server. A lease does not prevent late writes, so
each patch is conditional on the policy's uid and resource version. While nobody has the bus: `workers.status.outage`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Gauge

from bus.connection import Bus
from bus.errors import BusError
from bus.interruptions import Interruptions
from bus.kinds import (
    BREAKER_RECORDS,
    LEASE_RECORDS,
    NODE_FACTS,
    NODE_SAMPLES,
    NODE_TABLES,
    NODE_VERDICTS,
    PAUSE_RECORDS,
    REFUSED_LABELS,
    REFUSED_MARKS,
)
from bus.lease import Lease
from bus.record_kind import Entry, Unreadable
from bus.records.nodes import NodeFacts
from bus.records.synced import Synced
from bus.ticks import tick
from bus.watch import Watch
from tas.policy.manifest import ParsedSpec, parse_policy
from tas.policy.policy import Policy, PolicyKey, Problem, StrategyType
from tas.processes.process import NotReady
from tas.verdict.freeze import ALL, UNREADABLE_BREAKER, UNREADABLE_PAUSE, Breaker, Pause, freeze_of
from tas.verdict.ownership import LABEL_STRATEGIES, Claim, Claims, claim_of, owner_of
from tas.verdict.refused import RefusedLabel, refused_problems
from tas.verdict.size import PolicySize, VerdictRoom, no_room, policy_size
from tas.verdict.status import (
    MAX_NAMES,
    NOT_READY,
    UNSET_SECONDS,
    MetricUse,
    NodeState,
    NodeStates,
    StateBook,
    UnsetLabels,
    differs,
    foreign_values,
    labels_of_others,
    metrics_of,
    not_ready_reason,
    policy_status,
)
from tas.verdict.verdict import NodeVerdict
from workers.following.synced import SyncedWatch
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import Metadata, PolicyObject
from workers.process.tasks import together
from workers.status.outage import LEASE_KEY, StatusWithoutBus
from workers.status.patches import StatusPatches, Unpatched
from workers.status.seen_metrics import SeenMetrics

log = structlog.get_logger("status")

PATCH_SECONDS = 5.0
"""The shortest time between two patches of a policy."""

CHECK_SECONDS = 0.5
"""How often changed policies are checked."""

CHECK_ALL_SECONDS = 5.0
"""How often all policies are checked: a metric becomes stale without an event."""

PACE_SECONDS = 0.25
"""How long entries of the bus are gathered: a check is later anyway."""

POLICY_BATCH = 10
"""After so many policies other tasks may run: an author may have thousands, with 100,000 rules."""

PATCH_BATCH = 100
"""The most policies that wait for their turn to be patched: each is a task."""

MAX_CONCURRENT = 4
"""Statuses that are patched at the same time."""


class _Written:
    """A policy of the API server, with its parsed spec."""

    __slots__ = ("claim", "metadata", "policy", "problems", "size", "status")

    def __init__(self, found: PolicyObject) -> None:
        self.metadata: Metadata = found.metadata
        self.status: object = found.status
        self.policy: Policy
        self.problems: tuple[Problem, ...]
        self.policy, self.problems = parse_policy(found.key, found.spec)
        created = found.metadata.creation_timestamp
        created_at = None if created is None else created.timestamp()
        self.claim: Claim = claim_of(self.policy, uid=found.metadata.uid, created=created_at)
        self.size: PolicySize = policy_size(self.policy, uid=found.metadata.uid, created=created_at)


class PolicyStatus:
    """The worker, which runs in the process of `watch`. Its state can be rebuilt from the bus and the API server."""

    name = "status"

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        reflectors: Reflectors,
        *,
        registry: CollectorRegistry,
        default_stale_after: float,
        lost: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`lost`: the workers that nobody runs, although somebody should."""
        self._bus = bus
        self.lost = lost
        self._reflectors = reflectors
        self._default_stale_after = default_stale_after
        self._lease = Lease(bus, LEASE_KEY)
        self._interruptions = Interruptions(log, "status_lease_lost")
        self._patches = StatusPatches(client, registry)
        self._without_bus = StatusWithoutBus(bus, self._patches, reflectors, had_lease=lambda: self._lease.was_last)
        self.not_ready: dict[PolicyKey, str] = {}  # the reason of each policy that is not ready, with the lease only
        gauge = Gauge(
            "tas_policies_not_ready", "Policies that are not ready, by reason.", ["reason"], registry=registry
        )
        for reason in NOT_READY:
            gauge.labels(reason).set_function(partial(self._count_not_ready, reason))

    def policies_not_ready(self) -> dict[str, NotReady]:
        """By reason, the policies whose condition `Ready` is False; none without the lease."""
        found: dict[str, list[PolicyKey]] = {}
        for key, reason in sorted(self.not_ready.items()):
            found.setdefault(reason, []).append(key)
        return {reason: NotReady(len(keys), tuple(map(str, keys[:MAX_NAMES]))) for reason, keys in found.items()}

    def unready(self) -> str | None:
        """None: without the lease this replica is on standby."""
        return None

    def concerns(self) -> Iterator[str]:
        """What does not go as it should, although this worker does its work."""
        return self._patches.concerns()

    async def run(self) -> None:
        """Waits for the lease and writes while it holds the lease, until cancelled."""
        await together(self._without_bus.run(), self._write())

    async def _write(self) -> None:
        while True:
            await self._bus.wait_connected()  # else the start would log a lost lease
            try:
                first = (await LEASE_RECORDS.get(self._bus, LEASE_KEY)).revision == 0
                async with self._lease.hold():
                    # Another replica may have patched a moment ago.
                    following = _Following(self, patch_after=0.0 if first else PATCH_SECONDS)
                    await following.run()
            except BusError as error:
                self._interruptions.note(error)
                self.not_ready.clear()  # the next lease holder reports them
                self._patches.forget()
                await asyncio.sleep(CHECK_SECONDS)

    def _count_not_ready(self, reason: str) -> float:
        return float(list(self.not_ready.values()).count(reason))

    async def patch(self, written: _Written, following: "_Following") -> bool:
        """Patches a policy's status if it differs. Returns whether something was sent."""
        read_at = time.monotonic()
        metadata, policy = written.metadata, written.policy
        claims = {key: following.policies[key].claim for key in following.claims.named(policy.key.name)}
        states = following.book.states(policy.key, metadata.uid)
        violated = states.get(StrategyType.DESCHEDULE, NodeStates()).violated
        foreign = foreign_values(policy, following.labels_of(violated, policy.key.name))
        refused = following.refused.get(policy.key.name, ())
        refused_marks = following.refused_marks.get(policy.key.name, ())
        unset = following.unset.problems(
            (policy.key, metadata.uid),
            following.has_label,
            owned=[kind for kind in LABEL_STRATEGIES if owner_of(kind, claims) == policy.key],
            refused={(each.label, each.value) for each in refused},
            at=read_at,
        )
        owns_labels = any(owner_of(kind, claims) == policy.key for kind in LABEL_STRATEGIES)
        freeze = freeze_of(policy.key, following.breakers, following.pause) if owns_labels else None
        status = policy_status(
            policy,
            generation=metadata.generation,
            problems=(
                *written.problems,
                *labels_of_others(policy, claims),
                *foreign,
                *following.no_room(written),
            ),
            unset=() if freeze is not None else (*refused_problems(policy.key, claims, refused), *unset),
            unmarked=() if freeze is not None else tuple(refused_problems(policy.key, claims, refused_marks)),
            freeze=freeze,
            states=states,
            unseen=following.unseen(policy),
            before=written.status,
            now=time.time(),
            lost=self.lost(),
        )
        if (reason := not_ready_reason(status)) is None:
            self.not_ready.pop(policy.key, None)
        else:
            self.not_ready[policy.key] = reason
        if not differs(written.status, status):
            self._patches.settle(policy.key)
            return False
        spec = ParsedSpec(policy, written.problems)
        after = await self._patches.send(metadata, status, spec=spec, read_at=read_at)
        if isinstance(after, PolicyObject):
            following.patched(written, after)
        elif after is not Unpatched.GONE:
            following.changed.add(policy.key)
        return True


class _Following:
    """The data of all statuses, while the lease is held."""

    def __init__(self, writer: PolicyStatus, *, patch_after: float) -> None:
        bus = writer._bus
        self.policies: dict[PolicyKey, _Written] = {}
        self.claims = Claims()
        self.book = StateBook()
        self.unset = UnsetLabels(seconds=UNSET_SECONDS)
        self.refused: dict[str, tuple[RefusedLabel, ...]] = {}  # by name of the policies
        self.refused_marks: dict[str, tuple[RefusedLabel, ...]] = {}
        self.breakers: dict[str, Breaker] = {}  # by name of the policies
        self.pause: Pause | None = None
        self.changed: set[PolicyKey] = set()
        self._room = VerdictRoom()
        self._left_out: frozenset[PolicyKey] = frozenset()
        self._writer = writer
        self._default_stale_after = writer._default_stale_after
        self._seen = SeenMetrics()
        self._labels: dict[str, Mapping[str, str]] = {}  # in a process that has a view, the objects of that
        self._start_at = time.monotonic() + patch_after
        self._patched: dict[PolicyKey, float] = {}
        self._objects = writer._reflectors.policies.consumer(on_list=self._listed, on_change=self._change)
        self._verdicts = Watch(
            bus, NODE_VERDICTS.to(self._verdict), on_epoch=lambda _: self._verdicts_epoch_began(), pace=PACE_SECONDS
        )
        self._refusals = Watch(
            bus,
            REFUSED_LABELS.to(partial(self._take_refused, self.refused)),
            REFUSED_MARKS.to(partial(self._take_refused, self.refused_marks)),
            on_epoch=lambda _: self._refusals_epoch_began(),
        )
        self._breakers = Watch(
            bus,
            PAUSE_RECORDS.to(self._take_pause),
            BREAKER_RECORDS.to(self._take_breaker),
            on_epoch=lambda _: self._breakers_epoch_began(),
        )
        self._nodes = SyncedWatch(
            bus,
            NODE_SAMPLES.to(self._seen.take),
            NODE_TABLES.to(self._seen.take_table),
            NODE_FACTS.to(self._take_facts),
            on_epoch=lambda _: self._nodes_epoch_began(),
            on_complete=self._complete,
            pace=PACE_SECONDS,
        )

    async def run(self) -> None:
        try:
            await together(
                *(part.run() for part in (self._objects, self._verdicts, self._refusals, self._breakers, self._nodes)),
                self._write(),
            )
        finally:
            # The watches refer to this object and this object to them. Until the garbage collector runs, the data of
            # the lost lease would be in memory beside those of the next one: 50 MB with 2,000 nodes and 50 policies.
            self._verdicts_epoch_began()
            self._nodes_epoch_began()
            self.policies.clear()

    def unseen(self, policy: Policy) -> list[MetricUse]:
        """The policy's metrics of which no node had a fresh sample at the last search."""
        return self._seen.unseen(metrics_of(policy), self._stale_after(policy))

    def labels_of(self, nodes: Iterable[str], label: str) -> dict[str, Mapping[str, str]]:
        """The labels of those of `nodes` that have this label."""
        found: dict[str, Mapping[str, str]] = {}
        for node in nodes:
            labels = self._labels.get(node, {})
            if label in labels:
                found[node] = labels
        return found

    def no_room(self, written: _Written) -> list[Problem]:
        """The problem of a policy for which verdicts had no room at the last check."""
        if written.policy.key not in self._left_out:
            return []
        return [no_room(written.size, self._writer._bus.max_value_bytes)]

    def has_label(self, node: str, label: str) -> bool | None:
        """Whether a node has a label; None if the node is not known."""
        labels = self._labels.get(node)
        return None if labels is None else label in labels

    @property
    def _ready(self) -> bool:
        caught_up = all(each.status.caught_up for each in (self._verdicts, self._refusals, self._breakers))
        return bool(self._objects.listed) and caught_up and self._nodes.unready() is None

    async def _write(self) -> None:
        all_checked_at = float("-inf")
        slots = asyncio.Semaphore(MAX_CONCURRENT)
        while True:
            await tick(CHECK_SECONDS)
            now = time.monotonic()
            if not self._ready or now < self._start_at:
                continue
            if now - all_checked_at >= CHECK_ALL_SECONDS:
                all_checked_at = now
                self.changed.update(self.policies)
            before, limit = self._left_out, self._writer._bus.max_value_bytes
            self._left_out = self._room.left_out(limit)
            if self._left_out is not before:
                self.changed |= before ^ self._left_out
            due = {key for key in self.changed if now - self._patched.get(key, float("-inf")) >= PATCH_SECONDS}
            self.changed -= due
            to_check = [written for key in sorted(due) if (written := self.policies.get(key)) is not None]
            await self._seen.search(await self._uses(to_check), time.time())
            for start in range(0, len(to_check), PATCH_BATCH):
                some = to_check[start : start + PATCH_BATCH]
                await asyncio.gather(*(self._patch(written, slots) for written in some))

    async def _uses(self, policies: Iterable[_Written]) -> dict[MetricUse, float]:
        """The metrics of the policies' rules, with the shortest `staleAfter` for each."""
        uses: dict[MetricUse, float] = {}
        for number, written in enumerate(policies, 1):
            if number % POLICY_BATCH == 0:
                await asyncio.sleep(0)
            for use in metrics_of(written.policy):
                uses[use] = min(self._stale_after(written.policy), uses.get(use, inf))
        return uses

    def _stale_after(self, policy: Policy) -> float:
        return policy.stale_after_or(self._default_stale_after)

    async def _patch(self, written: _Written, slots: asyncio.Semaphore) -> None:
        key = written.policy.key
        async with slots:
            if self.policies.get(key) is not written:
                self.changed.add(key)  # it has changed since: its metrics must be searched first
            elif await self._writer.patch(written, self):
                self._patched[key] = time.monotonic()
            await asyncio.sleep(0)  # lets other tasks run between two policies

    def patched(self, written: _Written, after: PolicyObject) -> None:
        """Applies the answer to a patch, unless the watch has delivered the policy meanwhile."""
        if self.policies.get(written.policy.key) is written:
            self.take(after)

    def take(self, found: PolicyObject) -> None:
        """Stores the current state of a policy."""
        written = _Written(found)
        self.policies[written.policy.key] = written
        self._room.put(written.size)
        self.claims.set(written.policy.key, written.claim)

    def _listed(self, listing: Listing[PolicyObject]) -> None:
        self.policies.clear()
        self._room.clear()
        self.claims.clear()
        self._writer.not_ready.clear()
        self._writer._patches.forget()
        for found in listing.items:
            self.take(found)
        self.changed.update(self.policies)

    def _change(self, change: Change[PolicyObject]) -> None:
        key = change.object.key
        if change.type is ChangeType.DELETED:
            self.policies.pop(key, None)
            self._room.remove(key)
            self.claims.drop(key)
            self._patched.pop(key, None)
            self._writer.not_ready.pop(key, None)
            self._writer._patches.settle(key)
        else:
            self.take(change.object)
        self.changed.update(self.claims.named(key.name))  # they share labels

    def _verdict(self, entry: Entry[str, NodeVerdict]) -> None:
        verdict = entry.read()
        if isinstance(verdict, Unreadable):
            return
        policies = {} if verdict is None else verdict.policies
        self.unset.take(entry.key, {(key, policy.uid): policy for key, policy in policies.items()})
        states = {
            (key, policy.uid): {
                kind: NodeState(strategy.state, strategy.kept_since is not None)
                for kind, strategy in policy.strategies.items()
            }
            for key, policy in policies.items()
        }
        self.changed.update(self.book.take(entry.key, states))

    def _take_refused(
        self, by_name: dict[str, tuple[RefusedLabel, ...]], entry: Entry[str, tuple[RefusedLabel, ...]]
    ) -> None:
        if refused := entry.readable():
            by_name[entry.key] = refused
        else:
            by_name.pop(entry.key, None)
        self.changed.update(self.claims.named(entry.key))

    def _take_pause(self, entry: Entry[str, Pause]) -> None:
        self.pause = entry.read_or(UNREADABLE_PAUSE)
        self.changed.update(self.policies)

    def _take_breaker(self, entry: Entry[str, Breaker]) -> None:
        before = self.breakers.pop(entry.key, None)
        if (breaker := entry.read_or(UNREADABLE_BREAKER)) is not None:
            self.breakers[entry.key] = breaker
        if (None if before is None else before.trip) != (None if breaker is None else breaker.trip):
            self.changed.update(self.policies if entry.key == ALL else self.claims.named(entry.key))

    def _take_facts(self, entry: Entry[str, NodeFacts]) -> None:
        facts = entry.readable()
        if facts is not None:
            self._labels[entry.key] = facts.labels
        else:
            self._labels.pop(entry.key, None)

    def _refusals_epoch_began(self) -> None:
        self.refused.clear()
        self.refused_marks.clear()

    def _breakers_epoch_began(self) -> None:
        self.breakers.clear()
        self.pause = None

    def _verdicts_epoch_began(self) -> None:
        self.book.clear()
        self.unset.clear()

    def _nodes_epoch_began(self) -> None:
        self._seen.clear()
        self._labels.clear()

    def _complete(self, synced: Synced) -> None:
        log.info("status_ready", nodes=synced.count, policies=len(self.policies))
