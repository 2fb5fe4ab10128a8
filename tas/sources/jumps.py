"""Values that jump by orders of magnitude for one scrape and then come back, such as 644245923 °C (facts.md n62).

Only the next value shows that such a value was none, and then it is published. So it is not refused, but counted with
an example.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tas.errors import line_of
from tas.samples.sample import Scrape
from tas.samples.table import Table, Values
from tas.sources.result import RefusalCount, SuspectReason
from tas.values.blanks import has_small_blanks
from tas.values.quantity import NANO, Quantity, format_quantity

FACTOR = 1000
"""A value jumps if it is at least so many times the value before it, and the value after it."""

LEAST = Quantity(NANO)
"""A smaller value counts as 1, so that a load from 0.001 to 2 is no jump. With 0 only values of DCGM are compared: a
rate of bytes goes from 0 to thousands and back, but the use of an idle GPU does not."""

LONGEST = 120.0
"""Seconds: a source that is polled more often than it measures repeats its value, but hardly for longer than this."""

MAX_RAISED = 1000
"""The next value is awaited for at most so many raised values."""


class _Raised(NamedTuple):
    before: Quantity
    value: Quantity
    at: float


class _Place(NamedTuple):
    node: str
    metric: str
    series: str = ""


class Jumps:
    """Finds the jumps of one source. It keeps raised values only: its caller has the values before.

    `now` is in seconds of any clock.
    """

    def __init__(self) -> None:
        self._raised: dict[_Place, _Raised] = {}
        self._count = 0
        self._example = ""

    def add_tables(self, before: Iterable[Table], after: Iterable[Table], now: float) -> None:
        """Takes in the tables of some nodes that follow others: one for each window and end of the values."""
        known = tuple(before)
        for table in after:
            for place in tuple(self._raised):
                row, column = table.rows.get(place.node), table.columns.get(place.metric)
                if row is not None and column is not None:
                    self._end(place, column.values[row], now)
            for old in known:
                for metric in old.columns.keys() & table.columns.keys():
                    earlier, values = _of_rows(old, metric, table.nodes), table.columns[metric].values
                    for row in _raised_rows(earlier, values, from_zero=has_small_blanks(metric)):
                        self._begin(_Place(table.nodes[row], metric), earlier[row], values[row], now)

    def add_scrapes(self, node: str, before: Iterable[Scrape], after: Iterable[Scrape], now: float) -> None:
        """Takes in scrapes of a node that follow others."""
        earlier = {metric: value for scrape in before for metric, value in scrape.metrics.items()}
        for scrape in after:
            for metric, value in scrape.metrics.items():
                self.add_value(node, metric, earlier.get(metric), value, now)

    def add_value(
        self, node: str, metric: str, before: Quantity | None, value: Quantity, now: float, *, series: str = ""
    ) -> None:
        """Takes in a value that follows another, of one of several `series` of a node."""
        place = _Place(node, metric, series)
        if self._raised:
            self._end(place, value, now)
        self._begin(place, before, value, now)

    def taken(self) -> Mapping[SuspectReason, RefusalCount]:
        """The jumps since the last call: their number, with an example."""
        if not self._count:
            return {}
        found = {SuspectReason.JUMP: RefusalCount(count=self._count, example=line_of(self._example))}
        self._count, self._example = 0, ""
        return found

    def _begin(self, place: _Place, before: Quantity | None, value: Quantity | None, now: float) -> None:
        if before is None or value is None:
            return
        if not _is_raised(before, value, from_zero=has_small_blanks(place.metric)):
            return
        if len(self._raised) >= MAX_RAISED:
            oldest = next(iter(self._raised))
            if now - self._raised[oldest].at <= LONGEST:
                return
            del self._raised[oldest]  # its node or series has ended, or seldom has a value
        self._raised[place] = _Raised(before, value, now)

    def _end(self, place: _Place, value: Quantity | None, now: float) -> None:
        raised = self._raised.get(place)
        if raised is None:
            return
        if now - raised.at <= LONGEST:
            if value is None or value == raised.value:
                return
            if _is_raised(value, raised.value, from_zero=has_small_blanks(place.metric)):
                self._count += 1
                self._example = self._example or _text(place, raised, value)
        del self._raised[place]


def _text(place: _Place, raised: _Raised, after: Quantity) -> str:
    before, value, after_it = map(format_quantity, (raised.before, raised.value, after))
    return (
        f"{place.metric} of {place.node}: value = {value}: jumped for one scrape, from {before} and back to {after_it}"
    )


def _is_raised(before: Quantity | None, value: Quantity | None, *, from_zero: bool) -> bool:
    if before is None or value is None or not (before or from_zero):
        return False
    return abs(value) >= FACTOR * max(abs(before), LEAST)


def _of_rows(table: Table, metric: str, nodes: tuple[str, ...]) -> Values:
    """The values of a column for the rows of another table."""
    values = table.columns[metric].values
    if table.nodes == nodes:
        return values
    return tuple(None if (row := table.rows.get(node)) is None else values[row] for node in nodes)


def _raised_rows(before: Values, after: Values, *, from_zero: bool) -> Iterator[int]:
    """The rows with a raised value. As nearly always there are none: then it takes a few passes in C."""
    most = max(_sizes(after), default=0)
    if most < FACTOR * LEAST or before == after:
        return
    if not from_zero and most < FACTOR * min(_sizes(before), default=0):
        return
    for row, (earlier, value) in enumerate(zip(before, after, strict=True)):
        if _is_raised(earlier, value, from_zero=from_zero):
            yield row


def _sizes(values: Values) -> Iterable[int]:
    """The absolute values that are not 0."""
    return map(abs, filter(None, values))
