"""What stands on the bus of a source: whether it answers, since when, and what of its answers could not be used."""

from collections.abc import Collection, Mapping

import msgspec

from tas.sources.reading import Batch, Refusal, Refused

SEEN_SECONDS = 60.0
"""How long a node counts for a metric of a source that is written to: each of its messages tells of some nodes only."""

CHANGED_SECONDS = 1.0
"""At most one writing of a state in so long, however often what it means changes."""

COUNTED_SECONDS = 10.0
"""How old written counts become at most while they grow."""

CONFIRMED_SECONDS = 60.0
"""How old a written state becomes at most: it stands again so soon where the bus was wiped, and never expires."""


class SourceMetric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric that policies use of a source: how many nodes have a value there, or why none has."""

    nodes: int = 0
    missing: str = ""


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """A source by the account of who asks it, or was last written to by it. Times are in seconds since 1970.

    `period` is in seconds; None for a source that is written to. `problem` says why the last look gave nothing at all;
    empty if it did give something, or if there was none yet. Without `metrics` no policy uses any of it, and nothing is
    asked. What is counted is counted since `since`: looks, those of them that failed, values published, values
    refused.
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
    looks: int = 0
    failures: int = 0
    samples: int = 0
    refused: Mapping[Refused, Refusal] = {}


class Account:
    """Counts what becomes of one source while one holder has it."""

    def __init__(self, *, kind: str, holder: str, period: float | None, now: float) -> None:
        self._kind = kind
        self._holder = holder
        self._period = period
        self._since = now
        self._problem = ""
        self._last_success: float | None = None
        self._last_failure: float | None = None
        self._wanted: frozenset[str] = frozenset()
        self._seen: dict[str, dict[str, float]] = {}
        self._missing: dict[str, str] = {}
        self._looks = 0
        self._failures = 0
        self._samples = 0
        self._refused: dict[Refused, Refusal] = {}

    @property
    def problem(self) -> str:
        """Why the last look gave nothing at all."""
        return self._problem

    @property
    def missing(self) -> Mapping[str, str]:
        """Of which metrics the last look gave nothing, and why."""
        return self._missing

    def want(self, metrics: Collection[str]) -> None:
        """What policies use from now on."""
        self._wanted = frozenset(metrics)
        for known in (self._seen, self._missing):
            for metric in known.keys() - self._wanted:
                del known[metric]
        if not self._wanted:
            self._problem = ""  # nothing is asked, so nothing fails

    def took(self, batch: Batch, *, published: int, now: float) -> None:
        """A look that gave something; `published` values of it."""
        self._looks += 1
        self._problem = ""
        self._last_success = now
        self._samples += published
        for why, refusal in batch.refusals.items():
            before = self._refused.get(why)
            # The newest example: the oldest may long be mended.
            self._refused[why] = Refusal(count=refusal.count + (before.count if before else 0), example=refusal.example)
        if self._period is not None:
            self._seen.clear()
            self._missing.clear()
        for reading in batch.readings:
            self._seen.setdefault(reading.metric, {})[reading.node] = now
            self._missing.pop(reading.metric, None)
        self._missing.update({metric: why for metric, why in batch.missing.items() if metric in self._wanted})

    def failed(self, problem: str, *, now: float) -> None:
        """A look that gave nothing."""
        self._looks += 1
        self._failures += 1
        self._problem = problem
        self._last_failure = now

    def state(self, *, now: float) -> SourceState:
        """All of it, as of now."""
        if self._period is None:
            for nodes in self._seen.values():
                for node in [node for node, seen in nodes.items() if now - seen > SEEN_SECONDS]:
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
                for metric in sorted(self._wanted)
            },
            looks=self._looks,
            failures=self._failures,
            samples=self._samples,
            refused=dict(self._refused),
        )


def is_due(written: SourceState | None, state: SourceState) -> bool:
    """Whether `state` is to be written, where `written` is what the same holder wrote last."""
    if written is None:
        return True
    age = state.time - written.time
    if _meaning(written) != _meaning(state):
        return age >= CHANGED_SECONDS
    if written.looks != state.looks:
        return age >= COUNTED_SECONDS
    return age >= CONFIRMED_SECONDS


def _meaning(state: SourceState) -> tuple[object, ...]:
    """What of a state somebody waits for; the rest are numbers that grow."""
    metrics = {metric: (each.missing, each.nodes > 0) for metric, each in state.metrics.items()}
    return (state.holder, state.since, state.period, state.problem, metrics, state.refused.keys())
