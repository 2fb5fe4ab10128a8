"""Whether a view has all that the leader of NODES had when it was asked: then the view is as good as a read.

The leader is asked for its last sequence, once for all nodes in flight together.
"""

import asyncio
from contextlib import suppress
from functools import partial

from bus.buckets import NODES
from bus.connection import Bus
from workers.following.followed_view import FollowedView
from workers.following.next_call import NextCall

REACH_SECONDS = 0.5
"""How long the view may need. Longer, a read of the node is faster than the watch."""


class ReadIndex:
    """Asks the leader, and waits for the view."""

    def __init__(self, bus: Bus, followed: FollowedView) -> None:
        self._followed = followed
        self._last = NextCall(partial(bus.epoch, NODES))
        self._changed = asyncio.Event()
        followed.call(self._changed.set)

    async def reached(self) -> bool:
        """Whether the view now has all that the leader had at some time since this call. Raises BusError."""
        last = await self._last()
        nodes = self._followed.watches[NODES.name]
        if nodes.has_all(last):  # nearly always
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(REACH_SECONDS):
                while not nodes.has_all(last):
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return False
