"""One series of a node: what a metric was over a duration, as far as some of its statistics need it."""

from collections.abc import Sequence
from math import isfinite

from tas.values.quantity import NANO, Quantity
from tas.values.window import Window
from tas.windows.key import COVERED, Family, SeriesKey, StoredSeries
from tas.windows.moments import Moments
from tas.windows.quantiles import Quantiles

MAX_SOURCES = 8
"""Values of so many sources count in one series; those of others are left out."""


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


class Series:
    """The values of one metric of one node over a duration.

    If several sources have the metric, the values of all count. A value counts once, however often it is received: it
    must be newer than the last one of its source.
    """

    __slots__ = ("_history", "_times", "key")

    def __init__(self, key: SeriesKey) -> None:
        self.key = key
        self._times: dict[str, float] = {}
        self._history: Moments | Quantiles | Average
        match key.family:
            case Family.MOMENTS:
                self._history = Moments(key.seconds)
            case Family.QUANTILES:
                self._history = Quantiles(key.seconds)
            case Family.AVERAGE:
                self._history = Average(key.seconds)

    @property
    def newest(self) -> float:
        """The time of the newest value, in seconds since 1970; 0 without values."""
        return max(self._times.values(), default=0.0)

    @property
    def covered(self) -> float:
        """The seconds from the oldest to the newest value in the window."""
        oldest = self._history.oldest
        return 0.0 if oldest is None else max(self.newest - oldest, 0.0)

    def add(self, source: str, time: float, value: Quantity) -> bool:
        """Adds a value; False if it does not count."""
        last = self._times.get(source)
        if last is None:
            if len(self._times) >= MAX_SOURCES:
                oldest = min(self._times, key=self._times.__getitem__)
                if self._times[oldest] >= time - self.key.seconds:
                    return False
                del self._times[oldest]
        elif time <= last:
            return False
        self._times[source] = time
        self._history.add(time, value / NANO)
        return True

    def is_ahead_of(self, time: float) -> bool:
        """Whether it has values from after this time, so that those of now might not count."""
        return self.newest > time or self._history.is_ahead_of(time)

    def values(self, windows: Sequence[Window]) -> list[Quantity | None]:
        """Statistics of this series; None while the values do not cover the window far enough."""
        if self.covered < COVERED * self.key.seconds:
            return [None for _ in windows]
        match self._history:
            case Quantiles() as history:
                found = history.values(windows)
            case Moments() | Average() as history:
                found = [history.value(window, self.newest) for window in windows]
        return [Quantity(round(each * NANO)) if each is not None and isfinite(each) else None for each in found]

    def stored(self, node_uid: str) -> StoredSeries:
        """The series, to be stored."""
        times = dict(self._times)
        match self._history:
            case Moments() as history:
                return StoredSeries(times=times, node_uid=node_uid, moments=history.stored())
            case Quantiles() as history:
                return StoredSeries(times=times, node_uid=node_uid, quantiles=history.stored())
            case Average() as history:
                return StoredSeries(times=times, node_uid=node_uid, average=history.stored())

    @classmethod
    def restored(cls, key: SeriesKey, stored: StoredSeries) -> "Series":
        """The series that was stored. Raises ValueError if its fields cannot be those of a series."""
        series = cls(key)
        if len(stored.times) > MAX_SOURCES:
            raise ValueError(f"times has {len(stored.times)} sources, must be at most {MAX_SOURCES}")
        series._times = dict(stored.times)
        parts: dict[Family, Sequence[object]] = {
            Family.MOMENTS: stored.moments,
            Family.QUANTILES: stored.quantiles,
            Family.AVERAGE: stored.average,
        }
        for family, part in parts.items():
            if part and family is not key.family:
                raise ValueError(f"{family.value} is given in a series of {key.family.value}")
        match series._history:
            case Moments() as history:
                history.restore(stored.moments)
            case Quantiles() as history:
                history.restore(stored.quantiles)
            case Average() as history:
                history.restore(stored.average)
        return series
