"""Who judges: every removal of a label, as the API server wrote it, against what could be known just before."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.integration.removal.cases import Case, late
from tests.integration.removal.model import (
    PREFIX,
    VIOLATING,
    Key,
    Spec,
    clear_for,
    is_silent,
    keeps,
    labels_of,
    met,
    names,
    selects,
)
from tests.integration.removal.observed import Observed, Request, Version, Written
from tests.integration.removal.spans import Span, intersection, lasting, outside, union

FRESH_SECONDS = 2.0
"""How old what a removal stands on may be when it is sent."""

SLACK_SECONDS = 0.5
"""How late something may happen or be noticed on a busy machine, beyond what is measured."""

GAP_SECONDS = 0.3
"""So short a break of `clearFor` nobody need have noticed."""

SLOWEST_SECONDS = 3.0
"""Longer than the API server here takes to do what it is asked."""

LATER_SECONDS = 1.0
"""After which a removal is judged: by then all that was known then has been seen here too."""


SHARP_SECONDS = 1.0
"""Of a removal for which more lateness is allowed than this, little can be said: it counts by itself."""

LOOK_SECONDS = 0.2

GROUNDS = (Case.SAMPLE, Case.SELECTOR, Case.CLEAR)
"""By what a policy lets a label go. A removal is counted by the last of those that it needs, in this order."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A label that went from a node, by whomever but the test; `late` and `stopped` are the seconds allowed for it."""

    node: str
    uid: str
    label: str
    before: Mapping[str, str]
    was: int
    at: float
    late: float
    stopped: float
    ours: bool
    put_by_hand: bool

    @property
    def policy_name(self) -> str:
        return self.label.removeprefix(PREFIX).partition("/")[0]

    def __str__(self) -> str:
        return f"{self.label}={self.before[self.label]} from {self.node}"


@dataclass
class Judge:
    """Holds each removal against the log.

    Attributes:
        late: How late all that happens in this process has been seen lately, in seconds.
        stopped: For how long whoever may have sent a patch at this time had been stopped just before.
        verdicts: How often which case let a label go; by another name if we were too late for much of a judgement.
        wrongs: Removals without a reason.
    """

    observed: Observed
    default_stale_after: float
    tell: Callable[[str], None]
    late: Callable[[], float]
    stopped: Callable[[float], float]
    verdicts: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    _waiting: list[Removal] = field(default_factory=list)

    def take(self, written: Written) -> None:
        """Notes a write, and what is to be judged of it."""
        self.observed.note(written)
        if written.kind == "node" and written.now is not None:
            self._take_node(written, written.now)

    def _take_node(self, written: Written, now: Mapping[str, object]) -> None:
        before, after = _labels(written.before), _labels(now)
        node, uid = written.key[1], _uid(now)
        for label in before.keys() | after.keys():
            if before.get(label) == after.get(label):
                continue
            place = (node, uid, label)
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
                    put_by_hand=not self.observed.setters.get(place, False),
                )
                self._waiting.append(removal)
            self.observed.setters[place] = not written.by_test

    async def run(self) -> None:
        """Judges until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self, *, all_of_them: bool = False) -> None:
        """Judges what has waited long enough; in the end all, and what stood on the bus."""
        until = time.time() - LATER_SECONDS
        while self._waiting and (all_of_them or self._waiting[0].at < until):
            self._judge(self._waiting.pop(0))
        if all_of_them:
            self.wrongs += self.observed.unknown_policies()

    def must_be_content(self) -> None:
        """Fails with every removal that had no reason."""
        assert not self.wrongs, "\n".join(self.wrongs)

    # The law

    def _judge(self, removal: Removal) -> None:
        # Who wrote this had read the node as it was before, so it asked after that. The API server may be slow.
        sent = [
            request
            for request in self.observed.patches.get(removal.node, [])
            if request.version >= removal.was
            and removal.at - SLOWEST_SECONDS - removal.late < request.at <= removal.at + removal.late
            and request.call.status == 200
        ]
        if not sent:
            self.wrongs.append(f"{removal} went by a patch that was sent before the node was last written")
            return
        allowed = FRESH_SECONDS + SLACK_SECONDS + removal.stopped + removal.late
        reason = self._reason(removal, sent, allowed)
        self.tell(f"{removal} went {time.time() - removal.at:.2f} s ago: {reason}")
        if reason is None:
            self.wrongs.append(f"{removal} went for no reason; {self._known(removal)}")
        else:
            self.verdicts[reason if removal.late <= SHARP_SECONDS else late(reason)] += 1

    def _reason(self, removal: Removal, sent: Sequence[Request], allowed: float) -> Case | None:
        """Why it might go, by one of the patches `sent`, which stood on nothing older than `allowed` seconds."""
        bare = not removal.label.startswith(PREFIX)
        if bare and removal.before[removal.label] != VIOLATING:
            return None
        keys = [key for key in self.observed.policies if key[1] == removal.policy_name]
        window = (min(patch.at for patch in sent) - allowed, removal.at)
        for number, ground in enumerate(GROUNDS):
            confirming = {key: self._confirming(key, removal, window, GROUNDS[: number + 1]) for key in keys}
            if any(confirming.values()) and all(self._agrees(key, confirming[key], removal, window) for key in keys):
                return ground
        ours = not bare or removal.ours
        return Case.ORPHAN if ours and any(self._was_listed(patch, allowed, keys, removal) for patch in sent) else None

    def _confirming(self, key: Key, removal: Removal, window: Span, grounds: Collection[Case]) -> list[Span]:
        """When in `window` a policy said, by one of these `grounds`, that a label goes."""
        versions = self.observed.policies[key]
        found: list[Span] = []
        for number, version in enumerate(versions):
            spec = version.spec
            if spec is None or is_silent(spec) or removal.label not in labels_of(removal.policy_name, spec):
                continue
            readable = intersection(self._readable(key, number), [window])
            if not readable or not selects(spec, removal.before):
                found += readable if Case.SELECTOR in grounds else []
                continue
            spans = intersection(self._met(spec, removal, grounds), readable)
            seconds = clear_for(spec, removal.policy_name, removal.label)
            if seconds and spans and not removal.put_by_hand:
                spans = intersection(lasting(self._unbroken(key, version, removal, grounds), seconds), spans)
            found += spans
        return union(found)

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
        )

    def _unbroken(self, key: Key, version: Version, removal: Removal, grounds: Collection[Case]) -> list[Span]:
        """When the rules of a label were met without a break, by this policy as it stood each time, on this node."""
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

    def _agrees(self, key: Key, confirming: list[Span], removal: Removal, window: Span) -> bool:
        """Whether a policy of the label's name had nothing against it: it said so, had no word in it, or was not."""
        if confirming:
            return True
        silent: list[Span] = []
        for version in self.observed.policies[key]:
            if version.spec is not None and not names(version.spec, removal.policy_name, removal.label):
                silent += self.observed.stood(key, version)
        return bool(intersection([*silent, *self.observed.without(key)], [window]))

    def _was_listed(self, patch: Request, allowed: float, keys: Sequence[Key], removal: Removal) -> bool:
        """Whether a list of policies without a word in the label was what the sender of `patch` stood on.

        That replica itself must have asked for the list, not too long before, and have had a whole answer by then.
        """
        early = self.observed.early
        return any(
            self._nobody_kept(keys, removal, (asked.at - early, min(asked.call.answered, patch.at) + early))
            for asked in self.observed.lists
            if asked.call.user_agent == patch.call.user_agent
            and patch.at - allowed <= asked.at <= patch.at
            and asked.call.status == 200
            and asked.call.answered
        )

    def _nobody_kept(self, keys: Sequence[Key], removal: Removal, window: Span) -> bool:
        """Whether there was a moment in which no policy of the API server had to do with the label."""
        keeping = [
            (each.since, each.until)
            for key in keys
            for each in self.observed.policies[key]
            if each.spec is not None and keeps(each.spec, removal.policy_name, removal.label)
        ]
        return bool(outside(union(keeping), window))

    def _known(self, removal: Removal) -> str:
        """What was known, in seconds before the removal."""

        def ago(spans: list[Span]) -> list[tuple[float, float]]:
            recent = intersection(spans, [(removal.at - 10, removal.at + 1)])
            return [(round(start - removal.at, 3), round(end - removal.at, 3)) for start, end in recent]

        policies = {
            key: [
                (version.spec, ago(self._readable(key, number)), "stood", ago(self.observed.stood(key, version)))
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
        return f"late {removal.late:.2f} s, by hand: {removal.put_by_hand}; {policies}; {samples}; {lists}"


def _labels(node: Mapping[str, object] | None) -> Mapping[str, str]:
    metadata = {} if node is None else node["metadata"]
    assert isinstance(metadata, Mapping)
    labels: Mapping[str, str] = metadata.get("labels", {})
    return labels


def _uid(node: Mapping[str, object]) -> str:
    metadata = node["metadata"]
    assert isinstance(metadata, Mapping)
    return str(metadata["uid"])
