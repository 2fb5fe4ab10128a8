"""The brake in a history: limits of policies, pauses and resets by users, and the judge of the limits.

The judge knows only what the API server had and what users wrote. When the product labels one more node of a policy,
the labelled nodes may be at most as many as the policies allowed at some time shortly before.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf
from typing import NamedTuple

from bus.buckets import PAUSED
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from tas.enforcing.brake import BrakeSettings
from tas.enforcing.breaker import reset
from tas.enforcing.limits import DefaultLimit
from tas.verdict.freeze import Breaker, Pause
from tests.integration.removal.cases import Case
from tests.integration.removal.model import PREFIX, VIOLATING, Key, Spec, claims, is_silent, selects
from tests.integration.removal.observed import Observed, Written
from tests.integration.removal.spans import Span, intersection

DEFAULT_NODES = 1
NO_RATE = BrakeSettings(flap_budget=0, label_rate=None, label_rate_all=None)
OFF = NO_RATE._replace(policy=None, over_all=None)
LIMITED = NO_RATE._replace(policy=DefaultLimit(0, DEFAULT_NODES), over_all=None)
"""Without a flap budget, since histories change a node more often than it allows."""

LIMITS: tuple[Mapping[str, int] | None, ...] = (None, {"maxNodes": 1}, {"maxNodes": 2}, {"maxPercent": 67})
"""The limits of policies with few nodes; None: the default."""

Numbered = tuple[Key, int]
"""The key of a policy, and the number of one of its versions."""

PAUSED_AFTER_SECONDS = 2.0
"""A patch that is on its way when somebody pauses arrives within this time (docs/how-to/brake.md)."""

RESUME_CHANCE = 0.25
"""How often somebody ends a pause, of the times when somebody could: most pauses are longer than a patch."""


def with_limit(spec: Spec, limit: Mapping[str, int] | None) -> Spec:
    """The policy with this limit, or without its own."""
    rest = {name: value for name, value in spec.items() if name != "breaker"}
    return rest if limit is None else rest | {"breaker": dict(limit)}


def limit_of(spec: Spec, nodes: int) -> int:
    """The most nodes that may have labels of a policy, in a cluster of so many nodes."""
    own = spec.get("breaker")
    if own is None:
        return DEFAULT_NODES
    return int(own["maxNodes"]) if "maxNodes" in own else max(1, nodes * int(own["maxPercent"]) // 100)


def names_on(labels: Mapping[str, str]) -> set[str]:
    """The names of policies whose labels these are, by their form."""
    return {
        label.removeprefix(PREFIX).partition("/")[0]
        for label, value in labels.items()
        if label.startswith(PREFIX) or ("/" not in label and value == VIOLATING)
    }


class _Added(NamedTuple):
    """A node got its first label of a policy from the product.

    Attributes:
        at: When the write was seen.
        since: The earliest time of the reads behind the write.
        labelled: The nodes with labels of the policy that the product has set, or that they had all the time between;
            each with these labels, and who has set them.
    """

    name: str
    node: str
    at: float
    since: float
    labelled: Mapping[str, str]


@dataclass
class LimitJudge:
    """Compares each node that the product adds with the limits.

    Attributes:
        slowest: The most seconds between the arrival of a patch and its write, by the time of the write.
        allowance: The most seconds between the reads behind a patch and its arrival, by the time of the write.
        late: The recent lateness of this process, in seconds.
        pauses: When somebody had paused: from the stored pause until the request to end it.
        met: How often a node was added, and how often a breaker had tripped.
        faults: What was against the limits.
    """

    observed: Observed
    slowest: Callable[[float], float]
    allowance: Callable[[float], float]
    late: Callable[[], float]
    pauses: list[Span] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _added: list[_Added] = field(default_factory=list)

    def take(self, written: Written) -> None:
        """Notes a write of a node, which `observed` has noted already."""
        if written.kind != "node" or written.now is None or written.by_test:
            return
        node, labels = written.key[1], written.now["metadata"].get("labels", {})
        before = {} if written.before is None else written.before["metadata"].get("labels", {})
        if labels == before:
            return
        # The API server may be slow: so when the patch may have arrived there counts.
        earliest = written.at - self.slowest(written.at)
        patches = self.observed.patches.get(node, [])
        arrived = min((patch.at for patch in patches if earliest < patch.at <= written.at), default=earliest)
        if any(self._effective(pause, arrived) for pause in self.pauses):
            self.faults.append(f"labels of {node} changed from {before} to {labels} during a pause")
        since = arrived - self.allowance(written.at)
        for name in names_on(labels) - names_on(before):
            counted = {each for each in self.observed.nodes if self._counts(each, name, since)} | {node}
            labelled = {each: self._described(each, name) for each in sorted(counted)}
            self._added.append(_Added(name, node, written.at, since, labelled))

    def _effective(self, pause: Span, at: float) -> bool:
        return pause[0] + PAUSED_AFTER_SECONDS + self.late() < at <= pause[1]

    def _counts(self, node: str, name: str, since: float) -> bool:
        """Whether the product must have known that a node has labels of a policy: a user may have set a later one."""
        states = self.observed.nodes[node]
        setters, uid = self.observed.setters, states[-1].uid
        labels = [label for label, value in states[-1].labels.items() if name in names_on({label: value})]
        if any(setters.get((node, uid, label), False) for label in labels):
            return True
        ends = [*(state.since for state in states[1:]), inf]
        return all(name in names_on(each.labels) for each, end in zip(states, ends, strict=True) if end > since)

    def _described(self, node: str, name: str) -> str:
        state = self.observed.nodes[node][-1]
        return ", ".join(
            f"{label}={value} by {'the product' if self.observed.setters.get((node, state.uid, label)) else 'a user'}"
            for label, value in state.labels.items()
            if name in names_on({label: value})
        )

    def judge(self) -> None:
        """Judges everything, when the log is complete."""
        for added in self._added:
            limit = self._limit(added)
            self.met[Case.ADMITTED] += 1
            if len(added.labelled) > limit:
                self.faults.append(
                    f"{added.node} got labels of {added.name} at {added.at:.2f} s, read since {added.since:.2f} s: "
                    f"{dict(added.labelled)} have them, {limit} are allowed"
                )
        self._added.clear()

    def _limit(self, added: _Added) -> int:
        """The highest limit that was in force at some time, whichever of its states each policy of the name had."""
        policies = [list(self._versions(key, added)) for key in self.observed.policies if key[1] == added.name]
        begins = (span[0] for versions in policies for span, _ in versions)
        times = {added.since, *(at for at in begins if added.since < at <= added.at)}
        states = {state for at in times for state in product(*(_at(at, versions) for versions in policies))}
        return max(self._limit_in(state, added) for state in states)

    def _versions(self, key: Key, added: _Added) -> Iterator[tuple[Span, Numbered | None]]:
        """The versions of a policy, each with a time in which it may have been in force; None: there was no policy."""
        fresh = added.at - added.since
        for span in self.observed.unknown_yet(key, fresh=fresh):
            yield span, None
        for number in range(len(self.observed.policies[key])):
            for span in self.observed.readable(key, number, fresh=fresh):
                yield span, (key, number)

    def _limit_in(self, state: Sequence[Numbered | None], added: _Added) -> int:
        """The lowest limit of the policies that own labels; without an owner, of all that are in force."""
        found = [(key, self.observed.policies[key][number]) for key, number in filter(None, state)]
        in_force = {
            (version.created, key): version.spec
            for key, version in found
            if version.spec is not None and not is_silent(version.spec)
        }
        labels = added.name, f"{PREFIX}{added.name}/any"  # one of each strategy
        claiming = [[age for age, spec in in_force.items() if claims(spec, label)] for label in labels]
        owners = {min(ages) for ages in claiming if ages}
        specs = [spec for age, spec in in_force.items() if age in owners or not owners]
        window = (added.since, added.at)
        return min((limit_of(spec, self._selected(spec, window)) for spec in specs), default=DEFAULT_NODES)

    def _selected(self, spec: Spec, window: Span) -> int:
        """How many nodes a policy may have selected in this time."""
        count = 0
        for states in self.observed.nodes.values():
            ends = [*(state.since for state in states[1:]), inf]
            count += any(
                state.uid and selects(spec, state.labels) and intersection([(state.since, end)], [window])
                for state, end in zip(states, ends, strict=True)
            )
        return count


def _at(at: float, versions: Sequence[tuple[Span, Numbered | None]]) -> list[Numbered | None]:
    """The versions of a policy that may have been in force at this time."""
    return [version for span, version in versions if span[0] <= at <= span[1]] or [None]


@dataclass
class Operators:
    """Users who pause, resume and reset.

    Attributes:
        judge: Is told of each pause.
    """

    bus: Bus
    judge: LimitJudge
    log: Callable[[str], None]

    async def act(self, chance: random.Random) -> None:
        """Resets tripped breakers, or begins or ends a pause."""
        try:
            if chance.random() < 0.5:
                await self._reset()
            elif not self._is_paused:
                await self._pause()
            elif chance.random() < RESUME_CHANCE:
                await self._resume()
        except BusError as error:
            self.log(f"operators: {error}")

    async def lift(self) -> None:
        """Ends the pause and resets each tripped breaker, to be called again until all is right."""
        try:
            await self._resume()
            await self._reset()
        except BusError as error:
            self.log(f"operators: {error}")

    def wiped(self) -> None:
        """A pause can be lost only now: while the bus is wiped and no replica of `labels` runs."""
        self._end_pause()

    @property
    def _is_paused(self) -> bool:
        pauses = self.judge.pauses
        return bool(pauses) and pauses[-1][1] == inf

    def _end_pause(self) -> None:
        if self._is_paused:
            began, ended = self.judge.pauses[-1][0], time.time()
            self.judge.pauses[-1] = (began, ended)
            self.judge.met[Case.PAUSED] += ended - began > PAUSED_AFTER_SECONDS

    async def _pause(self) -> None:
        read_at = time.monotonic()
        entry = await PAUSE_RECORDS.get(self.bus, PAUSED)
        if not entry.present:
            pause = Pause(by="test", since=time.time(), reason="")
            await PAUSE_RECORDS.put(self.bus, PAUSED, pause, revision=entry.revision, read_at=read_at)
        self.log("paused")
        self.judge.pauses.append((time.time(), inf))

    async def _resume(self) -> None:
        self._end_pause()
        read_at = time.monotonic()
        entry = await PAUSE_RECORDS.get(self.bus, PAUSED)
        if entry.present:
            await PAUSE_RECORDS.delete(self.bus, PAUSED, revision=entry.revision, read_at=read_at)
            self.log("resumed")

    async def _reset(self) -> None:
        read_at = time.monotonic()
        for entry in await BREAKER_RECORDS.entries(self.bus):
            record = entry.readable()
            if isinstance(record, Breaker) and record.trip is not None:
                await BREAKER_RECORDS.put(self.bus, entry.key, reset(record), revision=entry.revision, read_at=read_at)
                self.log(f"the breaker of {entry.key} is reset: {record.trip}")
                self.judge.met[Case.TRIPPED] += 1
