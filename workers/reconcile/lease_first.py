"""Replicas that do the same work: the lease holder acts first, so that the API server gets fewer requests.

Every replica may write at any time, since each write is conditional.
"""

import asyncio
from collections.abc import Callable

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.lease import Lease
from workers.reconcile.work_queue import WorkQueue

log = structlog.get_logger(__name__)

HOLD_BACK_SECONDS = 1.0
"""How much later a replica on standby acts: usually the lease holder has done the work by then."""


class LeaseFirst:
    """Delays what this replica adds to its queue. `on_held` is called when the replica becomes the lease holder.

    Attributes:
        queue: What is added to it directly is not delayed.
    """

    def __init__(self, bus: Bus, key: str, queue: WorkQueue, *, on_held: Callable[[], None]) -> None:
        self.queue = queue
        self._key = key
        self._lease = Lease(bus, key)
        self._on_held = on_held

    @property
    def held(self) -> bool:
        """Whether this replica holds the lease."""
        return self._lease.held

    def add(self, key: str) -> None:
        """Adds a key: to be handled now, or on standby later."""
        self.queue.add(key, after=0.0 if self.held else HOLD_BACK_SECONDS)

    async def run(self) -> None:
        """Acquires the lease whenever it is free, until cancelled."""
        while True:
            try:
                async with self._lease.hold():
                    self._on_held()  # the previous holder may have ended before its work was done
                    await asyncio.Event().wait()
            except BusError as error:
                log.info("lease_lost", lease=self._key, error=str(error))
