"""Deadlines in a heap: the changes that time alone causes.

To postpone a deadline, as each fresh sample does, costs one dictionary write: the heap keeps the earlier entry and
corrects it when that entry is due. So the heap holds about one entry for each key, at any rate of samples.
"""

import heapq
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """At most one deadline for each key. Times are seconds of the caller's clock."""

    __slots__ = ("_counter", "_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        # The earliest heap entry of each key; later entries of the same key are ignored.
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._counter = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, when: float) -> None:
        """Sets the deadline of `key`, in place of an earlier setting."""
        self._due[key] = when
        queued = self._queued.get(key)
        if queued is None or when < queued:
            self._push(key, when)

    def discard(self, key: K) -> None:
        """Removes the deadline of `key`; without effect for unknown keys."""
        self._due.pop(key, None)

    def when(self, key: K) -> float | None:
        """The deadline of `key`, or None."""
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
        """Removes and returns the keys due at `now` or before, earliest first, at most `limit` of them."""
        keys: list[K] = []
        while len(keys) < limit and (at := self.next()) is not None and at <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._queued[key]
            del self._due[key]
            keys.append(key)
        return keys

    def _push(self, key: K, when: float) -> None:
        self._queued[key] = when
        self._counter += 1  # for equal times the order of setting decides, and keys are never compared
        heapq.heappush(self._heap, (when, self._counter, key))
