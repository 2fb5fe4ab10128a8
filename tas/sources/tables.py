"""The samples of a poll as tables: one for each part of the nodes, window and end of the values, and 500 metrics."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from tas.samples.parts import MAX_PARTS, MAX_ROWS, divided
from tas.samples.table import Column, Reading, Table, TableKey, table_of
from tas.sources.result import MAX_METRICS_PER_SCRAPE, Sample
from tas.values.quantity import Quantity


class Publish(StrEnum):
    """The form in which a source publishes its samples."""

    NODES = "nodes"
    """One message for each node and scrape."""
    TABLES = "tables"
    """One message for up to 1,000 nodes."""


class Divided(NamedTuple):
    """The samples of a poll, divided.

    Attributes:
        tables: With keys; several may have one key.
        parts: The number of parts; a later poll should have at least as many, so that the parts stay.
        left: The samples of nodes for which the tables have no room.
    """

    tables: Sequence[tuple[TableKey, Table]]
    parts: int
    left: Sequence[Sample]


def tables_of(samples: Iterable[Sample], *, source: str, requested_at: float, parts: int = 1) -> Divided:
    """The samples in tables of at most `MAX_ROWS` rows, in at least so many `parts` (a power of two).

    `requested_at` is when the request was sent, in seconds since 1970: the time of samples without a time of their own.
    """
    nodes: dict[str, list[Sample]] = {}
    for sample in samples:
        nodes.setdefault(sample.node, []).append(sample)
    by_part = divided(sorted(nodes), parts)
    while parts < MAX_PARTS and max(map(len, by_part.values()), default=0) > MAX_ROWS:
        parts *= 2
        by_part = divided(sorted(nodes), parts)
    tables = [
        (TableKey(source, part), table)
        for part, names in sorted(by_part.items())
        for table in _tables(source, {name: nodes[name] for name in names[:MAX_ROWS]}, requested_at)
    ]
    left = [sample for names in by_part.values() for name in names[MAX_ROWS:] for sample in nodes[name]]
    return Divided(tables, parts, left)


def _tables(source: str, nodes: dict[str, list[Sample]], requested_at: float) -> list[Table]:
    """The tables of one part: one for each window and end, and for each `MAX_METRICS_PER_SCRAPE` metrics of these.

    A reader refuses a message with more than 1,000 metrics as a whole.
    """
    names = tuple(nodes)
    shapes: dict[tuple[float | None, float | None], dict[str, list[Sample | None]]] = {}
    for row, samples in enumerate(nodes.values()):
        for sample in samples:
            columns = shapes.setdefault((sample.window, sample.ends), {})
            if (column := columns.get(sample.metric)) is None:
                column = columns[sample.metric] = [None] * len(names)
            column[row] = sample
    tables = []
    for shape, columns in shapes.items():
        metrics = list(columns)
        for start in range(0, len(metrics), MAX_METRICS_PER_SCRAPE):
            some = metrics[start : start + MAX_METRICS_PER_SCRAPE]
            found = {metric: _column(columns[metric], shape, requested_at) for metric in some}
            tables.append(table_of(source, names, found))
    return tables


def _column(samples: Sequence[Sample | None], shape: tuple[float | None, float | None], requested_at: float) -> Column:
    values: list[Quantity | None] = [None if sample is None else sample.value for sample in samples]
    times = [requested_at if sample is None or sample.measured is None else sample.measured for sample in samples]
    different = {time for time, sample in zip(times, samples, strict=True) if sample is not None}
    if len(different) == 1:
        (time,) = different
        return Column(tuple(values), Reading(time, time, 0, *shape))
    return Column(tuple(values), tuple(Reading(time, time, 0, *shape) for time in times))
