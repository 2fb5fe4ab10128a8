"""Names of statistics: `cpu:p95:5m` is the 95th percentile of the metric `cpu` over five minutes."""

import re
from enum import StrEnum
from typing import NamedTuple

MIN_SECONDS, MAX_SECONDS = 60.0, 86400.0
"""The shortest and the longest window."""

_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_PERCENTILE = re.compile(r"p(0|[1-9][0-9]?)(\.[0-9]{1,3})?")


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


class Window(NamedTuple):
    """A statistic of a metric over a duration.

    Attributes:
        metric: The metric.
        kind: The statistic.
        percentile: Of a percentile from 0 to 99.999; else 0.
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
    if statistic in set(Kind) - {Kind.PERCENTILE}:
        return Window(metric, Kind(statistic), 0.0, seconds)
    return None
