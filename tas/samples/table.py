"""Tables: what one source measured of many nodes, and how new tables are merged with the stored ones.

A table has a row for each node and a column for each metric. Each cell is a sample in every respect: of one source,
node and metric the newest value counts, in the order of `tas.samples.sample`. Merging is commutative, associative and
idempotent. In the usual case a column replaces another as a whole, and costs the same for any number of nodes.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, repeat
from math import inf
from operator import is_not
from typing import NamedTuple

import msgspec

from tas.samples.freshness import stale_time
from tas.samples.parts import Part
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples, Scrape, since
from tas.values.quantity import Quantity

Values = tuple[Quantity | None, ...]
"""The values of a column by row; None: the node has none."""


class Reading(NamedTuple):
    """When and how values were measured: all of a `Scrape` but its source and its metrics."""

    measured: float
    arrived: float
    sequence: int
    window: float | None = None
    ends: float | None = None

    @property
    def time(self) -> float:
        """The time that counts, as `Scrape.time`."""
        return min(self.measured, self.arrived)

    @property
    def rank(self) -> tuple[float, int, float, float, float, float]:
        """The order of two readings of one source, node and metric: the greater one counts."""
        window = -1.0 if self.window is None else self.window
        ends = inf if self.ends is None else self.ends
        return (self.time, self.sequence, self.measured, self.arrived, window, ends)

    def stale_at(self, stale_after: float) -> float:
        """When its values become stale; `stale_after` is in seconds."""
        return stale_time(self.time, stale_after, self.ends)


class TableKey(NamedTuple):
    """Which table: of a source, and of a part of its nodes."""

    source: str
    part: Part


class Column(NamedTuple):
    """The values of one metric by row, and their reading: one for all rows, or one for each."""

    values: Values
    reading: Reading | tuple[Reading, ...]

    @property
    def readings(self) -> Iterable[Reading]:
        """The reading of each row."""
        return repeat(self.reading, len(self.values)) if isinstance(self.reading, Reading) else self.reading

    @property
    def different(self) -> Collection[Reading]:
        """Its readings that have a value, each once."""
        if isinstance(self.reading, Reading):
            return (self.reading,)
        return set(compress(self.reading, map(is_not, self.values, repeat(None))))

    def at(self, row: int) -> Reading:
        """The reading of a row."""
        return self.reading if isinstance(self.reading, Reading) else self.reading[row]


@dataclass(frozen=True)
class Table:
    """What one source measured of many nodes. Each node occurs once; each column has a value for at least one node.

    `left_out` names the metrics of which a reader of each version of a table has still not seen each value: values
    that came between this version and the one before were never in a version, as newer ones were known. It is about
    the way to this version, so it does not make two tables different, and merging drops it.
    """

    source: str
    nodes: tuple[str, ...]
    columns: Mapping[str, Column]
    left_out: frozenset[str] = field(default=frozenset(), compare=False)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """The row of each node."""
        return {node: row for row, node in enumerate(self.nodes)}

    @property
    def unseen(self) -> Mapping[str, int]:
        """By metric, the sequence before which no reader of this version has seen each value."""
        return {
            metric: min((each.sequence for each in self.columns[metric].different), default=0)
            for metric in self.left_out & self.columns.keys()
        }

    @cached_property
    def newest(self) -> float:
        """The time of its newest value, in seconds since 1970; minus infinity without values."""
        return max((reading.time for column in self.columns.values() for reading in column.different), default=-inf)

    @cached_property
    def last_sequence(self) -> int:
        """The highest sequence of its values; 0 without values."""
        return max((reading.sequence for column in self.columns.values() for reading in column.different), default=0)

    def scrapes(self, node: str) -> NodeSamples:
        """The samples of one node."""
        row = self.rows.get(node)
        if row is None:
            return ()
        found: dict[Reading, dict[str, Quantity]] = {}
        for metric, column in self.columns.items():
            if (value := column.values[row]) is not None:
                found.setdefault(column.at(row), {})[metric] = value
        return tuple(
            Scrape(
                source=self.source,
                measured=reading.measured,
                arrived=reading.arrived,
                sequence=reading.sequence,
                window=reading.window,
                ends=reading.ends,
                metrics=found[reading],
            )
            for reading in sorted(found, key=lambda each: each.rank)
        )


def merge_tables(known: Table, incoming: Table) -> Table:
    """`known` with the newer values of `incoming`, of the same source; the same object if there are none.

    Values more than `MAX_SAMPLE_AGE` older than the newest one of the table are removed: no policy could use them.
    Rows and columns without values are removed.
    """
    nodes = known.nodes
    if incoming.nodes != nodes:
        nodes = (*nodes, *(node for node in incoming.nodes if node not in known.rows))
    known_columns, columns = _aligned(known, nodes), _aligned(incoming, nodes)
    merged: dict[str, Column] = dict(known_columns)
    for metric, column in columns.items():
        merged[metric] = _newer(merged[metric], column) if metric in merged else column
    if (
        nodes == known.nodes
        and len(merged) == len(known.columns)
        and all(merged[metric] is column for metric, column in known.columns.items())
    ):
        return known
    found = table_of(known.source, nodes, _within_horizon(merged))
    return known if found == known else found


def replaced_columns(known: Table, incoming: Table) -> dict[str, int]:
    """The metrics of which `known` has values that were measured and published later, and the last sequence of theirs.

    The sequence is that of the values of `incoming`, of the same source, that are replaced.
    """
    found: dict[str, int] = {}
    for metric, column in incoming.columns.items():
        newer = known.columns.get(metric)
        if newer is None or min(each.sequence for each in column.different) >= known.last_sequence:
            continue
        for node, value, own in zip(incoming.nodes, column.values, column.readings, strict=True):
            row = known.rows.get(node)
            if value is None or row is None or newer.values[row] is None:
                continue
            other = newer.at(row)
            if other.sequence > own.sequence and other.rank > own.rank:
                found[metric] = max(own.sequence, found.get(metric, 0))
    return found


def table_of(source: str, nodes: tuple[str, ...], columns: Mapping[str, Column]) -> Table:
    """A table of these columns, without rows and columns that have no value."""
    filled = {metric: column for metric, column in columns.items() if _has_values(column)}
    if any(None not in column.values for column in filled.values()):
        return Table(source, nodes, filled)
    every = (column.values for column in filled.values())
    has_value = [any(value is not None for value in row) for row in zip(*every, strict=True)]
    if filled and all(has_value):
        return Table(source, nodes, filled)
    return Table(
        source,
        tuple(compress(nodes, has_value)),
        {
            metric: _column(
                tuple(compress(column.values, has_value)),
                column.reading if isinstance(column.reading, Reading) else tuple(compress(column.reading, has_value)),
            )
            for metric, column in filled.items()
        },
    )


def with_metrics(table: Table, metrics: Container[str]) -> Table:
    """The table with some metrics alone."""
    columns = {metric: column for metric, column in table.columns.items() if metric in metrics}
    if len(columns) == len(table.columns):
        return table
    return replace(table_of(table.source, table.nodes, columns), left_out=table.left_out)


def without_nodes(table: Table, nodes: Container[str]) -> Table:
    """The table without the rows of some nodes; the same object if it has none of them."""
    if not any(node in nodes for node in table.nodes):
        return table
    stays = [node not in nodes for node in table.nodes]
    return table_of(
        table.source,
        table.nodes,
        {
            metric: Column(
                tuple(value if stay else None for value, stay in zip(column.values, stays, strict=True)),
                column.reading,
            )
            for metric, column in table.columns.items()
        },
    )


def without_earlier(table: Table, created: Mapping[str, float]) -> Table:
    """The table without the values that were measured before their node was created: another node had the name.

    `created` is in seconds since 1970, by node. The same object if there are none.
    """
    latest = max((created[node] for node in created.keys() & table.rows.keys()), default=-inf)
    columns: dict[str, Column] = {}
    for metric, column in table.columns.items():
        if all(reading.time >= latest for reading in column.different):
            columns[metric] = column
            continue
        values = tuple(
            None if value is None or reading.time < created.get(node, -inf) else value
            for node, value, reading in zip(table.nodes, column.values, column.readings, strict=True)
        )
        columns[metric] = column if values == column.values else Column(values, column.reading)
    if all(column is table.columns[metric] for metric, column in columns.items()):
        return table
    return table_of(table.source, table.nodes, columns)


def combined_samples(single: NodeSamples, rows: Sequence[NodeSamples]) -> NodeSamples:
    """The samples of a node from its own record and from the rows of tables: of each source and metric the newest one.

    At equal times of one source the node's own record counts, because sequences of two streams cannot be compared.
    """
    if not single and len(rows) == 1:  # as of most nodes
        return rows[0]
    best: dict[tuple[str, str], Scrape] = {}
    for scrape in (scrape for row in rows for scrape in row):
        for metric in scrape.metrics:
            before = best.get((scrape.source, metric))
            if before is None or before.order < scrape.order:
                best[scrape.source, metric] = scrape
    for scrape in single:
        for metric in scrape.metrics:
            before = best.get((scrape.source, metric))
            if before is None or before.time <= scrape.time:
                best[scrape.source, metric] = scrape
    found: dict[int, tuple[Scrape, dict[str, Quantity]]] = {}
    for (_, metric), scrape in best.items():
        found.setdefault(id(scrape), (scrape, {}))[1][metric] = scrape.metrics[metric]
    parts = (_with_metrics(scrape, metrics) for scrape, metrics in found.values())
    return tuple(sorted(parts, key=lambda scrape: (scrape.source, scrape.order, min(scrape.metrics))))


def is_superseded(table: Table, samples: Callable[[str], NodeSamples]) -> bool:
    """Whether no value of a table counts: the own record of each node has a value of the source that counts instead.

    `samples` returns the own record of a node.
    """
    for row, node in enumerate(table.nodes):
        of_source = (scrape for scrape in samples(node) if scrape.source == table.source)
        own = {metric: scrape.time for scrape in of_source for metric in scrape.metrics}
        for metric, column in table.columns.items():
            if column.values[row] is not None and own.get(metric, -inf) < column.at(row).time:
                return False
    return True


def samples_of_nodes(
    single: Mapping[str, NodeSamples], tables: Iterable[Table], created: Mapping[str, float]
) -> dict[str, NodeSamples]:
    """The samples of each node that has any in its own record or in a table, without those from before it was created.

    `created` is in seconds since 1970, by node.
    """
    rows: dict[str, list[NodeSamples]] = {}
    for table in tables:
        for node in table.nodes:
            rows.setdefault(node, []).append(table.scrapes(node))
    found = dict(single) | {node: combined_samples(single.get(node, ()), each) for node, each in rows.items()}
    return {node: counting for node, each in found.items() if (counting := since(each, created.get(node)))}


def _with_metrics(scrape: Scrape, metrics: Mapping[str, Quantity]) -> Scrape:
    return scrape if len(metrics) == len(scrape.metrics) else msgspec.structs.replace(scrape, metrics=metrics)


def _has_values(column: Column) -> bool:
    return column.values.count(None) < len(column.values)


def _aligned(table: Table, nodes: tuple[str, ...]) -> Mapping[str, Column]:
    """The columns of a table for other rows, which contain its own."""
    if table.nodes == nodes:
        return table.columns
    rows = list(map(table.rows.get, nodes))
    found: dict[str, Column] = {}
    for metric, column in table.columns.items():
        values = tuple(None if row is None else column.values[row] for row in rows)
        reading = column.reading
        if not isinstance(reading, Reading):
            reading = tuple(reading[row or 0] for row in rows)  # without a value the reading has no meaning
        found[metric] = Column(values, reading)
    return found


def _newer(known: Column, incoming: Column) -> Column:
    """The newer value of each row; `known` itself if `incoming` has none."""
    one, other = known.reading, incoming.reading
    if isinstance(one, Reading) and isinstance(other, Reading) and one.rank != other.rank:
        newer, older = (incoming, known) if other.rank > one.rank else (known, incoming)
        if None not in newer.values or _covers(newer.values, older.values):
            return newer
    values: list[Quantity | None] = []
    readings: list[Reading] = []
    is_changed = False
    for before, value, early, late in zip(
        known.values, incoming.values, known.readings, incoming.readings, strict=True
    ):
        if value is None or (before is not None and (early.rank, before) >= (late.rank, value)):
            values.append(before)
            readings.append(early)
        else:
            values.append(value)
            readings.append(late)
            is_changed = True
    return _column(tuple(values), tuple(readings)) if is_changed else known


def _covers(newer: Values, older: Values) -> bool:
    """Whether each row with an older value has a newer one."""
    return all(value is not None or before is None for value, before in zip(newer, older, strict=True))


def _column(values: Values, readings: Reading | tuple[Reading, ...]) -> Column:
    """A column, with one reading if all its values have the same."""
    column = Column(values, readings)
    different = column.different
    if len(different) == 1:
        (reading,) = different
        return Column(values, reading)
    return column


def _within_horizon(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns without values that are too old beside the newest one."""
    times = [reading.time for column in columns.values() for reading in column.different]
    horizon = max(times, default=inf) - MAX_SAMPLE_AGE
    if not times or min(times) >= horizon:
        return dict(columns)
    found: dict[str, Column] = {}
    for metric, column in columns.items():
        values = tuple(
            None if reading.time < horizon else value
            for value, reading in zip(column.values, column.readings, strict=True)
        )
        found[metric] = _column(values, column.reading)
    return found
