"""What is known of all nodes as columns, kept up to date from one request to the next.

A sample or an allocation changes one row of the columns when it arrives. A request picks the rows of its candidates, so
it costs a few loops in C, and not one of Python for each column.

Only nodes of which something is known have a row: the row of a node that is gone is given to another one. The columns
of metrics are those that agents name when they are loaded. Of allocations there are at most `MAX_COLUMNS`.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import repeat
from math import inf, isnan, nan
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tas.agents.agent import FloatArray
from tas.allocation.node import NodeAllocation
from tas.extender.node_view import NodeView
from tas.values.quantity import NANO, Quantity

Rows: TypeAlias = npt.NDArray[np.intp]

Amounts = Literal["capacity", "allocatable", "requested", "limited"]
"""The amounts of an allocation."""

SUMS = frozenset({"requested", "limited"})
"""The amounts that are not known of a node with a pod that cannot be read."""

UNKNOWN = 0
"""The row of all nodes of which nothing is known."""

FIRST_ROWS = 64

MAX_COLUMNS = 64
"""The most columns of allocations: one more takes the place of the one that was asked for least recently. An agent may
ask for every resource that a pod requests, and a stranger may invent resources."""

MAX_REMEMBERED = 1 << 16
"""A longer list of nodes is not remembered: a stranger may name millions."""


class MetricColumn:
    """One metric of all nodes: `values`, and when each newest one was measured (`times`); NaN is unknown."""

    __slots__ = ("_kept", "times", "values")

    def __init__(self, kept: "KeptColumns", rows: int) -> None:
        self._kept = kept
        self.values = np.full(rows, nan)
        self.times = np.full(rows, nan)

    def set(self, node: str, value: Quantity | None, time: float | None) -> None:
        """The fresh value of a node, and the time of the newest value, fresh or not."""
        if time is None:
            row = self._kept.known_row(node)
            if not isnan(self.times[row]):
                self.values[row] = self.times[row] = nan
                self._kept.touch(row)
                self._kept.forget_unknown(node)
            return
        row = self._kept.row(node)
        self.values[row] = nan if value is None else float(value) / NANO
        self.times[row] = time
        self._kept.touch(row)

    def grow(self, rows: int) -> None:
        """Gets so many rows."""
        self.values, self.times = _longer(self.values, rows), _longer(self.times, rows)


class KeptColumns:
    """The columns of all nodes, for all agents that read one view of nodes.

    Attributes:
        changes: The number of changes of rows so far.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._rows: dict[str, int] = {}
        self._names = [""] * FIRST_ROWS  # by row; empty: no node has the row
        self._changed = np.zeros(FIRST_ROWS, dtype=np.int64)  # the number of the last change of each row
        self._size = FIRST_ROWS
        self._free = [*range(FIRST_ROWS - 1, UNKNOWN, -1)]
        self._version = 0  # of the rows
        self._metrics: dict[tuple[str, float | None], MetricColumn] = {}
        self._allocations: Mapping[str, NodeAllocation] | None = None
        self._amounts: OrderedDict[tuple[Amounts, str], FloatArray] = OrderedDict()
        self._newest = np.full(FIRST_ROWS, -inf)  # when the newest new pod was placed
        self._last: tuple[tuple[str, ...], int, Rows] = ((), 0, np.empty(0, dtype=np.intp))
        self._cluster: tuple[tuple[int, int], tuple[str, ...], Rows] | None = None

    def __len__(self) -> int:
        """The number of nodes that have a row."""
        return len(self._rows)

    @property
    def size(self) -> int:
        """The number of rows, whether nodes have them or not."""
        return self._size

    def touch(self, row: int) -> None:
        """Notes that something in the row has changed."""
        self.changes += 1
        self._changed[row] = self.changes

    def changed_at(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The number of the last change of each of these rows."""
        return self._changed.take(rows)

    def names_at(self, rows: Rows) -> Sequence[str]:
        """The nodes that have these rows; empty where no node has the row."""
        return list(map(self._names.__getitem__, rows.tolist()))

    @property
    def columns(self) -> int:
        """The number of columns of allocations."""
        return len(self._amounts)

    def follow_metric(self, nodes: NodeView, metric: str, max_age: float | None) -> MetricColumn:
        """The column of a metric, kept up to date from now on."""
        column = self._metrics.get((metric, max_age))
        if column is None:
            column = self._metrics[metric, max_age] = MetricColumn(self, self._size)
            nodes.follow_metric(metric, column.set, stale_after=max_age)
        return column

    def follow_allocations(self, nodes: NodeView) -> None:
        """Keeps the columns of allocations up to date from now on."""
        if self._allocations is None:
            self._allocations = nodes.allocations()
            nodes.follow_allocations(self._set_allocation)

    def rows_of(self, names: Sequence[str]) -> Rows:
        """The row of each of the nodes."""
        names = tuple(names)
        last, version, rows = self._last
        if version != self._version or names != last:  # a list is often asked for again: for prioritize, or by others
            rows = np.fromiter(map(self._rows.get, names, repeat(UNKNOWN)), np.intp, len(names))
            if len(names) <= MAX_REMEMBERED:
                self._last = names, self._version, rows
        return rows

    def cluster(self, nodes: NodeView) -> tuple[Sequence[str], Rows]:
        """All known nodes with their rows."""
        version = self._version, nodes.names_version
        if self._cluster is None or self._cluster[0] != version:
            names = tuple({*nodes.names, *(self._allocations or ())})
            rows = np.fromiter(map(self._rows.get, names, repeat(UNKNOWN)), np.intp, len(names))
            self._cluster = version, names, rows
        return self._cluster[1:]

    def amounts(self, of: Amounts, resource: str) -> FloatArray:
        """The amounts of a resource, by row."""
        column = self._amounts.get((of, resource))
        if column is not None:
            self._amounts.move_to_end((of, resource))
            return column
        column = np.full(self._size, nan)
        for node, allocation in (self._allocations or {}).items():
            column[self._rows[node]] = _amount(allocation, of, resource)
        # Kept when it is complete: the call of an agent may be interrupted anywhere.
        self._amounts[of, resource] = column
        if len(self._amounts) > MAX_COLUMNS:
            self._amounts.popitem(last=False)
        return column

    def newest(self, rows: Rows) -> FloatArray:
        """When the newest new pod of each node was placed; -inf: there is none."""
        return self._newest.take(rows)

    def allocation(self, node: str) -> NodeAllocation | None:
        """The allocation of a node."""
        return None if self._allocations is None else self._allocations.get(node)

    def known_row(self, node: str) -> int:
        """The row of a node, if it has one."""
        return self._rows.get(node, UNKNOWN)

    def row(self, node: str) -> int:
        """The row of a node that is known, or becomes known now."""
        row = self._rows.get(node)
        if row is None:
            if not self._free:
                self._grow()
            row = self._rows[node] = self._free.pop()
            self._names[row] = node
            self._version += 1
        return row

    def forget_unknown(self, node: str) -> None:
        """Frees the row of a node of which nothing is known any more."""
        row = self._rows.get(node)
        if row is None or self.allocation(node) is not None:
            return
        if all(np.isnan(column.times[row]) for column in self._metrics.values()):
            del self._rows[node]
            self._names[row] = ""
            self._free.append(row)
            self._version += 1

    def _set_allocation(self, node: str, allocation: NodeAllocation | None) -> None:
        if allocation is None:
            row = self.known_row(node)
            for column in self._amounts.values():
                column[row] = nan
            self._newest[row] = -inf
            self.touch(row)
            self.forget_unknown(node)
            return
        row = self.row(node)
        for (of, resource), column in self._amounts.items():
            column[row] = _amount(allocation, of, resource)
        self._newest[row] = max((each.at for each in allocation.recent), default=-inf)
        self.touch(row)

    def _grow(self) -> None:
        """Doubles the rows."""
        self._free = [*range(2 * self._size - 1, self._size - 1, -1)]
        self._size *= 2
        for column in self._metrics.values():
            column.grow(self._size)
        for key, amounts in self._amounts.items():
            self._amounts[key] = _longer(amounts, self._size)
        self._newest = _longer(self._newest, self._size, -inf)
        self._names += [""] * (self._size - len(self._names))
        self._changed = np.concatenate((self._changed, np.zeros(self._size - len(self._changed), dtype=np.int64)))


def _longer(column: FloatArray, rows: int, fill: float = nan) -> FloatArray:
    longer = np.full(rows, fill)
    longer[: len(column)] = column
    return longer


def _amount(allocation: NodeAllocation, of: Amounts, resource: str) -> float:
    if of in SUMS and allocation.unreadable:
        return nan
    amounts: Mapping[str, int] = getattr(allocation, of)
    return float(amounts.get(resource, 0))
