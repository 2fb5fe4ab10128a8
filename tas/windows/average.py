"""The exponentially weighted mean of a metric, kept as one number and its weight."""

from collections.abc import Sequence
from math import isfinite


class Average:
    """A mean in which a value counts half after half of `seconds`, by the times of the values."""

    __slots__ = ("_first", "_half", "_mean", "_time", "_weight")

    def __init__(self, seconds: float) -> None:
        self._half = seconds / 2
        self._first: float | None = None
        self._time = 0.0
        self._mean = 0.0
        self._weight = 0.0

    def add(self, time: float, value: float) -> None:
        """Adds a value of a time in seconds since 1970. A value older than the last one weighs less, as if in order."""
        if self._first is None:
            self._first = self._time = time
        weight = 1.0
        if time >= self._time:
            self._weight *= self._decay(time - self._time)
            self._time = time
        else:
            weight = self._decay(self._time - time)
        self._first = min(self._first, time)
        self._weight += weight
        self._mean += (value - self._mean) * (weight / self._weight)

    def _decay(self, seconds: float) -> float:
        return float(0.5 ** (seconds / self._half))

    @property
    def oldest(self) -> float | None:
        """The time of the first value; None without values."""
        return self._first

    def is_ahead_of(self, time: float) -> bool:
        """Whether it has values from after this time."""
        return self._first is not None and self._time > time

    def value(self, _window: object, _now: float) -> float | None:
        """The mean; None without values."""
        return None if self._first is None else self._mean

    def stored(self) -> list[float]:
        """Time of the first and of the last value, mean and weight, to be stored; empty without values."""
        return [] if self._first is None else [self._first, self._time, self._mean, self._weight]

    def restore(self, numbers: Sequence[float]) -> None:
        """Takes in stored numbers. Raises ValueError if they cannot be those of a mean."""
        if not numbers:
            return
        if len(numbers) != 4 or not all(map(isfinite, numbers)) or numbers[3] <= 0:
            raise ValueError("a mean must have four finite numbers")
        self._first, self._time, self._mean, self._weight = map(float, numbers)
