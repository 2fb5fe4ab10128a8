"""Time as a heap of deadlines: the one place that knows what becomes due when nothing arrives.

A deadline that is put off, as a fresh sample puts off staleness, costs one dictionary write: the heap keeps the
earlier entry and corrects it when it comes up. So the heap holds about one entry a key, whatever the rate of samples.
"""

import heapq
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """At most one deadline a key. Times are seconds on whatever clock the caller lives by."""

    __slots__ = ("_counter", "_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        # The earliest heap entry of each key; a later one of the same key is a leftover and ignored.
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._counter = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, when: float) -> None:
        """`key` is due at `when`, and not at any time set before."""
        self._due[key] = when
        queued = self._queued.get(key)
        if queued is None or when < queued:
            self._push(key, when)

    def discard(self, key: K) -> None:
        """`key` is not due any more; unknown keys are fine."""
        self._due.pop(key, None)

    def when(self, key: K) -> float | None:
        """When `key` is due, or None."""
        return self._due.get(key)

    def next(self) -> float | None:
        """The earliest deadline, or None if there is none."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._queued.get(key) != at:
                heapq.heappop(self._heap)
                continue
            due = self._due.get(key)
            if due == at:
                return at
            heapq.heappop(self._heap)
            del self._queued[key]
            if due is not None:
                self._push(key, due)
        return None

    def pop_due(self, now: float, *, limit: float = inf) -> list[K]:
        """The keys due at `now` or before, earliest first, and at most `limit`; they are not due any more."""
        keys: list[K] = []
        while len(keys) < limit and (at := self.next()) is not None and at <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._queued[key]
            del self._due[key]
            keys.append(key)
        return keys

    def _push(self, key: K, when: float) -> None:
        self._queued[key] = when
        self._counter += 1  # of equal times the first set comes first, and keys are never compared
        heapq.heappush(self._heap, (when, self._counter, key))
