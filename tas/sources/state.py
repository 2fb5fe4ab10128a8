"""The state of a source, stored in SOURCES: whether policies have fresh samples from the source, and if not, why.

The health of every kind of source follows from these samples alone. An answer, or a request of remote write, without a
fresh sample of a metric that policies use is no success.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from heapq import nsmallest
from itertools import groupby
from math import inf, nan
from operator import attrgetter
from typing import TypeVar

import msgspec

from tas.errors import line_of
from tas.samples.freshness import stale_time
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.sources.result import RefusalCount, RefusalReason, SourceResult, SuspectReason

MIN_WRITE_INTERVAL_SECONDS = 1.0
"""The shortest time between two writes of a state, however often its significant fields change."""

COUNTER_WRITE_INTERVAL_SECONDS = 10.0
"""The longest time until a write when only counters have changed."""

MAX_WRITE_INTERVAL_SECONDS = 60.0
"""The longest time between two writes: so soon a state is stored again after a wipe, and a state never expires."""

MAX_STORED_METRICS = 1000
"""The most metrics in a stored state."""

MAX_STORED_METRICS_BYTES = 512 << 10
"""The most bytes of the metrics of a stored state, as JSON."""

MAX_STORED_REFUSED_BYTES = 256 << 10
"""The most bytes of what is refused at present in a stored state, as JSON. With the metrics and the bounded texts of a
state it fits into a message of 1 MiB, whatever the names."""

UNATTENDED_SECONDS = 2 * MAX_WRITE_INTERVAL_SECONDS
"""After this time without a write no replica listens for a source that writes to us."""

LOST_POLLS = 3
LOST_SECONDS = 15.0
"""A node is lost when for so many polls, or turns of a metric, and for so long, no fresh value of it came: one failed
scrape is no loss."""

LOST_FOR_SECONDS = MAX_SAMPLE_AGE
"""So long a node counts as lost. After that no rule can use its values, and the source may be right to have fewer."""

LOST_NAMES = 3
"""So many lost nodes have their names in a state."""

_R = TypeVar("_R", bound=StrEnum)

_KIND = attrgetter("metric", "measured", "ends")
"""What samples have in common that are counted together."""

USUAL_SECONDS = 60.0
"""The interval of a source that writes to us, until it is known: the default `scrape_interval` of Prometheus."""

LONGEST_SECONDS = 90.0
"""A longer pause between fresh samples is an outage, and no interval."""

LEARNED_SECONDS = 300.0
"""For how long at least the longest pause counts as the interval, and at most twice as long."""


class Health(StrEnum):
    """The state of a source in one word."""

    HEALTHY = "healthy"
    """Each metric of policies has a fresh sample of at least one node."""
    PARTIAL = "partial"
    """Some metrics have none."""
    BEHIND = "behind"
    """Each metric has one, and the newest values come later than they should by a whole period."""
    LATE = "late"
    """Each metric has one, and stored values are old, of all, some nodes or some metrics (`tas.diagnosis.metrics`)."""
    WARMING = "warming"
    """Some metrics have none, but only since their windows are not covered yet: that passes by itself."""
    FAILING = "failing"
    """No metric has one, or the last poll gave none."""
    WAITING = "waiting"
    """Nothing was polled or received yet."""
    IDLE = "idle"
    """No policy uses a metric of the source."""
    UNATTENDED = "unattended"
    """No replica of collect polls the source or listens for it."""


class PollResult(StrEnum):
    """Whether a poll gave a fresh sample for all, some or none of the metrics; with a refused value not for all."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


class SourceMetric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric that policies use: how many nodes have a fresh sample from the source, or why none has (`missing`).

    `warming`: it is missing only since its window is not covered yet.
    `ended` is the number of these nodes whose series has ended: their samples soon become stale. `tolerance` is that of
    the configuration (`tas.samples.contradictions`).
    """

    nodes: int = 0
    ended: int = 0
    missing: str = ""
    warming: bool = False
    tolerance: float | None = None


class RefusedValues(msgspec.Struct, frozen=True, kw_only=True):
    """The number of values refused or suspect for one reason since the replica has the source.

    With the newest example, and its time.
    """

    count: int
    example: str
    time: float


class LostNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that a source has lost: they had a fresh sample of a metric within the hour, and have none now.

    Of the metric with the most of them. `count` of `nodes` are lost, the first one since `since`, in seconds since
    1970. `names` has the first `LOST_NAMES` of them.
    """

    metric: str
    count: int
    nodes: int
    since: float
    names: Sequence[str]


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """A source as reported by its holder: the replica that polls the source, or received its last request.

    Times are in seconds since 1970. `period` is in seconds; None for a source that writes to us. `problem` says why the
    last poll failed as a whole; empty after a success, and before the first poll. `last_success` is when a fresh sample
    of a metric of policies last came. `metrics` is empty if no policy uses the source: then nothing is polled. Since
    `since` are counted: polls (or received requests), failed ones, published samples, refused values, and those that
    are `suspect`. `behind` is by how many seconds the newest published values are older than `period`
    (`SourceTracker.behind`). `refused_now` has
    what is refused at present, if the source knows that, by node and metric. `without_tables` says why samples are
    published by node although the source should publish tables; empty if it does as it should. `metrics_left_out`
    counts the metrics for which a stored state has no room (`as_stored`), and `missing_left_out` those of them that
    are missing and not warming. `lost` has the nodes that the source has lost; None: none, or not known.
    """

    kind: str
    holder: str
    since: float
    time: float
    period: float | None = None
    problem: str = ""
    last_success: float | None = None
    last_failure: float | None = None
    metrics: Mapping[str, SourceMetric] = {}
    polls: int = 0
    failures: int = 0
    samples: int = 0
    refused: Mapping[RefusalReason, RefusedValues] = {}
    refused_now: Mapping[str, Mapping[str, str]] = {}
    suspect: Mapping[SuspectReason, RefusedValues] = {}
    without_tables: str = ""
    behind: float = 0.0
    metrics_left_out: int = 0
    missing_left_out: int = 0
    lost: LostNodes | None = None

    @property
    def is_behind(self) -> bool:
        """Whether values are missing of at least one whole period."""
        return self.period is not None and self.behind > self.period

    @property
    def metric_count(self) -> int:
        """The number of metrics that policies use, with those left out."""
        return len(self.metrics) + self.metrics_left_out


def health(state: SourceState, *, is_held: bool, now: float) -> Health:
    """The health of a source at `now`; `is_held`: whether a replica of collect has the lease of the source."""
    if not (is_held if state.period is not None else now - state.time < UNATTENDED_SECONDS):
        return Health.UNATTENDED
    if not state.metrics:
        return Health.IDLE
    if state.problem:
        return Health.FAILING
    return Health.WAITING if state.polls == 0 else _health_of_values(state)


def _health_of_values(state: SourceState) -> Health:
    missing = _missing_of(state)
    if missing:
        return Health.FAILING if missing == state.metric_count else Health.PARTIAL
    if state.is_behind:
        return Health.BEHIND
    return Health.WARMING if any(metric.warming for metric in state.metrics.values()) else Health.HEALTHY


def _missing_of(state: SourceState) -> int:
    return _missing_in(state.metrics) + state.missing_left_out


def _missing_in(metrics: Mapping[str, SourceMetric]) -> int:
    return sum(1 for metric in metrics.values() if metric.missing and not metric.warming)


def tolerances_of(states: Iterable[SourceState]) -> dict[str, float]:
    """The tolerance of each metric that has one in the configuration of a source; of several the smallest one."""
    found: dict[str, float] = {}
    for state in states:
        for metric, each in state.metrics.items():
            if each.tolerance is not None:
                found[metric] = min(each.tolerance, found.get(metric, each.tolerance))
    return found


def as_stored(state: SourceState) -> SourceState:
    """The state with as many metrics as a stored one may have: the worst first, and of those the shortest names first.

    So a few long names do not take the room of many others. What is refused at present is cut at its bound, too.
    """
    worst = nsmallest(
        MAX_STORED_METRICS, state.metrics, key=lambda name: (*_rank(state.metrics[name]), len(name), name)
    )
    room = MAX_STORED_METRICS_BYTES
    kept: set[str] = set()
    for name in worst:
        room -= _json_bytes({name: state.metrics[name]})
        if room < 0:
            break
        kept.add(name)
    metrics = {name: metric for name, metric in state.metrics.items() if name in kept}
    return msgspec.structs.replace(
        state,
        metrics=metrics,
        metrics_left_out=state.metric_count - len(metrics),
        missing_left_out=_missing_of(state) - _missing_in(metrics),
        refused_now=_refused_as_stored(state.refused_now),
    )


def _rank(metric: SourceMetric) -> tuple[bool, bool, bool]:
    """How good a metric is, without numbers that change with each poll: the metrics of a state should not."""
    return (not metric.missing, metric.nodes > 0, not metric.ended)


def _refused_as_stored(refused: Mapping[str, Mapping[str, str]]) -> Mapping[str, Mapping[str, str]]:
    room = MAX_STORED_REFUSED_BYTES
    kept: dict[str, dict[str, str]] = {}
    for node, metrics in refused.items():
        room -= _json_bytes({node: {}})
        for metric, why in metrics.items():
            room -= _json_bytes({metric: why})
            if room < 0:
                return kept
            kept.setdefault(node, {})[metric] = why
    return kept


def _json_bytes(value: object) -> int:
    return len(msgspec.json.encode(value))


class _FreshNodes:
    """The nodes with a sample of one metric, each until its sample is stale, and those that had one before.

    Attributes:
        interval: Seconds between two turns of the metric; 0 if it has one in each poll.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._ended: set[str] = set()
        self._earliest = inf
        self._before: dict[str, float] = {}
        self._lost: dict[str, float] = {}  # since when
        self._earliest_lost = inf
        self._read_at = inf
        self._is_passed_over = False
        self.interval = 0.0
        self.last_has_ended = False
        self.has_samples = False

    @property
    def ended(self) -> int:
        """How many of the nodes have a sample whose series has ended."""
        return len(self._ended)

    def begin_poll(self) -> None:
        """Begins a new answer: only its nodes have a sample then."""
        self._before, self._until = self._until, {}
        self._ended.clear()
        self._earliest = inf
        self.has_samples = False

    def end_poll(self, now: float) -> None:
        """Ends the answer: the nodes that it lacks have had no sample since the one before."""
        for node in self._before.keys() - self._until.keys():
            self._lose(node, self._read_at)
        self._before = {}
        self.interval = now - self._read_at if self._is_passed_over else 0.0
        self._read_at, self._is_passed_over = now, False

    def pass_over(self, now: float) -> None:
        """Notes a poll in which the metric had no turn: its nodes keep their samples."""
        self._is_passed_over = True
        self.interval = max(self.interval, now - self._read_at)

    def add(self, nodes: Sequence[str], until: float, *, ended: bool) -> None:
        self._until.update(dict.fromkeys(nodes, until))
        for node in nodes if self._lost else ():
            self._lost.pop(node, None)
        self._earliest = min(self._earliest, until)
        (self._ended.update if ended else self._ended.difference_update)(nodes)
        self.last_has_ended = ended
        self.has_samples = True

    def lose(self, node: str, since: float) -> None:
        """Notes that a node had a sample, unless it has one now."""
        if node not in self._until:
            self._lose(node, since)

    def _lose(self, node: str, since: float) -> None:
        self._earliest_lost = min(self._earliest_lost, self._lost.setdefault(node, since))

    def count(self, now: float) -> int:
        if self._earliest <= now:  # seldom: a state is read every second, for a whole cluster
            for node, until in self._until.items():
                if until <= now:
                    self._lose(node, until)
            self._until = {node: until for node, until in self._until.items() if until > now}
            self._ended &= self._until.keys()
            self._earliest = min(self._until.values(), default=inf)
        return len(self._until)

    def lost(self, now: float) -> Mapping[str, float]:
        """The nodes without a fresh sample, and since when, of the last hour."""
        self.count(now)  # those whose sample is stale by now are lost
        limit = now - LOST_FOR_SECONDS
        if self._earliest_lost <= limit:
            self._lost = {node: since for node, since in self._lost.items() if since > limit}
            self._earliest_lost = min(self._lost.values(), default=inf)
        return self._lost


class Overdue:
    """For how long fresh samples of a source are overdue: what an alert about a dead source goes by.

    A polled source gives samples each period. How often a source writes that writes to us (remote write) is not known:
    what it did in the last minutes is its interval. So neither a long interval nor a long period looks like a dead
    source. Times are in seconds since 1970.
    """

    def __init__(self, period: float | None) -> None:
        """`period` is in seconds; None for a source that writes to us."""
        self._period = period
        self._since = inf  # when samples were last fresh, or were first wanted
        self._is_fed = False
        self._began = inf  # of the present span of `LEARNED_SECONDS`
        self._pauses = (USUAL_SECONDS, 0.0)  # the longest one in the span before and in the present one

    def want(self, now: float, *, wanted: bool) -> None:
        """Notes whether policies use a metric of the source."""
        if not wanted:
            self._since, self._is_fed = inf, False
        elif self._since == inf:
            self._since = now

    def feed(self, now: float) -> None:
        """Notes that a fresh sample came, or that none can come yet."""
        if self._since == inf:
            return
        self._began = min(self._began, now)
        if self._is_fed and (pause := now - self._since) <= LONGEST_SECONDS:
            self._pauses = self._pauses[0], max(self._pauses[1], pause)
        if now - self._began >= LEARNED_SECONDS:
            self._began, self._pauses = now, (self._pauses[1], 0.0)
        self._since, self._is_fed = now, True

    def seconds(self, now: float) -> float:
        """For how long a fresh sample is overdue; 0 if none is wanted."""
        interval = max(self._pauses) if self._period is None else self._period
        return max(0.0, now - self._since - interval)


class SourceTracker:
    """Counts the polls and results of one source for as long as one replica holds the source."""

    def __init__(self, *, kind: str, holder: str, period: float | None, now: float) -> None:
        self._kind = kind
        self._holder = holder
        self._period = period
        self._since = now
        self._problem = ""
        self._last_success: float | None = None
        self._last_failure: float | None = None
        self._metrics: Mapping[str, float] = {}
        self._tolerances: Mapping[str, float] = {}
        self._requested: frozenset[str] = frozenset()
        self._published: float | None = None
        self._overdue = Overdue(period)
        self._newest = -inf  # when the newest published value was measured
        self._fresh: dict[str, _FreshNodes] = {}
        self._missing: dict[str, str] = {}
        self._warming: set[str] = set()
        self._refusal = ""  # an example of the last poll
        self._polls = 0
        self._failures = 0
        self._samples = 0
        self._refused: dict[RefusalReason, RefusedValues] = {}
        self._refused_now: Mapping[str, Mapping[str, str]] = {}
        self._suspect: dict[SuspectReason, RefusedValues] = {}

    @property
    def problem(self) -> str:
        """Why the last poll failed as a whole; empty if it succeeded."""
        return self._problem

    @property
    def wanted(self) -> int:
        """The number of metrics that policies use."""
        return len(self._metrics)

    def set_metrics(self, metrics: Mapping[str, float], *, now: float) -> None:
        """Sets the metrics that policies use from now on, each with the seconds after which its samples are stale."""
        self._metrics = metrics
        self._overdue.want(now, wanted=bool(metrics))
        self._fresh = {metric: nodes for metric, nodes in self._fresh.items() if metric in metrics}
        self._missing = {metric: reason for metric, reason in self._missing.items() if metric in metrics}
        self._warming &= metrics.keys()
        if not self._metrics:
            self._problem = ""  # nothing is polled, so nothing fails
            self._published = None

    def set_tolerances(self, tolerances: Mapping[str, float]) -> None:
        """Sets the tolerance of each metric that has one."""
        self._tolerances = tolerances

    def begin_poll(self, at: float) -> None:
        """Notes that a poll begins: from the first one on the source can be behind."""
        if self._published is None:
            self._published = at

    def end_poll(self, began: float) -> None:
        """Notes that the bus has the values of the poll that began then."""
        self._published = began

    def behind(self, now: float) -> float:
        """By how many seconds the poll whose values the bus has began longer ago than one period.

        Between two polls it is 0, and while a poll is read and published it grows up to the time that this takes. If
        polls take longer than the period, or fail, it is never 0.
        """
        if self._period is None or self._published is None:
            return 0.0
        return max(0.0, now - self._published - self._period)

    def overdue(self, now: float) -> float:
        """For how many seconds a fresh sample of any metric of policies is overdue (`Overdue`)."""
        return self._overdue.seconds(now)

    def value_age(self, now: float) -> float:
        """Seconds since the newest published value of a metric of policies was measured; NaN without one."""
        return max(0.0, now - self._newest) if self._metrics and self._newest > 0 else nan

    def record_result(self, result: SourceResult, *, published: int, now: float) -> PollResult:
        """Counts the result of a poll or of a received request, of which `published` samples were published."""
        self._polls += 1
        self._problem = ""
        self._samples += published
        self._requested = frozenset(self._metrics)
        # The next request may be one of other series, and then the refusal is still the last word about these.
        last = "" if self._period is not None else self._refusal
        self._refusal = next((refusal.example for refusal in result.refusals.values()), last)
        _count(self._refused, result.refusals, now)
        _count(self._suspect, result.suspect, now)
        self._refused_now = result.refused_now
        if self._period is not None:
            self._missing.clear()
        has_fresh = self._add_samples(result, now)
        for metric, reason in result.missing.items():
            if metric in self._metrics:
                self._missing[metric] = line_of(reason)
                (self._warming.add if metric in result.warming else self._warming.discard)(metric)
        if has_fresh or (self._metrics and self._metrics.keys() <= self._warming):
            self._overdue.feed(now)
        if has_fresh:
            self._last_success = now
        elif self._period is not None or result.refusals:
            # A request of remote write may have only metrics that no policy uses: that is no failure, and no success.
            self._failures += 1
            self._last_failure = now
            self._problem = "" if self._period is None else "no fresh value of any metric that policies use"
        if not has_fresh:
            return PollResult.NONE
        is_complete = not result.refusals and all(not each.missing for each in self._states_of_metrics(now).values())
        return PollResult.ALL if is_complete else PollResult.SOME

    def _add_samples(self, result: SourceResult, now: float) -> bool:
        """Counts samples, and which nodes a poll gives no more; returns whether one of policies is fresh."""
        if self._period is not None:
            for metric, fresh in self._fresh.items():
                if metric not in result.without_turn:
                    fresh.begin_poll()
        has_fresh = False
        for (metric, measured, ends), alike in groupby(result.samples, _KIND):  # of a poll, often a whole metric
            nodes = [sample.node for sample in alike]
            has_fresh = self._add_alike(metric, nodes, measured, ends, now) or has_fresh
        if self._period is not None:
            for metric, fresh in self._fresh.items():
                if metric in result.without_turn:
                    fresh.pass_over(now)
                else:
                    fresh.end_poll(now)
        return has_fresh

    def _add_alike(
        self, metric: str, nodes: Sequence[str], measured: float | None, ends: float | None, now: float
    ) -> bool:
        """Counts the samples of nodes, if policies use the metric; returns whether they are fresh."""
        stale_after = self._metrics.get(metric)
        if stale_after is None:
            return False
        at = now if measured is None else min(measured, now)
        self._newest = max(self._newest, at)
        until = stale_time(at, stale_after, ends)
        self._missing.pop(metric, None)
        self._fresh.setdefault(metric, _FreshNodes()).add(nodes, until, ended=ends is not None)
        return until > now and ends is None

    def record_failure(self, problem: str, *, now: float) -> None:
        """Counts a poll that failed as a whole."""
        self._polls += 1
        self._failures += 1
        self._problem = line_of(problem)
        self._last_failure = now

    def remember(self, given: Mapping[str, Mapping[str, float]]) -> None:
        """Notes what the source gave before this replica had it: by metric, when the newest value of each node came.

        A node that it does not give any more is lost then, too.
        """
        for metric in given.keys() & self._metrics.keys():
            fresh = self._fresh.setdefault(metric, _FreshNodes())
            for node, time in given[metric].items():
                fresh.lose(node, time)

    def nodes(self, now: float, exists: Callable[[str], bool] | None = None) -> tuple[int, LostNodes | None]:
        """How many nodes have a fresh sample of a metric, and those that are lost, if any.

        Of the metric that has lost the most nodes; if none has, of that with the most nodes. `exists`: whether there is
        a node of a name; without it every one counts.
        """
        worst, found = (0, 0), None
        for metric, fresh in sorted(self._fresh.items()):
            lost = fresh.lost(now)
            if (len(lost), fresh.count(now)) <= worst:
                continue  # a dead source has lost all nodes of each metric: they are looked at once
            limit = now - max(LOST_POLLS * max(self._period or 0.0, fresh.interval), LOST_SECONDS)
            lost = {node: since for node, since in lost.items() if since <= limit and (exists is None or exists(node))}
            if (len(lost), fresh.count(now)) > worst:
                worst = len(lost), fresh.count(now)
                found = _lost_nodes(metric, lost, worst[1]) if lost else None
        return worst[1], found

    def state(self, *, now: float, without_tables: str = "", lost: LostNodes | None = None) -> SourceState:
        """The state at `now`; `lost` as `nodes` found them."""
        return SourceState(
            kind=self._kind,
            holder=self._holder,
            since=self._since,
            time=now,
            period=self._period,
            problem=self._problem,
            last_success=self._last_success,
            last_failure=self._last_failure,
            metrics=self._states_of_metrics(now),
            polls=self._polls,
            failures=self._failures,
            samples=self._samples,
            refused=dict(self._refused),
            refused_now=self._refused_now,
            suspect=dict(self._suspect),
            without_tables=line_of(without_tables),
            behind=round(self.behind(now), 1),
            # Of a source that writes to us another replica may have the nodes that this one no longer has.
            lost=None if self._period is None else lost,
        )

    def _states_of_metrics(self, now: float) -> dict[str, SourceMetric]:
        states = {metric: self._state_of_metric(metric, now) for metric in sorted(self._metrics)}
        for metric in self._tolerances.keys() & states.keys():
            states[metric] = msgspec.structs.replace(states[metric], tolerance=self._tolerances[metric])
        return states

    def _state_of_metric(self, metric: str, now: float) -> SourceMetric:
        fresh = self._fresh.get(metric)
        if fresh is not None and not fresh.has_samples:
            fresh = None
        nodes = 0 if fresh is None else fresh.count(now)
        if nodes or metric not in self._requested:
            return SourceMetric(nodes=nodes, ended=0 if fresh is None else fresh.ended)
        if metric in self._missing:
            return SourceMetric(missing=self._missing[metric], warming=metric in self._warming)
        if fresh is not None and fresh.last_has_ended:
            reason = "no fresh sample: the series has ended, by a stale marker of Prometheus"
        elif fresh is not None:
            reason = f"no fresh sample: the newest is older than {self._metrics[metric]:g} s"
        elif self._refusal:
            reason = f"no value accepted, as {self._refusal}"
        else:
            reason = "no sample received" if self._period is None else "no value"
        return SourceMetric(missing=reason)


def _lost_nodes(metric: str, lost: Mapping[str, float], fresh: int) -> LostNodes:
    since, names = min(lost.values()), tuple(nsmallest(LOST_NAMES, lost))
    return LostNodes(metric=metric, count=len(lost), nodes=fresh + len(lost), since=since, names=names)


def _count(counts: dict[_R, RefusedValues], more: Mapping[_R, RefusalCount], now: float) -> None:
    for reason, refusal in more.items():
        before = counts.get(reason)
        # The newest example: the cause of an older one may be repaired by now.
        counts[reason] = RefusedValues(
            count=refusal.count + (before.count if before else 0), example=refusal.example, time=now
        )


def is_write_due(written: SourceState | None, state: SourceState) -> bool:
    """Whether `state` is to be written now; `written` is the state that the same holder wrote last."""
    if written is None:
        return True
    age = state.time - written.time
    if _significant_fields(written) != _significant_fields(state):
        return age >= MIN_WRITE_INTERVAL_SECONDS
    if written.polls != state.polls:
        return age >= COUNTER_WRITE_INTERVAL_SECONDS
    return age >= MAX_WRITE_INTERVAL_SECONDS


def _significant_fields(state: SourceState) -> tuple[object, ...]:
    """The fields whose change a user waits for; all others are growing numbers."""
    # How far a window is covered changes with every value.
    metrics = {
        name: (metric.warming or metric.missing, metric.nodes > 0, metric.ended > 0)
        for name, metric in state.metrics.items()
    }
    left_out = (state.metrics_left_out, state.missing_left_out)
    lost = None if state.lost is None else (state.lost.metric, state.lost.count, state.lost.nodes)
    refused = (state.refused.keys(), state.refused_now, state.suspect.keys(), state.without_tables, lost)
    return (state.holder, state.since, state.period, state.problem, state.is_behind, metrics, left_out, refused)
