"""The interface of an agent: a scheduling algorithm over columns of nodes.

An agent gets the pod and the candidates. What is known of the candidates arrives as columns: float64 arrays in the
order of the candidates, with NaN where a value is unknown. The agent returns arrays of the same length. It does no I/O
and reads no clock, so equal input gives equal output. The order of the candidates must not matter.

The process that serves the agent does the rest: it converts scores to integers, decides what happens to a node without
the needed values (`Missing`), and refuses NaN, infinity and scores out of range in the name of the agent.

Units: cpu in millicores, memory in bytes, other resources in their own unit.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tas.outcomes.outcome import Outcome, Placed

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


class Missing(StrEnum):
    """What happens to a candidate of which the agent has no opinion, because a needed value is unknown."""

    NEUTRAL = "neutral"
    """It passes, and has the mean score of the candidates of which the agent has an opinion."""
    WORST = "worst"
    """It passes, and has the score 0."""
    REJECT = "reject"
    """It is rejected, and has the score 0."""


class Rounding(StrEnum):
    """How an original made an integer of a score, for those who compare (`compat`)."""

    NEAREST = "nearest"
    """The nearest integer; a half goes up. Scores are always made so without `compat`."""
    DOWN = "down"
    """The integer below."""
    DOWN_OF_TEXT = "down-of-text"
    """The integer below, of a score that was stored with six digits."""
    UP = "up"
    """The integer above: the original subtracted a rounded-down number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an agent reads.

    Attributes:
        metrics: The names of metrics, statistics of windows included (`cpu_usage:mean:5m`).
        max_age: Seconds after which a value of such a metric is unknown; None: the default of policies.
        allocations: Whether it reads capacity, allocatable, requests, limits or placed pods of nodes.
        pod: Whether it reads requests and limits of the pod. They are decoded only then.
        whole_cluster: Whether it reads `Candidates.cluster`.
        outcomes: Whether it observes how the containers of pods end.
    """

    metrics: Collection[str] = ()
    max_age: float | None = None
    allocations: bool = False
    pod: bool = False
    whole_cluster: bool = False
    outcomes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDemand:
    """What one container requests, and its limits. A resource without a request or limit is absent."""

    requests: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDemand:
    """The pod that is to be placed. What it asks for is empty unless the agent needs it.

    A resource without a request or limit is absent.

    Attributes:
        requests: What the scheduler counts: the larger of the sum of the containers and each init container, with the
            overhead of the pod.
        limits: The sums of the limits, over the containers that have one.
        containers: Those that run together, with sidecars; none if the pod asks for resources as a whole.
        overhead: What the runtime class adds to the containers; empty without `containers`.
    """

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    containers: Sequence[ContainerDemand] = ()
    overhead: Mapping[str, float] = field(default_factory=dict)


class Columns(Protocol):
    """What is known of some nodes, as float64 arrays in the order of `names`; NaN is unknown. Do not change an array.

    A column is made when it is asked for first, and then kept for this request.
    """

    @property
    def names(self) -> Sequence[str]:
        """The nodes, each once."""
        ...

    def metric(self, name: str) -> FloatArray:
        """The fresh values of a metric that the agent needs, in the unit of the source."""
        ...

    def capacity(self, resource: str) -> FloatArray:
        """`status.capacity` of the nodes; 0 if a known node has none of the resource."""
        ...

    def allocatable(self, resource: str) -> FloatArray:
        """`status.allocatable` of the nodes; 0 if a known node has none of the resource."""
        ...

    def requested(self, resource: str) -> FloatArray:
        """The sum of the requests of the pods on each node that have not ended; resource `pods`: their number."""
        ...

    def limited(self, resource: str) -> FloatArray:
        """The sum of the limits of the same pods; a limit below the request counts as the request."""
        ...

    def placed(self, resource: str, metric: str) -> FloatArray:
        """The requests of pods so new on each node that the value of the metric does not show them yet; else 0."""
        ...

    def derived(self, key: Hashable, compute: "Callable[[Columns], FloatArray]") -> FloatArray:
        """What `compute` returns for these nodes, computed again only for nodes that have changed.

        It returns rows with a number for each node, which must depend on the name and the columns of this node alone,
        on the key, and not on the time. Equal keys mean equal computations: what depends on the pod has in its key all
        that it reads of the pod, and is kept for the pods of a workload. A node of which nothing is known has the name
        "" there. While nothing changes, the same array is returned for the same nodes, unless it has more than a
        million numbers.
        """
        ...


class Candidates(Columns, Protocol):
    """The nodes among which an agent chooses."""

    @property
    def now(self) -> float:
        """The time of the view, in seconds since 1970."""
        ...

    @property
    def cluster(self) -> Columns:
        """All known nodes, candidates included, for an agent whose needs say so."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of the candidates.

    Attributes:
        values: From 0 (worst) to 1 (best); without meaning where `known` is False.
        known: Whether the agent has an opinion of the candidate.
        terms: What the scores are made of, by the name in the formula: each an array like `values`. People see them.
    """

    values: FloatArray
    known: BoolArray
    terms: Mapping[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Which candidates pass the filter.

    Attributes:
        passed: Whether the candidate passes; without meaning where `known` is False.
        known: Whether the agent has an opinion of the candidate.
        reason: Why the others are rejected, in few words: the scheduler groups equal reasons.
        resolvable: Whether evicting pods from a rejected node could help.
        terms: As in `Scores`.
    """

    passed: BoolArray
    known: BoolArray
    reason: str
    resolvable: bool = False
    terms: Mapping[str, FloatArray] = field(default_factory=dict)


class Agent:
    """The base of agents. A subclass overrides `filter`, `score`, or both; what it does not override is not served.

    Its constructor gets the validated options: an instance of the class in `Options`, a `msgspec.Struct`.
    """

    Options: ClassVar[type[Any] | None] = None
    """The options, as a frozen `msgspec.Struct` with defaults; None: the agent has no options."""

    missing: ClassVar[Missing] = Missing.NEUTRAL
    """What happens to a node of which the agent has no opinion, unless the file of agents says otherwise."""

    original_rounding: ClassVar[Rounding] = Rounding.NEAREST
    """How the original of the agent rounded its scores."""

    @property
    def needs(self) -> Needs:
        """What the agent reads; it may depend on the options."""
        return Needs()

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        """Which candidates pass."""
        raise NotImplementedError

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """How good each candidate is."""
        raise NotImplementedError

    def observe(self, event: Placed | Outcome) -> None:
        """Learns from what happened. Events come in any order, and may come again."""

    def snapshot(self) -> Mapping[str, Any] | None:
        """The learned state as plain data with a `version`, for `restore`; None: the agent learns nothing."""
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replaces the learned state. Raises InvalidInputError if the state is of another version or damaged."""
        raise NotImplementedError
