"""The brake of one replica of `labels`: which labels of a node may change now, and which nodes the breakers admit.

Each event is a method: a policy, a node, a loss of the records, an asked permit, a round. `permit` decides about one
node. A node that needs an admission is *asked for*, and all that are asked for meanwhile share one round: `admit` has
the breakers to write for them, one conditional write for each record, and `end_round` the nodes that are handled again.
An admission lasts: nodes of a large round that wait for their patch ask only once.

Nothing here waits or writes: `workers.labels.brake_loop` is the loop. Times are monotonic, in seconds.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import NamedTuple, Protocol

from tas.enforcing.breaker import LabelledNodes, admit, is_over, names_on, version_of, without_leavers
from tas.enforcing.label_rate import ALL_RATE, POLICY_RATE, LabelRate, Rate
from tas.enforcing.labels import policy_name
from tas.enforcing.limits import ALL_DEFAULT, POLICY_DEFAULT, DefaultLimit, KeptLimits, Limits
from tas.enforcing.memory import FlapBudget
from tas.policy.policy import Policy, PolicyKey
from tas.values.names import is_subdomain
from tas.verdict.freeze import ALL, Breaker, Trip

FLAP_SECONDS = 300.0
"""The time in which the changes of the flap budget are counted."""

FLAPS = 4
"""So many changes within this time are flapping: a label was set and removed twice."""

RETRY_SECONDS = 0.5
"""The wait before nodes that no breaker may admit yet have another round."""

PATIENCE_SECONDS = 1.0
"""A breaker trips after the limit was exceeded for so long: nodes that recover at the same time leave the set first.
Until then the nodes wait."""

BEHIND_SECONDS = 0.1
"""The wait for the watch, if another replica has admitted a node at a later version."""


class BrakeSettings(NamedTuple):
    """The operator's limits: of a policy without its own, of all policies, and of changes of a policy on a node.

    `label_rate` and `label_rate_all` are how fast nodes get their first label of a policy, and of any policy.

    None or 0: no limit. `new_bus_wait`: for how many seconds after the creation of the bus no node gets its first
    label, since replicas that start now cannot know what was admitted on an earlier bus.
    """

    policy: DefaultLimit | None = POLICY_DEFAULT
    over_all: DefaultLimit | None = ALL_DEFAULT
    flap_budget: int = 20
    label_rate: Rate | None = POLICY_RATE
    label_rate_all: Rate | None = ALL_RATE
    new_bus_wait: float = 0.0


DEFAULTS = BrakeSettings()


class KnownRecords(Protocol):
    """What is known of the breakers and the pause, at this moment."""

    @property
    def is_paused(self) -> bool:
        """Whether all labels are paused."""

    def breaker(self, key: str) -> Breaker:
        """A breaker as it is known; an empty one without a record."""

    def freezes(self, key: str) -> bool:
        """Whether a breaker freezes labels."""

    def current_at(self, policy: str) -> float:
        """When all that is known about labels of a policy was certainly current."""


class Permit(NamedTuple):
    """Which labels of a node may change now.

    `read_at` is the time of the oldest read behind this. `wait` are the seconds until the flap budget allows another
    label; None: no label waits for that. `is_asked`: the node waits to be admitted, and is handled again then.
    `flapping` are the seconds for which policies wait whose labels on the node change too often.
    """

    labels: frozenset[str]
    read_at: float
    wait: float | None
    is_asked: bool
    flapping: Mapping[str, float]


@dataclass(slots=True)
class _Asked:
    """A node that is asked for, since when, at which version, for which policies, and which breakers must admit it."""

    since: float
    version: int
    policies: frozenset[str]
    admissions: frozenset[str]  # names of policies, and `ALL`


class Brake:
    """The state, without the records.

    Attributes:
        is_holding: Whether the round waits for outstanding verdicts.
    """

    def __init__(self, settings: BrakeSettings, records: KnownRecords) -> None:
        self._records = records
        self._limits = Limits(settings.policy, settings.over_all)
        self._kept_limits = KeptLimits(self._limits)
        self._seen = LabelledNodes()
        self._flaps = FlapBudget(settings.flap_budget, seconds=FLAP_SECONDS)
        self._flapping = FlapBudget(FLAPS, seconds=FLAP_SECONDS)
        self._rate = LabelRate(settings.label_rate, settings.label_rate_all)
        self.is_holding = False
        self._admit_at = -inf
        self._is_relisted = True
        self._asked: dict[str, _Asked] = {}
        self._in_round: dict[str, _Asked] = {}
        self._full: dict[str, tuple[float, float]] = {}  # the first and the last attempt beyond the limit, by key

    @property
    def nodes(self) -> Collection[str]:
        """All nodes."""
        return self._seen.nodes

    @property
    def asked(self) -> Collection[str]:
        """The nodes that are asked for."""
        return self._asked.keys()

    @property
    def asked_since(self) -> float:
        """Since when the first node that is asked for has waited."""
        return min((each.since for each in self._asked.values()), default=-inf)

    @property
    def labelled(self) -> float:
        """How many nodes have labels of policies; NaN before the first list of nodes."""
        return self._seen.with_labels if self._seen.version else nan

    def flapping(self, now: float) -> int:
        """How many labels of a policy on a node have changed again and again."""
        return self._flapping.exhausted(now)

    def waiting(self, now: float) -> dict[str, int]:
        """By name of the policies, how many nodes wait for their turn to get their first label."""
        return self._rate.waiting(now)

    # Policies and nodes

    def set_policy(self, key: PolicyKey, policy: Policy | None, created: float | None = None) -> None:
        """Applies a stored policy: `Limits.take_in`."""
        self._kept_limits.forget(key.name)
        self._limits.take_in(key, policy, created)
        self._seen.set_policy(key.name, exists=True)

    def drop_policy(self, key: PolicyKey) -> bool:
        """Applies the deletion of a policy. Returns whether frozen labels may change: it freezes nothing any more."""
        self._kept_limits.forget(key.name)
        is_last = self._limits.drop(key)
        self._seen.set_policy(key.name, exists=not is_last)
        return is_last and self._records.freezes(key.name)

    def forget_policies(self) -> None:
        """Forgets all policies, before a new complete list."""
        self._kept_limits.clear()
        self._limits.clear()
        self._seen.forget_policies()

    def begin_list(self, resource_version: str, asked_at: float) -> None:
        """Begins a new complete list of nodes, requested at `asked_at` or later; `set_node` gets each of them."""
        self._seen.begin_list(version_of(resource_version))
        self._is_relisted |= asked_at >= self._admit_at

    def set_node(self, name: str, resource_version: str, labels: Mapping[str, str], now: float) -> None:
        """Applies a state of a node."""
        for policy in self._seen.take_in(name, version_of(resource_version), labels):
            self._flaps.changed(name, policy, at=now)
            self._flapping.changed(name, policy, at=now)
            self._rate.end(name, policy, now, is_used=True)

    def drop_node(self, name: str, resource_version: str, now: float) -> None:
        """Applies the deletion of a node that the API server has shown at this version."""
        self._seen.drop(name, version_of(resource_version))
        self._withdraw(name)
        self._rate.keep(name, (), now)
        self._flaps.forget(name)
        self._flapping.forget(name)

    def hold(self) -> None:
        """The round waits for outstanding verdicts from now on."""
        self.is_holding = True

    def end_hold(self) -> None:
        """The round waits no longer."""
        self.is_holding = False

    def lose_records(self, until: float) -> None:
        """Applies a loss of the records: the labels of all nodes are the only record of what was admitted.

        A patch for a lost admission may arrive until then. No node is admitted before a list that is requested later.
        """
        self._admit_at, self._is_relisted = until, False

    # Permits

    def concerned(self, values: Mapping[str, str | None]) -> list[str]:
        """The policies whose records must be current before `permit` is asked about these changes."""
        return [policy for policy in _by_policy(values) if not self._is_frozen(policy)]

    def permit(
        self, name: str, resource_version: str, on_node: Mapping[str, str], values: Mapping[str, str | None], now: float
    ) -> Permit:
        """Which of the changes `values` a patch of a node with these labels, at this version, may have.

        If the node must be admitted first, it is asked for, and nothing may change until the answer: so all changes of
        a node are one patch. While it is asked for and verdicts are outstanding, only what needs the admission waits.
        """
        by_policy, version, names = _by_policy(values), version_of(resource_version), names_on(on_node)
        allowed: set[str] = set()
        read_at, wait = inf, inf
        asked: set[str] = set()
        needed: set[str] = set()
        flapping: dict[str, float] = {}
        for policy, labels in by_policy.items():
            if self._is_frozen(policy):
                continue
            if (pause := self._flaps.wait(name, policy, at=now)) > 0:
                flapping[policy] = pause
                continue
            is_set = any(values[label] is not None for label in labels)
            is_first = is_set and policy not in names
            if is_first and (pause := self._rate.pending(name, policy, now)) > 0:
                # Not asked for again: each patch of another label is a new version, for which breakers write once more.
                wait = min(wait, pause)
                continue
            admissions = self._limits.admitting(policy, on_node, names) if is_set else set()
            if not all(self.is_admitted(key, name, version, now) for key in admissions):
                asked.add(policy)
                needed |= admissions
            elif is_first and (pause := self._rate.wait(name, policy, now)) > 0:
                wait = min(wait, pause)
            else:
                allowed.update(labels)
                read_at = min(read_at, self._records.current_at(policy))
        self._rate.keep(name, by_policy, now)
        if asked:
            self._ask(name, version, asked, needed, now)
        else:
            self._withdraw(name)
        return Permit(
            labels=frozenset() if asked and not self.is_holding else frozenset(allowed),
            read_at=read_at,
            wait=None if (wait := min(wait, *flapping.values(), inf)) == inf else wait,
            is_asked=bool(asked),
            flapping=flapping,
        )

    def is_admitted(self, key: str, name: str, version: int, now: float) -> bool:
        """Whether a breaker has admitted a node for a patch of this version, and the limit still has room for it."""
        breaker = self._records.breaker(key)
        if breaker.nodes.get(name) != version:
            return False
        limit = self._kept_limits.of(key, self._seen, now)
        return limit is None or not is_over(breaker, self._seen.unrecorded(key, breaker), limit.nodes)

    def _is_frozen(self, policy: str) -> bool:
        """Whether no label of a policy changes. Orphans of a deleted policy are not frozen by its breaker."""
        return self._are_all_frozen() or (self._limits.is_policy(policy) and self._records.freezes(policy))

    def _are_all_frozen(self) -> bool:
        return self._records.is_paused or self._records.freezes(ALL)

    # Rounds

    def _ask(self, name: str, version: int, policies: Collection[str], admissions: Collection[str], now: float) -> None:
        known = self._asked.get(name)
        since = now if known is None else known.since
        self._asked[name] = _Asked(since, version, frozenset(policies), frozenset(admissions))

    def _withdraw(self, name: str) -> None:
        """Asks for a node no more: it needs no admission any more."""
        self._asked.pop(name, None)
        self._in_round.pop(name, None)

    def retry_after(self, now: float) -> float | None:
        """Seconds until the next round of the nodes that wait; None: there are none."""
        if not self._asked:
            return None
        return RETRY_SECONDS if self._is_relisted else max(RETRY_SECONDS, self._admit_at - now)

    def begin_round(self) -> frozenset[str]:
        """Takes all nodes that are asked for into a round. Returns the policies whose records must be current."""
        self._in_round, self._asked = self._asked, {}
        return frozenset[str]().union(*(each.policies for each in self._in_round.values()))

    def admit(self, *, now: float, clock: float) -> dict[str, Breaker]:
        """The breakers to write for the nodes of the round, by key. `clock` are seconds since 1970."""
        if self._are_all_frozen() or not self._is_relisted:
            return {}
        wanted: dict[str, dict[str, int]] = {}
        for node, each in self._in_round.items():
            for key in each.admissions:
                wanted.setdefault(key, {})[node] = each.version
        over_all = wanted.pop(ALL, {})
        changed = self._admitted(wanted, now, clock)

        def is_open(policy: str) -> bool:
            is_written = policy not in wanted or changed.get(policy, _TRIPPED).trip is None
            return is_written and not self._records.freezes(policy)

        over_all = {node: at for node, at in over_all.items() if any(map(is_open, self._in_round[node].policies))}
        if over_all:
            changed |= self._admitted({ALL: over_all}, now, clock)
            if changed.get(ALL, _TRIPPED).trip is not None:  # only trips are written, no admissions
                changed = {key: breaker for key, breaker in changed.items() if breaker.trip is not None}
        return changed

    def end_round(self, *, is_answered: bool) -> tuple[int, dict[str, float]]:
        """Ends a round: how many nodes it had, and those to be handled now, with the seconds to wait before.

        The others are asked for again. All of them, unless `is_answered`: the records could not be written.
        """
        asked, self._in_round = self._in_round, {}
        answers: dict[str, float] = {}
        for node, each in asked.items():
            if not is_answered or self._has_to_wait(each):
                # They stay together: if they were asked for anew, one after the other, the first ones had room.
                self._asked.setdefault(node, each)
            else:
                answers[node] = self._wait(node, each)
        return len(asked), answers

    def without_left(self, key: str, breaker: Breaker) -> Breaker | None:
        """A breaker without the nodes that have left; None if nothing needs its record."""
        left = without_leavers(breaker, self._seen, self._seen.labelled(key))
        return None if key != ALL and not left.nodes and not self._limits.is_policy(key) else left

    def _has_to_wait(self, asked: _Asked) -> bool:
        """Whether no breaker may admit a node yet, or one has no room for it, but may still trip."""
        if asked.admissions and not self._is_relisted:
            return True
        return any(key in self._full and not self._records.freezes(key) for key in asked.admissions)

    def _wait(self, node: str, asked: _Asked) -> float:
        """Seconds until a node is worth another attempt after a round."""
        is_behind = any(self._records.breaker(key).nodes.get(node, 0) > asked.version for key in asked.admissions)
        return BEHIND_SECONDS if is_behind else 0.0

    def _admitted(self, wanted: Mapping[str, Mapping[str, int]], now: float, clock: float) -> dict[str, Breaker]:
        """The breakers to write for the nodes wanted by key; none for a breaker that is full, but may still trip."""
        changed: dict[str, Breaker] = {}
        for key, nodes in wanted.items():
            limit = self._limits.of(key, self._seen)
            if self._records.freezes(key) or limit is None:
                self._full.pop(key, None)
                continue
            breaker = admit(
                self._records.breaker(key),
                nodes,
                limit=limit.nodes,
                selected=limit.selected,
                seen=self._seen,
                labelled=self._seen.labelled(key),
                now=clock,
            )
            if breaker.trip is None or self._is_over(key, now):
                self._full.pop(key, None)  # after a reset the nodes have as much time again
                changed[key] = breaker
        return changed

    def _is_over(self, key: str, now: float) -> bool:
        """Whether the limit has been exceeded for `PATIENCE_SECONDS`, in attempts without a long break."""
        since, last = self._full.get(key, (now, now))
        if now - last > 4 * PATIENCE_SECONDS:
            since = now
        self._full[key] = since, now
        return now - since >= PATIENCE_SECONDS


def _by_policy(values: Mapping[str, str | None]) -> dict[str, list[str]]:
    """The labels by name of their policies; "" stands for labels of no policy."""
    by_policy: dict[str, list[str]] = {}
    for label in values:
        policy = policy_name(label)
        by_policy.setdefault(policy if is_subdomain(policy) else "", []).append(label)
    return by_policy


_TRIPPED = Breaker(trip=Trip(since=0.0, limit=0, wanted=0, selected=0))
