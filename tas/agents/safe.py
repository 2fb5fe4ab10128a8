"""The agents `safe-overload` and `safe-balance`: the risk that the use of a node exceeds a limit, and how even it is.

The use of a resource is a random value between 0 and the capacity, with the measured mean and standard deviation: a
Beta distribution. A pod moves the mean by its request. The risk is the probability that the use exceeds a limit.

Both agents come from IBM/kube-safe-scheduler, restated from their formulas. The differences, which options undo: a
deviation has a smallest value, since a metric without spread is no proof of calm; one that is too large for any Beta
distribution is lowered, as Trimaran does, instead of rejecting an idle node; pods that no sample shows yet count.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from tas.agents.agent import (
    Agent,
    BoolArray,
    Candidates,
    Columns,
    FloatArray,
    Needs,
    Passes,
    PodDemand,
    Rounding,
    Scores,
)
from tas.agents.beta import beta_survival
from tas.agents.usage import (
    CPU,
    MEMORY,
    Base,
    Requests,
    Usage,
    by_resource,
    column,
    loads,
    requests_of,
    usages_of,
    with_terms,
)

Part = Annotated[float, msgspec.Meta(ge=0, le=1)]

LARGEST_SPREAD = 0.99
"""A variance is lowered to this part of the largest one that a value between 0 and 1 with the mean can have."""

SMALLEST_VARIANCE = 1e-8
"""A smaller variance counts as none: the distribution is a step then, and takes the longer to evaluate."""

PERCENTILES = (50, 70, 90, 95, 99)


class Mode(StrEnum):
    """How the risk is found."""

    BETA = "beta"
    """From mean and standard deviation."""
    EMPIRICAL = "empirical"
    """From percentiles of the window, so that no shape is assumed."""


class SafeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `safe-overload` and `safe-balance`; each ignores those of the other.

    Attributes:
        utilization: The limit of the use, as a part of the capacity.
        risk: The largest accepted probability that the use exceeds the limit.
        forecast_weight: How much a forecast counts against the mean.
        sigma_floor: The smallest standard deviation, as a part of the capacity.
        cap_sigma: Whether a standard deviation that no distribution can have is lowered; else the risk is 1.
        base: To which amount of a node use and requests are compared.
        mode: How the risk is found.
        margin: How much the deviation counts for `safe-balance`.
        sensitivity: The root of the deviation for `safe-balance`: 2 is the square root.
        cpu: The metrics of cpu; of each node the first with a known mean counts.
        memory: The metrics of memory.
    """

    utilization: Part = 0.9
    risk: Part = 0.3
    forecast_weight: Part = 0.2
    sigma_floor: Part = 0.001
    cap_sigma: bool = True
    base: Base = Base.CAPACITY
    mode: Mode = Mode.BETA
    margin: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    sensitivity: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    cpu: tuple[Usage, ...] = CPU
    memory: tuple[Usage, ...] = MEMORY


class _Safe(Agent):
    Options: ClassVar[type[SafeOptions]] = SafeOptions

    def __init__(self, options: SafeOptions) -> None:
        self._options = options
        self._usages = usages_of(options.cpu, options.memory)

    @property
    def needs(self) -> Needs:
        return _needs(usage for found in self._usages.values() for usage in found)

    def _fitted(self, nodes: Columns, requests: Requests) -> tuple[FloatArray, FloatArray, BoolArray]:
        """The mean with the pod, the standard deviation, and which are known: each a row for each resource."""
        options = self._options
        found = loads(nodes, self._usages, base=options.base, forecast_weight=options.forecast_weight)
        sigma = np.minimum(np.maximum(found.std, options.sigma_floor), 1.0)
        return found.with_pod(column(requests)), sigma, found.known


class SafeOverload(_Safe):
    """Rejects nodes whose use is likely to exceed the limit with the pod, and prefers those with the least risk."""

    original_rounding = Rounding.DOWN

    @property
    def needs(self) -> Needs:
        """Of each resource mean, deviation and forecast, or the percentiles."""
        if self._options.mode is Mode.BETA:
            return super().needs
        usages = (usage for found in self._usages.values() for usage in found if usage.quantiles)
        return _needs(usage.percentile(number) for usage in usages for number in PERCENTILES)

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        """A node passes if no known resource has a larger risk than accepted."""
        risk, known, terms = self._risk(pod, nodes)
        limit = f"risk of more than {self._options.utilization:.0%} use is above {self._options.risk:.0%}"
        return Passes(passed=risk <= self._options.risk, known=known, reason=limit, terms=terms)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """1 - √(risk / accepted risk), of the resource with the largest risk."""
        risk, known, terms = self._risk(pod, nodes)
        accepted = self._options.risk
        part = np.minimum(risk / accepted, 1.0) if accepted > 0 else (risk > 0).astype(np.float64)
        return Scores(values=1.0 - np.sqrt(part), known=known, terms=terms)

    def _risk(self, pod: PodDemand, nodes: Candidates) -> tuple[FloatArray, BoolArray, Mapping[str, FloatArray]]:
        """The largest risk of the known resources, 0 where none is known."""
        risks_of = self._by_percentiles if self._options.mode is Mode.EMPIRICAL else self._by_beta
        requests = requests_of(pod, self._usages)
        largest, known, *terms = nodes.derived(("risk", requests), partial(risks_of, requests=requests))
        names = ("risk",) if self._options.mode is Mode.EMPIRICAL else ("mean", "deviation", "risk")
        return largest, known > 0, by_resource(self._usages, names, terms)

    def _by_beta(self, nodes: Columns, *, requests: Requests) -> FloatArray:
        """The largest risk, where one is known, and mean, deviation and risk with a row for each resource."""
        mu, sigma, known = self._fitted(nodes, requests)
        risks = exceedance(mu, sigma, self._options.utilization, cap=self._options.cap_sigma)
        return with_terms(np.where(known, risks, 0.0).max(axis=0, initial=0.0), known, mu, sigma, risks)

    def _by_percentiles(self, nodes: Columns, *, requests: Requests) -> FloatArray:
        """The largest risk, where one is known, and the risk with a row for each resource."""
        usages = self._usages
        found = nodes.derived("percentiles", self._percentiles)
        size, *quantiles = found.reshape(1 + len(PERCENTILES), len(usages), found.shape[1])
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            at = self._options.utilization - column(requests) / size
        known = np.any(np.isfinite(quantiles), axis=0)
        risks = 1.0 - empirical_cdf(at, quantiles)
        return with_terms(np.where(known, risks, 0.0).max(axis=0, initial=0.0), known, risks)

    def _percentiles(self, nodes: Columns) -> FloatArray:
        """The size, and each of `PERCENTILES`, a row for each resource; none is below the one before."""
        usages = {name: [each for each in found if each.quantiles] for name, found in self._usages.items()}
        each = [
            loads(
                nodes,
                {name: tuple(usage.percentile(number) for usage in found) for name, found in usages.items()},
                base=self._options.base,
            )
            for number in PERCENTILES
        ]
        means = np.array([found.mean for found in each])
        # A sketch may be uneven.
        even = np.where(np.isfinite(means), np.fmax.accumulate(means), np.nan)
        return np.concatenate((each[0].size, *even))


class SafeBalance(_Safe):
    """Prefers nodes whose use is low and calm: 1 - (mean + margin · deviation^(1/sensitivity)) / 2."""

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """The score of the worse of the known resources."""
        requests = requests_of(pod, self._usages)
        found = nodes.derived(("balance", requests), partial(self._balance, requests=requests))
        return as_balanced(self._usages, found)

    def _balance(self, nodes: Columns, *, requests: Requests) -> FloatArray:
        fitted = self._fitted(nodes, requests)
        return balanced(*fitted, margin=self._options.margin, sensitivity=self._options.sensitivity)


def _needs(usages: Iterable[Usage]) -> Needs:
    metrics = dict.fromkeys(name for each in usages for name in each.metrics())
    return Needs(metrics=tuple(metrics), allocations=True, pod=True)


def balanced(mu: FloatArray, sigma: FloatArray, known: BoolArray, *, margin: float, sensitivity: float) -> FloatArray:
    """The evenness of the worse of the known resources, where one is known, and mean and deviation, of each node.

    The arrays have a row for each resource.
    """
    values = np.where(known, evenness(mu, sigma, margin=margin, sensitivity=sensitivity), 1.0)
    return with_terms(values.min(axis=0, initial=1.0), known, mu, sigma)


def as_balanced(resources: Iterable[str], found: FloatArray) -> Scores:
    """The scores from the rows of `balanced`."""
    values, known, *terms = found
    return Scores(values=values, known=known > 0, terms=by_resource(resources, ("mean", "deviation"), terms))


def exceedance(mu: FloatArray, sigma: FloatArray, limit: float, *, cap: bool) -> FloatArray:
    """The probability that a Beta value with mean `mu` and standard deviation `sigma` is above `limit`.

    A value without deviation is its mean; a mean of 0 is never above. Of a deviation that is too large for any Beta
    value, the largest possible one counts with `cap`, else the probability is 1.
    """
    variance, largest = sigma * sigma, mu * (1.0 - mu)
    if cap:
        variance = np.minimum(variance, LARGEST_SPREAD * largest)
    variance = np.where(variance < SMALLEST_VARIANCE, 0.0, variance)
    fits = (mu > 0) & (mu < 1) & (variance > 0) & (variance < largest)
    if fits.all():
        return beta_survival(np.full(mu.shape, limit), *beta_shape(mu, variance))
    risk = np.where((mu == 0) | ((variance == 0) & (mu <= limit)), 0.0, 1.0)
    if fits.any():
        a, b = beta_shape(mu[fits], variance[fits])
        risk[fits] = beta_survival(np.full(a.shape, limit), a, b)
    return risk


def beta_shape(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Alpha and beta of the distribution with this mean and variance, where 0 < variance < mean · (1 - mean)."""
    both = mean * (1.0 - mean) / variance - 1.0
    return mean * both, (1.0 - mean) * both


def evenness(mu: FloatArray, sigma: FloatArray, *, margin: float, sensitivity: float) -> FloatArray:
    """1 - (mu + s) / 2 with s = margin · sigma^(1/sensitivity), at most 1; sensitivity 0 ignores a sigma below 1."""
    root = np.where(sigma >= 1.0, 1.0, 0.0) if sensitivity == 0 else sigma ** (1.0 / sensitivity)
    balanced: FloatArray = 1.0 - (mu + np.minimum(margin * root, 1.0)) / 2.0
    return balanced


def empirical_cdf(at: FloatArray, quantiles: Sequence[FloatArray]) -> FloatArray:
    """The part of the values that are at most `at`, by linear interpolation between percentiles.

    `quantiles` has a row for each of `PERCENTILES`, none below the one before, and NaN where one is not known. Below
    the lowest known percentile the line begins at (0, 0), above the highest it ends at (1, 1).
    """
    below, above = np.zeros_like(at), np.ones_like(at)
    part_below, part_above = np.zeros_like(at), np.ones_like(at)
    for percentile, row in zip(PERCENTILES, quantiles, strict=True):
        known, part = np.isfinite(row), percentile / 100
        under = known & (row <= at)
        below, part_below = np.where(under, row, below), np.where(under, part, part_below)
        first_over = known & (row > at) & (part_above == 1.0)
        above, part_above = np.where(first_over, row, above), np.where(first_over, part, part_above)
    width = above - below
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        inner = part_below + (part_above - part_below) * (at - below) / width
    return np.clip(np.where(at >= 1.0, 1.0, np.where(width > 0, inner, part_below)), 0.0, 1.0)
