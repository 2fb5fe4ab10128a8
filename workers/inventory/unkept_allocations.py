"""The part of `inventory` without `--allocations on`: nobody keeps allocations up to date, so none stay on the bus.

Else agents would go on with what a process with `--allocations on` has stored before, however old it is.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from bus.buckets import NODES
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import NODE_ALLOCATION
from tas.allocation.node import NodeAllocation
from workers.following.records import Records, Write
from workers.process.logs import ThrottledLog
from workers.process.tasks import together

log = structlog.get_logger("allocations")

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus."""


class UnkeptAllocations:
    """Deletes allocations while `is_active()`. It follows the bucket only from the first that it has found there."""

    def __init__(self, bus: Bus, *, is_active: Callable[[], bool], forget_seconds: float) -> None:
        self._bus = bus
        self._is_active = is_active
        self._forget_seconds = forget_seconds
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._records = Records(bus, NODE_ALLOCATION, on_batch=self._wake.set, packed=True)

    def begin(self) -> None:
        """This replica has got the lease."""
        self._wake.set()

    async def run(self) -> None:
        """Deletes until cancelled."""
        await self._found()
        await together(
            self._records.run(),
            self._records.forget_deleted(self._forget_seconds, ThrottledLog(log, bucket=NODES.name)),
            self._delete(),
        )

    async def _found(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()  # before the question: the lease may come again meanwhile
            try:
                if await NODE_ALLOCATION.listed(self._bus):
                    self._wake.set()
                    return
            except BusError as error:
                self._log_failure(error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _delete(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_active() and self._records.caught_up and not await self._delete_stored():
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _delete_stored(self) -> bool:
        """Whether none is stored any more."""
        read_at = time.monotonic()
        writes: dict[str, Write[NodeAllocation]] = {
            name: Write(record=None, revision=stored.revision, read_at=read_at)
            for name, stored in self._records.stored.items()
            if stored.present
        }
        failed = await self._records.write(writes)
        if deleted := len(writes) - len(failed):
            log.warning("allocations_deleted", nodes=deleted, reason="inventory runs without --allocations on")
        for error in failed.values():
            self._log_failure(error)
        return not failed

    def _log_failure(self, error: BusError) -> None:
        self._throttled.warning("allocations_not_deleted", error=str(error))
