"""A pass over all nodes takes turns with nodes that change, so that neither waits for the end of the other."""

import asyncio
from collections.abc import Callable

MAX_QUEUED = 100
"""How many nodes may be queued before a pass waits."""

HANDLED = 2
"""For how many handled nodes a pass waits with each of its own: so at least half of the work is that of changes."""


class Turns:
    """The turns of one pass. `queued` says how many nodes are queued; 0 ends all waiting."""

    def __init__(self, queued: Callable[[], int]) -> None:
        self._queued = queued
        self._handled = asyncio.Event()

    def note_handled(self) -> None:
        """To be called when a node was taken off the queue, or when `queued` becomes 0."""
        self._handled.set()

    async def wait(self) -> None:
        """Lets other tasks run, and while many nodes are queued, waits until some have been handled.

        It does not wait for a short queue: under permanent overload the queue never gets short.
        """
        await asyncio.sleep(0)
        for _ in range(HANDLED):
            if self._queued() <= MAX_QUEUED:
                return
            self._handled.clear()
            await self._handled.wait()
