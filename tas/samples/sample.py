"""Samples of a node's metrics, and how new ones are merged with the stored ones.

A source sends a *scrape*: the values of several metrics of one node, measured together. For each node the newest value
of each source and metric is stored. Merging is commutative, associative and idempotent, so scrapes may arrive late,
twice, in any order and through any worker.
"""

from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from tas.values.quantity import Quantity

FUTURE_TOLERANCE = 10.0
"""Seconds that a clock may be ahead: such a time counts as the arrival, a later one is refused (facts.md n52)."""

MAX_SAMPLE_AGE = 3600.0
"""Seconds between measuring and arrival beyond which a sample is refused; also the longest `staleAfter`."""


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one node from one source, measured at one time.

    `sequence` is the sequence number of the message in the stream SAMPLES: of two scrapes of the same time the higher
    one counts. `window` is the span in seconds over which each value was measured, if the source reported it. `ends` is
    when the values become stale even for a longer `staleAfter`, if the source has reported that their series has ended.
    """

    source: str
    measured: float
    arrived: float
    sequence: int
    metrics: Mapping[str, Quantity]
    window: float | None = None
    ends: float | None = None

    @property
    def time(self) -> float:
        """The time that counts: when the scrape was measured, but at the latest when it arrived."""
        return min(self.measured, self.arrived)

    @property
    def order(self) -> tuple[float, int]:
        """The order of two scrapes of one source and metric: the greater one counts."""
        return (self.time, self.sequence)


NodeSamples = tuple[Scrape, ...]
"""The newest samples of one node: scrapes sorted by source, then order, with each metric of a source once."""

_Rank = tuple[float, int, float, float, float, float]


def merge(known: NodeSamples, incoming: Iterable[Scrape]) -> NodeSamples:
    """`known` with the newer values of `incoming`; the same object if there are none.

    Of one source and metric the scrape with the greater order counts; a scrape without remaining metrics is removed.
    A scrape more than `MAX_SAMPLE_AGE` older than the newest one is removed: no policy could use it. Newest is meant
    by `time`, not by arrival, because the scrape with the latest `time` is always kept. By arrival, the result would
    depend on whether a late scrape was merged before or after the scrape that outdates it.
    """
    scrapes = [scrape for scrape in incoming if scrape.metrics]
    if not scrapes:
        return known
    if len(scrapes) == 1 and (replaced := _replaced(known, scrapes[0])) is not None:
        return replaced
    best: dict[tuple[str, str], tuple[_Rank, Quantity, Scrape]] = {}
    for scrape in (*known, *scrapes):
        rank = _rank(scrape)
        for metric, value in scrape.metrics.items():
            series = (scrape.source, metric)
            current = best.get(series)
            if current is None or (rank, value) > current[:2]:
                best[series] = (rank, value, scrape)
    horizon = max(rank[0] for rank, _, _ in best.values()) - MAX_SAMPLE_AGE
    left: dict[tuple[str, _Rank], tuple[Scrape, dict[str, Quantity]]] = {}
    for (source, metric), (rank, value, scrape) in best.items():
        if rank[0] >= horizon:
            left.setdefault((source, rank), (scrape, {}))[1][metric] = value
    merged = tuple(
        scrape if scrape.metrics == metrics else msgspec.structs.replace(scrape, metrics=metrics)
        for _, (scrape, metrics) in sorted(left.items(), key=lambda item: item[0])
    )
    return known if merged == known else merged


def _rank(scrape: Scrape) -> _Rank:
    """A total order: scrapes with equal ranks are parts of one scrape, so the order of merging never matters."""
    window = -1.0 if scrape.window is None else scrape.window
    ends = inf if scrape.ends is None else scrape.ends
    return (scrape.time, scrape.sequence, scrape.measured, scrape.arrived, window, ends)


def _replaced(known: NodeSamples, incoming: Scrape) -> NodeSamples | None:
    """The merge in the usual case: the next scrape of a source with all metrics of the one before. Else None."""
    before: Scrape | None = None
    at = 0  # the index of `incoming` in the result
    for index, scrape in enumerate(known):
        if scrape.source == incoming.source:
            if before is not None:
                return None
            before = scrape
            at = index
        elif scrape.source < incoming.source:
            at = index + 1
    if before is None:
        candidate = (*known[:at], incoming, *known[at:])
    elif incoming.order > before.order and before.metrics.keys() <= incoming.metrics.keys():
        candidate = (*known[:at], incoming, *known[at + 1 :])
    elif incoming == before:
        return known
    else:
        return None
    times = [scrape.time for scrape in candidate]
    return candidate if min(times) >= max(times) - MAX_SAMPLE_AGE else None


def since(samples: NodeSamples, created: float | None) -> NodeSamples:
    """The samples of a node without those that were measured before it was created: another node had the name.

    `created` is in seconds since 1970; None: not known, then all count. The same object if all count.
    """
    if created is None or all(scrape.time >= created for scrape in samples):
        return samples
    return tuple(scrape for scrape in samples if scrape.time >= created)


def kept_metrics(known: NodeSamples, scrape: Scrape, sequence: int) -> set[str]:
    """The metrics of `scrape`, published with this sequence, that `known` has from it, or newer from its source."""
    return {
        metric
        for metric in scrape.metrics
        for each in known
        if each.source == scrape.source
        and metric in each.metrics
        and (each.sequence >= sequence or each.time > scrape.time)
    }


def replaced_metrics(known: NodeSamples, scrape: Scrape) -> set[str]:
    """The metrics of `scrape` that `known` has from its source, measured and published later."""
    return {
        metric
        for each in known
        if each.source == scrape.source and each.sequence > scrape.sequence and each.order > scrape.order
        for metric in each.metrics
        if metric in scrape.metrics
    }


def metric_count(samples: NodeSamples) -> int:
    """The number of pairs of source and metric, to be compared with a limit of `tas.samples.capacity`."""
    return sum(len(scrape.metrics) for scrape in samples)


def newest(samples: NodeSamples, metric: str, source: str | None = None) -> Scrape | None:
    """The scrape whose value of `metric` counts: the newest one; for equal times the first source by name.

    With `source`, only scrapes of that source count.
    """
    found: Scrape | None = None
    for scrape in samples:  # sorted by source, so for equal times the first is kept
        if (
            metric in scrape.metrics
            and (source is None or scrape.source == source)
            and (found is None or scrape.time > found.time)
        ):
            found = scrape
    return found


def newest_of_series(samples: NodeSamples) -> Mapping[tuple[str, str | None], Scrape]:
    """`newest` of every metric of the samples, by metric and source, and by metric and None."""
    found: dict[tuple[str, str | None], Scrape] = {}
    for scrape in samples:
        for metric in scrape.metrics:
            for series in ((metric, None), (metric, scrape.source)):
                if series not in found or scrape.time > found[series].time:
                    found[series] = scrape
    return found
