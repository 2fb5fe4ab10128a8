"""How late this process is: on a busy machine its event loop runs late, and so does all that it notes and does."""

import asyncio
import heapq
import time
from collections import deque

LOOK_SECONDS = 0.02
WITHIN_SECONDS = 3.0
"""For how long a measured lateness counts: longer than from the oldest read behind a patch to its effect."""

TURNS = 3
"""The turns of the loop between the sending of a request and its arrival, if both are on one loop."""

MOST_SECONDS = 15.0
"""The largest allowance."""


class Lateness:
    """Measures the lateness while `run` runs.

    Attributes:
        worst: The largest allowance so far.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._late: deque[tuple[float, float]] = deque()
        self._due = time.monotonic()

    def __call__(self) -> float:
        """How long `TURNS` turns may have taken until now, by the longest recent ones."""
        now = time.monotonic()
        while self._late and self._late[0][0] < now - WITHIN_SECONDS:
            self._late.popleft()
        turns = [*(seconds for _, seconds in self._late), now - self._due]
        late = min(MOST_SECONDS, sum(max(0.0, seconds) for seconds in heapq.nlargest(TURNS, turns)))
        self.worst = max(self.worst, late)
        return late

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            self._due = time.monotonic() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if (late := now - self._due) > LOOK_SECONDS:
                self._late.append((now, late))
                self()
