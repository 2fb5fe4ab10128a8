"""How busy nodes are, in the units of requests, whatever the metric counts: used, free, or a ratio of the capacity."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import product
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from tas.agents.agent import BoolArray, Columns, FloatArray, PodDemand
from tas.errors import shortened

Requests: TypeAlias = tuple[float, ...]
"""What a pod requests, of each resource of a formula."""

Positive = Annotated[float, msgspec.Meta(gt=0)]
MetricName = Annotated[str, msgspec.Meta(min_length=1)]


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

    mean: MetricName
    std: str = ""
    forecast: str = ""
    quantiles: str = ""
    form: Form = Form.USED
    factor: Positive = 1.0

    def __post_init__(self) -> None:
        if self.quantiles and "{}" not in self.quantiles:
            raise ValueError(f"quantiles must have {{}} for the percentile, not {shortened(self.quantiles)}")

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


def usages_of(cpu: tuple[Usage, ...], memory: tuple[Usage, ...]) -> dict[str, tuple[Usage, ...]]:
    """The metrics of each resource that has some."""
    return {resource: found for resource, found in (("cpu", cpu), ("memory", memory)) if found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The use of one resource on each node, as parts of its size; of several resources, a row for each.

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

    def with_pod(self, requests: FloatArray) -> FloatArray:
        """The mean when the node also has a pod with these requests, from 0 to 1; 0 where it is not known.

        `requests` has a row with one number for each resource: a `column`.
        """
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = np.minimum(np.maximum(self.mean + requests / self.size, 0.0), 1.0)
        return np.where(self.known, mean, 0.0)


def loads(
    nodes: Columns,
    usages: Mapping[str, tuple[Usage, ...]],
    *,
    base: Base,
    forecast_weight: float = 0.0,
    use_of_requests: float = 1.0,
) -> Load:
    """The use of each resource of `usages`, of each node by the first usage of the resource whose mean is known.

    A forecast counts with `forecast_weight` (0 to 1) where it is known. Of pods that the mean does not show yet
    `use_of_requests` times the requests are added. A negative use is 0, a negative deviation is unknown.
    """
    resources = tuple(usages.items())
    found = nodes.derived(
        ("loads", resources, base, forecast_weight, use_of_requests),
        partial(
            _loads,
            resources=resources,
            base=base,
            forecast_weight=forecast_weight,
            use_of_requests=use_of_requests,
        ),
    )
    size, mean, std = found.reshape(3, len(resources), found.shape[1])
    return Load(size=size, mean=mean, std=std, known=np.isfinite(mean))


def _loads(
    nodes: Columns,
    *,
    resources: Sequence[tuple[str, tuple[Usage, ...]]],
    base: Base,
    forecast_weight: float,
    use_of_requests: float,
) -> FloatArray:
    """Size, mean and deviation, each a row for each resource."""
    shape = len(resources), len(nodes.names)
    sizes, means, deviations = np.empty(shape), np.empty(shape), np.empty(shape)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for row, (resource, found) in enumerate(resources):
            size = nodes.capacity(resource) if base is Base.CAPACITY else nodes.allocatable(resource)
            sizes[row] = size
            used, deviations[row], new = _used(nodes, resource, found, size, forecast_weight)
            means[row] = used + use_of_requests * new
        has_size = (sizes > 0) & (sizes < np.inf)
        means = np.where(has_size, means / sizes, np.nan)
        deviations /= sizes
    known = np.isfinite(means) & np.isfinite(deviations)
    return np.concatenate((sizes, means, np.where(known, deviations, 0.0)))


def requests_of(pod: PodDemand, resources: Iterable[str]) -> Requests:
    """What a pod requests of each resource: in the key of what is derived, pods of one workload are the same."""
    return tuple(pod.requests.get(resource, 0.0) for resource in resources)


def column(values: Sequence[float]) -> FloatArray:
    """A row with one number for each resource."""
    return np.array(values, dtype=np.float64).reshape(-1, 1)


def with_terms(values: FloatArray, known: BoolArray, *terms: FloatArray) -> FloatArray:
    """The rows of a derivation: the values, whether a resource of the node is known (1 or 0), and the terms.

    `known` and each term have a row for each resource; a term is NaN where its resource is not known.
    """
    rows = [np.where(known, term, np.nan) for term in terms]
    return np.concatenate((values[np.newaxis], np.any(known, axis=0)[np.newaxis], *rows))


def by_resource(resources: Iterable[str], terms: Iterable[str], rows: Iterable[FloatArray]) -> dict[str, FloatArray]:
    """The terms of a formula by their names: of the first term a row for each resource, then of the next."""
    names = [f"{resource} {term}" for term, resource in product(terms, resources)]
    return dict(zip(names, rows, strict=True))


def _used(
    nodes: Columns, resource: str, usages: tuple[Usage, ...], size: FloatArray, forecast_weight: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The used amount, its deviation, and the requests of pods that the amount does not show yet.

    Of each node by the first of `usages` that is known; NaN if there is none.
    """
    if not usages:
        nothing = np.full(len(nodes.names), np.nan)
        return nothing, nothing, nothing
    found = _amounts(nodes, resource, usages[0], size, forecast_weight)
    for usage in usages[1:]:
        missing = ~np.isfinite(found[0])
        if not missing.any():
            break  # the columns of the others are not made
        others = _amounts(nodes, resource, usage, size, forecast_weight)
        used, deviation, new = np.where(missing, others, found)
        found = used, deviation, new
    return found


def _amounts(
    nodes: Columns, resource: str, usage: Usage, size: FloatArray, forecast_weight: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    factor = size if usage.form is Form.RATIO else np.float64(usage.factor)
    mean = nodes.metric(usage.mean) * factor
    mean = np.where(np.isfinite(mean), mean, np.nan)
    if usage.forecast and forecast_weight > 0:
        forecast = nodes.metric(usage.forecast) * factor
        mean = np.where(np.isfinite(forecast), (1 - forecast_weight) * mean + forecast_weight * forecast, mean)
    used = np.maximum(size - mean if usage.form is Form.FREE else mean, 0.0)
    std = nodes.metric(usage.std) * factor if usage.std else np.zeros(len(nodes.names))
    return used, np.where((std > 0) & (std < np.inf), std, 0.0), nodes.placed(resource, usage.mean)
