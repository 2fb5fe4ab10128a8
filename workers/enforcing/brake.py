"""The brake of `labels`: pause, breakers (`tas.enforcing.breaker`) and the flap budget.

Before a patch, `labels` asks for a permit. A permit needs the records of BREAKERS as they were at most `FRESH_SECONDS`
ago; else the node is *asked for*. All nodes that are asked for meanwhile share one round: the records are read from the
stream's leader, the nodes that need it are admitted by one conditional write for each record, and the nodes are added
to the work queue again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import BREAKERS, PAUSED
from bus.connection import Bus, Epoch
from bus.errors import BusError, ConflictError
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from bus.record_kind import Entry, Unreadable
from bus.records.policies import PolicyRecord
from bus.watch import Watch
from tas.enforcing.breaker import (
    ALL_DEFAULT,
    POLICY_DEFAULT,
    DefaultLimit,
    LabelledNodes,
    admit,
    limit_of,
    lowest,
    names_on,
    version_of,
    without_leavers,
)
from tas.enforcing.labels import policy_name
from tas.enforcing.memory import FlapBudget
from tas.policy.policy import LABEL_PREFIX, Policy, PolicyKey
from tas.values.names import is_subdomain
from tas.verdict.brake import ALL, Breaker, Pause, Trip
from workers.enforcing.node_patches import NodeLabels
from workers.process.logs import ThrottledLog

log = structlog.get_logger("labels")

FRESH_SECONDS = 1.0
"""The largest age of a record behind a permit: the rest of `READ_AGE_SECONDS` is for the patch."""

BATCH_SECONDS = 0.002
"""The wait before a round for each node of the last round: so a burst of nodes shares few rounds."""

ROUND_NODES = 64
"""The most nodes of a round: they must be patched within `FRESH_SECONDS`, else they ask again, each for the cost of a
whole reconciliation. The others wait for the next round."""

LONGEST_BATCH_SECONDS = 0.1
"""The longest wait before a round."""

RETRY_SECONDS = 0.5
"""The wait after a round that failed because of the bus."""

PATIENCE_SECONDS = 1.0
"""A breaker trips after the limit was exceeded for so long: nodes that recover at the same time leave the set first.
Until then the nodes wait."""

BEHIND_SECONDS = 0.1
"""The wait for the watch, if another replica has admitted a node at a later version."""

IN_FLIGHT_SECONDS = 12.0
"""After a loss of BREAKERS no node is admitted for this time, and until all nodes are listed again: a patch for an
admission in the lost records is sent at most 2 s after its reads, and is answered within 10 s or given up."""

TIDY_SECONDS = 10.0
"""How often the lease holder removes the nodes from the records that have left."""

FLAP_SECONDS = 300.0
"""The time in which the changes of the flap budget are counted."""


class BrakeSettings(NamedTuple):
    """The operator's limits: of a policy without its own, of all policies, and of changes of a policy on a node.

    None or 0: no limit.
    """

    policy: DefaultLimit | None = POLICY_DEFAULT
    over_all: DefaultLimit | None = ALL_DEFAULT
    flap_budget: int = 20


DEFAULTS = BrakeSettings()


class Permit(NamedTuple):
    """Which labels of a node may change now.

    `read_at` is the monotonic time of the oldest read behind this. `wait` are the seconds until the flap budget allows
    another label; None: no label waits for that. `is_asked`: the node is handled again after the answer.
    """

    labels: frozenset[str]
    read_at: float
    wait: float | None
    is_asked: bool


@dataclass(slots=True)
class _Asked:
    """A node that is asked for: at which version, for which policies, and which breakers must admit it first."""

    version: int
    policies: set[str] = field(default_factory=set)
    admissions: set[str] = field(default_factory=set)  # names of policies, and `ALL`


class _Known(NamedTuple):
    """A record at a revision; `at`: the monotonic time at which it was certainly the last one."""

    record: Breaker | Pause | Unreadable | None
    revision: int
    at: float = -inf

    @property
    def breaker(self) -> Breaker:
        return self.record if isinstance(self.record, Breaker) else Breaker()

    @property
    def freezes(self) -> bool:
        """An unreadable record freezes: the breaker may have tripped."""
        if isinstance(self.record, Breaker):
            return self.record.trip is not None
        return self.record is not None


class Brake:
    """Part of the worker `labels`.

    `on_answer` is called for each node after a round, with seconds to wait; `on_thaw` when frozen labels may change
    again; `relist` has all nodes listed again.
    """

    def __init__(
        self,
        bus: Bus,
        settings: BrakeSettings,
        *,
        registry: CollectorRegistry,
        on_answer: Callable[[str, float], None],
        on_thaw: Callable[[], None],
        on_caught_up: Callable[[], None],
        relist: Callable[[], None],
        is_ready: Callable[[], bool],
        is_active: Callable[[], bool],
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._on_answer = on_answer
        self._on_thaw = on_thaw
        self._relist = relist
        self._is_ready = is_ready
        self._is_active = is_active
        self._known: dict[str, _Known] = {}
        self._carried: dict[str, _Known] = {}  # freezes of a lost bucket that are still to be written again
        self._admit_at = -inf
        self._is_relisted = True
        self._policies: dict[str, dict[PolicyKey, Policy | None]] = {}
        self._seen = LabelledNodes()
        self._flaps = FlapBudget(settings.flap_budget, seconds=FLAP_SECONDS)
        self._asked: dict[str, _Asked] = {}
        self._full: dict[str, tuple[float, float]] = {}  # the first and the last attempt beyond the limit, by key
        self._wake = asyncio.Event()
        self._tidy_now = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._watch = Watch(
            bus,
            PAUSE_RECORDS.to(self._take_in_pause),
            BREAKER_RECORDS.to(self._take_in_breaker),
            on_epoch=self._start_epoch,
            on_batch=on_caught_up,
        )
        self._epoch: Epoch | None = None
        self._trips = Counter("tas_breaker_trips", "Breakers that this replica has tripped.", registry=registry)
        tripped = Gauge("tas_breakers_tripped", "Breakers that are tripped: labels are frozen.", registry=registry)
        tripped.set_function(lambda: sum(key != PAUSED and known.freezes for key, known in self._known.items()))
        paused = Gauge("tas_labels_paused", "1 while all labels are paused, else 0.", registry=registry)
        paused.set_function(lambda: float(self._freezes(PAUSED)))

    def unready(self) -> str | None:
        """Why no permit is given yet."""
        return None if self._watch.status.caught_up else f"{BREAKERS.name}: not caught up with the bus"

    async def run(self) -> None:
        """Follows and answers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self._watch.run(), self._answer(), self._tidy()):
                tasks.create_task(part)

    # What `labels` follows

    def take_in_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        """Applies a change of a policy."""
        of_name = self._policies.setdefault(entry.key.name, {})
        if entry.present:
            record = entry.readable()
            of_name[entry.key] = None if record is None else record.policy
            return
        of_name.pop(entry.key, None)
        if not of_name:
            del self._policies[entry.key.name]
            if self._known.get(entry.key.name, _NOTHING).freezes:
                self._on_thaw()  # a deleted policy freezes nothing

    def forget_policies(self) -> None:
        """Forgets all policies, before a new complete list."""
        self._policies.clear()

    def begin_list(self, resource_version: str) -> None:
        """Begins a new complete list of nodes; `take_in_node` gets each of them."""
        self._seen = LabelledNodes(version_of(resource_version))
        self._is_relisted |= time.monotonic() >= self._admit_at

    def take_in_node(self, name: str, node: NodeLabels) -> None:
        """Applies a state of a node."""
        for policy in self._seen.take_in(name, version_of(node.resource_version), node.labels):
            self._flaps.changed(name, policy, at=time.monotonic())

    def drop_node(self, name: str, resource_version: str) -> None:
        """Applies the deletion of a node that the API server has shown at this version."""
        self._seen.drop(name, version_of(resource_version))
        self._flaps.forget(name)

    # Permits

    def permit(self, name: str, node: NodeLabels, values: Mapping[str, str | None]) -> Permit:
        """Which of the changes `values` a patch of the state `node` may have.

        If the records must be read or written first, it asks for the node, and nothing may change until the answer: so
        all changes of a node are one patch.
        """
        now = time.monotonic()
        allowed: set[str] = set()
        read_at, wait = inf, inf
        by_policy: dict[str, list[str]] = {}
        for label in values:
            policy = policy_name(label)
            by_policy.setdefault(policy if is_subdomain(policy) else "", []).append(label)
        version, names = version_of(node.resource_version), names_on(node.labels)
        for policy, labels in by_policy.items():
            if self._is_frozen(policy):
                continue
            if (pause := self._flaps.wait(name, policy, at=now)) > 0:
                self._throttled.warning(
                    "label_flapping", (name, policy), node=name, policy=policy, seconds=round(pause)
                )
                wait = min(wait, pause)
                continue
            sets = any(values[label] is not None for label in labels)
            admissions = self._admissions(policy, node.labels, names) if sets else set()
            since = min(self._known.get(key, _NOTHING).at for key in _keys({policy}))
            admitted = all(self._breaker(key).nodes.get(name) == version for key in admissions)
            if now - since <= FRESH_SECONDS and admitted:
                allowed.update(labels)
                read_at = min(read_at, since)
            else:
                self._ask(name, version, policy, admissions)
        is_asked = name in self._asked
        return Permit(
            labels=frozenset() if is_asked else frozenset(allowed),
            read_at=read_at,
            wait=None if wait == inf else wait,
            is_asked=is_asked,
        )

    def _admissions(self, policy: str, labels: Mapping[str, str], names: Collection[str]) -> set[str]:
        """The breakers that must admit a node with these labels, before it gets a label of a policy."""
        needed: set[str] = set()
        if policy not in names and self._is_limited(policy):
            needed.add(policy)
        is_labelled = any(label.startswith(LABEL_PREFIX) for label in labels) or any(map(self._is_policy, names))
        if self._settings.over_all is not None and not is_labelled:
            needed.add(ALL)
        return needed

    def _ask(self, name: str, version: int, policy: str, admissions: Collection[str]) -> None:
        asked = self._asked.get(name)
        if asked is None or asked.version < version:
            asked = self._asked[name] = _Asked(version)
        asked.policies.add(policy)
        asked.admissions.update(admissions)
        self._wake.set()

    def _is_policy(self, name: str) -> bool:
        return name in self._policies

    def _breaker(self, key: str) -> Breaker:
        return self._known.get(key, _NOTHING).breaker

    def _freezes(self, key: str) -> bool:
        return key in self._carried or self._known.get(key, _NOTHING).freezes

    def _is_frozen(self, policy: str) -> bool:
        """Whether no label of a policy changes. Orphans of a deleted policy are not frozen by its breaker."""
        return any(map(self._freezes, (PAUSED, ALL))) or (self._is_policy(policy) and self._freezes(policy))

    def _is_limited(self, policy: str) -> bool:
        of_name = self._policies.get(policy, {}).values()
        return self._settings.policy is not None or any(each and each.breaker for each in of_name)

    def _limit(self, key: str) -> int | None:
        if key == ALL:
            default = self._settings.over_all
            return None if default is None else default.of(len(self._seen))
        return lowest(limit for _, limit in self._limits(key))

    def _limits(self, name: str) -> list[tuple[int, int | None]]:
        """The selected nodes and the limit of each policy of a name that may label nodes."""
        policies = [
            each for each in self._policies.get(name, {}).values() if each and not (each.suspend or each.dry_run)
        ]
        found = [(self._seen.selected(policy), policy.breaker) for policy in policies] or [(len(self._seen), None)]
        return [(selected, limit_of(own, self._settings.policy, selected)) for selected, own in found]

    def _selected(self, key: str, limit: int) -> int:
        return len(self._seen) if key == ALL else next(count for count, each in self._limits(key) if each == limit)

    # Rounds

    async def _answer(self) -> None:
        """Answers the nodes that are asked for, in rounds. Never ends."""
        nodes, ended_at = 0, -inf
        while True:
            await self._wake.wait()
            due = ended_at + min(LONGEST_BATCH_SECONDS, nodes * BATCH_SECONDS)
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            self._wake.clear()
            asked = {node: self._asked.pop(node) for node in list(self._asked)[:ROUND_NODES]}
            if self._asked:
                self._wake.set()
            after = 0.0
            try:
                await self._round(asked)
            except ConflictError as error:  # another replica was first
                log.debug("breaker_not_written", error=str(error))
            except BusError as error:
                self._throttled.warning("breaker_not_written", error=str(error))
                after = RETRY_SECONDS
            nodes, ended_at = len(asked), time.monotonic()
            for node, each in asked.items():
                self._on_answer(node, max(after, self._wait(node, each, ended_at)))

    def _wait(self, node: str, asked: _Asked, now: float) -> float:
        """Seconds until a node is worth another attempt after a round."""
        if asked.admissions and not self._is_relisted:
            return max(RETRY_SECONDS, self._admit_at - now)
        if any(key in self._full and not self._freezes(key) for key in asked.admissions):
            return RETRY_SECONDS
        is_behind = any(self._breaker(key).nodes.get(node, 0) > asked.version for key in asked.admissions)
        return BEHIND_SECONDS if is_behind else 0.0

    async def _round(self, asked: Mapping[str, _Asked]) -> None:
        """Reads the records that the nodes need, and admits the nodes. Raises BusError; some may be admitted then."""
        await self._restore()
        policies = frozenset[str]().union(*(each.policies for each in asked.values()))
        await _all_of(*(self._read(key) for key in _keys(policies)))
        if self._freezes(PAUSED) or self._freezes(ALL) or not (self._is_relisted and self._is_ready()):
            return
        wanted: dict[str, dict[str, int]] = {}
        for node, each in asked.items():
            for key in each.admissions:
                wanted.setdefault(key, {})[node] = each.version
        over_all = wanted.pop(ALL, {})
        changed = self._admitted(wanted)
        open_policies = {
            policy
            for policy in policies
            if not self._freezes(policy) and (policy not in wanted or changed.get(policy, _TRIPPED).trip is None)
        }
        over_all = {node: version for node, version in over_all.items() if asked[node].policies & open_policies}
        if over_all:
            changed |= self._admitted({ALL: over_all})
            if changed.get(ALL, _TRIPPED).trip is not None:  # only trips are written, no admissions
                changed = {key: breaker for key, breaker in changed.items() if breaker.trip is not None}
        await _all_of(*(self._write(key, breaker) for key, breaker in changed.items()))

    def _admitted(self, wanted: Mapping[str, Mapping[str, int]]) -> dict[str, Breaker]:
        """The breakers to write for the nodes wanted by key; none for a breaker that is full, but may still trip."""
        changed: dict[str, Breaker] = {}
        for key, nodes in wanted.items():
            limit = self._limit(key)
            if self._freezes(key) or limit is None:
                continue
            breaker = admit(
                self._breaker(key),
                nodes,
                limit=limit,
                selected=self._selected(key, limit),
                seen=self._seen,
                labelled=self._seen.labelled(key, self._is_policy),
                now=time.time(),
            )
            if breaker.trip is None:
                self._full.pop(key, None)
                changed[key] = breaker
            elif self._is_over(key, time.monotonic()):
                changed[key] = breaker
        return changed

    def _is_over(self, key: str, now: float) -> bool:
        """Whether the limit has been exceeded for `PATIENCE_SECONDS`, in attempts without a long break."""
        since, last = self._full.get(key, (now, now))
        if now - last > 4 * PATIENCE_SECONDS:
            since = now
        self._full[key] = since, now
        return now - since >= PATIENCE_SECONDS

    async def _read(self, key: str) -> None:
        read_at = time.monotonic()
        entry: Entry[str, Pause] | Entry[str, Breaker]
        if key == PAUSED:
            entry = await PAUSE_RECORDS.get(self._bus, key)
        else:
            entry = await BREAKER_RECORDS.get(self._bus, key)
        self._note(key, _Known(entry.read(), entry.revision, read_at))

    async def _write(self, key: str, breaker: Breaker) -> None:
        """Writes a breaker unless it is unchanged. Raises BusError."""
        known = self._known.get(key, _NOTHING)
        if known is _NOTHING:
            return  # the bucket was lost meanwhile
        if breaker is known.record or (known.record is None and breaker == Breaker()):
            return
        revision = await BREAKER_RECORDS.put(self._bus, key, breaker, revision=known.revision, read_at=known.at)
        if breaker.trip is not None and known.breaker.trip is None:
            self._trips.inc()
        self._note(key, _Known(breaker, revision, known.at))

    # Records

    def _take_in_pause(self, entry: Entry[str, Pause]) -> None:
        self._note(PAUSED, _Known(entry.read(), entry.revision))

    def _take_in_breaker(self, entry: Entry[str, Breaker]) -> None:
        self._note(entry.key, _Known(entry.read(), entry.revision))

    def _note(self, key: str, known: _Known) -> None:
        """Stores what was read, written or received, unless a later revision is known."""
        before = self._known.get(key, _NOTHING)
        if known.revision < before.revision:
            return
        if known.revision == before.revision:
            known = before._replace(at=max(before.at, known.at))
        self._known[key] = known
        self._carried.pop(key, None)
        if known.freezes != before.freezes:
            self._full.pop(key, None)
        if known.freezes and not before.freezes:
            self._log_freeze(key, known)
        elif before.freezes and not known.freezes:
            if key == PAUSED:
                log.info("labels_resumed")
            else:
                log.info("breaker_reset", policy=key)
            self._on_thaw()

    def _log_freeze(self, key: str, known: _Known) -> None:
        if isinstance(known.record, Pause):
            log.warning("labels_paused", by=known.record.by, reason=known.record.reason)
        elif isinstance(known.record, Breaker) and (trip := known.record.trip) is not None:
            log.error("breaker_tripped", policy=key, limit=trip.limit, wanted=trip.wanted, selected=trip.selected)
        elif isinstance(known.record, Unreadable):
            log.error("breaker_unreadable", policy=key, error=str(known.record.error))

    def _start_epoch(self, epoch: Epoch) -> None:
        """A new epoch: the freezes of the last one are written again, and admissions wait for patches on their way."""
        before, self._epoch = self._epoch, epoch
        if before is not None and before.created == epoch.created:
            return  # only the watch has begun anew
        if before is not None:
            self._carried |= {key: known for key, known in self._known.items() if known.freezes}
            # The labels of all nodes are the only record of what was admitted.
            self._admit_at, self._is_relisted = time.monotonic() + IN_FLIGHT_SECONDS, False
            asyncio.get_running_loop().call_later(IN_FLIGHT_SECONDS, self._relist)
            log.warning("breakers_lost", frozen=sorted(self._carried))
        self._known.clear()
        self._tidy_now.set()

    async def _restore(self) -> None:
        """Writes the freezes of a lost bucket again, unless the key exists in the new one. Raises BusError."""
        for key, known in list(self._carried.items()):
            await self._read(key)  # forgets what is carried: it is needed only if there is no record
            read = self._known[key]
            if read.revision:
                continue
            self._carried[key] = known
            with suppress(ConflictError):
                if isinstance(known.record, Pause):
                    revision = await PAUSE_RECORDS.put(self._bus, key, known.record, revision=0, read_at=read.at)
                    self._note(key, _Known(known.record, revision, read.at))
                elif isinstance(known.record, Breaker):
                    tripped = Breaker(trip=known.record.trip)
                    revision = await BREAKER_RECORDS.put(self._bus, key, tripped, revision=0, read_at=read.at)
                    self._note(key, _Known(tripped, revision, read.at))
            self._carried.pop(key, None)

    async def _tidy(self) -> None:
        """Restores lost freezes, and removes what is no longer needed from the records. Never ends."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TIDY_SECONDS):
                    await self._tidy_now.wait()
            self._tidy_now.clear()
            try:
                await self._restore()
                if self._is_active():
                    for key in [key for key in self._known if key != PAUSED]:
                        await self._tidy_one(key)
            except BusError as error:
                log.debug("breaker_not_written", error=str(error))
                if self._carried:
                    await asyncio.sleep(RETRY_SECONDS)
                    self._tidy_now.set()

    async def _tidy_one(self, key: str) -> None:
        known, read_at = self._known.get(key, _NOTHING), time.monotonic()
        if not isinstance(known.record, Breaker):
            return
        left = without_leavers(known.record, self._seen, self._seen.labelled(key, self._is_policy))
        if key != ALL and not left.nodes and not self._is_policy(key):
            await BREAKER_RECORDS.delete(self._bus, key, revision=known.revision, read_at=read_at)
        elif left is not known.record:
            await BREAKER_RECORDS.put(self._bus, key, left, revision=known.revision, read_at=read_at)


_NOTHING = _Known(None, -1)
_TRIPPED = Breaker(trip=Trip(since=0.0, limit=0, wanted=0, selected=0))


def _keys(policies: Collection[str]) -> list[str]:
    """The keys of BREAKERS that concern labels of these policies; "" stands for labels of no policy."""
    return [PAUSED, ALL, *sorted(each for each in policies if each)]


async def _all_of(*calls: Awaitable[None]) -> None:
    """Waits for all calls, and raises the first error."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
