"""Which transition is announced by which revision, for any history, whatever is killed, repeated or late."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tas.events.announcements import Announcements, thing_of
from tas.events.data import (
    BreakerTripped,
    EndReason,
    Gap,
    LabelApplied,
    LabelRemoved,
    LabelsPaused,
    LabelsResumed,
    MetricEnded,
    MetricStale,
    PolicyRemoved,
    SourceDry,
    ViolationEnded,
    ViolationStarted,
)
from tas.events.event import Event
from tas.events.transitions import (
    MAX_PROBLEMS,
    Epoch,
    KnownPolicy,
    Publication,
    Revision,
    of_breaker,
    of_epoch,
    of_gap,
    of_labels,
    of_missing_node,
    of_pause,
    of_policy,
    of_removed_policy,
    of_source,
    of_verdict,
)
from tas.notifying.alerts import AlertBook
from tas.notifying.notices import notice_of
from tas.policy.policy import PolicyKey, Problem, StrategyType
from tas.policy.rules import State
from tas.sources.state import SourceMetric, SourceState
from tas.verdict.freeze import ALL, Breaker, Pause, Trip
from tas.verdict.verdict import NodeVerdict, PolicyVerdict, StrategyVerdict

VIOLATED, MET, UNKNOWN = State.VIOLATED, State.MET, State.UNKNOWN
EPOCH = Epoch("1000000", 1.0)
OLD, NEW = 0.5, 2.0
KEY = PolicyKey("default", "p")
DESCHEDULE = StrategyType.DESCHEDULE


def strategy(state: State, before: State | None = None, changed: float = 10.0) -> StrategyVerdict:
    return StrategyVerdict(state=state, changed=changed, before=before, value="2")


def verdict(
    policies: Mapping[str, StrategyVerdict], *, node_uid: str = "n", uid: str = "u", time: float = 20.0
) -> NodeVerdict:
    return NodeVerdict(
        node_uid=node_uid,
        nodes_revision=1,
        policies_revision=1,
        time=time,
        policies={
            PolicyKey("default", name): PolicyVerdict(uid=uid, generation=1, strategies={DESCHEDULE: each})
            for name, each in policies.items()
        },
    )


class Publisher:
    """Publishes all events of one revision after the other, as the only replica."""

    def __init__(self, epoch: Epoch = EPOCH) -> None:
        self.announced = Announcements()
        self.epoch = epoch
        self.revision = 100
        self.published: list[Event] = []

    def publish(self, next_event: Callable[[Publication], Event | None]) -> list[Event]:
        """The events of the next revision."""
        self.revision += 1
        of = Publication(self.announced, self.epoch, Revision(self.revision, 30.0))
        found: list[Event] = []
        while (event := next_event(of)) is not None:
            assert len(found) < 20, "no end"
            found.append(event)
            self.announced.add(event, len(self.published) + len(found))
        self.published += found
        return found

    def verdict(
        self,
        found: NodeVerdict | None,
        *,
        node_created: float | None = OLD,
        policies: Mapping[PolicyKey, KnownPolicy] = {},
    ) -> list[Event]:
        return self.publish(lambda of: of_verdict(of, "node-1", found, node_created=node_created, policies=policies))

    def states(self, *states: State) -> list[list[str]]:
        """The types of events of each of these states, one after the other."""
        before: State | None = None
        types: list[list[str]] = []
        for state in states:
            types.append([event.data.TYPE for event in self.verdict(verdict({"p": strategy(state, before)}))])
            before = state
        return types

    def missing(self, channel: str) -> list[Event]:
        """The events of a complete list without the node."""
        return self.publish(lambda of: of_missing_node(of, channel, "node-1"))

    def labels(self, labels: Mapping[str, str] | None, *, uid: str = "n", is_complete: bool = True) -> list[Event]:
        return self.publish(
            lambda of: of_labels(of, "node-1", labels, node_uid=uid, node_created=OLD, is_complete=is_complete)
        )


def types(events: Sequence[Event]) -> list[str]:
    return [event.data.TYPE.removesuffix(".v1") for event in events]


def test_each_change_of_the_state_is_one_event() -> None:
    assert Publisher().states(UNKNOWN, MET, VIOLATED, UNKNOWN, VIOLATED, UNKNOWN, MET, UNKNOWN) == [
        [],
        [],
        ["violation.started.v1"],
        ["metric.stale.v1"],
        ["metric.fresh.v1"],
        ["metric.stale.v1"],
        ["metric.fresh.v1", "violation.ended.v1"],
        ["metric.stale.v1"],
    ]


def test_a_node_that_is_rejected_by_its_last_known_value_has_its_time_in_the_event() -> None:
    publisher = Publisher()
    publisher.verdict(verdict({"p": strategy(VIOLATED, MET, changed=5.0)}))
    kept = replace(strategy(UNKNOWN, VIOLATED, changed=9.0), rejects=True, kept_since=4.0)
    (stale,) = publisher.verdict(verdict({"p": kept}))
    assert isinstance(stale.data, MetricStale)
    assert stale.data.kept_since == datetime.fromtimestamp(4.0, UTC)


def test_an_event_has_the_time_of_the_transition_and_not_of_its_publication() -> None:
    publisher = Publisher()
    (started,) = publisher.verdict(verdict({"p": strategy(VIOLATED, MET, changed=5.0)}))
    (ended,) = publisher.verdict(verdict({"p": strategy(MET, VIOLATED, changed=6.0)}))
    assert (started.time, ended.time) == (5.0, 6.0)
    assert isinstance(ended.data, ViolationEnded)
    assert ended.data.since is not None
    assert (ended.data.reason, ended.data.since.timestamp()) == (EndReason.MET, 5.0)


def test_a_violation_that_is_met_ends_with_the_value_that_meets_the_rule() -> None:
    publisher = Publisher()
    publisher.verdict(verdict({"p": replace(strategy(VIOLATED, MET), value="90")}))
    (ended,) = publisher.verdict(verdict({"p": replace(strategy(MET, VIOLATED), value="40")}))
    assert isinstance(ended.data, ViolationEnded)
    assert ended.data.value == "40"


def test_a_violation_ends_with_its_policy_and_with_its_node() -> None:
    publisher = Publisher()
    publisher.verdict(verdict({"p": strategy(VIOLATED), "q": strategy(VIOLATED)}))
    (policy,) = publisher.verdict(verdict({"q": strategy(VIOLATED)}, time=21.0))
    (node,) = publisher.verdict(None)
    assert isinstance(policy.data, ViolationEnded)
    assert isinstance(node.data, ViolationEnded)
    assert (policy.data.policy, policy.data.reason, policy.time) == ("p", EndReason.POLICY_REMOVED, 21.0)
    assert (node.data.policy, node.data.reason, node.time) == ("q", EndReason.NODE_REMOVED, 30.0)
    assert publisher.verdict(None) == []


def test_a_start_with_more_fields_ends_by_the_fields_of_the_end() -> None:
    """Fields may be added to an event, also those that its end already has."""

    class _More(ViolationStarted, frozen=True, kw_only=True):
        since: str
        reason: str

    publisher = Publisher()
    (started,) = publisher.verdict(verdict({"p": strategy(VIOLATED, MET, changed=5.0)}))
    more = _More(**asdict(started.data), since="s", reason="r")
    publisher.announced.add(replace(started, data=more), 1)
    (ended,) = publisher.verdict(verdict({"p": strategy(MET, VIOLATED, changed=6.0)}))
    assert isinstance(ended.data, ViolationEnded)
    assert (ended.data.reason, ended.data.since) == (EndReason.MET, datetime.fromtimestamp(5.0, UTC))


def test_a_violation_of_another_object_of_the_same_name_ends_before_a_new_one_starts() -> None:
    publisher = Publisher()
    publisher.verdict(verdict({"p": strategy(VIOLATED)}))
    ended, started = publisher.verdict(verdict({"p": strategy(VIOLATED)}, uid="other"))
    assert isinstance(ended.data, ViolationEnded)
    assert (ended.data.reason, ended.data.policy_uid) == (EndReason.POLICY_REMOVED, "u")
    assert isinstance(started.data, ViolationStarted)
    assert started.data.policy_uid == "other"
    ended, started = publisher.verdict(verdict({"p": strategy(VIOLATED)}, uid="other", node_uid="m"))
    assert isinstance(ended.data, ViolationEnded)
    assert ended.data.reason is EndReason.NODE_REMOVED
    publisher.verdict(verdict({"p": strategy(UNKNOWN, VIOLATED)}, uid="other", node_uid="m"))
    both = publisher.verdict(verdict({"p": strategy(MET)}, uid="third", node_uid="m"))
    assert types(both) == ["violation.ended", "metric.ended"]


def stale_publisher() -> Publisher:
    """Has announced that a metric is stale."""
    publisher = Publisher()
    assert publisher.states(MET, UNKNOWN) == [[], ["metric.stale.v1"]]
    return publisher


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        (None, EndReason.NODE_REMOVED),
        (verdict({"q": strategy(MET)}), EndReason.POLICY_REMOVED),
        (verdict({"p": strategy(MET)}, uid="other"), EndReason.POLICY_REMOVED),
        (verdict({"p": strategy(MET)}, node_uid="m"), EndReason.NODE_REMOVED),
        (verdict({"p": strategy(UNKNOWN)}, node_uid="m"), EndReason.NODE_REMOVED),
    ],
    ids=["node deleted", "policy deleted", "policy created again", "node created again", "created again and unknown"],
)
def test_a_stale_metric_ends_with_its_node_and_with_its_policy(gone: NodeVerdict | None, reason: EndReason) -> None:
    """Else an alert about a node that the autoscaler has removed fires for ever."""
    publisher = stale_publisher()
    (ended,) = publisher.verdict(gone)
    assert isinstance(ended.data, MetricEnded)
    assert (ended.data.policy, ended.data.policy_uid, ended.data.node_uid) == ("p", "u", "n")
    assert (ended.data.reason, ended.data.since) == (reason, datetime.fromtimestamp(10.0, UTC))
    assert publisher.verdict(gone) == []
    book = AlertBook()
    for event in publisher.published:
        notice = notice_of(event)
        assert notice is not None
        book.record(notice, event.time)
    assert book.firing == 0


def test_a_stale_metric_of_a_node_that_a_complete_list_does_not_have_ends() -> None:
    publisher = stale_publisher()
    assert publisher.announced.nodes("metric") == {"node-1"}
    (ended,) = publisher.missing("metric")
    assert isinstance(ended.data, MetricEnded)
    assert publisher.announced.nodes("metric") == set(), "else each node that ever was is looked up at each start"
    assert (ended.data.reason, ended.time) == (EndReason.NODE_REMOVED, 30.0)
    assert publisher.missing("metric") == []


def test_a_list_ends_nothing_that_was_announced_by_a_later_revision() -> None:
    """A replica that was paused with its list goes on, after another one has announced a new node of the name."""
    publisher = Publisher()
    publisher.states(MET, VIOLATED, UNKNOWN)
    publisher.labels({"p": "violating"})
    read_up_to, publisher.revision = publisher.revision, 50
    assert [publisher.missing(channel) for channel in ("violation", "metric", "label")] == [[]] * 3
    publisher.revision = read_up_to
    ends = [types(publisher.missing(channel)) for channel in ("violation", "metric", "label")]
    assert ends == [["violation.ended"], ["metric.ended"], ["label.removed"]]


def test_a_verdict_before_the_list_does_not_begin_what_the_list_has_ended() -> None:
    """After lost verdicts, the log still has some that are older than the list."""
    publisher = Publisher()
    publisher.states(MET, VIOLATED)
    publisher.revision = 200
    assert types(publisher.missing("violation")) == ["violation.ended"]
    publisher.revision = 150
    assert publisher.verdict(verdict({"p": strategy(VIOLATED, MET)})) == []
    assert publisher.verdict(None) == []
    publisher.revision = 201
    assert types(publisher.verdict(verdict({"p": strategy(VIOLATED, MET)}, node_uid="m"))) == ["violation.started"]


def resync(
    before: State | None = None,
    *,
    node: float | None = OLD,
    policy: float | None = OLD,
    publisher: Publisher | None = None,
) -> bool:
    (event,) = (publisher or Publisher()).verdict(
        verdict({"p": strategy(VIOLATED, before)}), node_created=node, policies={KEY: KnownPolicy(policy)}
    )
    return event.resync


def test_the_first_violation_of_an_epoch_is_a_resync_if_it_may_be_older_than_the_epoch() -> None:
    assert resync()
    assert resync(UNKNOWN)
    assert resync(node=None, policy=None)
    assert not resync(MET)
    assert not resync(node=NEW)
    assert not resync(policy=NEW)
    known = Publisher()
    known.states(MET, UNKNOWN)
    (_, started) = known.verdict(verdict({"p": strategy(VIOLATED, UNKNOWN)}))
    assert not started.resync


def test_what_an_earlier_epoch_announced_is_not_repeated_in_the_next() -> None:
    publisher = Publisher()
    publisher.verdict(verdict({"p": strategy(VIOLATED)}))
    publisher.epoch = Epoch("2000000", 2.0)
    assert publisher.verdict(verdict({"p": strategy(VIOLATED)})) == []
    (ended,) = publisher.verdict(verdict({"p": strategy(MET, VIOLATED)}))
    assert not ended.resync


def test_a_violation_of_a_policy_that_changes_nothing_says_so() -> None:
    policies = {KEY: KnownPolicy(OLD, dry_run=True)}
    (event,) = Publisher().verdict(verdict({"p": strategy(VIOLATED)}), policies=policies)
    assert isinstance(event.data, ViolationStarted)
    assert event.data.dry_run


def test_labels_are_announced_as_the_api_server_shows_them() -> None:
    publisher = Publisher()
    prefixed = "telemetry.aware.scheduling.p/card"
    assert publisher.labels({"zone": "a", "q": "other"}) == []
    assert types(publisher.labels({"zone": "a", "p": "violating", prefixed: "low"})) == ["label.applied"] * 2
    (changed,) = publisher.labels({"p": "violating", prefixed: "high"})
    assert isinstance(changed.data, LabelApplied)
    assert (changed.data.previous, changed.data.value, changed.data.policy) == ("low", "high", "p")
    assert publisher.labels({prefixed: "high"}, is_complete=False) == []
    (removed,) = publisher.labels({prefixed: "high"})
    assert isinstance(removed.data, LabelRemoved)
    assert (removed.data.label, removed.data.gone) == ("p", False)
    gone, applied = publisher.labels({prefixed: "high"}, uid="other")
    assert isinstance(gone.data, LabelRemoved)
    assert gone.data.gone
    assert types([applied]) == ["label.applied"]
    (deleted,) = publisher.labels(None)
    assert isinstance(deleted.data, LabelRemoved)
    assert deleted.data.gone


def test_labels_that_were_there_at_the_first_start_are_a_resync() -> None:
    first, later = Publisher(EPOCH._replace(is_known=False)), Publisher()
    assert [event.resync for event in first.labels({"p": "violating"})] == [True]
    assert [event.resync for event in later.labels({"p": "violating"})] == [False]


def test_a_node_that_a_complete_list_does_not_have_has_no_labels_and_no_violations() -> None:
    publisher = Publisher()
    publisher.labels({"p": "violating"})
    publisher.verdict(verdict({"p": strategy(VIOLATED)}))
    for channel, expected in (("label", "label.removed"), ("violation", "violation.ended")):
        assert types(publisher.missing(channel)) == [expected]
    assert len({event.id for event in publisher.published}) == len(publisher.published)


def test_each_generation_of_a_policy_is_accepted_or_refused_once() -> None:
    publisher = Publisher()

    def policy(generation: int, *problems: Problem, created: float | None = NEW) -> list[Event]:
        return publisher.publish(
            lambda of: of_policy(of, KEY, uid="u", generation=generation, problems=problems, created=created)
        )

    refused = Problem(field="f", value="1", reason="r", refused=True)
    ignored = Problem(field="f", value="1", reason="r", refused=False)
    assert types(policy(1)) == ["policy.accepted"]
    assert types(policy(1, ignored)) == []
    (event,) = policy(2, *[refused] * 9, ignored)
    assert (len(event.data.problems), event.data.total) == (MAX_PROBLEMS, 9)  # type: ignore[union-attr]
    assert [each.resync for each in policy(3)] == [False]
    first = Publisher(EPOCH._replace(is_known=False))
    found = first.publish(lambda of: of_policy(of, KEY, uid="u", generation=1, problems=(), created=None))
    assert [each.resync for each in found] == [True]


def test_a_refused_policy_ends_with_its_deletion() -> None:
    publisher, book = Publisher(), AlertBook()
    refused = Problem(field="f", value="1", reason="r", refused=True)

    def policy(generation: int, *problems: Problem, uid: str = "u") -> list[Event]:
        return publisher.publish(
            lambda of: of_policy(of, KEY, uid=uid, generation=generation, problems=problems, created=NEW)
        )

    def deleted() -> list[Event]:
        return publisher.publish(lambda of: of_removed_policy(of, KEY))

    def firing() -> int:
        for event in publisher.published:
            if (notice := notice_of(event)) is not None:
                book.record(notice, event.time)
        publisher.published.clear()
        return book.firing

    assert deleted() == []
    policy(3, refused)
    assert firing() == 1
    (removed,) = deleted()
    assert isinstance(removed.data, PolicyRemoved)
    assert (removed.data.policy_uid, removed.data.generation, removed.time) == ("u", 3, 30.0)
    assert deleted() == []
    assert firing() == 0
    # Created again under its name, also while nobody has seen the deletion.
    assert types(policy(1, refused, uid="v")) == ["policy.refused"]
    assert firing() == 1
    assert types(policy(1, uid="w")) == ["policy.accepted"]
    assert firing() == 0
    publisher.revision = 50  # a late deletion, or a list that was read before
    assert deleted() == []
    publisher.revision = 300
    assert types(deleted()) == ["policy.removed"]
    assert types(policy(1, uid="x")) == ["policy.accepted"]


def test_a_source_is_dry_once_and_back_once() -> None:
    publisher = Publisher()

    def source(missing: str | None, polls: int = 1) -> list[Event]:
        metrics = {} if missing is None else {"m": SourceMetric(missing=missing, nodes=0 if missing else 1)}
        state = SourceState(
            kind="prometheus", holder="h", since=0.0, time=1.0, period=1.0, polls=polls, metrics=metrics
        )
        return publisher.publish(lambda of: of_source(of, "s", state))

    assert source("", polls=0) == source("") == source(None) == []
    (dry,) = source("no value")
    assert isinstance(dry.data, SourceDry)
    assert dry.data.problem == "m: no value"
    assert source("other") == source("", polls=0) == []
    assert types(source("")) == ["source.back"]
    source("no value")
    assert types(publisher.publish(lambda of: of_source(of, "s", None))) == ["source.back"]


def test_a_breaker_trips_once_and_is_reset_once() -> None:
    publisher = Publisher()

    def breaker(found: Breaker | None, name: str = "p") -> list[Event]:
        return publisher.publish(lambda of: of_breaker(of, name, found))

    trip = Trip(since=5.0, limit=1, wanted=2, selected=3)
    assert breaker(Breaker(nodes={"a": 1})) == []
    (tripped,) = breaker(Breaker(nodes={"a": 1}, trip=trip))
    assert isinstance(tripped.data, BreakerTripped)
    assert (tripped.time, tripped.data.limit, tripped.data.wanted, tripped.data.selected) == (5.0, 1, 2, 3)
    assert breaker(Breaker(trip=trip)) == []
    again = Trip(since=6.0, limit=1, wanted=9, selected=3)
    assert types(breaker(Breaker(trip=again))) == ["breaker.tripped"]
    (reset,) = breaker(Breaker())
    assert types([reset]) == ["breaker.reset"]
    breaker(Breaker(trip=trip))
    assert types(breaker(None)) == ["breaker.reset"]
    assert breaker(None) == []
    (every,) = breaker(Breaker(trip=trip), ALL)
    assert (every.subject, every.data.names) == ("breakers/_all", ("_all",))


def test_a_pause_is_announced_once_and_so_is_its_end() -> None:
    publisher = Publisher()

    def pause(found: Pause | None) -> list[Event]:
        return publisher.publish(lambda of: of_pause(of, found))

    assert pause(None) == []
    first = Pause(by="ops@host", since=5.0, reason="maintenance")
    (paused,) = pause(first)
    assert isinstance(paused.data, LabelsPaused)
    assert (paused.time, paused.resync, paused.data.by, paused.data.reason) == (5.0, False, "ops@host", "maintenance")
    assert pause(first) == []
    assert types(pause(Pause(by="ops@host", since=6.0))) == ["labels.paused"]  # the end between the two was missed
    (resumed,) = pause(None)
    assert isinstance(resumed.data, LabelsResumed)
    assert resumed.data.since is not None
    assert (resumed.data.since.timestamp(), pause(None)) == (6.0, [])


def test_what_labels_writes_again_after_a_wipe_is_a_resync() -> None:
    publisher = Publisher()
    trip, paused = Trip(since=0.5, limit=1, wanted=2, selected=3), Pause(by="ops@host", since=0.5)
    (tripped,) = publisher.publish(lambda of: of_breaker(of, "p", Breaker(trip=trip)))
    (again,) = publisher.publish(lambda of: of_pause(of, paused))
    assert tripped.resync
    assert again.resync


def test_epochs_and_gaps_are_announced_once() -> None:
    publisher = Publisher()
    gap = Gap(stream="VERDICT_LOG", first=1, last=2)
    assert types(publisher.publish(of_epoch)) == ["bus.epochchanged"]
    assert publisher.publish(of_epoch) == []
    assert types(publisher.publish(lambda of: of_gap(of, gap))) == ["gap"]
    assert publisher.publish(lambda of: of_gap(of, gap)) == []
    publisher.epoch = Epoch("2000000", 2.0)
    (changed,) = publisher.publish(of_epoch)
    assert (changed.data.previous, changed.data.epoch) == ("1000000", "2000000")  # type: ignore[union-attr]


class Logged(NamedTuple):
    """A revision of the verdict of a node."""

    node: str
    verdict: NodeVerdict | None


NODES = ("node-1", "node-2")
POLICIES = ("p", "q")


@st.composite
def histories(draw: st.DrawFn) -> list[Logged]:
    """Verdicts as `evaluate` writes them: each has the state before; nodes and policies come and go."""
    log: list[Logged] = []
    states: dict[tuple[str, str], tuple[State, State | None]] = {}
    incarnation = dict.fromkeys(NODES, 0)
    for _ in range(draw(st.integers(1, 12))):
        node = draw(st.sampled_from(NODES))
        if draw(st.integers(0, 9)) == 0:
            incarnation[node] += 1
            states = {key: each for key, each in states.items() if key[0] != node}
            log.append(Logged(node, None))
            continue
        policies: dict[str, StrategyVerdict] = {}
        for name in POLICIES:
            state = draw(st.sampled_from((None, UNKNOWN, MET, VIOLATED)))
            if state is None:
                states.pop((node, name), None)
                continue
            last = states.get((node, name))
            if last is None or last[0] is not state:
                states[node, name] = state, None if last is None else last[0]
            policies[name] = strategy(*states[node, name], changed=float(len(log)))
        log.append(Logged(node, verdict(policies, node_uid=f"{node}-{incarnation[node]}")))
    return log


class Stream:
    """The stream of events: a publication succeeds if the last event of its thing is the expected one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.last = Announcements()

    def publish(self, event: Event, expected: int) -> bool:
        thing = thing_of(event.data)
        if self.last.sequence(thing) != expected:
            return False
        self.events.append(event)
        self.last.add(event, len(self.events))
        return True


class Replica:
    """A publisher that may stop before any publication, and go on later with what it knew."""

    def __init__(self, stream: Stream, log: Sequence[Logged], position: int) -> None:
        self._stream = stream
        self._log = log
        self.position = position
        self._announced = Announcements()
        for thing in {thing_of(event.data) for event in stream.events}:
            self._copy(thing)
        self._pending: tuple[Event, int] | None = None

    def step(self) -> bool:
        """Publishes what it has decided, or decides what to publish next; returns whether something is left."""
        if self._pending is not None:
            event, expected = self._pending
            self._pending = None
            if self._stream.publish(event, expected):
                self._announced.add(event, len(self._stream.events))
            else:
                self._copy(thing_of(event.data))
            return True
        if self.position == len(self._log):
            return False
        logged = self._log[self.position]
        of = Publication(self._announced, EPOCH, Revision(100 + self.position, 0.0))
        found = of_verdict(of, logged.node, logged.verdict, node_created=OLD, policies={})
        if found is None:
            self.position += 1
        else:
            self._pending = found, self._announced.sequence(thing_of(found.data))
        return True

    def _copy(self, thing: tuple[str, ...]) -> None:
        last = self._stream.last.last(thing)
        assert last is not None
        self._announced.add(last, self._stream.last.sequence(thing))


def expected_events(log: Sequence[Logged]) -> list[tuple[str, ...]]:
    """What one replica that is never disturbed publishes: type and id of each event, by node and policy."""
    stream = Stream()
    replica = Replica(stream, log, 0)
    while replica.step():
        pass
    return by_policy(stream.events)


def by_policy(events: Sequence[Event]) -> list[tuple[str, ...]]:
    """The ids of the events, in order for each node and policy."""
    found: dict[tuple[str, ...], list[str]] = {}
    for event in events:
        found.setdefault(event.data.names[:3], []).append(event.id)
    return sorted((*names, *ids) for names, ids in found.items())


@given(histories(), st.lists(st.tuples(st.integers(0, 1), st.sampled_from("ssssssr"), st.integers(0, 12)), max_size=80))
def test_two_replicas_that_are_killed_and_paused_publish_each_transition_once_and_in_order(
    log: list[Logged], schedule: list[tuple[int, str, int]]
) -> None:
    stream = Stream()
    replicas = [Replica(stream, log, 0), Replica(stream, log, 0)]
    done = 0
    for number, action, back in schedule:
        if action == "s":
            replicas[number].step()
            done = max(done, replicas[number].position)
        else:  # killed; the stored position is never ahead of what is announced
            replicas[number] = Replica(stream, log, max(0, done - back))
    for replica in replicas:
        while replica.step():
            pass
    assert len({event.id for event in stream.events}) == len(stream.events)
    assert by_policy(stream.events) == expected_events(log)


def in_state(last: Mapping[str, NodeVerdict | None], state: State) -> set[tuple[str, str]]:
    """Node and name of each policy whose `deschedule` has this state."""
    return {
        (node, key.name)
        for node, found in last.items()
        if found is not None
        for key, policy in found.policies.items()
        if policy.strategies[DESCHEDULE].state is state
    }


def announced(stream: Stream, kind: type[ViolationStarted | MetricStale]) -> set[tuple[str, str]]:
    """Node and name of each policy of which the last event is of this type."""
    return {
        (event.data.node, event.data.policy)
        for node in NODES
        for event in stream.last.of_node(kind.CHANNEL, node)
        if isinstance(event.data, kind)
    }


@given(histories())
def test_the_last_events_say_what_the_last_verdicts_say(log: list[Logged]) -> None:
    stream = Stream()
    replica = Replica(stream, log, 0)
    while replica.step():
        pass
    last = {logged.node: logged.verdict for logged in log}
    violated, met, unknown = (in_state(last, state) for state in (VIOLATED, MET, UNKNOWN))
    started, stale = (announced(stream, kind) for kind in (ViolationStarted, MetricStale))
    assert stale <= unknown
    assert violated <= started
    assert not started & met
    assert started <= {(node, key.name) for node, found in last.items() if found for key in found.policies}
