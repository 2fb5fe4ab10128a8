"""The events that a sink must still accept: which of them to send now, and when to send a refused one again.

Events of one lane are sent in order, one at a time; several lanes are sent at once. While a sink accepts nothing, one
event at a time tries whether the sink works again.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from tas.values.backoff import Backoff

T = TypeVar("T")

BACKOFF = Backoff(first=1.0, longest=60.0)
"""The waits of one event after failures, and of a sink that accepts nothing."""

MAX_ATTEMPTS = 10
"""An event that failed so often becomes a dead letter, if the sink accepted another event meanwhile."""


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery(Generic[T]):
    """One event in the outbox. `attempts` counts the failed ones; the times are on the clock of the caller."""

    item: T
    lane: Hashable
    order: int
    attempts: int = 0
    not_before: float = 0.0
    first_failed: float = math.inf


class Outbox(Generic[T]):
    """The events of one sink. Every method is given the time, in seconds of a clock that does not go back."""

    def __init__(self, *, lanes: int, backoff: Backoff = BACKOFF, max_attempts: int = MAX_ATTEMPTS) -> None:
        """`lanes`: how many events may be sent at once."""
        self._most = lanes
        self._backoff = backoff
        self._max_attempts = max_attempts
        self._lanes: OrderedDict[Hashable, deque[Delivery[T]]] = OrderedDict()
        self._sending: set[Hashable] = set()
        self._failures = 0  # rounds in a row without an accepted event
        self._closed_until = -math.inf
        self._last_accepted = -math.inf
        self._added = 0
        self._held = 0

    def __len__(self) -> int:
        return self._held

    @property
    def failing(self) -> bool:
        """Whether the last event that was sent was not accepted."""
        return self._failures > 0

    def add(self, item: T, *, lane: Hashable) -> None:
        """Adds an event behind the others of its lane."""
        self._added += 1
        self._held += 1
        self._lanes.setdefault(lane, deque()).append(Delivery(item=item, lane=lane, order=self._added))

    def due(self, now: float) -> list[Delivery[T]]:
        """The events to send now. For each the caller calls `accepted`, `refused` or `failed`."""
        heads = (
            queue[0] for lane, queue in self._lanes.items() if lane not in self._sending and queue[0].not_before <= now
        )
        if not self.failing:
            chosen = list(islice(heads, self._most - len(self._sending)))
        elif now < self._closed_until or self._sending:
            chosen = []
        else:
            # Fewest attempts first: one event that a sink never accepts does not keep the others from trying.
            first = min(heads, key=lambda each: (each.attempts, each.order), default=None)
            chosen = [] if first is None else [first]
        self._sending.update(each.lane for each in chosen)
        return chosen

    def next_due(self) -> float | None:
        """When `due` may give an event; None if only after something else has happened."""
        if self.failing and self._sending:
            return None
        times = [queue[0].not_before for lane, queue in self._lanes.items() if lane not in self._sending]
        if not times or len(self._sending) >= self._most:
            return None
        return max(min(times), self._closed_until) if self.failing else min(times)

    def accepted(self, delivery: Delivery[T], now: float) -> None:
        """The sink has accepted the event."""
        self._failures = 0
        self._last_accepted = now
        self._remove(delivery)

    def refused(self, delivery: Delivery[T]) -> None:
        """The sink works, and will never accept this event: the event is a dead letter."""
        self._failures = 0
        self._remove(delivery)

    def is_hopeless(self, delivery: Delivery[T]) -> bool:
        """Whether an event that has failed once more shall be given up: as a dead letter, and by `refused`.

        An event is given up only if the sink accepted another event since this one first failed: while a sink accepts
        nothing, the fault is not the event's.
        """
        return delivery.attempts + 1 >= self._max_attempts and self._last_accepted >= delivery.first_failed

    def failed(self, delivery: Delivery[T], now: float, *, retry_after: float = 0.0) -> None:
        """The sink did not accept the event: `due` gives the event again later, at the earliest after `retry_after`."""
        self._sending.discard(delivery.lane)
        delivery.attempts += 1
        delivery.first_failed = min(delivery.first_failed, now)
        if now >= self._closed_until or not self.failing:  # else: sent in the same round as one that failed before
            self._failures += 1
            self._closed_until = now + max(self._backoff.after(self._failures), retry_after)
        delivery.not_before = now + max(self._backoff.after(delivery.attempts), retry_after)

    def again(self, delivery: Delivery[T]) -> None:
        """The event must be sent once more, at once: nothing has failed."""
        self._sending.discard(delivery.lane)

    def _remove(self, delivery: Delivery[T]) -> None:
        self._sending.discard(delivery.lane)
        queue = self._lanes[delivery.lane]
        queue.popleft()
        self._held -= 1
        if not queue:
            del self._lanes[delivery.lane]
