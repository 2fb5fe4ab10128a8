"""What is known of some nodes as columns for agents, picked from the kept columns when an agent asks for them."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from tas.agents.agent import FloatArray
from tas.agents.kept import Amounts, KeptColumns, MetricColumn, Rows
from tas.allocation.node import in_flight

SHOWN_SECONDS = 60.0
"""After so long a metric shows a pod: before, the pod may not have started, as Trimaran assumes."""

MAX_DERIVED = 64
"""The most computations of an agent whose results are kept; one more takes the place of the one asked for least
recently."""

MAX_NUMBERS = 1 << 20
"""The most numbers of the results that computations of one size keep together, in 8 MiB: with 5,000 nodes those for
about 16 workloads. Computations of all sizes keep at most twice as many, and as many more for the nodes that were asked
for last: a stranger may name more nodes than there are."""

NEVER = -1


@dataclass(slots=True, kw_only=True)
class _Derived:
    """The results of a computation by row of the kept columns.

    Attributes:
        computed: The number of the last change that is in each row; `NEVER`: the row was not asked for yet.
        read: The amounts that the computation has read.
        picked: The rows that were asked for last, the number of the last change then, and their results; None if they
            are too many to be kept.
    """

    values: FloatArray
    computed: npt.NDArray[np.int64]
    read: Mapping["_ColumnKey", None]
    picked: tuple[Rows, int, FloatArray] | None = None


_ColumnKey = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What an agent may read.

    Attributes:
        kept: The columns of all nodes.
        metrics: The metrics that it needs.
        allocations: Whether it needs allocations; else they are unknown to it.
        derived: What it has computed, by key.
    """

    kept: KeptColumns
    metrics: Mapping[str, MetricColumn] = field(default_factory=dict)
    allocations: bool = False
    derived: dict[Hashable, _Derived] = field(default_factory=dict)


class NodeColumns:
    """The columns of some nodes. Each is made once."""

    def __init__(self, names: Sequence[str], known: Known, rows: Rows | None = None) -> None:
        """`rows` are those of the nodes, if they are known already."""
        self._names = names
        self._known = known
        self._found_rows = rows
        self._made: dict[_ColumnKey, FloatArray] = {}
        self._read: dict[_ColumnKey, None] = {}
        self._asked_at = known.kept.changes

    @property
    def names(self) -> Sequence[str]:
        """The nodes, each once."""
        return self._names

    def metric(self, name: str) -> FloatArray:
        """The fresh values of a metric that the agent needs. Raises ValueError for another metric."""
        column = self._metric(name)
        return self._column(("metric", name), lambda: column.values.take(self._rows))

    def capacity(self, resource: str) -> FloatArray:
        """`status.capacity` of the nodes."""
        return self._amounts("capacity", resource)

    def allocatable(self, resource: str) -> FloatArray:
        """`status.allocatable` of the nodes."""
        return self._amounts("allocatable", resource)

    def requested(self, resource: str) -> FloatArray:
        """The sum of the requests of the pods on each node; unknown if a pod of the node cannot be read."""
        return self._amounts("requested", resource)

    def limited(self, resource: str) -> FloatArray:
        """The sum of the limits of the pods on each node; unknown if a pod of the node cannot be read."""
        return self._amounts("limited", resource)

    def placed(self, resource: str, metric: str) -> FloatArray:
        """The requests of pods that the value of the metric does not show yet. Raises ValueError as `metric`."""
        column = self._metric(metric)
        return self._column(
            ("placed", resource, metric), lambda: self._placed(resource, column, self._rows, self._names)
        )

    def derived(self, key: Hashable, compute: Callable[["NodeColumns"], FloatArray]) -> FloatArray:
        """The rows that `compute` returns, computed only for nodes that have changed. Raises what `compute` raises.

        While nothing changes, and the nodes are the same, it is the same array.
        """
        derived, rows, changes = self._known.derived, self._rows, self._known.kept.changes
        found = derived.pop(key, None)
        if found is None or found.picked is None or found.picked[0] is not rows or found.picked[1] != changes:
            found = self._up_to_date(found, compute)
            picked = found.values.take(rows, axis=1)
            picked.flags.writeable = False
            found.picked = None
            if picked.size <= MAX_NUMBERS:
                self._make_room(max(picked.size, found.values.size))
                found.picked = rows, changes, picked
        else:
            picked = found.picked[2]
        derived[key] = found  # as the last: the first one is the one asked for least recently
        self._read.update(found.read)
        return picked

    def _up_to_date(self, found: _Derived | None, compute: Callable[["NodeColumns"], FloatArray]) -> _Derived:
        """The results, those of these nodes up to date.

        The time limit of an agent may end its call anywhere: so a row counts as computed after its results are there.
        """
        kept, rows = self._known.kept, self._rows
        if found is None or len(found.computed) != kept.size:
            values, read = self._computed(compute, rows)
            self._make_room(len(values) * kept.size)
            values_of_all, computed = np.empty((len(values), kept.size)), np.full(kept.size, NEVER)
            values_of_all[:, rows], computed[rows] = values, kept.changes
            return _Derived(values=values_of_all, computed=computed, read=read)
        changed = rows[kept.changed_at(rows) > found.computed.take(rows)]
        if changed.size:
            found.values[:, changed], _ = self._computed(compute, changed)
            found.computed[changed] = kept.changes
        return found

    def _make_room(self, numbers: int) -> None:
        derived = self._known.derived
        while derived and len(derived) >= min(MAX_DERIVED, MAX_NUMBERS // max(numbers, 1)):
            derived.pop(next(iter(derived)))

    def _computed(
        self, compute: Callable[["NodeColumns"], FloatArray], rows: Rows
    ) -> tuple[FloatArray, Mapping[_ColumnKey, None]]:
        """The results for some rows, and the amounts that were read."""
        nodes = NodeColumns(self._known.kept.names_at(rows), self._known, rows)
        values = np.asarray(compute(nodes), dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != len(rows):
            raise ValueError(f"derived values have the shape {values.shape}, must be rows with {len(rows)} numbers")
        return values, nodes._read | dict.fromkeys(each for each in nodes._made if each[0] != "metric")

    def amounts(self, chosen: Sequence[int]) -> Iterator[tuple[str, FloatArray]]:
        """The amounts that the agent has read, each with a name such as `cpu capacity`; of new pods only those > 0.

        Only those of the nodes at these places of `names`: they are for people, who read a few. What was read for
        derived values is read again here: of nodes that have changed since, NaN.
        """
        keys = dict.fromkeys(key for key in (*self._made, *self._read) if key[0] != "metric")
        if not (keys and len(chosen)):
            return
        kept, places = self._known.kept, np.asarray(chosen, dtype=np.intp)
        rows, names = self._rows.take(places), [self._names[at] for at in chosen]
        changed = kept.changed_at(rows) > self._asked_at
        for key in keys:
            of, what, *metrics = key
            if key in self._made:
                column = self._made[key].take(places)
            elif of == "placed":
                column = np.where(changed, np.nan, self._placed(what, self._metric(*metrics), rows, names))
            else:
                column = np.where(changed, np.nan, self._picked(cast("Amounts", of), what, rows))
            if of == "placed":
                yield f"{what} of new pods", np.where(column > 0, column, np.nan)
            else:
                yield f"{what} {of}", column

    @property
    def _rows(self) -> Rows:
        if self._found_rows is None:
            self._found_rows = self._known.kept.rows_of(self._names)
        return self._found_rows

    def _metric(self, name: str) -> MetricColumn:
        column = self._known.metrics.get(name)
        if column is None:
            raise ValueError(f"the agent reads the metric {name}, which its needs do not name")
        return column

    def _column(self, key: tuple[str, ...], make: Callable[[], FloatArray]) -> FloatArray:
        column = self._made.get(key)
        if column is None:
            column = make()
            column.flags.writeable = False
            self._made[key] = column
        return column

    def _amounts(self, of: Amounts, resource: str) -> FloatArray:
        return self._column((of, resource), lambda: self._picked(of, resource, self._rows))

    def _picked(self, of: Amounts, resource: str, rows: Rows) -> FloatArray:
        if not self._known.allocations:
            return np.full(len(rows), np.nan)
        return self._known.kept.amounts(of, resource).take(rows)

    def _placed(self, resource: str, metric: MetricColumn, rows: Rows, names: Sequence[str]) -> FloatArray:
        """Only of a node whose newest pod the metric does not show the pods are searched: few nodes have one."""
        column = np.zeros(len(rows))
        if self._known.allocations:
            since = metric.times.take(rows) - SHOWN_SECONDS
            for number in np.flatnonzero(self._known.kept.newest(rows) > since).tolist():
                allocation = self._known.kept.allocation(names[number])
                if allocation is not None:  # else the row is of another node since
                    column[number] = in_flight(allocation.recent, resource, since[number])
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
