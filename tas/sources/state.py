"""The state of a source, stored in SOURCES: whether the source answers, since when, and which values were refused."""

from collections.abc import Collection, Mapping

import msgspec

from tas.errors import line_of
from tas.sources.result import Refusal, RefusalReason, SourceResult

NODE_SEEN_SECONDS = 60.0
"""How long a node counts for a metric of a source that writes to us: each request has only some of the nodes."""

MIN_WRITE_INTERVAL_SECONDS = 1.0
"""The shortest time between two writes of a state, however often its significant fields change."""

COUNTER_WRITE_INTERVAL_SECONDS = 10.0
"""The longest time until a write when only counters have changed."""

MAX_WRITE_INTERVAL_SECONDS = 60.0
"""The longest time between two writes: so soon a state is stored again after a wipe, and a state never expires."""


class SourceMetric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric that policies use: how many nodes have a value from the source, or why none has (`missing`)."""

    nodes: int = 0
    missing: str = ""


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """A source as reported by its holder: the replica that polls the source, or received its last request.

    Times are in seconds since 1970. `period` is in seconds; None for a source that writes to us. `problem` says why the
    last poll failed as a whole; empty after a success, and before the first poll. `metrics` is empty if no policy uses
    the source: then nothing is polled. Since `since` are counted: polls (or received requests), failed ones, published
    samples, refused values.
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
    refused: Mapping[RefusalReason, Refusal] = {}


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
        self._metrics: frozenset[str] = frozenset()
        self._seen: dict[str, dict[str, float]] = {}
        self._missing: dict[str, str] = {}
        self._polls = 0
        self._failures = 0
        self._samples = 0
        self._refused: dict[RefusalReason, Refusal] = {}

    @property
    def problem(self) -> str:
        """Why the last poll failed as a whole; empty if it succeeded."""
        return self._problem

    @property
    def missing(self) -> Mapping[str, str]:
        """The metrics without a value in the last poll, each with the reason."""
        return self._missing

    def set_metrics(self, metrics: Collection[str]) -> None:
        """Sets the metrics that policies use from now on."""
        self._metrics = frozenset(metrics)
        for known in (self._seen, self._missing):
            for metric in known.keys() - self._metrics:
                del known[metric]
        if not self._metrics:
            self._problem = ""  # nothing is polled, so nothing fails

    def record_result(self, result: SourceResult, *, published: int, now: float) -> None:
        """Counts a poll that succeeded at least in part, and of which `published` samples were published."""
        self._polls += 1
        self._problem = ""
        self._last_success = now
        self._samples += published
        for category, refusal in result.refusals.items():
            before = self._refused.get(category)
            # The newest example: the cause of an older one may be repaired by now.
            self._refused[category] = Refusal(
                count=refusal.count + (before.count if before else 0), example=refusal.example
            )
        if self._period is not None:
            self._seen.clear()
            self._missing.clear()
        for sample in result.samples:
            self._seen.setdefault(sample.metric, {})[sample.node] = now
            self._missing.pop(sample.metric, None)
        self._missing.update(
            {metric: line_of(reason) for metric, reason in result.missing.items() if metric in self._metrics}
        )

    def record_failure(self, problem: str, *, now: float) -> None:
        """Counts a poll that failed as a whole."""
        self._polls += 1
        self._failures += 1
        self._problem = line_of(problem)
        self._last_failure = now

    def state(self, *, now: float) -> SourceState:
        """The state at `now`."""
        if self._period is None:
            for nodes in self._seen.values():
                for node in [node for node, seen in nodes.items() if now - seen > NODE_SEEN_SECONDS]:
                    del nodes[node]
        return SourceState(
            kind=self._kind,
            holder=self._holder,
            since=self._since,
            time=now,
            period=self._period,
            problem=self._problem,
            last_success=self._last_success,
            last_failure=self._last_failure,
            metrics={
                metric: SourceMetric(nodes=len(self._seen.get(metric, ())), missing=self._missing.get(metric, ""))
                for metric in sorted(self._metrics)
            },
            polls=self._polls,
            failures=self._failures,
            samples=self._samples,
            refused=dict(self._refused),
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
    metrics = {name: (metric.missing, metric.nodes > 0) for name, metric in state.metrics.items()}
    return (state.holder, state.since, state.period, state.problem, metrics, state.refused.keys())
