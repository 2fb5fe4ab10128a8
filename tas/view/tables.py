"""The tables of a view: which of them have a node, and of which nodes several have the same metric."""

from collections.abc import Collection, KeysView, Mapping, Sequence, Set
from typing import NamedTuple

from tas.samples.sample import NodeSamples
from tas.samples.table import Column, Table, TableKey

_NO_NODES: frozenset[str] = frozenset()


class TableChange(NamedTuple):
    """A table `after` that takes the place of the table `before`; None: there is none.

    Attributes:
        key: Of both.
        rows: The nodes with a row in either.
        metrics: The metrics with a column in either.
        shared: By metric, which of `rows` also have a row in another table with this metric, before or after; nodes
            without a row in this table may be among them.
    """

    key: TableKey
    before: Table | None
    after: Table | None
    rows: Set[str]
    metrics: Set[str]
    shared: Mapping[str, Set[str]]

    @property
    def same_layout(self) -> bool:
        """Whether the same nodes have a row, in the same order."""
        return self.before is not None and self.after is not None and self.before.nodes == self.after.nodes

    @property
    def other_series(self) -> set[str]:
        """The nodes that have a value of a metric only before or only after."""
        found: set[str] = set()
        for metric in self.metrics:
            one, other = _column(self.before, metric), _column(self.after, metric)
            complete = one is not None and other is not None and None not in one.values and None not in other.values
            if not (complete and self.same_layout):
                found |= _with_value(self.before, one) ^ _with_value(self.after, other)
        return found

    def column(self, metric: str) -> tuple[Sequence[str], Column] | None:
        """The nodes and values of a metric after the change, if the table has the metric."""
        column = _column(self.after, metric)
        return None if self.after is None or column is None else (self.after.nodes, column)


def _column(table: Table | None, metric: str) -> Column | None:
    return None if table is None else table.columns.get(metric)


def _with_value(table: Table | None, column: Column | None) -> set[str]:
    if table is None or column is None:
        return set()
    return {node for node, value in zip(table.nodes, column.values, strict=True) if value is not None}


class Tables:
    """The newest table of each key. A node may be in tables of several sources, and of two layouts of one source."""

    def __init__(self) -> None:
        self._tables: dict[TableKey, Table] = {}
        self._holders: dict[str, tuple[TableKey, ...]] = {}
        self._of_metric: dict[str, dict[TableKey, None]] = {}
        self._shared: dict[str, set[str]] = {}

    def __len__(self) -> int:
        """The number of tables."""
        return len(self._tables)

    def get(self, key: TableKey) -> Table | None:
        """A table, or None."""
        return self._tables.get(key)

    @property
    def nodes(self) -> KeysView[str]:
        """Every node that has a row."""
        return self._holders.keys()

    def with_metric(self, metric: str) -> Collection[TableKey]:
        """The tables that have a column of this metric."""
        return self._of_metric.get(metric, {})

    def holding(self, node: str) -> tuple[TableKey, ...]:
        """The tables that have a row of this node."""
        return self._holders.get(node, ())

    def rows(self, node: str) -> list[NodeSamples]:
        """The samples of a node in each table that has any."""
        return [self._tables[key].scrapes(node) for key in self.holding(node)]

    def shared(self, metric: str) -> Set[str]:
        """The nodes that have a row in several tables with this metric, so that none of these tables decides alone."""
        return self._shared.get(metric, _NO_NODES)

    def replace(self, key: TableKey, table: Table | None) -> TableChange:
        """Puts a table in place of the one before; None: there is none any more."""
        before = self._tables.pop(key, None)
        if table is not None:
            self._tables[key] = table
        rows, metrics = _rows(table), _metrics(table)
        if before is not None and before.nodes == (table or before).nodes and before.columns.keys() == metrics:
            shared = {metric: self.shared(metric) for metric in metrics}  # as nearly always
            return TableChange(key, before, table, rows, metrics, shared)
        touched = rows | _rows(before)
        shared = {metric: touched & self.shared(metric) for metric in metrics | _metrics(before)}
        self._note_rows(key, rows, _rows(before))
        for metric in _metrics(before) - metrics:
            del self._of_metric[metric][key]
            if not self._of_metric[metric]:
                del self._of_metric[metric]
        for metric in metrics:
            self._of_metric.setdefault(metric, {})[key] = None
        several = [node for node in touched if len(self.holding(node)) > 1]
        for metric in shared:
            self._share(metric, touched, several)
            shared[metric] |= touched & self.shared(metric)
        return TableChange(key, before, table, touched, metrics | _metrics(before), shared)

    def _note_rows(self, key: TableKey, rows: Set[str], before: Set[str]) -> None:
        for node in before - rows:
            left = tuple(each for each in self._holders[node] if each != key)
            if left:
                self._holders[node] = left
            else:
                del self._holders[node]
        for node in rows - before:
            self._holders[node] = (*self._holders.get(node, ()), key)

    def _share(self, metric: str, touched: Set[str], several: Collection[str]) -> None:
        """Notes which of the touched nodes share the metric; `several` are those of them that several tables have.

        No other node is looked at: where nodes come and go, each part of a source changes its rows at each poll.
        """
        tables = self.with_metric(metric)
        shared = self._shared.setdefault(metric, set())
        shared -= touched
        shared.update(node for node in several if sum(key in tables for key in self._holders[node]) > 1)
        if not shared:
            del self._shared[metric]


def _rows(table: Table | None) -> Set[str]:
    return _NO_NODES if table is None else table.rows.keys()


def _metrics(table: Table | None) -> Set[str]:
    return _NO_NODES if table is None else table.columns.keys()
