"""The agents `target-load`, `risk-balance`, `low-risk-overcommit` and `peaks`, as the Trimaran plugins decide.

Restated from their published formulas. What is different from upstream: pods that no sample shows yet count for all of
them; a node that a pod overloads, or of which nothing is known, is never the best node of `peaks`; a node whose load is
unknown is unknown to `low-risk-overcommit`, and not without risk; metrics are compared to the capacity that they
measure.
"""

from collections.abc import Mapping
from functools import partial
from math import floor, fsum
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from tas.agents.agent import (
    Agent,
    Candidates,
    Columns,
    FloatArray,
    Missing,
    Needs,
    PodDemand,
    Rounding,
    Scores,
)
from tas.agents.beta import beta_cdf
from tas.agents.safe import LARGEST_SPREAD, SMALLEST_VARIANCE, as_balanced, balanced
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
Percent = Annotated[float, msgspec.Meta(gt=0, lt=100)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


def _metrics(*usages: tuple[Usage, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for found in usages for each in found for name in each.metrics()))


class TargetLoadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `target-load`.

    Attributes:
        target: The wanted use of cpu in percent.
        default_request: The millicores that a container without request and limit is expected to use.
        multiplier: How many times its request a container is expected to use, if it has no limit; a pod that no sample
            shows yet, whatever its limit.
        cpu: The metrics of cpu; of each node the first with a known mean counts.
    """

    target: Percent = 40.0
    default_request: NotNegative = 1000.0
    multiplier: NotNegative = 1.5
    cpu: tuple[Usage, ...] = CPU


class TargetLoad(Agent):
    """Prefers nodes whose use of cpu comes near to the target with the pod, and then those with less use."""

    Options: ClassVar[type[TargetLoadOptions]] = TargetLoadOptions
    missing: ClassVar[Missing] = Missing.WORST

    def __init__(self, options: TargetLoadOptions) -> None:
        self._options = options

    @property
    def needs(self) -> Needs:
        """Use and capacity of cpu."""
        return Needs(metrics=_metrics(self._options.cpu), allocations=True, pod=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """From the predicted use: it rises up to the target, and falls from there to 0 at 100 %."""
        expected = self._expected(pod)
        found = nodes.derived(("score", expected), partial(self._score_of_nodes, expected=expected))
        values, known, predicted = found
        return Scores(values=values, known=known > 0, terms={"cpu predicted": predicted})

    def _score_of_nodes(self, nodes: Columns, *, expected: float) -> FloatArray:
        """The score, where the use is known, and the predicted use in percent."""
        options = self._options
        found = loads(nodes, {"cpu": options.cpu}, base=Base.CAPACITY, use_of_requests=options.multiplier)
        with np.errstate(invalid="ignore", divide="ignore"):
            predicted = 100.0 * (found.mean + expected / found.size)
        values = target_load(np.where(found.known, predicted, 0.0), options.target)
        return with_terms(values[0], found.known, predicted)

    def _expected(self, pod: PodDemand) -> float:
        """The millicores that the pod is expected to use: of each container its limit, else more than its request."""
        if not pod.containers:
            return self._expected_of(pod.requests, pod.limits)
        found = [self._expected_of(each.requests, each.limits) for each in pod.containers]
        return fsum(found) + pod.overhead.get("cpu", 0.0)

    def _expected_of(self, requests: Mapping[str, float], limits: Mapping[str, float]) -> float:
        request, limit = requests.get("cpu", 0.0), limits.get("cpu", 0.0)
        if limit > 0 and limit >= request:  # a smaller one is a sum over some containers
            return limit
        return floor(request * self._options.multiplier + 0.5) if request > 0 else self._options.default_request


def target_load(predicted: FloatArray, target: float) -> FloatArray:
    """The score, 0 to 1, of a predicted use in percent."""
    rising = (100.0 - target) * predicted / target + target
    falling = target * (100.0 - predicted) / (100.0 - target)
    score = np.where(predicted > target, falling, rising) / 100.0
    return np.where(predicted > 100.0, 0.0, np.clip(score, 0.0, 1.0))


class RiskBalanceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `risk-balance`.

    Attributes:
        margin: How much the deviation counts.
        sensitivity: The root of the deviation: 2 is the square root, and 0 ignores a deviation below 1.
        base: To which amount of a node use and requests are compared.
        cpu: The metrics of cpu; of each node the first with a known mean counts.
        memory: The metrics of memory.
    """

    margin: NotNegative = 1.0
    sensitivity: NotNegative = 1.0
    base: Base = Base.CAPACITY
    cpu: tuple[Usage, ...] = CPU
    memory: tuple[Usage, ...] = MEMORY


class RiskBalance(Agent):
    """Prefers nodes whose use is low and calm, as `safe-balance`, with Trimaran's defaults."""

    Options: ClassVar[type[RiskBalanceOptions]] = RiskBalanceOptions
    missing: ClassVar[Missing] = Missing.WORST

    def __init__(self, options: RiskBalanceOptions) -> None:
        self._options = options
        self._usages = usages_of(options.cpu, options.memory)

    @property
    def needs(self) -> Needs:
        """Use and capacity of cpu and memory."""
        return Needs(metrics=_metrics(self._options.cpu, self._options.memory), allocations=True, pod=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """The score of the worse of the known resources."""
        requests = requests_of(pod, self._usages)
        found = nodes.derived(("score", requests), partial(self._score_of_nodes, requests=requests))
        return as_balanced(self._usages, found)

    def _score_of_nodes(self, nodes: Columns, *, requests: Requests) -> FloatArray:
        options = self._options
        found = loads(nodes, self._usages, base=options.base)
        mu, sigma = found.with_pod(column(requests)), np.minimum(found.std, 1.0)
        return balanced(mu, sigma, found.known, margin=options.margin, sensitivity=options.sensitivity)


class LowRiskOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `low-risk-overcommit`.

    Attributes:
        window: Over how many measurements a deviation is smoothed: it is larger by the root of this.
        limit_weights: How much the risk of limits counts for each resource, against the risk of the load.
        cpu: The metrics of cpu; of each node the first with a known mean counts.
        memory: The metrics of memory.
    """

    window: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    limit_weights: Mapping[str, Part] = {}
    cpu: tuple[Usage, ...] = CPU
    memory: tuple[Usage, ...] = MEMORY


class LowRisk(Agent):
    """Prefers nodes with a low risk that containers which use more than they request meet a full node."""

    Options: ClassVar[type[LowRiskOptions]] = LowRiskOptions
    missing: ClassVar[Missing] = Missing.WORST

    def __init__(self, options: LowRiskOptions) -> None:
        self._options = options
        self._usages = usages_of(options.cpu, options.memory)

    @property
    def needs(self) -> Needs:
        """Use, capacity, requests and limits of cpu and memory."""
        return Needs(metrics=_metrics(self._options.cpu, self._options.memory), allocations=True, pod=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """1 - the larger risk of the resources."""
        requests = requests_of(pod, self._usages)
        limits = tuple(map(max, requests, (pod.limits.get(resource, 0.0) for resource in self._usages)))
        found = nodes.derived(
            ("score", requests, limits), partial(self._score_of_nodes, requests=requests, limits=limits)
        )
        values, known, *terms = found
        return Scores(
            values=values, known=known > 0, terms=by_resource(self._usages, ("risk of limits", "risk of load"), terms)
        )

    def _score_of_nodes(self, nodes: Columns, *, requests: Requests, limits: Requests) -> FloatArray:
        """The score, where a risk is known, and both risks with a row for each resource."""
        usages = self._usages
        found = nodes.derived("of nodes", self._of_nodes)
        size, requested, limited, by_load = found.reshape(4, len(usages), found.shape[1])
        known = np.isfinite(size)  # requests and limits
        by_limits = limit_risk(size, np.minimum(requested + column(requests), size), limited + column(limits))
        weights = column([self._options.limit_weights.get(resource, 0.5) for resource in usages])
        risk = weights * by_limits + (1.0 - weights) * np.where(np.isfinite(by_load), by_load, 0.0)
        risk = np.minimum(np.maximum(risk, 0.0), 1.0)
        counts = known & (np.isfinite(by_load) | (weights == 1.0))  # with a weight of 1 the load does not count
        worst = np.where(counts, risk, 0.0).max(axis=0, initial=0.0)
        return with_terms(1.0 - worst, counts, by_limits, by_load)

    def _of_nodes(self, nodes: Columns) -> FloatArray:
        """Size, requests, limits and the risk by load, each a row for each resource; NaN where one is not known."""
        usages = self._usages
        found = loads(nodes, usages, base=Base.CAPACITY)
        requested, limited = np.empty_like(found.size), np.empty_like(found.size)
        for row, resource in enumerate(usages):
            requested[row], limited[row] = nodes.requested(resource), nodes.limited(resource)
        known = np.isfinite(found.size) & (found.size > 0) & np.isfinite(requested) & np.isfinite(limited)
        size = np.where(known, found.size, 1.0)
        requested, limited = np.where(known, requested, 0.0), np.where(known, limited, 0.0)
        sigma = np.minimum(found.std * np.sqrt(self._options.window), 1.0)
        mean = np.minimum(np.where(found.known, found.mean, 0.0), 1.0)
        by_load = load_risk(mean, sigma, np.minimum(requested, size) / size, limited / size)
        by_load = np.where(found.known, by_load, np.nan)
        return np.concatenate((np.where(known, size, np.nan), requested, limited, by_load))


def limit_risk(size: FloatArray, requested: FloatArray, limited: FloatArray) -> FloatArray:
    """The part of what limits allow beyond requests that the node does not have; 0 if the node has all limits."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        excess = (limited - size) / (limited - requested)
    excess = np.where((limited > size) & (limited > requested), excess, 0.0)
    return np.minimum(np.maximum(excess, 0.0), 1.0)


def load_risk(mean: FloatArray, sigma: FloatArray, requested: FloatArray, limited: FloatArray) -> FloatArray:
    """The probability that the use is above what is requested, all as parts of the node.

    If the limits are below the size of the node, the use cannot be above them: then it is the probability under the
    condition that the use is below the limits.
    """
    variance, largest = sigma * sigma, mean * (1.0 - mean)
    variance = np.minimum(variance, LARGEST_SPREAD * largest)
    fits = (variance >= SMALLEST_VARIANCE) & (variance < largest)
    below = np.where((mean == 0) | (mean <= requested), 1.0, 0.0)  # without deviation the use is its mean
    both = np.where(fits, largest / np.where(fits, variance, 1.0) - 1.0, 1.0)
    alpha, beta = np.where(fits, mean * both, 1.0), np.where(fits, (1.0 - mean) * both, 1.0)
    bounded = (limited < 1.0) & (requested <= limited)
    conditional = fits & bounded
    at = np.array((requested, np.where(conditional, limited, 0.0)))
    by_request, by_limit = beta_cdf(
        np.minimum(np.maximum(at, 0.0), 1.0), np.array((alpha, alpha)), np.array((beta, beta))
    )
    below = np.where(fits, by_request, below)
    possible = conditional & (by_limit > 0)
    below = np.where(possible, np.minimum(below / np.where(possible, by_limit, 1.0), 1.0), below)
    return 1.0 - np.where(bounded & (limited == 0), 1.0, below)


class PowerModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The power of a node in watts at a use of x percent: k0 + k1 · e^(k2 · x).

    Attributes:
        k0: A constant power in watts; it changes no score.
        k1: In watts.
        k2: How fast the power grows with the use, for each percent: 0.02 for example.
    """

    k0: float = 0.0
    k1: float
    k2: float


class PeaksOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `peaks`.

    Attributes:
        models: The power model of each node.
        default: The power model of all other nodes; without one they are unknown.
        cpu: The metrics of cpu; of each node the first with a known mean counts.
    """

    models: Mapping[str, PowerModel] = {}
    default: PowerModel | None = None
    cpu: tuple[Usage, ...] = CPU


class Peaks(Agent):
    """Prefers nodes whose power rises least with the pod."""

    Options: ClassVar[type[PeaksOptions]] = PeaksOptions
    original_rounding: ClassVar[Rounding] = Rounding.UP
    missing: ClassVar[Missing] = Missing.WORST

    def __init__(self, options: PeaksOptions) -> None:
        self._options = options

    @property
    def needs(self) -> Needs:
        """Use and capacity of cpu."""
        return Needs(metrics=_metrics(self._options.cpu), allocations=True, pod=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """1 for the least rise among nodes with room, 0 for the largest and for a node without room."""
        request = pod.requests.get("cpu", 0.0)
        jump, fits = nodes.derived(("rise", request), partial(self._rise, request=request))
        known, fits = np.isfinite(jump), fits > 0
        values = np.zeros(len(nodes.names))
        if fits.any():
            low, high = jump[fits].min(), jump[fits].max()
            with np.errstate(over="ignore"):
                span = high - low
            values[fits] = 1.0 - (jump[fits] / 2 - low / 2) / (span / 2) if span / 2 > 0 and span < np.inf else 1.0
        return Scores(values=np.clip(values, 0.0, 1.0), known=known, terms={"rise": jump})

    def _rise(self, nodes: Columns, *, request: float) -> FloatArray:
        """The rise of the power in watts, NaN where it is not known, and whether the node has room (1 or 0)."""
        found = loads(nodes, {"cpu": self._options.cpu}, base=Base.CAPACITY)
        mean, size, (k1, k2) = found.mean[0], found.size[0], self._models(nodes)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            now = 100.0 * mean
            then = now + 100.0 * request / size
            jump = k1 * (np.exp(k2 * then) - np.exp(k2 * now))
        known = found.known[0] & np.isfinite(jump)
        return np.array((np.where(known, jump, np.nan), known & (then <= 100.0)))

    def _models(self, nodes: Columns) -> FloatArray:
        """k1 and k2 of each node; NaN without a model."""
        models = [self._options.models.get(name, self._options.default) for name in nodes.names]
        found = [[np.nan if each is None else getattr(each, field) for each in models] for field in ("k1", "k2")]
        return np.array(found, dtype=np.float64)
