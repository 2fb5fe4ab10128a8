"""Samples of a node's metrics, and how two accounts of one node become one.

A source sends a *scrape*: the values of several metrics of one node, measured together. What is known of a node is
for each source and metric the newest value. Merging is commutative, associative and idempotent, so scrapes may come
late, twice, in any order and through any worker.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tas.quantity import Quantity

FUTURE_TOLERANCE = 10.0
"""Seconds that a clock may be ahead: up to here a time counts as the arrival, beyond it is refused (n52)."""

MAX_SAMPLE_AGE = 3600.0
"""Seconds between measuring and arrival beyond which a sample is refused; also the longest `staleAfter`."""

MAX_METRICS_PER_NODE = 2000
"""(source, metric) pairs of one node beyond which its scrapes are refused: whoever stores them enforces it."""


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one node from one source, measured at one time.

    `sequence` is the place of the message in the stream SAMPLES: of two scrapes of the same time the higher one counts.
    `window` is the span in seconds that each value stands for, if its source told it.
    """

    source: str
    measured: float
    arrived: float
    sequence: int
    metrics: Mapping[str, Quantity]
    window: float | None = None

    @property
    def time(self) -> float:
        """The time that counts: when it was measured, but never later than it arrived."""
        return min(self.measured, self.arrived)

    @property
    def order(self) -> tuple[float, int]:
        """Of two scrapes of one source and metric, the one whose order is greater counts."""
        return (self.time, self.sequence)


NodeSamples = tuple[Scrape, ...]
"""What is known of one node's metrics: scrapes sorted by source, then order; no metric of a source twice."""

_Rank = tuple[float, int, float, float, float]


def merge(known: NodeSamples, news: Iterable[Scrape]) -> NodeSamples:
    """`known` with what is newer in `news`; the same object if nothing is.

    Of one source and metric the scrape whose order is greater counts; a scrape of which nothing is left disappears.
    What is more than `MAX_SAMPLE_AGE` older than the newest is let go: no policy could still use it. Newest by the time
    that counts, and not by arrival, because that scrape is always among those kept: else the result would depend on
    whether a late scrape was merged before or after the one that outdates it.
    """
    scrapes = [scrape for scrape in news if scrape.metrics]
    if not scrapes:
        return known
    if len(scrapes) == 1 and (replaced := _replaced(known, scrapes[0])) is not None:
        return replaced
    best: dict[tuple[str, str], tuple[_Rank, Quantity, Scrape]] = {}
    for scrape in (*known, *scrapes):
        rank = _rank(scrape)
        for metric, value in scrape.metrics.items():
            place = (scrape.source, metric)
            current = best.get(place)
            if current is None or (rank, value) > current[:2]:
                best[place] = (rank, value, scrape)
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
    """The order, made total: two scrapes of one rank are parts of one account, so merging never depends on turns."""
    window = -1.0 if scrape.window is None else scrape.window
    return (scrape.time, scrape.sequence, scrape.measured, scrape.arrived, window)


def _replaced(known: NodeSamples, news: Scrape) -> NodeSamples | None:
    """What nearly every merge is: the next scrape of a source, with all the metrics of the one before. Else None."""
    before: Scrape | None = None
    at = 0  # where `news` belongs
    for index, scrape in enumerate(known):
        if scrape.source == news.source:
            if before is not None:
                return None
            before = scrape
            at = index
        elif scrape.source < news.source:
            at = index + 1
    if before is None:
        candidate = (*known[:at], news, *known[at:])
    elif news.order > before.order and before.metrics.keys() <= news.metrics.keys():
        candidate = (*known[:at], news, *known[at + 1 :])
    elif news == before:
        return known
    else:
        return None
    times = [scrape.time for scrape in candidate]
    return candidate if min(times) >= max(times) - MAX_SAMPLE_AGE else None


def metric_count(samples: NodeSamples) -> int:
    """How many (source, metric) pairs are known, to be held against `MAX_METRICS_PER_NODE`."""
    return sum(len(scrape.metrics) for scrape in samples)


def newest(samples: NodeSamples, metric: str, source: str | None = None) -> Scrape | None:
    """The scrape whose value of `metric` counts: the newest, of equal times the first source name.

    With `source`, only what that source said is looked at.
    """
    found: Scrape | None = None
    for scrape in samples:  # sorted by source, so of equal times the first stands
        if (
            metric in scrape.metrics
            and (source is None or scrape.source == source)
            and (found is None or scrape.time > found.time)
        ):
            found = scrape
    return found
