"""How busy nodes are, in the units of requests, whatever the metric counts: used, free, or a ratio of the capacity."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
import numpy as np

from tas.agents.agent import BoolArray, Columns, FloatArray

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Form(StrEnum):
    """What a metric of a resource counts."""

    USED = "used"
    FREE = "free"
    RATIO = "ratio"
    """The used part of the capacity, from 0 to 1."""


class Base(StrEnum):
    """To which amount of a node usage and requests are compared."""

    CAPACITY = "capacity"
    """The whole node: metrics measure all that runs on it, and so what is reserved for the system counts as used."""
    ALLOCATABLE = "allocatable"
    """What pods may request, as the original agents did. Usage outside of pods counts twice then, or not at all."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metrics of one resource.

    Attributes:
        mean: The metric with the mean.
        std: The metric with the standard deviation; empty: there is none, so it is 0.
        forecast: The metric with the expected value; empty: there is none.
        quantiles: The metrics with percentiles, with `{}` for the percentile, as `cpu:p{}:5m`; empty: there are none.
        form: What all of them count.
        factor: Their unit in millicores or bytes; without effect on a ratio.
    """

    mean: str
    std: str = ""
    forecast: str = ""
    quantiles: str = ""
    form: Form = Form.USED
    factor: Positive = 1.0

    def metrics(self) -> tuple[str, ...]:
        """The metrics that there are, without percentiles."""
        return tuple(name for name in (self.mean, self.std, self.forecast) if name)

    def percentile(self, number: int) -> "Usage":
        """The usage whose mean is a percentile of the use: little is free while much is used."""
        sent = 100 - number if self.form is Form.FREE else number
        return Usage(mean=self.quantiles.replace("{}", str(sent)), form=self.form, factor=self.factor)


def windows_of(metric: str, *, factor: float = 1.0) -> Usage:
    """The statistics of a metric over five minutes, as the worker `windows` and Prometheus name them."""
    return Usage(mean=f"{metric}:mean:5m", std=f"{metric}:std:5m", quantiles=f"{metric}:p{{}}:5m", factor=factor)


def annotations_of(resource: str) -> Usage:
    """The annotations of the original agents, with their spelling of a forecast."""
    return Usage(
        mean=f"mean-free-{resource}",
        std=f"std-free-{resource}",
        forecast=f"forcasted-free-{resource}",
        form=Form.FREE,
    )


CPU = (windows_of("cpu", factor=1000.0), annotations_of("cpu"))
"""Of each node the first that is known: statistics of what metrics-server measures, in cores; else annotations."""

MEMORY = (windows_of("memory"), annotations_of("memory"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The use of one resource on each node, as parts of its capacity.

    Attributes:
        size: The amount of the resource that a node has, in the units of requests.
        mean: The used part; NaN where it is not known.
        std: Its standard deviation; 0 where it is not known.
        known: Whether `size` is positive and `mean` is known.
    """

    size: FloatArray
    mean: FloatArray
    std: FloatArray
    known: BoolArray


def load(nodes: Columns, resource: str, usages: tuple[Usage, ...], *, base: Base, forecast_weight: float = 0.0) -> Load:
    """The use of `resource`, of each node by the first of `usages` whose mean is known.

    A forecast counts with `forecast_weight` (0 to 1) where it is known. Requests of pods that the mean does not show
    yet are added. A negative use is 0, a negative deviation is unknown.
    """
    size = nodes.capacity(resource) if base is Base.CAPACITY else nodes.allocatable(resource)
    count = len(nodes.names)
    mean, std = np.full(count, np.nan), np.zeros(count)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for usage in usages:
            if not np.isnan(mean).any():
                break  # the columns of the others are not made
            used, deviation = _amounts(nodes, resource, usage, size, forecast_weight)
            left = np.isnan(mean) & np.isfinite(used)
            mean[left], std[left] = used[left], deviation[left]
        has_size = np.isfinite(size) & (size > 0)
        mean = np.where(has_size, mean / size, np.nan)
        std = np.where(has_size, std / size, 0.0)
    known = np.isfinite(mean)
    return Load(size=size, mean=mean, std=np.where(known & np.isfinite(std), std, 0.0), known=known)


def _amounts(
    nodes: Columns, resource: str, usage: Usage, size: FloatArray, forecast_weight: float
) -> tuple[FloatArray, FloatArray]:
    factor = size if usage.form is Form.RATIO else np.float64(usage.factor)
    mean = nodes.metric(usage.mean) * factor
    mean = np.where(np.isfinite(mean), mean, np.nan)
    if usage.forecast and forecast_weight > 0:
        forecast = nodes.metric(usage.forecast) * factor
        mean = np.where(np.isfinite(forecast), (1 - forecast_weight) * mean + forecast_weight * forecast, mean)
    used = np.maximum(size - mean if usage.form is Form.FREE else mean, 0.0)
    std = nodes.metric(usage.std) * factor if usage.std else np.zeros(len(nodes.names))
    return used + nodes.placed(resource, usage.mean), np.where(np.isfinite(std) & (std > 0), std, 0.0)
