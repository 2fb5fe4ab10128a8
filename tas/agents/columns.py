"""What is known of nodes as columns for agents, made from the view when an agent asks for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from math import nan
from typing import Literal

import numpy as np

from tas.agents.agent import FloatArray
from tas.allocation.node import NodeAllocation, Recent, in_flight
from tas.values.quantity import NANO, Quantity

SHOWN_SECONDS = 60.0
"""After so long a metric shows a pod: before, the pod may not have started, as Trimaran assumes."""


Amounts = Literal["capacity", "allocatable", "requested", "limited"]
"""The amounts of an allocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of nodes.

    Attributes:
        metrics: The fresh values of each node, by metric.
        allocations: What each node has, and what its pods request.
        measured_at: When the newest value of a metric of a node was measured, in seconds since 1970; None: never.
    """

    metrics: Mapping[str, Mapping[str, Quantity]]
    allocations: Mapping[str, NodeAllocation] = field(default_factory=dict)
    measured_at: Callable[[str, str], float | None] = lambda _node, _metric: None


class NodeColumns:
    """The columns of some nodes. Each is made once."""

    def __init__(self, names: Sequence[str], known: Known) -> None:
        self._names = names
        self._known = known
        self._made: dict[tuple[str, ...], FloatArray] = {}
        self._allocated: list[NodeAllocation | None] | None = None
        self._by_resource: dict[tuple[Amounts, bool], list[Mapping[str, int] | None]] = {}
        self._with_new: list[tuple[int, tuple[Recent, ...]]] | None = None

    @property
    def names(self) -> Sequence[str]:
        """The nodes, each once."""
        return self._names

    def metric(self, name: str) -> FloatArray:
        """The fresh values of a metric that the agent needs. Raises ValueError for another metric."""
        values = self._known.metrics.get(name)
        if values is None:
            raise ValueError(f"the agent reads the metric {name}, which its needs do not name")
        return self._column(("metric", name), lambda: self._values(values))

    def capacity(self, resource: str) -> FloatArray:
        """`status.capacity` of the nodes."""
        return self._column(("capacity", resource), lambda: self._amounts("capacity", resource))

    def allocatable(self, resource: str) -> FloatArray:
        """`status.allocatable` of the nodes."""
        return self._column(("allocatable", resource), lambda: self._amounts("allocatable", resource))

    def requested(self, resource: str) -> FloatArray:
        """The sum of the requests of the pods on each node; unknown if a pod of the node cannot be read."""
        return self._column(("requested", resource), lambda: self._amounts("requested", resource, sums=True))

    def limited(self, resource: str) -> FloatArray:
        """The sum of the limits of the pods on each node; unknown if a pod of the node cannot be read."""
        return self._column(("limited", resource), lambda: self._amounts("limited", resource, sums=True))

    def placed(self, resource: str, metric: str) -> FloatArray:
        """The requests of pods that the value of the metric does not show yet."""
        return self._column(("placed", resource, metric), lambda: self._placed(resource, metric))

    def _column(self, key: tuple[str, ...], make: Callable[[], FloatArray]) -> FloatArray:
        column = self._made.get(key)
        if column is None:
            column = make()
            column.flags.writeable = False
            self._made[key] = column
        return column

    def _values(self, values: Mapping[str, Quantity]) -> FloatArray:
        return np.fromiter(map(values.get, self._names, repeat(nan)), np.float64, len(self._names)) / NANO

    def _allocations(self) -> list[NodeAllocation | None]:
        if self._allocated is None:
            self._allocated = [*map(self._known.allocations.get, self._names)]
        return self._allocated

    def _amounts(self, of: Amounts, resource: str, *, sums: bool = False) -> FloatArray:
        """The amounts of a resource; with `sums`, those of a node with an unreadable pod are unknown."""
        by_resource = self._by_resource.get((of, sums))
        if by_resource is None:
            by_resource = [
                None if each is None or (sums and each.unreadable) else getattr(each, of)
                for each in self._allocations()
            ]
            self._by_resource[of, sums] = by_resource
        found = [nan if each is None else each.get(resource, 0) for each in by_resource]
        return np.array(found, dtype=np.float64)

    def _placed(self, resource: str, metric: str) -> FloatArray:
        """A node has few new pods, and most nodes have none, so only of these the time of the metric is asked."""
        if self._with_new is None:
            found = enumerate(self._allocations())
            self._with_new = [(number, each.recent) for number, each in found if each is not None and each.recent]
        column = np.zeros(len(self._names))
        for number, recent in self._with_new:
            measured_at = self._known.measured_at(self._names[number], metric)
            if measured_at is not None:
                column[number] = in_flight(recent, resource, measured_at - SHOWN_SECONDS)
        return column


class RequestCandidates(NodeColumns):
    """The candidates of one request."""

    def __init__(self, names: Sequence[str], known: Known, *, now: float, cluster: Callable[[], NodeColumns]) -> None:
        super().__init__(names, known)
        self._now = now
        self._make_cluster = cluster
        self._cluster: NodeColumns | None = None

    @property
    def now(self) -> float:
        """The time of the view."""
        return self._now

    @property
    def cluster(self) -> NodeColumns:
        """All known nodes, candidates included."""
        if self._cluster is None:
            self._cluster = self._make_cluster()
        return self._cluster
