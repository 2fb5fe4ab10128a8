"""Tables: a message on TABLES, which programs in any language write, and the table of a part in NODES.

A message has the names of nodes and, for each metric, the values in the order of these names. An invalid value affects
only its own cell, and an invalid row or column only itself.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from bus.records.codec import (
    UNREADABLE,
    Time,
    decoded,
    encode,
    optional_seconds_of,
    optional_time_of,
    reader,
    seconds_of,
    time_of,
)
from bus.subjects import parse_tables_subject
from tas.errors import InvalidInputError, shortened
from tas.samples.freshness import time_fault
from tas.samples.parts import MAX_ROWS
from tas.samples.table import Column, Reading, Table, TableKey, Values, table_of
from tas.values.names import is_metric_name, is_subdomain
from tas.values.quantity import Quantity, QuantityError, format_quantity, parse_quantity

MAX_TABLE_BYTES = 256 << 10
"""The largest message on TABLES that is read."""

MAX_TABLE_METRICS = 1000
"""The most columns of a table."""

MAX_NAMED = 8
"""For so many refused cells, rows and columns of a table the error names each; the others are counted."""

T = TypeVar("T")


class Refused(NamedTuple):
    """What is refused of a table: the first errors, and the number of all refused values by the field of their error.

    A refused row or column counts as one.
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
    def __init__(self, subject: str, most: int) -> None:
        self.subject = subject
        self._most = most
        self._errors: list[InvalidInputError] = []
        self._counts: Counter[str] = Counter()

    def add(self, field: str, name: str, value: object, reason: str) -> None:
        """A refusal of something under `field`, with the name of the metric or node."""
        if len(self._errors) >= self._most:
            self._counts[field] += 1
            return
        where = f"{field}.{name}" if name else field
        self.take(InvalidInputError(self.subject, where, value, reason))

    def take(self, error: InvalidInputError) -> None:
        """Counts an error by its field, without the names of metrics and nodes, of which there may be any number."""
        self._counts[error.field.partition(".")[0]] += 1
        if len(self._errors) < self._most:
            self._errors.append(error)

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
_text_decoder = msgspec.json.Decoder(str)
_by_metric_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_time_decoder: msgspec.json.Decoder[datetime] = msgspec.json.Decoder(Time)
_window_decoder: msgspec.json.Decoder[float] = msgspec.json.Decoder(Annotated[float, msgspec.Meta(gt=0, le=86400)])


def decode_table(
    subject: str, data: bytes, *, arrived: float, sequence: int, nodes: tuple[str, ...] = (), named: int = MAX_NAMED
) -> tuple[TableKey, Table | None, Refused]:
    """The key of a message on TABLES, its table with all valid values (None if there are none), and what is refused.

    `nodes` are those of an earlier table of this key: if the message has the same ones, they are not checked again.
    At most so many errors are `named`. Raises InvalidInputError if the subject is invalid.
    """
    key = parse_tables_subject(subject)
    refusals = _Refusals(f"table {key.source}/{key.part}", named)
    arrived = round(arrived, 6)  # the precision of the JSON, so that a table equals its stored copy
    try:
        body = _body(refusals.subject, data)
        rows = _Rows(refusals, key, body.nodes, nodes)
        readings = _Readings(refusals, body, rows, arrived=arrived, sequence=sequence)
        columns: dict[str, Column] = {}
        for metric, written in body.metrics.items():
            if (values := _values(refusals, rows, metric, written)) is None:
                continue
            if (reading := readings.of(metric)) is not None:
                columns[metric] = Column(readings.valid(metric, values), reading)
    except InvalidInputError as error:
        return key, None, Refused((error,), {error.field: 1})
    table = table_of(key.source, rows.names, columns)
    return key, table if table.nodes else None, refusals.result()


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
    if len(data) > MAX_TABLE_BYTES:
        raise InvalidInputError(subject, "body", f"{len(data)} bytes", f"must be at most {MAX_TABLE_BYTES} bytes")
    body = decoded(subject, _message_decoder, data)
    for field, found, most in (("nodes", body.nodes, MAX_ROWS), ("metrics", body.metrics, MAX_TABLE_METRICS)):
        if len(found) > most:
            raise InvalidInputError(subject, field, f"{len(found)} {field}", f"must be at most {most}")
    return body


class _Rows:
    """The rows of a message: `names` has all of them, and those in `refused` have no values."""

    def __init__(self, refusals: _Refusals, key: TableKey, nodes: list[str], known: tuple[str, ...]) -> None:
        self.names = tuple(nodes)
        self.refused: set[int] = set()
        if self.names == known:
            self.names = known
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


class _Readings:
    """The readings of a message: of the whole, by row, or by metric."""

    def __init__(self, refusals: _Refusals, body: _Message, rows: _Rows, *, arrived: float, sequence: int) -> None:
        self._refusals = refusals
        self._rows = rows
        self._arrived = arrived
        self._sequence = sequence
        self._fields: dict[str, tuple[msgspec.Raw | msgspec.UnsetType, Mapping[str, msgspec.Raw]]] = {}
        for field, written in (("measured", body.measured), ("window", body.window), ("ends", body.ends)):
            if written is not msgspec.UNSET and bytes(written)[:1] == b"{":
                found: dict[str, msgspec.Raw] = self._decoded(field, "", _by_metric_decoder, written)
                self._fields[field] = msgspec.UNSET, found
            else:
                self._fields[field] = written, {}
        self._for_all: Reading | tuple[Reading, ...] | None = None
        self._faults: dict[int, tuple[str, object, str]] = {}
        if not any(by_metric for _, by_metric in self._fields.values()):
            self._for_all = self._read("")

    def of(self, metric: str) -> Reading | tuple[Reading, ...] | None:
        """The readings of a column; None if it is refused."""
        if self._for_all is not None:
            return self._for_all
        self._faults = {}
        try:
            return self._read(metric)
        except InvalidInputError as error:
            self._refusals.take(error)
            return None

    def valid(self, metric: str, values: Values) -> Values:
        """The values of a column without those whose time is refused."""
        if not self._faults:
            return values
        for row, (field, value, reason) in self._faults.items():
            if values[row] is not None:
                self._refusals.add(field, f"{metric}.{self._rows.names[row]}", value, reason)
        return tuple(None if row in self._faults else value for row, value in enumerate(values))

    def _read(self, metric: str) -> Reading | tuple[Reading, ...]:
        measured = self._field("measured", metric, _time_decoder, self._measured)
        windows = self._field("window", metric, _window_decoder, lambda found, _: found)
        ends = self._field("ends", metric, _time_decoder, lambda found, _: seconds_of(found))
        if not any(isinstance(each, list) for each in (measured, windows, ends)):
            return self._reading(measured, windows, ends)
        count = len(self._rows.names)
        columns = (each if isinstance(each, list) else [each] * count for each in (measured, windows, ends))
        return tuple(self._reading(*each) for each in zip(*columns, strict=True))

    def _reading(self, measured: object, window: object, ends: object) -> Reading:
        assert isinstance(window, float | None)
        assert isinstance(ends, float | None)
        at = measured if isinstance(measured, float) else self._arrived
        return Reading(at, self._arrived, self._sequence, window, ends)

    def _measured(self, found: datetime, row: int | None) -> float:
        measured = found.timestamp()
        fault = time_fault(measured, self._arrived)
        if fault is None:
            return measured
        if row is None:
            raise InvalidInputError(self._refusals.subject, "measured", found.isoformat(), fault)
        self._faults[row] = "measured", found.isoformat(), fault
        return self._arrived

    def _field(
        self, field: str, metric: str, decoder: msgspec.json.Decoder[T], value: Callable[[T, int | None], float]
    ) -> float | list[float | None] | None:
        """The value of a field for a column: one, one for each row, or None."""
        for_all, by_metric = self._fields[field]
        written = by_metric.get(metric, for_all)
        if written is msgspec.UNSET or bytes(written) == b"null":
            return None
        if bytes(written)[:1] != b"[":
            return value(self._decoded(field, metric, decoder, written), None)
        cells = self._decoded(field, metric, _cells_decoder, written)
        if len(cells) != len(self._rows.names):
            reason = f"has {len(cells)} values for {len(self._rows.names)} nodes"
            raise InvalidInputError(self._refusals.subject, field, metric or "values by row", reason)
        found: list[float | None] = []
        for row, cell in enumerate(cells):
            found.append(None)
            if bytes(cell) != b"null":
                try:
                    found[row] = value(self._decoded(field, metric, decoder, cell), row)
                except InvalidInputError as error:
                    self._faults[row] = field, error.value, error.reason
        return found

    def _decoded(self, field: str, metric: str, decoder: msgspec.json.Decoder[T], written: msgspec.Raw) -> T:
        try:
            return decoder.decode(written)
        except UNREADABLE as error:
            where = f"{field}.{metric}" if metric else field
            text = bytes(written).decode(errors="replace")
            raise InvalidInputError(self._refusals.subject, where, text, str(error)) from error


def _values(refusals: _Refusals, rows: _Rows, metric: str, written: msgspec.Raw) -> Values | None:
    """The values of a column; None if it is refused as a whole."""
    if not is_metric_name(metric):
        refusals.add("metrics", "", metric, "must be a metric's name of letters, digits, _, - and :")
        return None
    try:
        texts = _texts_decoder.decode(written)
    except UNREADABLE:
        try:
            cells = _cells_decoder.decode(written)
        except UNREADABLE:
            refusals.add("metrics", metric, bytes(written).decode(errors="replace"), "must be a list of values by row")
            return None
        texts = [_text(cell) for cell in cells]
    if len(texts) != len(rows.names):
        refusals.add("metrics", metric, f"{len(texts)} values", f"must be one for each of {len(rows.names)} nodes")
        return None
    try:
        found = [None if text is None else parse_quantity(text) for text in texts]
    except QuantityError:
        found = [_quantity(refusals, f"{metric}.{rows.names[row]}", text) for row, text in enumerate(texts)]
    for row in rows.refused:
        found[row] = None
    return tuple(found)


def _text(cell: msgspec.Raw) -> str | None:
    """The text of a value, which may be a number; anything else is kept as it is, and is no quantity."""
    text = bytes(cell).decode(errors="replace")
    if text == "null":
        return None
    if text[0] == '"':
        try:
            return _text_decoder.decode(cell)
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


class _Table(msgspec.Struct, kw_only=True):
    nodes: Sequence[str]
    readings: list[_Reading]
    metrics: dict[str, _Column]


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
    return encode(_Table(nodes=table.nodes, readings=readings, metrics=columns))


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
    return Table(
        key.source,
        nodes,
        {metric: _column(metric, each, readings, len(nodes)) for metric, each in found.metrics.items()},
    )


def _column(metric: str, written: _Column, readings: tuple[Reading, ...], rows: int) -> Column:
    numbers = written.reading if isinstance(written.reading, list) else [written.reading]
    wrong = len(written.values) != rows or (isinstance(written.reading, list) and len(numbers) != rows)
    if wrong or not readings or max(numbers, default=0) >= len(readings) or min(numbers, default=0) < -1:
        raise InvalidInputError(
            "table of a part", f"metrics.{metric}", "values", f"must be {rows}, each with a reading"
        )
    try:
        values = tuple(None if text is None else parse_quantity(text) for text in written.values)
    except QuantityError as error:
        raise InvalidInputError("table of a part", f"metrics.{metric}", "values", str(error)) from error
    if isinstance(written.reading, list):
        return Column(values, tuple(readings[number] for number in numbers))
    return Column(values, readings[written.reading])
