"""The transitions between what was last announced and what a record says now.

Each function takes one revision of a record, and returns the first event to be published: None if the announcements
agree with the record. After the event is published and added to the announcements, the next call returns the next
event. So a repetition, another replica, or a start in the middle never announces a transition twice.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tas.enforcing.labels import is_in_our_form, policy_name
from tas.events.announcements import Announcements, Thing
from tas.events.data import (
    ALL_POLICIES,
    BreakerReset,
    BreakerTripped,
    EndReason,
    EpochChanged,
    EventData,
    Gap,
    LabelApplied,
    LabelRemoved,
    LabelsPaused,
    LabelsResumed,
    MetricEnded,
    MetricFresh,
    MetricStale,
    PolicyAccepted,
    PolicyRefused,
    PolicyRemoved,
    SourceBack,
    SourceDry,
    ViolationEnded,
    ViolationStarted,
)
from tas.events.event import SOURCE, Cause, Event, cause_of, event_of
from tas.policy.policy import PolicyKey, Problem, StrategyType
from tas.policy.rules import State
from tas.sources.state import Health, SourceState, health
from tas.verdict.freeze import ALL, Breaker, Pause
from tas.verdict.verdict import NodeVerdict, PolicyVerdict, StrategyVerdict

MAX_PROBLEMS = 5
"""The most problems of a policy that an event names."""

DRY = frozenset({Health.FAILING})
BACK = frozenset({Health.HEALTHY, Health.BEHIND, Health.PARTIAL, Health.IDLE})


class Epoch(NamedTuple):
    """The epoch of the bus: its name in ids (microseconds since 1970), and when it began, in seconds since 1970.

    `is_known` is false while the first lists of the epoch are read: then a record may be older than the epoch.
    """

    name: str
    began: float
    is_known: bool = True


class Revision(NamedTuple):
    """One revision of a record, and when the server stored it, in seconds since 1970."""

    number: int
    stored: float


class Publication:
    """What all events of one revision have in common."""

    def __init__(self, announced: Announcements, epoch: Epoch, revision: Revision, *, source: str = SOURCE) -> None:
        self.announced = announced
        self.epoch = epoch
        self.revision = revision
        self._source = source

    def last(self, thing: Thing) -> Event | None:
        """The last event of a thing."""
        return self.announced.last(thing)

    def is_later(self, event: Event | None) -> bool:
        """Whether a later revision of the record was announced already."""
        cause = None if event is None else cause_of(event)
        return cause is not None and cause.epoch == self.epoch.name and cause.revision > self.revision.number

    def is_of_epoch(self, event: Event | None) -> bool:
        """Whether the event was announced in this epoch."""
        cause = None if event is None else cause_of(event)
        return cause is not None and cause.epoch == self.epoch.name

    def is_older(self, created: float | None, *, unknown: bool) -> bool:
        """Whether an object that was created at this time is older than the epoch; `unknown` if that is not known."""
        return unknown if created is None else created <= self.epoch.began

    def event(self, data: EventData, *, time: float | None = None, resync: bool = False) -> Event:
        """An event of this revision."""
        cause = Cause(self.epoch.name, self.revision.number)
        when = self.revision.stored if time is None else time
        return event_of(data, cause, time=when, resync=resync, source=self._source)


class KnownPolicy(NamedTuple):
    """What a verdict does not say of its policy: when it was created, and whether it changes nothing."""

    created: float | None = None
    dry_run: bool = False
    uid: str = ""


UNKNOWN_POLICY = KnownPolicy()


def of_verdict(
    of: Publication,
    node: str,
    verdict: NodeVerdict | None,
    *,
    node_created: float | None,
    policies: Mapping[PolicyKey, KnownPolicy],
) -> Event | None:
    """The next event by the verdict of a node; None for a deleted verdict, whose node was deleted."""
    if verdict is not None:
        for key, policy in verdict.policies.items():
            known = policies.get(key, UNKNOWN_POLICY)
            for kind, strategy in policy.strategies.items():
                about = _Strategy(of, node, verdict, key, policy, kind, strategy, known)
                event = about.event(node_created)
                if event is not None:
                    return event
    return _ended(of, node, verdict)


class _Strategy(NamedTuple):
    """A strategy of a policy for a node, in one revision of the verdict."""

    of: Publication
    node: str
    verdict: NodeVerdict
    key: PolicyKey
    policy: PolicyVerdict
    kind: StrategyType
    strategy: StrategyVerdict
    known: KnownPolicy

    def event(self, node_created: float | None) -> Event | None:
        """The next event."""
        names = (self.node, self.key.namespace, self.key.name, self.kind.value)
        violation, metric = self.of.last(("violation", *names)), self.of.last(("metric", *names))
        if self.of.is_later(violation) or self.of.is_later(metric):
            return None
        started = violation if violation is not None and isinstance(violation.data, ViolationStarted) else None
        stale = metric if metric is not None and isinstance(metric.data, MetricStale) else None
        for event in (started, stale):
            if event is not None and (reason := self._replaced(event)) is not None:
                return _end(self.of, event, reason, time=self.verdict.time)
        is_first = not self.of.is_of_epoch(violation) and not self.of.is_of_epoch(metric)
        data = self._freshness(is_stale=stale is not None)
        if data is None and self.strategy.state is State.VIOLATED and started is None:
            data = ViolationStarted(**self._names(), value=self.strategy.value, dry_run=self.known.dry_run)
        if data is not None:
            resync = isinstance(data, ViolationStarted) and is_first and self._restates(node_created)
            return self.of.event(data, time=self.strategy.changed, resync=resync)
        if self.strategy.state is State.MET and started is not None:
            return _end(self.of, started, EndReason.MET, time=self.strategy.changed, value=self.strategy.value)
        return None

    def _freshness(self, *, is_stale: bool) -> MetricStale | MetricFresh | ViolationStarted | None:
        """The event about samples, if `is_stale` is not what the state says."""
        state, before = self.strategy.state, self.strategy.before
        if state is not State.UNKNOWN:
            return MetricFresh(**self._names(), state=state.value) if is_stale else None
        if is_stale or before is None:  # without a state before, there never was a fresh sample
            return None
        kept = self.strategy.kept_since
        since = None if kept is None else _time(kept)
        return MetricStale(**self._names(), state=before.value, kept_since=since)

    def _restates(self, node_created: float | None) -> bool:
        """Whether the first violation in an epoch may have begun before the epoch."""
        return (
            self.strategy.before in (None, State.UNKNOWN)
            and self.of.is_older(node_created, unknown=True)
            and self.of.is_older(self.known.created, unknown=True)
        )

    def _replaced(self, event: Event) -> EndReason | None:
        """Why an event was about another object of the same name; None if it was about this one."""
        data = event.data
        assert isinstance(data, ViolationStarted | MetricStale)
        if data.node_uid != self.verdict.node_uid:
            return EndReason.NODE_REMOVED
        return EndReason.POLICY_REMOVED if data.policy_uid != self.policy.uid else None

    def _names(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "node_uid": self.verdict.node_uid,
            "namespace": self.key.namespace,
            "policy": self.key.name,
            "strategy": self.kind.value,
            "policy_uid": self.policy.uid,
            "generation": self.policy.generation,
        }


def _ended(of: Publication, node: str, verdict: NodeVerdict | None) -> Event | None:
    """The end of the first violation, or stale metric, that the verdict does not mention any more."""
    for event in (*of.announced.of_node("violation", node), *of.announced.of_node("metric", node)):
        data = event.data
        if not isinstance(data, ViolationStarted | MetricStale):
            continue
        policy = None if verdict is None else verdict.policies.get(PolicyKey(data.namespace, data.policy))
        if (policy is not None and data.strategy in policy.strategies) or of.is_later(event):
            continue
        if verdict is None:
            return _end(of, event, EndReason.NODE_REMOVED)
        return _end(of, event, EndReason.POLICY_REMOVED, time=verdict.time)
    return None


def of_missing_node(of: Publication, channel: str, node: str) -> Event | None:
    """The next event in a channel of a node that a complete list of the API server does not have.

    The revision is that of the list: up to which revision its bucket was read. For the channels `violation` and
    `metric` the node must have no verdict up to a revision of VERDICTS, either: else that could restate what ends.
    """
    for event in of.announced.of_node(channel, node):
        if of.is_later(event):
            continue
        if isinstance(event.data, ViolationStarted | MetricStale):
            return _end(of, event, EndReason.NODE_REMOVED)
        if isinstance(event.data, LabelApplied):
            return of.event(_removed(event.data, gone=True))
    return None


def _removed(applied: LabelApplied, *, gone: bool) -> LabelRemoved:
    return LabelRemoved(
        node=applied.node,
        node_uid=applied.node_uid,
        label=applied.label,
        previous=applied.value,
        policy=applied.policy,
        gone=gone,
    )


def _end(
    of: Publication, started: Event, reason: EndReason, *, time: float | None = None, value: str | None = None
) -> Event:
    assert isinstance(started.data, ViolationStarted | MetricStale)
    is_violation = isinstance(started.data, ViolationStarted)
    end: type[ViolationEnded | MetricEnded] = ViolationEnded if is_violation else MetricEnded
    fields = msgspec.structs.asdict(started.data)
    about = {name: fields[name] for name in end.__struct_fields__ if name in fields}
    about |= {"reason": reason, "since": _time(started.time)}  # the end's own, whatever the start has
    if value is not None:
        about["value"] = value
    return of.event(end(**about), time=time)


def of_labels(
    of: Publication,
    node: str,
    labels: Mapping[str, str] | None,
    *,
    node_uid: str,
    node_created: float | None,
    is_complete: bool = True,
) -> Event | None:
    """The next event by the labels of a node; None for a deleted node.

    `is_complete` is false if some labels are not known: then none counts as removed.
    """
    ours = {label: value for label, value in (labels or {}).items() if is_in_our_form(label, value)}
    for event in of.announced.of_node("label", node):
        data = event.data
        if not isinstance(data, LabelApplied) or of.is_later(event):
            continue
        is_other = labels is not None and data.node_uid != node_uid
        if is_other or (data.label not in ours and (is_complete or labels is None)):
            return of.event(_removed(data, gone=is_other or labels is None))
    for label, value in sorted(ours.items()):
        last = of.last(("label", node, label))
        applied = last.data if last is not None and isinstance(last.data, LabelApplied) else None
        if of.is_later(last) or (applied is not None and applied.value == value):
            continue
        data = LabelApplied(
            node=node,
            node_uid=node_uid,
            label=label,
            value=value,
            policy=policy_name(label),
            previous=None if applied is None else applied.value,
        )
        is_known = of.is_of_epoch(last) or of.epoch.is_known
        return of.event(data, resync=not is_known and of.is_older(node_created, unknown=True))
    return None


def of_policy(
    of: Publication,
    key: PolicyKey,
    *,
    uid: str,
    generation: int,
    problems: tuple[Problem, ...],
    created: float | None,
) -> Event | None:
    """The next event by a stored policy."""
    last = of.last(("policy", key.namespace, key.name))
    refused = [str(each) for each in problems if each.refused]
    data: PolicyAccepted | PolicyRefused
    if refused:
        data = PolicyRefused(
            namespace=key.namespace,
            policy=key.name,
            policy_uid=uid,
            generation=generation,
            problems=tuple(refused[:MAX_PROBLEMS]),
            total=len(refused),
        )
    else:
        data = PolicyAccepted(namespace=key.namespace, policy=key.name, policy_uid=uid, generation=generation)
    if of.is_later(last) or (last is not None and last.data == data):
        return None
    resync = not of.is_of_epoch(last) and of.is_older(created, unknown=not of.epoch.is_known)
    return of.event(data, resync=resync)


def of_removed_policy(of: Publication, key: PolicyKey) -> Event | None:
    """The next event by the deletion of a policy, or by a complete list that does not have the policy."""
    last = of.last(("policy", key.namespace, key.name))
    if last is None or of.is_later(last) or not isinstance(last.data, PolicyAccepted | PolicyRefused):
        return None
    uid, generation = last.data.policy_uid, last.data.generation
    data = PolicyRemoved(namespace=key.namespace, policy=key.name, policy_uid=uid, generation=generation)
    return of.event(data)


def of_source(of: Publication, source: str, state: SourceState | None) -> Event | None:
    """The next event by the stored state of a source; None for a source that is no longer configured.

    That nobody reads the source is not announced: then its metrics become stale.
    """
    last = of.last(("source", source))
    if of.is_later(last):
        return None
    dry = last if last is not None and isinstance(last.data, SourceDry) else None
    current = Health.IDLE if state is None else health(state, is_held=True, now=state.time)
    kind = "" if state is None else state.kind
    if current in DRY and dry is None:
        problem = "" if state is None else state.problem or _missing(state)
        is_known = of.is_of_epoch(last) or of.epoch.is_known
        return of.event(SourceDry(source=source, kind=kind, problem=problem), resync=not is_known)
    if current in BACK and dry is not None:
        return of.event(SourceBack(source=source, kind=kind, since=_time(dry.time)))
    return None


def _missing(state: SourceState) -> str:
    return next((f"{name}: {metric.missing}" for name, metric in state.metrics.items() if metric.missing), "")


def of_breaker(of: Publication, name: str, breaker: Breaker | None) -> Event | None:
    """The next event by the breaker of all policies of a name, or of `ALL`; None for a deleted breaker: it is reset."""
    policy = "" if name == ALL else name
    last = of.last(("breaker", policy or ALL_POLICIES))
    if of.is_later(last):
        return None
    tripped = last if last is not None and isinstance(last.data, BreakerTripped) else None
    trip = None if breaker is None else breaker.trip
    if trip is not None and (tripped is None or tripped.time != trip.since):
        data = BreakerTripped(policy=policy, limit=trip.limit, wanted=trip.wanted, selected=trip.selected)
        return of.event(data, time=trip.since, resync=_restates(of, last, trip.since))
    if trip is None and tripped is not None:
        return of.event(BreakerReset(policy=policy, since=_time(tripped.time)))
    return None


def of_pause(of: Publication, pause: Pause | None) -> Event | None:
    """The next event by the stored pause; None for no pause."""
    last = of.last(("pause",))
    if of.is_later(last):
        return None
    paused = last if last is not None and isinstance(last.data, LabelsPaused) else None
    if pause is not None and (paused is None or paused.time != pause.since):
        data = LabelsPaused(by=pause.by, reason=pause.reason)
        return of.event(data, time=pause.since, resync=_restates(of, last, pause.since))
    if pause is None and paused is not None:
        return of.event(LabelsResumed(since=_time(paused.time)))
    return None


def _restates(of: Publication, last: Event | None, since: float) -> bool:
    """Whether a freeze is older than the epoch: after a wipe of the bus `labels` writes it again."""
    return not of.is_of_epoch(last) and of.is_older(since, unknown=False)


def of_epoch(of: Publication) -> Event | None:
    """The event of the current epoch, unless it was announced."""
    last = of.last(("bus.epoch",))
    previous = last.data.epoch if last is not None and isinstance(last.data, EpochChanged) else ""
    if previous == of.epoch.name:
        return None
    return of.event(EpochChanged(epoch=of.epoch.name, previous=previous), time=of.epoch.began)


def of_gap(of: Publication, data: Gap) -> Event | None:
    """The event of a gap, unless it was announced."""
    last = of.last(("gap",))
    return None if last is not None and last.data == data else of.event(data)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
