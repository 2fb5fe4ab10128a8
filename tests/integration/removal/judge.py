"""The judge: compares every removal of a label with what could be known just before it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.integration.removal.cases import Case, late
from tests.integration.removal.limits import LimitJudge
from tests.integration.removal.model import (
    PREFIX,
    REPLACEABLE,
    SOURCES,
    VIOLATING,
    Key,
    Sample,
    Spec,
    claims,
    clear_for,
    is_silent,
    is_violated,
    keeps,
    labels_of,
    met,
    selects,
)
from tests.integration.removal.observed import Observed, Request, Version, Written
from tests.integration.removal.spans import Span, intersection, lasting, outside, union

FRESH_SECONDS = 2.0
"""How old the reads of a removal may be when it is sent."""

SLACK_SECONDS = 0.5
"""The allowance for lateness on a busy machine, in addition to the measured lateness."""

GAP_SECONDS = 0.3
"""A break of `clearFor` that may be unnoticed."""

SLOWEST_SECONDS = 3.0
"""Longer than the API server takes for a request."""

LATER_SECONDS = 1.0
"""The delay before a removal is judged: by then the log has all that was known at its time."""


SHARP_SECONDS = 1.0
"""A removal with a larger allowance for lateness proves little, and is counted separately."""

JUDGE_SECONDS = 0.2

PRODUCT = "tas-on-nats/"
"""The user agent of a replica, before its name."""

GROUNDS = (Case.SAMPLE, Case.SELECTOR, Case.CLEAR)
"""The reasons of a policy to remove a label. A removal is counted by the last one that it needs, in this order."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A label that the product removed from a node; `late` and `stopped` are its allowances in seconds."""

    node: str
    uid: str
    label: str
    before: Mapping[str, str]
    was: int
    at: float
    late: float
    stopped: float
    ours: bool
    set_by_user: bool

    @property
    def policy_name(self) -> str:
        return self.label.removeprefix(PREFIX).partition("/")[0]

    def __str__(self) -> str:
        return f"{self.label}={self.before[self.label]} from {self.node}"


class Reason(NamedTuple):
    """Why a label may be removed; with the policy, if the policy is the reason."""

    case: Case
    key: Key | None = None
    spec: Spec | None = None


@dataclass
class Judge:
    """Compares each removal with the log.

    Attributes:
        late: The recent lateness of this process, in seconds.
        stopped: For how long the sender of a patch at this time may have been stopped just before.
        clocks: By how many seconds the clocks of replicas are wrong; below 0 they are behind.
        verdicts: The number of removals by reason; under another name if they were judged late.
        met: The hard cases of all removals.
        faults: Removals without a reason.
        limits: The judge of the limits; None: the history has none.
    """

    observed: Observed
    default_stale_after: float
    log: Callable[[str], None]
    late: Callable[[], float]
    stopped: Callable[[float], float]
    clocks: Mapping[str, float] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    limits: LimitJudge | None = None
    _waiting: list[Removal] = field(default_factory=list)

    def take(self, written: Written) -> None:
        """Notes a write, and the removals in it that are to be judged."""
        self.observed.note(written)
        if self.limits is not None:
            self.limits.take(written)
        if written.kind == "node" and written.now is not None:
            self._take_node(written, written.now)

    def _take_node(self, written: Written, now: Mapping[str, object]) -> None:
        before, after = _labels(written.before), _labels(now)
        node, uid = written.key[1], _uid(now)
        for label in before.keys() | after.keys():
            if before.get(label) == after.get(label):
                continue
            place = (node, uid, label)
            if label in after and not written.by_test and "/" not in label:
                self._judge_set(node, label, before.get(label), after[label])
            if label not in after and not written.by_test:
                removal = Removal(
                    node=node,
                    uid=uid,
                    label=label,
                    before=before,
                    was=0 if written.before is None else int(written.before["metadata"]["resourceVersion"]),
                    at=written.at,
                    late=self.late(),
                    stopped=self.stopped(written.at),
                    # `extender` is the original's manager; the histories name those labels so.
                    ours=self.observed.setters.get(place, False) or label.startswith("original-"),
                    set_by_user=not self.observed.setters.get(place, False),
                )
                self._waiting.append(removal)
            self.observed.setters[place] = not written.by_test

    async def run(self) -> None:
        """Judges until cancelled."""
        while True:
            await asyncio.sleep(JUDGE_SECONDS)
            self.judge()

    @property
    def is_behind(self) -> bool:
        """Whether the log may lack what was known at the time of a removal: on a busy machine the watches are late."""
        return any(removal.at > self.observed.complete_until for removal in self._waiting)

    def slowest(self, _: float) -> float:
        """How many seconds a patch may need in the API server."""
        return SLOWEST_SECONDS + self.late()

    def allowance(self, at: float) -> float:
        """How many seconds before a patch its sender may have read, by the time of the write."""
        return FRESH_SECONDS + SLACK_SECONDS + self.stopped(at) + self.late()

    def judge(self, *, all_of_them: bool = False) -> None:
        """Judges the removals that have waited long enough; at the end all, and all policies that were on the bus."""
        until = min(time.time() - LATER_SECONDS, self.observed.complete_until)
        while self._waiting and (all_of_them or self._waiting[0].at < until):
            self._judge(self._waiting.pop(0))
        if all_of_them:
            self.faults += self.observed.unknown_policies()
            if self.limits is not None:
                self.limits.judge()
                self.faults += self.limits.faults

    def must_have_no_faults(self) -> None:
        """Fails with every removal without a reason."""
        assert not self.faults, "\n".join(self.faults)

    def _judge_set(self, node: str, label: str, before: str | None, after: str) -> None:
        """The product may only set a label without prefix to `violating`, and only in place of a value of TAS."""
        if after != VIOLATING or (before is not None and before not in REPLACEABLE):
            self.faults.append(f"{label} of {node} was changed from {before} to {after}")

    # The law

    def _judge(self, removal: Removal) -> None:
        # The writer had read the last version of the node, so it sent the patch after that. The API server may be slow.
        sent = [
            request
            for request in self.observed.patches.get(removal.node, [])
            if request.version >= removal.was
            and removal.at - SLOWEST_SECONDS - removal.late < request.at <= removal.at + removal.late
            and request.call.status == 200
        ]
        if not sent:
            self.faults.append(f"{removal} was removed by a patch that was sent before the last write of the node")
            return
        allowed = FRESH_SECONDS + SLACK_SECONDS + removal.stopped + removal.late
        reason = self._reason(removal, sent, allowed)
        self.log(f"{removal} was removed {time.time() - removal.at:.2f} s ago: {reason and reason.case}")
        if reason is None:
            self.faults.append(f"{removal} was removed without a reason; {self._known(removal)}")
        else:
            self.verdicts[reason.case if removal.late <= SHARP_SECONDS else late(reason.case)] += 1
            if reason.key is not None:
                self.met.update(self._hard_cases(removal, sent[-1], reason.key, reason.spec))

    def _reason(self, removal: Removal, sent: Sequence[Request], allowed: float) -> Reason | None:
        """The reason of a removal by one of the patches `sent`, with reads of at most `allowed` seconds before."""
        bare = not removal.label.startswith(PREFIX)
        if bare and removal.before[removal.label] != VIOLATING:
            return None
        keys = [key for key in self.observed.policies if key[1] == removal.policy_name]
        window = (min(patch.at for patch in sent) - allowed, removal.at)
        for number, ground in enumerate(GROUNDS):
            for key in keys:
                for version in self._confirming(key, removal, window, GROUNDS[: number + 1]):
                    age = (version.created, key)
                    if all(other == key or self._gives_way(other, age, removal, window) for other in keys):
                        return Reason(ground, key, version.spec)
        listed = (not bare or removal.ours) and any(self._was_listed(each, allowed, keys, removal) for each in sent)
        return Reason(Case.ORPHAN) if listed else None

    def _hard_cases(self, removal: Removal, patch: Request, key: Key, spec: Spec | None) -> set[Case]:
        """What made a removal hard that this policy confirmed, when the patch was sent."""
        assert spec is not None
        rules = labels_of(removal.policy_name, spec)[removal.label].counting
        now = [self._newest(rule, removal.node, patch.at) for rule in rules]
        twins = [
            version
            for other in self.observed.policies
            if other != key and other[1] == key[1]
            for version in self.observed.policies[other]
            if version.spec is not None and claims(version.spec, removal.label)
        ]
        is_hard = {
            Case.TWIN: any(twin.since <= patch.at <= twin.until for twin in twins),
            Case.EQUALS: any(rule["operator"] == "Equals" for rule in rules),
            Case.SOURCES: any(len(self._states(rule, removal.node, patch.at)) > 1 for rule in rules),
            Case.AHEAD: any(sample is not None and sample.is_ahead for sample in now),
            Case.TABLE: any(sample is not None and sample.in_table for sample in now),
            Case.CLOCK: bool(self.clocks.get(patch.call.user_agent.removeprefix(PRODUCT))),
        }
        return {case for case, hard in is_hard.items() if hard}

    def _states(self, rule: Mapping[str, Any], node: str, at: float) -> set[bool]:
        """Whether the newest sample of each source violates the rule."""
        each = (self._newest({**rule, "source": source}, node, at) for source in SOURCES)
        return {is_violated(rule, sample.value) for sample in each if sample is not None}

    def _newest(self, rule: Mapping[str, Any], node: str, at: float) -> Sample | None:
        """The newest sample for a rule that may have been stored at this time."""
        found = self.observed.samples.readable(node, rule["metricname"], rule.get("source"))
        return max(
            (sample for sample, (start, end) in found if start <= at <= end),
            key=lambda sample: sample.earliest,
            default=None,
        )

    def _confirming(self, key: Key, removal: Removal, window: Span, grounds: Collection[Case]) -> list[Version]:
        """Which versions of the policy of this key gave in `window` one of these `grounds`."""
        versions = self.observed.policies[key]
        found: list[Version] = []
        for number, version in enumerate(versions):
            spec = version.spec
            if spec is None or is_silent(spec) or removal.label not in labels_of(removal.policy_name, spec):
                continue
            readable = intersection(self._readable(key, number), [window])
            if not readable or not selects(spec, removal.before):
                found += [version] if readable and Case.SELECTOR in grounds else []
                continue
            spans = intersection(self._met(spec, removal, grounds), readable)
            seconds = clear_for(spec, removal.policy_name, removal.label)
            if seconds and spans and not removal.set_by_user:
                spans = intersection(lasting(self._unbroken(key, version, removal, grounds), seconds), spans)
            found += [version] if spans else []
        return found

    def _readable(self, key: Key, number: int) -> list[Span]:
        return self.observed.readable(key, number, fresh=FRESH_SECONDS + SLACK_SECONDS)

    def _met(self, spec: Spec, removal: Removal, grounds: Collection[Case]) -> list[Span]:
        return met(
            spec,
            removal.policy_name,
            removal.label,
            node=removal.node,
            samples=self.observed.samples,
            default_stale_after=self.default_stale_after,
            stale_counts=Case.CLEAR in grounds,
            clocks=(min((0.0, *self.clocks.values())), max((0.0, *self.clocks.values()))),
        )

    def _unbroken(self, key: Key, version: Version, removal: Removal, grounds: Collection[Case]) -> list[Span]:
        """When the rules of a label were met on this node without a break, by the versions of the policy."""
        found: list[Span] = []
        nodes = self.observed.node_spans(removal.node, removal.uid)
        for number, each in enumerate(self.observed.policies[key]):
            if each.spec is None or each.identity[0] != version.identity[0]:
                continue
            spec = each.spec
            unselected = [span for span, labels in nodes if not selects(spec, labels)]
            spans = [*self._met(spec, removal, grounds), *(unselected if Case.SELECTOR in grounds else ())]
            found += intersection(spans, self._readable(key, number))
        alive = union(span for span, _ in nodes)
        return union(intersection(found, alive), gap=GAP_SECONDS + removal.late)

    def _gives_way(self, other: Key, age: tuple[str, Key], removal: Removal, window: Span) -> bool:
        """Whether at some moment in `window` no policy `other` owned the label before one created at `age`."""
        without: list[Span] = []
        for version in self.observed.policies[other]:
            if version.spec is None or (claims(version.spec, removal.label) and (version.created, other) < age):
                continue
            without += self.observed.stored(other, version)
        return bool(intersection([*without, *self.observed.without(other)], [window]))

    def _was_listed(self, patch: Request, allowed: float, keys: Sequence[Key], removal: Removal) -> bool:
        """Whether the sender of `patch` had a list of policies of which none keeps the label.

        That replica must have requested the list not too long before, and have had the complete answer.
        """
        early = self.observed.early
        return any(
            self._no_policy_kept(keys, removal, (asked.at - early, min(asked.call.answered, patch.at) + early))
            for asked in self.observed.lists
            if asked.call.user_agent == patch.call.user_agent
            and patch.at - allowed <= asked.at <= patch.at
            and asked.call.status == 200
            and asked.call.answered
        )

    def _no_policy_kept(self, keys: Sequence[Key], removal: Removal, window: Span) -> bool:
        """Whether at some moment no policy of the API server kept the label."""
        keeping = [
            (each.since, each.until)
            for key in keys
            for each in self.observed.policies[key]
            if each.spec is not None and keeps(each.spec, removal.policy_name, removal.label)
        ]
        return bool(outside(union(keeping), window))

    def _known(self, removal: Removal) -> str:
        """What was known, in seconds relative to the removal."""

        def ago(spans: list[Span]) -> list[tuple[float, float]]:
            recent = intersection(spans, [(removal.at - 10, removal.at + 1)])
            return [(round(start - removal.at, 3), round(end - removal.at, 3)) for start, end in recent]

        policies = {
            key: [
                (version.spec, ago(self._readable(key, number)), "stored", ago(self.observed.stored(key, version)))
                for number, version in enumerate(versions)
                if version.until > removal.at - 10
            ]
            for key, versions in self.observed.policies.items()
            if key[1] == removal.policy_name
        }
        samples = {
            metric: [
                (sample.value, round(sample.measured - removal.at, 3), *ago([span]))
                for sample, span in self.observed.samples.readable(removal.node, metric)
                if ago([span])
            ]
            for place, metric in self.observed.samples.sent
            if place == removal.node
        }
        lists = [
            (asked.call.user_agent, asked.call.status, round(asked.at - removal.at, 3), asked.call.answered > 0)
            for asked in self.observed.lists
            if asked.at > removal.at - 10
        ]
        return f"late {removal.late:.2f} s, set by a user: {removal.set_by_user}; {policies}; {samples}; {lists}"


def _labels(node: Mapping[str, object] | None) -> Mapping[str, str]:
    metadata = {} if node is None else node["metadata"]
    assert isinstance(metadata, Mapping)
    labels: Mapping[str, str] = metadata.get("labels", {})
    return labels


def _uid(node: Mapping[str, object]) -> str:
    metadata = node["metadata"]
    assert isinstance(metadata, Mapping)
    return str(metadata["uid"])
