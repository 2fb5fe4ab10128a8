"""Which metrics come late, each by its own pace, although other metrics of its source may be fresh.

Nobody tells how often a metric is measured: a source is polled each second, and the program that it asks measures one
metric each 15 s and another one each minute. So the pace of a metric is learned from the times of its newest value of
all nodes. A value that comes always later than the pace, one that does not move on, and one that is no longer written
all look alike here: what rules have is older than it was.
"""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from math import inf

import msgspec

Series = tuple[str, str | None]
"""A metric, and the source from which a rule reads it; None: from any."""

LEARNED_SECONDS = 60.0
LEARNED_PAUSES = 3
"""After so long, and so many new values, the pace of a metric is known: until then it is late when it is stale."""

SPAN_SECONDS = 300.0
"""For how long at least the longest pause between two new values counts as the pace, and at most twice as long."""

OUTAGE_SECONDS = 90.0
"""A longer pause that is longer than `staleAfter`, too, was an outage, and is no pace."""

LATE_SECONDS = 15.0
"""A new value may take so much longer than the pace, or twice as long as the pace: one failed scrape is not late."""

MAX_LATE = 20
"""Of so many metrics it is said that they are late: first one of each source, then those whose source has others that
come."""


class LateMetric(msgspec.Struct, frozen=True):
    """A metric of policies that comes late, and the source of its newest value.

    `measured` is when that was measured, in seconds since 1970. `every` is the pace in seconds: before, a new value
    came after so long at most; 0: not known. `others_come`: the source has another metric of policies that is not late.
    """

    metric: str
    source: str
    measured: float
    every: float = 0.0
    others_come: bool = False


class Newest(msgspec.Struct, frozen=True):
    """When the newest value of a metric was measured, in seconds since 1970, and its source."""

    measured: float
    source: str


class Pace:
    """How often a metric has new values: the longest pause between two of them in the last minutes."""

    def __init__(self) -> None:
        self._newest = -inf
        self._learned_from = inf
        self._span_from = inf
        self._pauses = 0
        self._longest = (0.0, 0.0)  # in the span before and in the present one

    def note(self, measured: float, stale_after: float) -> None:
        """Takes in the time of the newest value; an earlier one than before, as its node is gone, says nothing."""
        if measured <= self._newest:
            return
        pause = measured - self._newest
        self._newest = measured
        if pause > max(stale_after, OUTAGE_SECONDS):
            self._learned_from = min(self._learned_from, measured)
            self._span_from = min(self._span_from, measured)
            return
        self._pauses += 1
        self._longest = self._longest[0], max(self._longest[1], pause)
        if measured - self._span_from >= SPAN_SECONDS:
            self._span_from, self._longest = measured, (self._longest[1], 0.0)

    @property
    def every(self) -> float:
        """In seconds; 0: not known yet."""
        is_known = self._pauses >= LEARNED_PAUSES and self._newest - self._learned_from >= LEARNED_SECONDS
        return max(self._longest) if is_known else 0.0

    def is_late(self, age: float, stale_after: float) -> bool:
        """Whether a newer value should have come than one of this age; after `stale_after` always."""
        every = self.every
        limit = every + max(every, LATE_SECONDS) if every else stale_after
        return age > min(limit, stale_after)


class Paces:
    """The pace of each metric that policies read, from one source or from any."""

    def __init__(self) -> None:
        self._paces: dict[Series, Pace] = {}

    def late(
        self, newest: Mapping[Series, Newest], stale_after: Mapping[Series, float], now: float, *, since: float = -inf
    ) -> list[LateMetric]:
        """The metrics that come late at `now`, at most `MAX_LATE`, the oldest first.

        `stale_after` has the metrics that policies read, each with the longest time in seconds after which its samples
        are stale; `newest` those of them that have a value. Before `since` no value could come: that was no lateness.
        """
        # What has no value any more has no pace: if it comes back, it may come in another one.
        self._paces = {series: self._paces.get(series, Pace()) for series in newest.keys() & stale_after.keys()}
        late: dict[Series, Pace] = {}
        for series, pace in self._paces.items():
            pace.note(newest[series].measured, stale_after[series])
            if pace.is_late(now - max(newest[series].measured, since), stale_after[series]):
                late[series] = pace
        fresh = {newest[series].source for series in self._paces.keys() - late.keys()}
        return _bounded(
            LateMetric(series[0], found.source, found.measured, pace.every, found.source in fresh)
            for series, pace in late.items()
            for found in (newest[series],)
        )


def newest_late(found: Iterable[LateMetric]) -> list[LateMetric]:
    """What several replicas say of the same metrics: of each the newest value, as another one may not have it yet."""
    by_metric: dict[tuple[str, str], LateMetric] = {}
    for each in found:
        key = each.metric, each.source
        by_metric[key] = max(each, by_metric.get(key, each), key=lambda one: one.measured)
    return _bounded(by_metric.values())


def _bounded(late: Iterable[LateMetric]) -> list[LateMetric]:
    found = {(each.metric, each.source): each for each in late}  # a rule may name the source, and another one not
    first: dict[str, LateMetric] = {}
    for each in sorted(found.values(), key=_age):
        if each.others_come:
            first.setdefault(each.source, each)
        else:
            first[each.source] = each  # how old the newest value is of a source of which nothing comes
    # A source may have many metrics, and hides none of another source.
    kept = nsmallest(
        MAX_LATE, found.values(), key=lambda each: (each is not first[each.source], not each.others_come, *_age(each))
    )
    return sorted(kept, key=_age)


def _age(late: LateMetric) -> tuple[float, str, str]:
    return late.measured, late.source, late.metric
