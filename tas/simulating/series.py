"""What was measured of nodes, and the statistics of windows over it: the metrics of a simulation.

A metric is one of `METRICS`, or a statistic of one over a duration, as `cpu:mean:5m`: `mean`, `std`, `min`, `max` and
percentiles as `p95`. Metrics are named and measured as those of metrics-server: `cpu` in cores, `memory` in bytes.
"""

import re

import numpy as np

from tas.simulating.default_scores import FloatArray
from tas.simulating.load import USES
from tas.values.duration import DurationError, parse_duration

METRICS = ("cpu", "memory", "network", "cpu_ratio", "memory_ratio", "network_ratio", "congestion-factor")
"""Use of nodes in cores, bytes and bytes a second, its part of the capacity, and 100 times that of the network."""

_WINDOW = re.compile(r"([^:]+):(mean|std|min|max|p[0-9]{1,2}(?:\.[0-9]+)?):([^:]+)")


class Series:
    """The measurements of all nodes, one each period."""

    def __init__(self, sizes: FloatArray, period: float, periods: int) -> None:
        self._sizes = sizes
        self._period = period
        self._used = np.full((periods + 1, *sizes.shape), np.nan)
        self._count = 0
        self._made: dict[str, FloatArray] = {}

    @property
    def measured(self) -> float | None:
        """When the nodes were measured last; None: never."""
        return (self._count - 1) * self._period if self._count else None

    def add(self, used: FloatArray) -> None:
        """Adds a measurement, a period after the one before."""
        self._used[self._count] = used
        self._count += 1
        self._made.clear()

    def column(self, metric: str) -> FloatArray:
        """The newest value of each node; NaN if there is no such metric, or nothing was measured. Do not change it."""
        column = self._made.get(metric)
        if column is None:
            column = self._column(metric)
            column.flags.writeable = False
            self._made[metric] = column
        return column

    def _column(self, metric: str) -> FloatArray:
        unknown = np.full(self._sizes.shape[1], np.nan)
        if not self._count:
            return unknown
        if metric in METRICS:
            newest: FloatArray = self._values(metric, 1)[0]
            return newest
        window = _WINDOW.fullmatch(metric)
        if window is None or window[1] not in METRICS:
            return unknown
        try:
            seconds = parse_duration(window[3])
        except DurationError:
            return unknown
        values = self._values(window[1], max(1, int(seconds / self._period)))
        return _statistic(window[2], values)

    def _values(self, metric: str, count: int) -> FloatArray:
        """The newest `count` values of a base metric, or as many as there are."""
        part = slice(max(0, self._count - count), self._count)
        if metric == "congestion-factor":
            factor: FloatArray = np.minimum(100.0 * self._used[part, 2] / self._sizes[2], 100.0)
            return factor
        at = USES.index(metric.removesuffix("_ratio"))
        unit = self._sizes[at] if metric.endswith("_ratio") else 1000.0 if metric == "cpu" else 1.0
        values: FloatArray = self._used[part, at] / unit
        return values


def _statistic(name: str, values: FloatArray) -> FloatArray:
    if name.startswith("p"):
        percentile: FloatArray = np.percentile(values, float(name[1:]), axis=0)
        return percentile
    found: FloatArray = getattr(values, name)(axis=0)
    return found
