"""Candidates with columns that a test gives."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from tas.agent import Columns, FloatArray, PodDemand

Rows = Mapping[str, Sequence[float]]
"""A column for each name."""


class Nodes:
    """The candidates `n0`, `n1`, …; a metric or resource without a column is unknown."""

    now = 1000.0

    def __init__(
        self,
        count: int,
        *,
        metrics: Rows | None = None,
        capacity: Rows | None = None,
        allocatable: Rows | None = None,
        requested: Rows | None = None,
        limited: Rows | None = None,
        placed: Rows | None = None,
        cluster: Columns | None = None,
    ) -> None:
        """`allocatable` is `capacity` unless it is given."""
        self.names: Sequence[str] = tuple(f"n{number}" for number in range(count))
        self._columns = {
            "metric": metrics or {},
            "capacity": capacity or {},
            "allocatable": (capacity if allocatable is None else allocatable) or {},
            "requested": requested or {},
            "limited": limited or {},
            "placed": placed or {},
        }
        self._cluster = cluster

    @property
    def cluster(self) -> Columns:
        return self if self._cluster is None else self._cluster

    def metric(self, name: str) -> FloatArray:
        return self._column("metric", name)

    def capacity(self, resource: str) -> FloatArray:
        return self._column("capacity", resource)

    def allocatable(self, resource: str) -> FloatArray:
        return self._column("allocatable", resource)

    def requested(self, resource: str) -> FloatArray:
        return self._column("requested", resource)

    def limited(self, resource: str) -> FloatArray:
        return self._column("limited", resource)

    def placed(self, resource: str, metric: str) -> FloatArray:
        del metric
        return self._column("placed", resource, default=0.0)

    def derived(self, key: Hashable, compute: Callable[["Nodes"], FloatArray]) -> FloatArray:
        hash(key)
        return compute(self)

    def _column(self, kind: str, name: str, *, default: float = np.nan) -> FloatArray:
        count = len(self.names)
        column = np.array(self._columns[kind].get(name, [default] * count), dtype=np.float64)
        assert column.shape == (count,)
        column.flags.writeable = False
        return column


def pod(**requests: float) -> PodDemand:
    """A pod with these requests."""
    return PodDemand(namespace="default", name="p", uid="u", requests=requests)
