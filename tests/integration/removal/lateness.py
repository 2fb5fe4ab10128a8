"""How late this process is: on a busy machine its turns come late, and so does all that it sees and does."""

import asyncio
import heapq
import time
from collections import deque

LOOK_SECONDS = 0.02
WITHIN_SECONDS = 3.0
"""Whose lateness counts for what happens now: longer than from the oldest read behind a patch to what it does."""

TURNS = 3
"""So many turns of the loop lie between the sending of a request and its arrival, where both are on one loop."""

MOST_SECONDS = 15.0
"""More is never allowed for."""


class Lateness:
    """Measures it; `run` has to run.

    Attributes:
        worst: The longest that was allowed for.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._late: deque[tuple[float, float]] = deque()
        self._looks_at = time.monotonic()

    def __call__(self) -> float:
        """How long so many turns may have taken up to this moment, by the longest that they took lately."""
        now = time.monotonic()
        while self._late and self._late[0][0] < now - WITHIN_SECONDS:
            self._late.popleft()
        turns = [*(seconds for _, seconds in self._late), now - self._looks_at]
        late = min(MOST_SECONDS, sum(max(0.0, seconds) for seconds in heapq.nlargest(TURNS, turns)))
        self.worst = max(self.worst, late)
        return late

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            self._looks_at = time.monotonic() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if (late := now - self._looks_at) > LOOK_SECONDS:
                self._late.append((now, late))
