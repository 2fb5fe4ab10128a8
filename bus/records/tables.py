"""Tables: a message on TABLES, which programs in any language write, and the table of a part in NODES.

A message has the names of nodes and, for each metric, the values in the order of these names. An invalid value affects
only its own cell, and an invalid row or column only itself.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeVar, cast

import msgspec

from bus.records.codec import (
    UNREADABLE,
    Time,
    body_of,
    encode,
    optional_seconds_of,
    optional_time_of,
    reader,
    seconds_of,
    text_decoder,
    time_decoder,
    time_of,
    window_decoder,
)
from bus.subjects import parse_tables_subject
from tas.errors import InvalidInputError, shortened
from tas.samples.freshness import time_fault
from tas.samples.parts import MAX_ROWS
from tas.samples.table import Column, Reading, Table, TableKey, Values, table_of
from tas.values.blanks import ANY, has_blanks, has_small_blanks, refusal_of
from tas.values.names import is_metric_name, is_subdomain
from tas.values.nouns import counted
from tas.values.quantity import Quantity, QuantityError, format_quantity, parse_quantity

MAX_TABLE_BYTES = 256 << 10
"""The largest message on TABLES that is read."""

MAX_TABLE_METRICS = 1000
"""The most columns of a table."""

MAX_NAMED = 8
"""So many errors name a refused cell, row or column of a table; the others are counted, if not the first of a field."""

T = TypeVar("T")


class Refused(NamedTuple):
    """What is refused of a table: the first errors, and the number of all refused values by field.

    A refused row or column counts as one. The field is that of the message, without the metric or the row that the
    field of an error has after a dot. Each counted field has an error.
    """

    errors: tuple[InvalidInputError, ...]
    counts: Mapping[str, int]

    def about(self, node: str) -> list[InvalidInputError]:
        """The errors of the whole table, of its columns and of the row of this node, without those of other rows."""
        return [error for error in self.errors if _row_of(error) in (None, shortened(node))]


def _row_of(error: InvalidInputError) -> str | None:
    """The node of the row or cell of which this is the error, as an error shows it; None for another error."""
    field, _, rest = error.field.partition(".")
    if field == "nodes":
        return error.value if rest else None
    _, dot, node = rest.partition(".")
    return shortened(node) if dot else None


class _Refusals:
    def __init__(self, subject: str, named: int) -> None:
        self.subject = subject
        self._named = named
        self._errors: list[InvalidInputError] = []
        self._counts: Counter[str] = Counter()

    def add(self, field: str, name: str, value: object, reason: str) -> None:
        """A refusal of something under `field`, with the name of the metric or node."""
        if self._counted(field):
            where = f"{field}.{name}" if name else field
            self._errors.append(InvalidInputError(self.subject, where, value, reason))

    def add_error(self, error: InvalidInputError) -> None:
        """A refusal for which there is an error."""
        if self._counted(error.field.partition(".")[0]):
            self._errors.append(error)

    def _counted(self, field: str) -> bool:
        """Whether the refusal, which counts now, is to be named as well."""
        self._counts[field] += 1
        return self._counts[field] == 1 or len(self._errors) < self._named

    def result(self) -> Refused:
        return Refused(tuple(self._errors), dict(self._counts))


# Messages


class _Message(msgspec.Struct, kw_only=True):
    nodes: list[str]
    metrics: dict[str, msgspec.Raw]
    measured: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    window: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    ends: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _WrittenMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    nodes: Sequence[str]
    metrics: dict[str, list[str | None]]
    measured: datetime | list[datetime] | dict[str, datetime | list[datetime]]
    window: float | None = None
    ends: datetime | None = None


_message_decoder = msgspec.json.Decoder(_Message)
_texts_decoder = msgspec.json.Decoder(list[str | None])
_cells_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_by_metric_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_table(
    subject: str,
    data: bytes,
    *,
    arrived: float,
    sequence: int,
    newer: Sequence[Table] = (),
    named: int = MAX_NAMED,
) -> tuple[TableKey, Table | None, Refused]:
    """The key of a message on TABLES, its table with all valid values (None if there are none), and what is refused.

    Cells that have a newer valid value in one of the tables `newer`, of the same key, are not decoded: the table names
    their columns in `left_out`. Names of nodes that one of these has in the same order are not checked again.
    At most so many errors are `named`, and one for each field. Raises InvalidInputError if the subject is invalid.
    """
    key = parse_tables_subject(subject)
    refusals = _Refusals(f"table {key.source}/{key.part}", named)
    arrived = round(arrived, 6)  # the precision of the JSON, so that a table equals its stored copy
    try:
        body = _body(refusals.subject, data)
        rows = _Rows(refusals, key, body.nodes, [table.nodes for table in newer])
        readings = _Readings(refusals, body, rows, arrived=arrived, sequence=sequence)
        columns: dict[str, Column] = {}
        left_out: set[str] = set()
        for metric, written in body.metrics.items():
            superseded = readings.superseded(metric, newer)
            if superseded:
                left_out.add(metric)
            if len(superseded) == len(rows.names) > 0:
                continue
            if (values := _values(refusals, rows, metric, written, superseded)) is None:
                continue
            if (column := readings.column(metric, values)) is not None:
                columns[metric] = column
    except InvalidInputError as error:
        return key, None, Refused((error,), {error.field: 1})
    table = replace(table_of(key.source, rows.names, columns), left_out=frozenset(left_out))
    return key, table if table.nodes or left_out else None, refusals.result()


def encode_table(table: Table) -> bytes:
    """The body of a message on TABLES, without `arrived` and `sequence`, which the server sets.

    All values must have one window and one end.
    """
    times = {
        metric: time_of(column.reading.measured)
        if isinstance(column.reading, Reading)
        else [time_of(reading.measured) for reading in column.reading]
        for metric, column in table.columns.items()
    }
    first, *others = times.values()
    (shape,) = {(reading.window, reading.ends) for column in table.columns.values() for reading in column.different}
    return encode(
        _WrittenMessage(
            nodes=table.nodes,
            measured=first if all(each == first for each in others) else times,
            window=shape[0],
            ends=optional_time_of(shape[1]),
            metrics={metric: _texts(column.values) for metric, column in table.columns.items()},
        )
    )


def _body(subject: str, data: bytes) -> _Message:
    body = body_of(subject, _message_decoder, data, MAX_TABLE_BYTES)
    for field, found, most in (("nodes", body.nodes, MAX_ROWS), ("metrics", body.metrics, MAX_TABLE_METRICS)):
        if len(found) > most:
            raise InvalidInputError(subject, field, f"{len(found)} {field}", f"must be at most {most}")
    return body


class _Rows:
    """The rows of a message: `names` has all of them, and those in `refused` have no values."""

    def __init__(self, refusals: _Refusals, key: TableKey, nodes: list[str], known: Iterable[tuple[str, ...]]) -> None:
        self.names = tuple(nodes)
        self.refused: set[int] = set()
        for names in known:
            if self.names == names:
                self.names = names
                return
        times = Counter(nodes)
        for row, node in enumerate(nodes):
            if not is_subdomain(node):
                fault = "must be a lowercase DNS subdomain (RFC 1123)"
            elif times[node] > 1:
                fault = f"is in {times[node]} rows: none of them counts"
            elif not key.part.has(node):
                fault = f"does not belong to part {key.part}"
            else:
                continue
            refusals.add("nodes", str(row), node, fault)
            self.refused.add(row)
        if self.refused:  # names that are not valid, or not unique, must not come into a table
            self.names = tuple(f"_{row}" if row in self.refused else node for row, node in enumerate(nodes))


class _Field(NamedTuple):
    """When or how values were measured: one value for all rows, or one for each; and the written ones with a fault."""

    value: float | list[float | None] | None = None
    faults: Mapping[int, "_Fault"] = {}


class _Fault(NamedTuple):
    field: str
    written: msgspec.Raw
    reason: str


_Found = tuple[Reading | tuple[Reading, ...], Mapping[int, _Fault]]
"""One reading for all rows, or one for each; and the rows in which a field has a fault."""


class _Readings:
    """The readings of a message. Each of its three fields has one value, or one for each row, or either by metric."""

    def __init__(self, refusals: _Refusals, body: _Message, rows: _Rows, *, arrived: float, sequence: int) -> None:
        self._refusals = refusals
        self._rows = rows
        self._arrived = arrived
        self._sequence = sequence
        self._for_all: dict[str, _Field] = {}
        self._by_metric: dict[str, dict[str, msgspec.Raw]] = {}
        for field, written in (("measured", body.measured), ("window", body.window), ("ends", body.ends)):
            self._for_all[field] = _Field()
            if written is msgspec.UNSET:
                continue
            if bytes(written)[:1] == b"{":
                self._by_metric[field] = self._decoded(field, _by_metric_decoder, written)
            else:  # decoded once, not again for each metric
                self._for_all[field] = self._field(field, "", written)
        self._found: dict[str, _Found | InvalidInputError] = {}
        self._same = None if any(self._by_metric.values()) else self._readings(**self._for_all)

    def superseded(self, metric: str, newer: Sequence[Table]) -> Collection[int]:
        """The rows of a metric that have a newer value in one of these tables.

        Not looked for in tables without a later message: usually there is none, and the comparison of rows has a price.
        """
        columns = [
            (table, column)
            for table in newer
            if table.last_sequence > self._sequence and (column := table.columns.get(metric)) is not None
        ]
        if not columns or isinstance(found := self._of_metric(metric), InvalidInputError):
            return ()
        reading, names = found[0], self._rows.names
        rows: set[int] = set()
        for table, column in columns:
            if (
                isinstance(reading, Reading)
                and isinstance(column.reading, Reading)
                and reading.rank >= column.reading.rank
            ):
                continue
            is_whole = isinstance(reading, Reading) and isinstance(column.reading, Reading)
            if is_whole and table.nodes is names and None not in column.values:
                return range(len(names))
            for row, name in enumerate(names):
                at = row if table.nodes is names else table.rows.get(name)
                if at is not None and column.values[at] is not None:
                    own = reading if isinstance(reading, Reading) else reading[row]
                    if own.rank < column.at(at).rank:
                        rows.add(row)
        return rows

    def _of_metric(self, metric: str) -> _Found | InvalidInputError:
        """The readings of a metric, or why none of them is valid."""
        if self._same is not None:
            return self._same
        if metric not in self._found:
            try:
                self._found[metric] = self._readings(**{field: self._of(field, metric) for field in self._for_all})
            except InvalidInputError as error:
                self._found[metric] = error
        return self._found[metric]

    def column(self, metric: str, values: Values) -> Column | None:
        """A column, without the values whose time is refused; None if all are."""
        found = self._of_metric(metric)
        if isinstance(found, InvalidInputError):
            self._refusals.add_error(found)
            return None
        reading, faults = found
        if not faults:
            return Column(values, reading)
        for row, fault in faults.items():
            if values[row] is not None:
                name = f"{metric}.{self._rows.names[row]}"
                self._refusals.add(fault.field, name, _written(fault.written), fault.reason)
        return Column(tuple(None if row in faults else value for row, value in enumerate(values)), reading)

    def _readings(self, measured: _Field, window: _Field, ends: _Field) -> _Found:
        fields = (measured.value, window.value, ends.value)
        if not any(isinstance(each, list) for each in fields):
            return self._reading(*fields), {}
        count = len(self._rows.names)
        columns = (each if isinstance(each, list) else [each] * count for each in fields)
        readings = tuple(self._reading(*each) for each in zip(*columns, strict=True))
        return readings, {**ends.faults, **window.faults, **measured.faults}

    def _reading(self, measured: object, window: object, ends: object) -> Reading:
        assert isinstance(window, float | None)
        assert isinstance(ends, float | None)
        at = measured if isinstance(measured, float) else self._arrived
        return Reading(at, self._arrived, self._sequence, window, ends)

    def _of(self, field: str, metric: str) -> _Field:
        written = self._by_metric.get(field, {}).get(metric)
        return self._for_all[field] if written is None else self._field(field, metric, written)

    def _field(self, field: str, metric: str, written: msgspec.Raw) -> _Field:
        """A field as written for a metric, or for all. Raises InvalidInputError if no row has a use of it."""
        where = f"{field}.{metric}" if metric else field
        if bytes(written)[:1] != b"[":
            value, reason = self._value(field, written)
            if reason is not None:
                raise InvalidInputError(self._refusals.subject, where, _written(written), reason)
            return _Field(value)
        cells = self._decoded(where, _cells_decoder, written)
        if len(cells) != len(self._rows.names):
            reason = f"must be one for each of {counted(len(self._rows.names), 'node')}"
            raise InvalidInputError(self._refusals.subject, where, counted(len(cells), "value"), reason)
        values: list[float | None] = []
        faults: dict[int, _Fault] = {}
        for row, cell in enumerate(cells):
            value, reason = self._value(field, cell)
            values.append(value)
            if reason is not None:
                faults[row] = _Fault(field, cell, reason)
        return _Field(values, faults)

    def _value(self, field: str, written: msgspec.Raw) -> tuple[float | None, str | None]:
        """One value of a field, None for `null`; or None and why it is refused, without the cost of an error."""
        if bytes(written) == b"null":
            return None, None
        try:
            if field == "window":
                return window_decoder.decode(written), None
            time = time_decoder.decode(written)
            if field == "ends":
                return seconds_of(time), None
        except UNREADABLE as error:
            return None, str(error)
        except InvalidInputError as error:
            return None, error.reason
        measured = time.timestamp()
        fault = time_fault(measured, self._arrived)
        return (measured if fault is None else None), fault

    def _decoded(self, where: str, decoder: msgspec.json.Decoder[T], written: msgspec.Raw) -> T:
        try:
            return decoder.decode(written)
        except UNREADABLE as error:
            raise InvalidInputError(self._refusals.subject, where, _written(written), str(error)) from error


def _written(value: msgspec.Raw) -> str:
    return bytes(value).decode(errors="replace")


def _values(
    refusals: _Refusals, rows: _Rows, metric: str, written: msgspec.Raw, superseded: Collection[int]
) -> Values | None:
    """The values of a column, None for those of superseded rows; None if it is refused as a whole."""
    if not is_metric_name(metric):
        refusals.add("metrics", "", metric, "must be a metric's name of letters, digits, _, - and :")
        return None
    try:
        texts = _texts_decoder.decode(written)
    except UNREADABLE:
        try:
            cells = _cells_decoder.decode(written)
        except UNREADABLE:
            refusals.add("metrics", metric, _written(written), "must be a list of values by row")
            return None
        texts = [_text(cell) for cell in cells]
    if len(texts) != len(rows.names):
        nodes = counted(len(rows.names), "node")
        refusals.add("metrics", metric, counted(len(texts), "value"), f"must be one for each of {nodes}")
        return None
    for row in (*rows.refused, *superseded):
        texts[row] = None
    try:
        values = tuple(None if text is None else parse_quantity(text) for text in texts)
    except QuantityError:
        values = tuple(_quantity(refusals, f"{metric}.{rows.names[row]}", text) for row, text in enumerate(texts))
    return _without_blanks(refusals, rows, metric, values)


def _without_blanks(refusals: _Refusals, rows: _Rows, metric: str, values: Values) -> Values:
    """The values without numbers that mean that there is none."""
    small = has_small_blanks(metric)
    present = [value for value in values if value is not None] if None in values else cast("Sequence[Quantity]", values)
    if not has_blanks(present, small=small):
        return values
    found: list[Quantity | None] = []
    for row, value in enumerate(values):
        why = None if value is None else refusal_of(value, ANY, small=small)
        if why is not None and value is not None:
            refusals.add("metrics", f"{metric}.{rows.names[row]}", format_quantity(value), why)
        found.append(None if why is not None else value)
    return tuple(found)


def _text(cell: msgspec.Raw) -> str | None:
    """The text of a value, which may be a number; anything else is kept as it is, and is no quantity."""
    text = _written(cell)
    if text == "null":
        return None
    if text[0] == '"':
        try:
            return text_decoder.decode(cell)
        except UNREADABLE:
            return text
    return text


def _quantity(refusals: _Refusals, name: str, text: str | None) -> Quantity | None:
    try:
        return None if text is None else parse_quantity(text)
    except QuantityError as error:
        refusals.add("metrics", name, text, str(error))
        return None


def _texts(values: Values) -> list[str | None]:
    return [None if value is None else format_quantity(value) for value in values]


# Stored tables


class _Reading(msgspec.Struct, kw_only=True, omit_defaults=True):
    measured: Time
    arrived: Time
    sequence: int
    window: float | None = None
    ends: Time | None = None


class _Column(msgspec.Struct, kw_only=True):
    values: list[str | None]
    reading: int | list[int]


class _Table(msgspec.Struct, kw_only=True, omit_defaults=True):
    nodes: Sequence[str]
    readings: list[_Reading]
    metrics: dict[str, _Column]
    left_out: Sequence[str] = ()


_read_table = reader("table of a part", _Table)


def encode_stored_table(table: Table) -> bytes:
    """The value of `_table.<source>.<part>` in NODES. A column names its readings by their index in `readings`."""
    numbers: dict[Reading, int] = {}
    columns: dict[str, _Column] = {}
    for metric, column in table.columns.items():
        if isinstance(column.reading, Reading):
            reading: int | list[int] = numbers.setdefault(column.reading, len(numbers))
        else:
            reading = [
                -1 if value is None else numbers.setdefault(each, len(numbers))
                for value, each in zip(column.values, column.reading, strict=True)
            ]
        columns[metric] = _Column(values=_texts(column.values), reading=reading)
    readings = [
        _Reading(
            measured=time_of(each.measured),
            arrived=time_of(each.arrived),
            sequence=each.sequence,
            window=each.window,
            ends=optional_time_of(each.ends),
        )
        for each in numbers
    ]
    left_out = tuple(sorted(table.left_out))
    return encode(_Table(nodes=table.nodes, readings=readings, metrics=columns, left_out=left_out))


def decode_stored_table(key: TableKey, data: bytes) -> Table:
    """The inverse of `encode_stored_table`. Raises InvalidInputError."""
    found = _read_table(data)
    readings = tuple(
        Reading(
            measured=seconds_of(each.measured),
            arrived=seconds_of(each.arrived),
            sequence=each.sequence,
            window=each.window,
            ends=optional_seconds_of(each.ends),
        )
        for each in found.readings
    )
    nodes = tuple(found.nodes)
    if len(set(nodes)) != len(nodes):
        raise InvalidInputError("table of a part", "nodes", f"{len(nodes)} nodes", "must be different ones")
    table = table_of(
        key.source,
        nodes,
        {metric: _column(metric, each, readings, len(nodes)) for metric, each in found.metrics.items()},
    )
    return replace(table, left_out=frozenset(found.left_out)) if found.left_out else table


def _column(metric: str, written: _Column, readings: tuple[Reading, ...], rows: int) -> Column:
    if len(written.values) != rows or not _have_readings(written, len(readings)):
        raise InvalidInputError(
            "table of a part", f"metrics.{metric}", "values", f"must be {rows}, each with a reading"
        )
    try:
        values = tuple(None if text is None else parse_quantity(text) for text in written.values)
    except QuantityError as error:
        raise InvalidInputError("table of a part", f"metrics.{metric}", "values", str(error)) from error
    if isinstance(written.reading, list):
        return Column(values, tuple(readings[number] for number in written.reading))
    return Column(values, readings[written.reading])


def _have_readings(column: _Column, count: int) -> bool:
    """Whether the readings of a stored column are among so many; -1 is that of a row without a value."""
    if not isinstance(column.reading, list):
        return 0 <= column.reading < count
    if not count or len(column.reading) != len(column.values):
        return False
    if not -1 <= min(column.reading, default=0) <= max(column.reading, default=0) < count:
        return False
    pairs = zip(column.reading, column.values, strict=True)
    return -1 not in column.reading or all(number >= 0 or text is None for number, text in pairs)
