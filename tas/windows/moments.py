"""Moments of a window: count, mean, deviation, extremes and the straight line of its values, without the values.

A window is a ring of slots, each a twentieth of its duration. A slot has the sums of its own values, and the sums of
two slots are added exactly, so a value leaves the window with its slot, and nothing is ever subtracted. Rules of Chan,
Golub and LeVeque for adding the sums of two parts.
"""

from collections.abc import Sequence
from math import isfinite

import numpy as np
import numpy.typing as npt

from tas.values.window import Kind, Window
from tas.windows.slots import SLOTS, slot_of

_SLOT, _COUNT, _FIRST, _MEAN, _SQUARES, _LOW, _HIGH, _TIME, _TIME_SQUARES, _PRODUCTS = range(10)
_FIELDS = 10

Row = Sequence[float]
"""The sums of a slot: its number; count and time of the first value; mean of the values and sum of the squares of their
distances from it; lowest and highest value; mean of the times, sum of the squares of their distances from it, and sum
of the products of both distances."""

_Rows = npt.NDArray[np.float64]


class Moments:
    """The moments of the values in a window of `seconds`, and of a part of the slot before it.

    It takes 1.8 KB, however many values there are.
    """

    __slots__ = ("_last", "_oldest", "_rows", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rows: _Rows = np.full((SLOTS + 1, _FIELDS), -1.0)
        self._last = -1
        self._oldest: float | None = None  # None: to be found

    def add(self, time: float, value: float) -> None:
        """Adds a value of a time in seconds since 1970; values older than the window are left out."""
        slot = slot_of(time, self._seconds)
        if slot < self._last - SLOTS:
            return
        self._last = max(self._last, slot)
        row = self._rows[slot % (SLOTS + 1)]
        if row[_SLOT] != slot:
            self._oldest = None
            row[:] = (slot, 1, time, value, 0, value, value, time, 0, 0)
            return
        _, count, first, mean, squares, low, high, at, time_squares, products = row.tolist()
        if self._oldest is not None:
            self._oldest = min(self._oldest, time)
        count += 1
        from_mean, from_time = value - mean, time - at
        mean += from_mean / count
        at += from_time / count
        squares += from_mean * (value - mean)
        time_squares += from_time * (time - at)
        products += from_time * (value - mean)
        row[:] = (
            slot,
            count,
            min(first, time),
            mean,
            squares,
            min(low, value),
            max(high, value),
            at,
            time_squares,
            products,
        )

    @property
    def oldest(self) -> float | None:
        """The time of the oldest value in the window; None without values."""
        if self._oldest is None:
            item = self._rows.item
            for slot in range(max(self._last - SLOTS, 0), self._last + 1):
                if item(slot % (SLOTS + 1), _SLOT) == slot:
                    self._oldest = float(item(slot % (SLOTS + 1), _FIRST))
                    break
        return self._oldest

    def is_ahead_of(self, time: float) -> bool:
        """Whether it has values from after the slot of this time."""
        return self._last > slot_of(time, self._seconds)

    def value(self, window: Window, now: float) -> float | None:
        """The statistic; None without values, and for a line without two times. `now` is the time of the last value."""
        rows = self._live()
        if not len(rows):
            return None
        match window.kind:
            case Kind.MIN:
                return float(rows[:, _LOW].min())
            case Kind.MAX:
                return float(rows[:, _HIGH].max())
            case Kind.MEAN:
                return _mean(rows, _MEAN)
            case Kind.STD:
                count = float(rows[:, _COUNT].sum())
                return float(np.sqrt(_squares(rows, _MEAN, _SQUARES) / count))
        return _line(rows, now + window.seconds)

    def stored(self) -> list[list[float]]:
        """The sums of each slot, to be stored."""
        return [[float(number) for number in row] for row in self._live()]

    def restore(self, rows: Sequence[Row]) -> None:
        """Takes in stored sums. Raises ValueError if they cannot be the sums of slots."""
        for row in rows:
            numbers = [float(number) for number in row]
            if len(numbers) != _FIELDS or not all(map(isfinite, numbers)):
                raise ValueError(f"a slot must have {_FIELDS} finite numbers")
            if min(numbers[_SLOT], numbers[_SQUARES], numbers[_TIME_SQUARES]) < 0 or numbers[_COUNT] < 1:
                raise ValueError("slot, count and squares must not be negative")
            self._rows[int(numbers[_SLOT]) % (SLOTS + 1)] = numbers
            self._last = max(self._last, int(numbers[_SLOT]))
        self._oldest = None

    def _live(self) -> _Rows:
        slots = self._rows[:, _SLOT]
        live: _Rows = self._rows[(slots >= 0) & (slots >= self._last - SLOTS)]
        return live


def _mean(rows: _Rows, field: int) -> float:
    counts = rows[:, _COUNT]
    return float(counts @ rows[:, field]) / float(counts.sum())


def _squares(rows: _Rows, mean: int, squares: int) -> float:
    """The sum of the squares of the distances of all values from their mean."""
    return float(rows[:, squares].sum() + rows[:, _COUNT] @ (rows[:, mean] - _mean(rows, mean)) ** 2)


def _line(rows: _Rows, time: float) -> float | None:
    """The value at `time` of the straight line with the least squares; None if all values are of one time."""
    squares = _squares(rows, _TIME, _TIME_SQUARES)
    if squares <= 0:
        return None
    mean, at = _mean(rows, _MEAN), _mean(rows, _TIME)
    products = rows[:, _PRODUCTS].sum() + rows[:, _COUNT] @ ((rows[:, _TIME] - at) * (rows[:, _MEAN] - mean))
    return mean + float(products) / squares * (time - at)
