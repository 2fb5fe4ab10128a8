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
from functools import partial
from math import isfinite
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

MAX_NAMESPACE = 63
"""The most characters of the name of a namespace: what a request says beyond is not kept."""

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


Demand: TypeAlias = tuple[float, ...]
"""What a pod requests of each resource, in the units of the agent."""

_Integers: TypeAlias = npt.NDArray[np.int64]


class _Pods(NamedTuple):
    """The pods of a history: of each a row of `demands`, its namespace, and the number of the namespace."""

    demands: FloatArray
    namespaces: Sequence[str]
    numbers: _Integers


class History:
    """What the last pods requested.

    The time limit of an agent may end its call anywhere: so a pod is added by one assignment.
    """

    def __init__(self, demands: FloatArray, namespaces: Sequence[str] = ()) -> None:
        """A row of `demands` for each pod, the last one at the end."""
        namespaces = list(namespaces) or [""] * len(demands)
        number_of = {namespace: number for number, namespace in enumerate(dict.fromkeys(namespaces))}
        numbers = np.array([number_of[each] for each in namespaces], dtype=np.int64)
        self._pods = _Pods(demands, namespaces, numbers)

    @property
    def demands(self) -> FloatArray:
        """A row for each pod, the last one at the end."""
        return self._pods.demands

    @property
    def namespaces(self) -> Sequence[str]:
        """The namespace of each pod."""
        return self._pods.namespaces

    def add(self, demand: Demand | FloatArray, namespace: str = "") -> None:
        """Counts a pod. Of too many, the oldest of the namespace with the most is dropped: no one displaces others."""
        before = self._pods
        known = namespace in before.namespaces
        number = before.numbers[before.namespaces.index(namespace)] if known else before.numbers.max(initial=-1) + 1
        demands, numbers = np.vstack((before.demands, demand)), np.append(before.numbers, number)
        namespaces = [*before.namespaces, namespace]
        if len(namespaces) > MAX_DEMANDS:
            counts = Counter(namespaces)
            # Of several the last by name, so that a replica which restores the history drops the same.
            most = max(counts, key=lambda each: (counts[each], each))
            oldest = namespaces.index(most)
            demands, numbers = np.delete(demands, oldest, axis=0), np.delete(numbers, oldest)
            del namespaces[oldest]
        self._pods = _Pods(demands, namespaces, numbers)

    def moments(self, largest: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The mean and the second moment: an average of the first hundred pods, and from then on an exponential one.

        Of each namespace by itself: together they count as those of a hundred pods, or as many as there are. So no one
        makes what others have requested count less by many pods of its own.
        A pod that requests more than `largest` counts for nothing. Whoever names the node in a pod can create such a
        pod, which no node then runs.
        """
        all_demands, _, numbers = self._pods
        kept = np.all(all_demands <= largest, axis=1)
        demands, later, counts = all_demands[kept], *_places(numbers[kept])
        decay = 1.0 - 1.0 / MAX_HISTORY
        after_first = np.maximum(counts - MAX_HISTORY, 0)
        weights = np.power(decay, np.minimum(later, after_first))  # of a namespace: their sum is at most MAX_HISTORY
        weights /= max(weights.sum(), 1.0)
        return weights @ demands, (demands * weights[:, None]).T @ demands


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
        self._units = tuple(map(_unit, options.resources))
        self._scale = np.array(self._units)[:, np.newaxis]
        self._history = History(np.zeros((0, len(options.resources))))
        self._uids: OrderedDict[str, None] = OrderedDict()
        # Of the last request, and for which nodes and demands they are: most requests are about the same ones.
        self._everywhere: tuple[FloatArray, _Amounts] | None = None
        self._sums: tuple[_Amounts, UseSums] | None = None
        self._ordered: tuple[_Amounts, SortedUse] | None = None
        self._wanted: tuple[FloatArray, FloatArray, float] | None = None

    @property
    def needs(self) -> Needs:
        """The requests of pods and nodes."""
        return Needs(allocations=True, pod=True, whole_cluster=not self._options.candidates_only)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """The best objective has 1, the worst 0.1, and a node without room 0."""
        options, demand = self._options, self._demand(pod.requests)
        if options.candidates_only:
            self._history.add(demand, pod.namespace[:MAX_NAMESPACE])
        known, has_room, *use = nodes.derived(("use", *demand), partial(self._use, demand=demand))
        fits = has_room > 0
        everywhere = self._candidates(nodes) if options.candidates_only else self._cluster(nodes.cluster)
        values = self._objectives(np.reshape(use, (2, len(use) // 2, len(known))), fits, everywhere)
        smallest_span = options.smallest_span / max(len(everywhere.known), 1)
        scores = np.where(fits, stretched(values, fits, smallest_span, whole=options.candidates_only), 0.0)
        return Scores(values=scores, known=known > 0, terms={"objective": values})

    def _use(self, nodes: Columns, *, demand: Demand) -> FloatArray:
        """Whether the node is known, and has room for the pod, and the use of which the objective is.

        The use has a row for each resource of the objective, before the pod is placed and then after.
        """
        options, pod = self._options, np.array(demand)[:, np.newaxis]
        here = _as_amounts(self._of_nodes(nodes))
        after = here.used + pod
        fits = here.known & np.all(pod <= here.capacity - here.used, axis=0)
        if options.objective is Objective.BINPACK:
            return np.vstack((here.known, fits, here.ratio, np.clip(_ratio(after, here.capacity), 0.0, 1.0)))
        k = options.prime
        return np.array((here.known, fits, *(_prime_ratio(each[k], here.capacity[k]) for each in (here.used, after))))

    def _objectives(self, use: FloatArray, fits: BoolArray, everywhere: "_Amounts") -> FloatArray:
        """The objective over the nodes of `everywhere` after the pod is placed on each candidate.

        `use` is that of each candidate before and after. NaN where the pod has no room.
        """
        options = self._options
        result = np.full(len(fits), np.nan)
        if not fits.any():
            return result
        old, new = use if fits.all() else use[:, :, fits]
        if options.objective is Objective.BINPACK:
            result[fits] = binpack(old, new, self._sums_of(everywhere), wanted=self._variation(everywhere.capacity))
        elif options.objective is Objective.LOAD_BALANCE:
            result[fits] = balance(old[0], new[0], self._prime_of(everywhere))
        else:
            result[fits] = consolidation(old[0], new[0], self._sorted(everywhere))
        return result

    def _sums_of(self, everywhere: "_Amounts") -> "UseSums":
        if self._sums is None or self._sums[0] is not everywhere:
            self._sums = everywhere, sums_of(everywhere.ratio)
        return self._sums[1]

    def _sorted(self, everywhere: "_Amounts") -> "SortedUse":
        if self._ordered is None or self._ordered[0] is not everywhere:
            self._ordered = everywhere, sorted_use(self._prime_of(everywhere))
        return self._ordered[1]

    def _prime_of(self, everywhere: "_Amounts") -> FloatArray:
        k = self._options.prime
        return _prime_ratio(everywhere.used[k], everywhere.capacity[k])

    def _variation(self, capacity: FloatArray) -> float:
        demands, last = self._history.demands, self._wanted
        if last is None or last[0] is not demands or not (last[1] is capacity or np.array_equal(last[1], capacity)):
            found = variation_of_demand(self._history, capacity, any_size=self._options.candidates_only)
            last = self._wanted = demands, capacity, found
        return last[2]

    def _candidates(self, nodes: Columns) -> "_Amounts":
        return _as_amounts(nodes.derived("amounts", self._of_nodes))

    def _cluster(self, nodes: Columns) -> "_Amounts":
        """Those of the known nodes; the same object while nothing changes."""
        found = nodes.derived("amounts", self._of_nodes)
        if self._everywhere is None or self._everywhere[0] is not found:
            self._everywhere = found, _as_amounts(found).of_known()
        return self._everywhere[1]

    def _of_nodes(self, nodes: Columns) -> FloatArray:
        """`_Amounts` one below the other; 0 for what is not known."""
        resources = self._options.resources
        used = np.array([nodes.requested(name) for name in resources]) / self._scale
        capacity = np.array([nodes.allocatable(name) for name in resources]) / self._scale
        known = np.all(np.isfinite(capacity), axis=0) & np.isfinite(nodes.requested("pods"))
        used = np.where(np.isfinite(used), used, 0.0)  # a resource that no pod requests
        capacity = np.where(np.isfinite(capacity), capacity, 0.0)
        return np.vstack((used, capacity, np.clip(_ratio(used, capacity), 0.0, 1.0), known))

    def _demand(self, requests: Mapping[str, float]) -> Demand:
        """What a pod requests."""
        return tuple(
            _demand_of(name, requests) / unit for name, unit in zip(self._options.resources, self._units, strict=True)
        )

    def observe(self, event: Placed | Outcome) -> None:
        """Counts the requests of a pod that was placed, once for each pod; not if requests count instead."""
        if self._options.candidates_only or not isinstance(event, Placed) or event.uid in self._uids:
            return
        self._uids[event.uid] = None
        if len(self._uids) > MAX_UIDS:
            self._uids.popitem(last=False)
        self._history.add(self._demand(event.requests), event.namespace)

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

    def of_known(self) -> "_Amounts":
        """Those of the nodes of which all is known."""
        known = self.known
        if known.all():
            return self
        used, capacity, ratio = (each[:, known] for each in (self.used, self.capacity, self.ratio))
        return _Amounts(used=used, capacity=capacity, ratio=ratio, known=known[known])


def _as_amounts(rows: FloatArray) -> _Amounts:
    used, capacity, ratio = rows[:-1].reshape(3, len(rows) // 3, rows.shape[1])
    return _Amounts(used=used, capacity=capacity, ratio=ratio, known=rows[-1] > 0)


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


class SortedUse(NamedTuple):
    """The use of one resource of all nodes, and the sums of it and of its squares up to each place."""

    ordered: FloatArray
    sums: FloatArray
    squares: FloatArray


def sorted_use(use: FloatArray) -> SortedUse:
    """The use of each node, sorted."""
    ordered = np.sort(use)
    sums, squares = (np.concatenate(([0.0], np.cumsum(each))) for each in (ordered, np.square(ordered)))
    return SortedUse(ordered, sums, squares)


def consolidation(old: FloatArray, new: FloatArray, use: SortedUse) -> FloatArray:
    """1 - the root of the mean of squares d, for each change of one node.

    d is how far a node is below the mean, as a part of the mean, or above the mean, as a part of the rest up to 1. A
    mean of 0 or less, or of 1 or more, gives 0. A changed mean moves few of the sorted nodes to its other side, so sums
    up to each place suffice.
    """
    ordered, sums, squares = use
    count = len(ordered)
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


def _demand_of(resource: str, requests: Mapping[str, float]) -> float:
    found = 1.0 if resource == "pods" else requests.get(resource, 0.0)
    if resource == "cpu" and found <= 0:
        return SMALLEST_CPU
    if resource == "memory" and found < MEBI:
        return SMALLEST_MEMORY
    return max(found, 0.0) if isfinite(found) else 0.0


def _unit(resource: str) -> float:
    if resource == "cpu":
        return 1.0
    if resource == "memory":
        return MEBI
    return GIBI if resource == "ephemeral-storage" else 1.0
