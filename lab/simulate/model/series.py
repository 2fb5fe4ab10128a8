"""What was measured of nodes, and the statistics of windows over it: the metrics of a simulation.

A metric is one of `METRICS`, or a statistic of one over a duration, as `cpu:mean:5m` (`tas.values.window`). Metrics are
named and measured as those of metrics-server: `cpu` in cores, `memory` in bytes.
"""

import numpy as np

from lab.simulate.model.default_scores import FloatArray
from lab.simulate.model.load import USES
from tas.values.window import Kind, Window, window_of

METRICS = ("cpu", "memory", "network", "cpu_ratio", "memory_ratio", "network_ratio", "congestion-factor")
"""Use of nodes in cores, bytes and bytes a second, its part of the capacity, and 100 times that of the network."""


def is_simulated(metric: str) -> bool:
    """Whether a simulated cluster has the metric."""
    window = window_of(metric)
    return (metric if window is None else window.metric) in METRICS


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
        window = window_of(metric)
        if window is None or window.metric not in METRICS:
            return unknown
        values = self._values(window.metric, max(1, int(window.seconds / self._period)))
        return _statistic(window, values, self._period)

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


def _statistic(window: Window, values: FloatArray, period: float) -> FloatArray:
    """The statistic of each column; the rows are measurements, the newest last."""
    if window.kind is Kind.PERCENTILE:
        percentile: FloatArray = np.percentile(values, window.percentile, axis=0)
        return percentile
    if window.kind in (Kind.EWMA, Kind.FORECAST):
        ages = np.arange(len(values))[::-1] * period
        if window.kind is Kind.EWMA:
            weights = 0.5 ** (ages / (window.seconds / 2))
            mean: FloatArray = weights @ values / weights.sum()
            return mean
        slope = (ages.mean() - ages) @ values / max(float(((ages - ages.mean()) ** 2).sum()), 1.0)
        forecast: FloatArray = values.mean(axis=0) + slope * (ages.mean() + window.seconds)
        return forecast
    found: FloatArray = getattr(values, window.kind)(axis=0)
    return found
