"""Names of statistics: `cpu:p95:5m` is the 95th percentile of the metric `cpu` over five minutes."""

import re
from difflib import get_close_matches
from enum import StrEnum
from typing import NamedTuple

MIN_SECONDS, MAX_SECONDS = 60.0, 86400.0
"""The shortest and the longest window."""

_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_PERCENTILE = re.compile(r"p(0|[1-9][0-9]?)")
_LIKE_A_PERCENTILE = re.compile(r"[pP][0-9.]{1,8}")
_LIKE_A_DURATION = re.compile(r"[0-9.]{1,8}[a-zA-Z]{0,8}")
_OTHER_NAMES = {"avg": "mean", "average": "mean", "median": "p50", "stddev": "std", "stdev": "std"}


class Kind(StrEnum):
    """What a statistic is."""

    MEAN = "mean"
    STD = "std"
    """The standard deviation of the values in the window."""
    MIN = "min"
    MAX = "max"
    PERCENTILE = "p"
    EWMA = "ewma"
    """An exponentially weighted mean: a value counts half after half of the duration."""
    FORECAST = "forecast"
    """The value after another duration, if it goes on as in this one: a straight line."""


_NAMES = [kind.value for kind in Kind if kind is not Kind.PERCENTILE]


class Window(NamedTuple):
    """A statistic of a metric over a duration.

    Attributes:
        metric: The metric.
        kind: The statistic.
        percentile: Of a percentile from 0 to 99; else 0.
        seconds: The duration.
    """

    metric: str
    kind: Kind
    percentile: float
    seconds: float

    @property
    def duration(self) -> str:
        """The duration in seconds, as Prometheus reads it."""
        return f"{self.seconds:g}s"


def window_of(name: str) -> Window | None:
    """The window that a metric name means; None for any other metric.

    A name means a window if it ends with a known statistic and a duration from one minute to one day: a name such as
    `instance:node_cpu:ratio`, as recording rules of Prometheus have, is an ordinary metric.
    """
    rest, _, duration = name.rpartition(":")
    metric, _, statistic = rest.rpartition(":")
    if not metric or (found := _DURATION.fullmatch(duration)) is None:
        return None
    seconds = float(int(found[1]) * _UNIT[found[2]])
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        return None
    if _PERCENTILE.fullmatch(statistic):
        return Window(metric, Kind.PERCENTILE, float(statistic[1:]), seconds)
    if statistic in _NAMES:
        return Window(metric, Kind(statistic), 0.0, seconds)
    return None


def near_window(name: str) -> str | None:
    """Why a name means no window, although it looks as if it should; None for a window and for any other metric."""
    rest, _, duration = name.rpartition(":")
    metric, _, statistic = rest.rpartition(":")
    if not metric or window_of(name) is not None or not _LIKE_A_DURATION.fullmatch(duration) or len(statistic) > 16:
        return None
    if statistic in _NAMES or _PERCENTILE.fullmatch(statistic):
        return f"{duration} is no duration from 1m to 24h (units: s, m, h, d)"
    if _LIKE_A_PERCENTILE.fullmatch(statistic):
        return f"{statistic} is no percentile from p0 to p99"
    meant = _OTHER_NAMES.get(statistic.lower()) or next(
        iter(get_close_matches(statistic, _NAMES, n=1, cutoff=0.7)), None
    )
    return None if meant is None else f"{statistic} is no statistic, is it {meant}?"
