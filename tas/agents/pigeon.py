"""The agent `pigeon-holing`: places a pod where an objective over all nodes gets best.

Three objectives over the use of each node, which is requested / allocatable:

- `LOAD_BALANCE`: the standard deviation of the use is small.
- `CONSOLIDATE`: it is large, so that nodes are full or empty.
- `A_BINPACK`: the use varies over nodes as much as requests vary over pods. Pods of one size are spread, and pods of
  very different sizes are packed (Tantawi and Steinder, "Autonomic resource allocation ...", ICAC 2019). The measure is
  the multivariate coefficient of variation of Albert and Zhang, sqrt(mean' C mean) / (mean' mean).

A pod on one node changes only one row of the use, so the sums over all nodes are changed by one term for each trial:
O(nodes · resources²) for a request. The original evaluates all nodes again for each trial.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tas.agents.agent import (
    Agent,
    BoolArray,
    Candidates,
    Columns,
    FloatArray,
    Missing,
    Needs,
    PodDemand,
    Rounding,
    Scores,
)
from tas.errors import InvalidInputError
from tas.outcomes.outcome import Outcome, Placed

RESOURCES = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
"""The resources of the original, in its order."""

MEBI, GIBI = 2.0**20, 2.0**30

SMALLEST_CPU, SMALLEST_MEMORY = 10.0, 16 * MEBI
"""What a pod without a request of cpu counts as, and one with less than 1 MiB of memory."""

MAX_HISTORY = 100
"""After so many pods a new one counts for a hundredth of the demand history."""

MAX_DEMANDS = 1000
"""So many of the last pods are kept: what was before counts for a ten thousandth."""

MAX_UIDS = 10_000
"""How many of the last observed pods are remembered, so that each counts once."""

SNAPSHOT_VERSION = 2


class Objective(StrEnum):
    """What is to become best."""

    BINPACK = "A_BINPACK"
    LOAD_BALANCE = "LOAD_BALANCE"
    CONSOLIDATE = "CONSOLIDATE"


class PigeonOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `pigeon-holing`.

    Attributes:
        objective: What is to become best.
        resources: The resources that count; `pods` counts pods.
        prime: The number of the resource in `resources` by which `LOAD_BALANCE` and `CONSOLIDATE` measure.
        smallest_span: Two nodes whose objectives differ by less than this, divided by the number of nodes over which
            the objective is, get nearly the same score: one pod changes the objective of many nodes only a little.
        candidates_only: Whether the objective is over the candidates of a request, as in the original, and not over all
            nodes; and whether each request counts as a pod.
    """

    objective: Objective = Objective.BINPACK
    resources: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=16)] = RESOURCES[:2]
    prime: Annotated[int, msgspec.Meta(ge=0)] = 0
    smallest_span: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    candidates_only: bool = False

    def __post_init__(self) -> None:
        if self.prime >= len(self.resources):
            raise ValueError(f"prime must be less than {len(self.resources)}, the number of resources")
        if len(set(self.resources)) < len(self.resources):
            raise ValueError("resources must be different")


class History:
    """What the last pods requested.

    Attributes:
        demands: A row for each pod, the last one at the end.
        namespaces: The namespace of each pod.
    """

    def __init__(self, demands: FloatArray, namespaces: Sequence[str] = ()) -> None:
        self.demands = demands
        self.namespaces = list(namespaces) or [""] * len(demands)
        self._counts = Counter(self.namespaces)
        self._number_of = {namespace: number for number, namespace in enumerate(self._counts)}
        self._next = len(self._number_of)
        self._numbers = np.array([self._number_of[each] for each in self.namespaces], dtype=np.int64)

    def add(self, demand: FloatArray, namespace: str = "") -> None:
        """Counts a pod. Of too many, the oldest of the namespace with the most is dropped: no one displaces others."""
        self.demands = np.vstack((self.demands, demand))
        self.namespaces.append(namespace)
        self._counts[namespace] += 1
        if namespace not in self._number_of:
            self._number_of[namespace] = self._next
            self._next += 1
        self._numbers = np.append(self._numbers, self._number_of[namespace])
        if len(self.namespaces) > MAX_DEMANDS:
            # Of several the last by name, so that a replica which restores the history drops the same.
            most = max(self._counts, key=lambda each: (self._counts[each], each))
            oldest = self.namespaces.index(most)
            self.demands = np.delete(self.demands, oldest, axis=0)
            self._numbers = np.delete(self._numbers, oldest)
            del self.namespaces[oldest]
            self._counts[most] -= 1
            if not self._counts[most]:
                del self._counts[most], self._number_of[most]

    def moments(self, largest: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The mean and the second moment: an average of the first hundred pods, and from then on an exponential one.

        Of each namespace by itself: together they count as those of a hundred pods, or as many as there are. So no one
        makes what others have requested count less by many pods of its own.
        A pod that requests more than `largest` counts for nothing. Whoever names the node in a pod can create such a
        pod, which no node then runs.
        """
        kept = np.all(self.demands <= largest, axis=1)
        demands, later, counts = self.demands[kept], *_places(self._numbers[kept])
        decay = 1.0 - 1.0 / MAX_HISTORY
        after_first = np.maximum(counts - MAX_HISTORY, 0)
        weights = np.power(decay, np.minimum(later, after_first))  # of a namespace: their sum is at most MAX_HISTORY
        weights /= max(weights.sum(), 1.0)
        return weights @ demands, (demands * weights[:, None]).T @ demands


_Integers: TypeAlias = npt.NDArray[np.int64]


def _places(numbers: _Integers) -> tuple[_Integers, _Integers]:
    """For each row: how many with the same number come after it, and how many there are."""
    _, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    later = np.empty(len(numbers), dtype=np.int64)
    ends = np.cumsum(counts) - 1
    later[np.argsort(inverse, kind="stable")] = np.repeat(ends, counts) - np.arange(len(numbers))
    return later, counts[inverse]


class Pigeon(Agent):
    """Scores each node by the objective after the pod is placed there; a node without room has the score 0."""

    Options: ClassVar[type[PigeonOptions]] = PigeonOptions
    missing: ClassVar[Missing] = Missing.REJECT
    original_rounding: ClassVar[Rounding] = Rounding.NEAREST

    def __init__(self, options: PigeonOptions) -> None:
        self._options = options
        self._scale = np.array([[1.0 if name == "cpu" else _unit(name)] for name in options.resources])
        self._history = History(np.zeros((0, len(options.resources))))
        self._uids: OrderedDict[str, None] = OrderedDict()
        # Of the last request, and for which nodes and demands they are: most requests are about the same ones.
        self._sums: tuple[FloatArray, UseSums] | None = None
        self._wanted: tuple[FloatArray, FloatArray, float] | None = None

    @property
    def needs(self) -> Needs:
        """The requests of pods and nodes."""
        return Needs(allocations=True, pod=True, whole_cluster=not self._options.candidates_only)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """The best objective has 1, the worst 0.1, and a node without room 0."""
        options, demand = self._options, self._demand(pod.requests)
        if options.candidates_only:
            self._history.add(demand[:, 0], pod.namespace)
        here = self._amounts(nodes)
        known = here.known
        fits = known & np.all(demand <= here.capacity - here.used, axis=0)
        everywhere = here if options.candidates_only else self._amounts(nodes.cluster).of_known()
        values = self._objectives(demand, here, fits, everywhere)
        smallest_span = options.smallest_span / max(len(everywhere.known), 1)
        scores = np.where(fits, stretched(values, fits, smallest_span, whole=options.candidates_only), 0.0)
        return Scores(values=scores, known=known, terms={"objective": values})

    def _objectives(
        self, demand: FloatArray, candidates: "_Amounts", fits: BoolArray, everywhere: "_Amounts"
    ) -> FloatArray:
        """The objective over the nodes of `everywhere` after the pod is placed on each candidate.

        NaN where the pod has no room.
        """
        options = self._options
        result = np.full(len(fits), np.nan)
        if not fits.any():
            return result
        here = candidates.of(fits)
        after = here.used + demand
        if options.objective is Objective.BINPACK:
            new = np.clip(_ratio(after, here.capacity), 0.0, 1.0)
            result[fits] = binpack(
                here.ratio, new, self._sums_of(everywhere.ratio), wanted=self._variation(everywhere.capacity)
            )
        else:
            k = options.prime
            ratio = _prime_ratio(everywhere.used[k], everywhere.capacity[k])
            old, new = (_prime_ratio(each[k], here.capacity[k]) for each in (here.used, after))
            chosen = balance if options.objective is Objective.LOAD_BALANCE else consolidation
            result[fits] = chosen(old, new, ratio)
        return result

    def _sums_of(self, ratio: FloatArray) -> "UseSums":
        if self._sums is None or not np.array_equal(self._sums[0], ratio):
            self._sums = ratio, sums_of(ratio)
        return self._sums[1]

    def _variation(self, capacity: FloatArray) -> float:
        demands, last = self._history.demands, self._wanted
        if last is None or last[0] is not demands or not np.array_equal(last[1], capacity):
            found = variation_of_demand(self._history, capacity, any_size=self._options.candidates_only)
            last = self._wanted = demands, capacity, found
        return last[2]

    def _amounts(self, nodes: Columns) -> "_Amounts":
        found = nodes.derived("amounts", self._of_nodes)
        used, capacity, ratio = found[:-1].reshape(3, len(self._scale), found.shape[1])
        return _Amounts(used=used, capacity=capacity, ratio=ratio, known=found[-1] > 0)

    def _of_nodes(self, nodes: Columns) -> FloatArray:
        """`_Amounts` one below the other; 0 for what is not known."""
        resources = self._options.resources
        used = np.array([nodes.requested(name) for name in resources]) / self._scale
        capacity = np.array([nodes.allocatable(name) for name in resources]) / self._scale
        known = np.all(np.isfinite(capacity), axis=0) & np.isfinite(nodes.requested("pods"))
        used = np.where(np.isfinite(used), used, 0.0)  # a resource that no pod requests
        capacity = np.where(np.isfinite(capacity), capacity, 0.0)
        return np.vstack((used, capacity, np.clip(_ratio(used, capacity), 0.0, 1.0), known))

    def _demand(self, requests: Mapping[str, float]) -> FloatArray:
        """What a pod requests, a row for each resource."""
        found = np.array([1.0 if name == "pods" else requests.get(name, 0.0) for name in self._options.resources])
        for number, name in enumerate(self._options.resources):
            if name == "cpu" and found[number] <= 0:
                found[number] = SMALLEST_CPU
            if name == "memory" and found[number] < MEBI:
                found[number] = SMALLEST_MEMORY
        demand: FloatArray = np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)[:, None] / self._scale
        return demand

    def observe(self, event: Placed | Outcome) -> None:
        """Counts the requests of a pod that was placed, once for each pod; not if requests count instead."""
        if self._options.candidates_only or not isinstance(event, Placed) or event.uid in self._uids:
            return
        self._uids[event.uid] = None
        if len(self._uids) > MAX_UIDS:
            self._uids.popitem(last=False)
        self._history.add(self._demand(event.requests)[:, 0], event.namespace)

    def snapshot(self) -> Mapping[str, Any]:
        """The demand history and the pods that it counts."""
        return {
            "version": SNAPSHOT_VERSION,
            "resources": list(self._options.resources),
            "demands": list(zip(self._history.namespaces, self._history.demands.tolist(), strict=True)),
            "uids": list(self._uids),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises InvalidInputError if the state is of another version, of other resources, or damaged."""
        if state.get("version") != SNAPSHOT_VERSION:
            raise InvalidInputError("state of pigeon-holing", "version", state.get("version"), "is another version")
        resources = state.get("resources")
        if resources != list(self._options.resources):
            raise InvalidInputError("state of pigeon-holing", "resources", resources, "are other resources")
        try:
            found = msgspec.convert(state, _State)
            history = found.history(len(self._options.resources))
        except (ValueError, TypeError) as error:
            raise InvalidInputError("state of pigeon-holing", "body", dict(state), str(error)) from error
        self._history, self._uids = history, OrderedDict.fromkeys(found.uids)


class _Amounts(NamedTuple):
    """Of some nodes: a row for each resource, and a column for each node.

    Attributes:
        used: What is requested.
        capacity: What pods may request.
        ratio: The use, from 0 to 1.
        known: Of which nodes all is known.
    """

    used: FloatArray
    capacity: FloatArray
    ratio: FloatArray
    known: BoolArray

    def of(self, chosen: BoolArray) -> "_Amounts":
        """Those of the chosen nodes."""
        if chosen.all():
            return self
        used, capacity, ratio = (each[:, chosen] for each in (self.used, self.capacity, self.ratio))
        return _Amounts(used=used, capacity=capacity, ratio=ratio, known=self.known[chosen])

    def of_known(self) -> "_Amounts":
        """Those of the nodes of which all is known."""
        return self.of(self.known)


_NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class _State(msgspec.Struct, frozen=True, kw_only=True):
    demands: Annotated[list[tuple[str, list[_NotNegative]]], msgspec.Meta(max_length=MAX_DEMANDS)]
    uids: Annotated[list[str], msgspec.Meta(max_length=MAX_UIDS)]

    def history(self, resources: int) -> History:
        """The demand history. Raises ValueError if it is not of so many resources, or not finite."""
        rows = [row for _, row in self.demands]
        if any(len(row) != resources for row in rows):
            raise ValueError(f"each demand must have {resources} numbers")
        demands = np.array(rows, dtype=np.float64).reshape(-1, resources)
        if not np.isfinite(demands).all():
            raise ValueError("must be finite")
        return History(demands, [namespace for namespace, _ in self.demands])


def stretched(values: FloatArray, fits: BoolArray, smallest_span: float, *, whole: bool) -> FloatArray:
    """Scores from 0.1 to 1, the best for the least objective; without meaning where the pod does not fit.

    A span below the smallest one does not reach down to 0.1, unless `whole`: then any difference does.
    """
    found = values[fits]
    if not found.size:
        return np.zeros_like(values)
    low, high = found.min(), found.max()
    span = high - low if whole else max(high - low, smallest_span)
    if span <= 0 or not high > low:
        return np.ones_like(values)
    top = high if whole else low + span
    scores: FloatArray = np.clip((1.0 + 9.0 * (top - values) / span) / 10.0, 0.1, 1.0)
    return scores


def balance(old: FloatArray, new: FloatArray, ratio: FloatArray) -> FloatArray:
    """The standard deviation of the use of all nodes after one of them changes from `old` to `new`, for each change."""
    count, shift = len(ratio), ratio.mean()  # centred sums: no digits are lost
    first, second = (ratio - shift).sum(), np.square(ratio - shift).sum()
    mean = (first + new - old) / count
    square = (second + np.square(new - shift) - np.square(old - shift)) / count
    deviation: FloatArray = np.sqrt(np.maximum(square - mean * mean, 0.0))
    return deviation


def consolidation(old: FloatArray, new: FloatArray, ratio: FloatArray) -> FloatArray:
    """1 - the root of the mean of squares d, for each change of one node.

    d is how far a node is below the mean, as a part of the mean, or above the mean, as a part of the rest up to 1. A
    mean of 0 or less, or of 1 or more, gives 0. Nodes are sorted once: a changed mean moves few of them to its other
    side, so sums up to each place suffice.
    """
    count = len(ratio)
    ordered = np.sort(ratio)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    squares = np.concatenate(([0.0], np.cumsum(np.square(ordered))))
    mean = (sums[-1] + new - old) / count
    at = np.searchsorted(ordered, mean, side="left")  # so many nodes are below the mean, before the change
    below = (at.astype(np.float64), sums[at], squares[at])
    above = (count - below[0], sums[-1] - below[1], squares[-1] - below[2])
    with np.errstate(invalid="ignore", divide="ignore"):
        low = (below[0] * mean * mean - 2 * mean * below[1] + below[2]) / np.square(mean)
        high = (above[0] * mean * mean - 2 * mean * above[1] + above[2]) / np.square(1.0 - mean)
        total = low + high - _distance(old, mean) + _distance(new, mean)
        result = 1.0 - np.sqrt(np.maximum(total, 0.0) / count)
    return np.where((mean > 0) & (mean < 1), result, 0.0)


def _distance(ratio: FloatArray, mean: FloatArray) -> FloatArray:
    below = np.square((mean - ratio) / mean)
    above = np.square((ratio - mean) / (1.0 - mean))
    return np.where(ratio < mean, below, above)


class UseSums(NamedTuple):
    """Sums of the use of all nodes: their number, the mean, and of the distances from it the sum and the products."""

    nodes: int
    shift: FloatArray
    total: FloatArray
    products: FloatArray


def sums_of(use: FloatArray) -> UseSums:
    """The sums of a use with a row for each resource and a column for each node; at least one."""
    shift = use.mean(axis=1, keepdims=True)
    centred = use - shift
    return UseSums(use.shape[1], shift, centred.sum(axis=1, keepdims=True), centred @ centred.T)


def binpack(old: FloatArray, new: FloatArray, sums: UseSums, *, wanted: float) -> FloatArray:
    """How far the variation of the use of all nodes is from the wanted one, after one changes from `old` to `new`.

    Both have a row for each resource, a column for each change, and numbers from 0 to 1.
    """
    nodes, shift, total, products = sums
    old, new = old - shift, new - shift
    mean = (total + new - old) / nodes
    # mean' C mean, without the matrix of each change: C = (products - old old' + new new') / nodes - mean mean'
    full = mean + shift
    spread = _dot(full, products @ full) + np.square(_dot(full, new)) - np.square(_dot(full, old))
    spread = spread / nodes - np.square(_dot(full, mean))
    return np.abs(_coefficient(spread, _dot(full, full)) - wanted)


def _dot(one: FloatArray, other: FloatArray) -> FloatArray:
    """The product of the columns of both."""
    product: FloatArray = np.add.reduce(one * other, axis=0)
    return product


def variation(mean: FloatArray, covariance: FloatArray) -> float:
    """The multivariate coefficient of variation; 0 if either part is 0."""
    return float(_coefficient(np.array([mean @ covariance @ mean]), np.array([mean @ mean]))[0])


def _coefficient(spread: FloatArray, square: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((square > 0) & (spread > 0), np.sqrt(np.maximum(spread, 0.0)) / square, 0.0)


def variation_of_demand(history: History, capacity: FloatArray, *, any_size: bool) -> float:
    """The variation of what pods request, in parts of a mean node.

    A resource that no node has does not count, nor a pod that no node can hold, unless pods of `any_size` count.
    `capacity` has a row for each resource and a column for each node.
    """
    counts = (capacity > 0).sum(axis=1)
    kept = counts > 0
    if not kept.any():
        return 0.0
    mean_node = capacity.sum(axis=1)[kept] / counts[kept]
    largest = np.where(kept & ~np.bool_(any_size), capacity.max(axis=1), np.inf)
    mean, moment = history.moments(largest)
    m = mean[kept] / mean_node
    second = moment[np.ix_(kept, kept)] / np.outer(mean_node, mean_node)
    return variation(m, second - np.outer(m, m))


def _ratio(used: FloatArray, capacity: FloatArray) -> FloatArray:
    """The use; where there is no capacity, 0 if nothing is used, else 1."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(capacity > 0, used / capacity, np.where(used > 0, 1.0, 0.0))


def _prime_ratio(used: FloatArray, capacity: FloatArray) -> FloatArray:
    """The use of the prime resource; a node without this resource is full."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(capacity > 0, used / capacity, 1.0)


def _unit(resource: str) -> float:
    if resource == "memory":
        return MEBI
    return GIBI if resource == "ephemeral-storage" else 1.0
