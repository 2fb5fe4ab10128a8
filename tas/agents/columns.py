"""What is known of nodes as columns for agents, made from the view when an agent asks for them."""

from collections.abc import Callable, Mapping, Sequence
from math import nan

import numpy as np

from tas.agents.agent import FloatArray
from tas.values.quantity import NANO, Quantity

Metrics = Mapping[str, Mapping[str, Quantity]]
"""The fresh values of each node, by metric."""


class NodeColumns:
    """The columns of some nodes. Each is made once."""

    def __init__(self, names: Sequence[str], metrics: Metrics) -> None:
        self._names = names
        self._metrics = metrics
        self._made: dict[tuple[str, ...], FloatArray] = {}

    @property
    def names(self) -> Sequence[str]:
        """The nodes, each once."""
        return self._names

    def metric(self, name: str) -> FloatArray:
        """The fresh values of a metric that the agent needs. Raises ValueError for another metric."""
        values = self._metrics.get(name)
        if values is None:
            raise ValueError(f"the agent reads the metric {name}, which its needs do not name")
        return self._column(("metric", name), lambda: self._values(values))

    def capacity(self, resource: str) -> FloatArray:
        """`status.capacity` of the nodes."""
        return self._column(("capacity", resource), self._unknown)

    def allocatable(self, resource: str) -> FloatArray:
        """`status.allocatable` of the nodes."""
        return self._column(("allocatable", resource), self._unknown)

    def requested(self, resource: str) -> FloatArray:
        """The sum of the requests of the pods on each node."""
        return self._column(("requested", resource), self._unknown)

    def limited(self, resource: str) -> FloatArray:
        """The sum of the limits of the pods on each node."""
        return self._column(("limited", resource), self._unknown)

    def placed(self, resource: str, metric: str) -> FloatArray:
        """The requests of pods that the value of the metric does not show yet."""
        return self._column(("placed", resource, metric), lambda: np.zeros(len(self._names)))

    def _column(self, key: tuple[str, ...], make: Callable[[], FloatArray]) -> FloatArray:
        column = self._made.get(key)
        if column is None:
            column = make()
            column.flags.writeable = False
            self._made[key] = column
        return column

    def _values(self, values: Mapping[str, Quantity]) -> FloatArray:
        get = values.get
        return np.fromiter((get(name, nan) for name in self._names), np.float64, len(self._names)) / NANO

    def _unknown(self) -> FloatArray:
        return np.full(len(self._names), nan)


class RequestCandidates(NodeColumns):
    """The candidates of one request."""

    def __init__(
        self, names: Sequence[str], metrics: Metrics, *, now: float, cluster: Callable[[], NodeColumns]
    ) -> None:
        super().__init__(names, metrics)
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
