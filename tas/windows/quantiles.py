"""Percentiles of a window: a ring of slots, each with its few values, or with a t-digest of many (fastdigest).

To read a percentile, all values and digests are merged into one digest. With at most 1,000 values in the window, and 64
in a slot, the result is exact, as Prometheus computes it: between the two nearest values it is interpolated. Beyond
that, the share of values below the result differs from the percentile by at most `RANK_ERROR`.
"""

from array import array
from collections.abc import Iterable, Sequence
from math import isfinite

from fastdigest import TDigest

from tas.values.window import Window
from tas.windows.slots import SLOTS, slot_of

MAX_VALUES = 64
"""So many values of a slot are kept; more become a digest."""

CENTROIDS = 64
"""The size of the digest of a slot: 1.1 KB."""

MERGED_CENTROIDS = 1000
"""The size of the digest in which the slots are merged."""

RANK_ERROR = 0.01
"""One percentage point: more than was measured of skewed, discrete, sorted, bimodal and random walks of values."""


class _Slot:
    """The values of one slot: those in `values`, and those in the digest with the bytes `digest` (empty: none)."""

    __slots__ = ("digest", "first", "number", "values")

    def __init__(self, number: int, first: float, values: Sequence[float] = (), digest: bytes = b"") -> None:
        self.number = number
        self.first = first
        self.values = array("d", values)
        self.digest = digest

    def add(self, time: float, value: float) -> None:
        self.first = min(self.first, time)
        self.values.append(value)
        if len(self.values) > MAX_VALUES:
            self._digest_values()

    def end(self) -> None:
        """A newer slot has begun: what has a digest keeps only that."""
        if self.digest and self.values:
            self._digest_values()

    def _digest_values(self) -> None:
        digest = TDigest.from_bytes(self.digest) if self.digest else TDigest(max_centroids=CENTROIDS)
        digest.batch_update(self.values)
        self.digest = digest.to_bytes()
        self.values = array("d")


def _check_digest(digest: bytes) -> None:
    """Does once what is done with a digest later. Raises ValueError if it is damaged.

    The library reads some damaged digests, and panics when they are used: its exception is no `Exception`, and would
    end the process.
    """
    try:
        read = TDigest.from_bytes(digest)
        is_valid = all(map(isfinite, (read.min(), read.max(), read.mean()))) and read.max_centroids <= CENTROIDS
        if is_valid:
            merged = TDigest(max_centroids=MERGED_CENTROIDS)
            merged.merge_inplace(read)
            is_valid = all(isfinite(merged.percentile(percent)) for percent in (0, 50, 100))
            read.batch_update([0.0] * (MAX_VALUES + 1))
            is_valid = is_valid and isfinite(read.percentile(50))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ValueError(f"a digest is damaged: {error}") from error
    if not is_valid:
        raise ValueError(f"a digest must have finite values, and at most {CENTROIDS} centroids")


class Quantiles:
    """The distribution of the values in a window of `seconds`, and of a part of the slot before it."""

    __slots__ = ("_seconds", "_slots")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._slots: list[_Slot] = []  # by number

    def add(self, time: float, value: float) -> None:
        """Adds a value of a time in seconds since 1970; values older than the window are left out."""
        number = slot_of(time, self._seconds)
        last = self._slots[-1].number if self._slots else number
        if number < last - SLOTS:
            return
        slot = next((slot for slot in reversed(self._slots) if slot.number == number), None)
        if slot is None:
            if number > last:
                self._slots[-1].end()
            slot = _Slot(number, time)
            kept = (each for each in self._slots if each.number >= number - SLOTS)
            self._slots = sorted((*kept, slot), key=lambda each: each.number)
        slot.add(time, value)

    @property
    def oldest(self) -> float | None:
        """The time of the oldest value in the window; None without values."""
        return min((slot.first for slot in self._slots), default=None)

    def is_ahead_of(self, time: float) -> bool:
        """Whether it has values from after the slot of this time."""
        return bool(self._slots) and self._slots[-1].number > slot_of(time, self._seconds)

    def values(self, windows: Iterable[Window]) -> list[float | None]:
        """The percentile of each window; None without values. The slots are merged once: this takes the time."""
        if not self._slots:
            return [None for _ in windows]
        merged = TDigest(max_centroids=MERGED_CENTROIDS)
        values = array("d")
        for slot in self._slots:
            values.extend(slot.values)
            if slot.digest:
                merged.merge_inplace(TDigest.from_bytes(slot.digest))
        merged.batch_update(values)
        return [float(merged.percentile(window.percentile)) for window in windows]

    def stored(self) -> list[tuple[int, float, list[float], bytes]]:
        """Number, time of the first value, values and digest of each slot, to be stored."""
        return [(slot.number, slot.first, slot.values.tolist(), slot.digest) for slot in self._slots]

    def restore(self, slots: Sequence[tuple[int, float, list[float], bytes]]) -> None:
        """Takes in stored slots. Raises ValueError if they cannot be read."""
        restored: dict[int, _Slot] = {}
        for number, first, values, digest in sorted(slots):
            if digest:
                _check_digest(digest)
            if not all(map(isfinite, (first, *values))) or len(values) > MAX_VALUES or not (values or digest):
                raise ValueError(f"a slot must have finite values, and at most {MAX_VALUES}")
            restored[number] = _Slot(number, first, values, digest)
        self._slots = [slot for number, slot in restored.items() if number >= max(restored) - SLOTS]
