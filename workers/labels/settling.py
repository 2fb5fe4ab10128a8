"""Waits until no verdict is outstanding that follows from the same change as others (`tas.verdict.outstanding`).

Part of the brake of `labels`: the breaker counts the nodes that want a label, so it must know all of them first.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from bus.buckets import BREAKERS, VERDICTS
from bus.connection import Bus
from bus.watch import WatchStatus
from workers.labels.breaker_records import BreakerRecords


class Settling:
    """`verdicts` is the state of the watch of VERDICTS.

    Attributes:
        unhandled: The nodes whose verdict has changed, and that were not asked for since.
    """

    def __init__(self, bus: Bus, records: BreakerRecords, verdicts: Callable[[], WatchStatus]) -> None:
        self._bus = bus
        self._records = records
        self._verdicts = verdicts
        self.unhandled: set[str] = set()
        self._changed = asyncio.Event()

    def note_verdict(self, node: str) -> None:
        """Applies that the verdict of a node has changed."""
        self.unhandled.add(node)
        self._changed.set()

    def note_handled(self, node: str) -> None:
        """Applies that a node was handled by its verdict, or has failed, or is gone."""
        if node in self.unhandled:
            self.unhandled.discard(node)
            self._changed.set()

    def note_change(self) -> None:
        """Applies that something else has come from the bus."""
        self._changed.set()

    async def settled(self, until: float, *, on_hold: Callable[[], None]) -> None:
        """Returns when nothing is outstanding, or at the monotonic time `until`. Raises BusError.

        `on_hold` is called if something is outstanding. Three steps are in this order, since `evaluate` ends an
        announcement after it has stored the verdicts, and a node is asked for after its verdict has come.
        """
        is_held = False
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                while True:
                    verdicts, breakers = await asyncio.gather(self._bus.epoch(VERDICTS), self._bus.epoch(BREAKERS))
                    while not (self._verdicts().has_all(verdicts) and self._records.has_all(breakers)):
                        await self._wait()
                    if not self._is_announced() and not self.unhandled:
                        return
                    if not is_held:
                        is_held = True
                        on_hold()
                    while self._is_announced():
                        ends = self._records.outstanding_until(time.monotonic())
                        await self._wait(ends - time.monotonic())
                    while self.unhandled:
                        await self._wait()

    def _is_announced(self) -> bool:
        return self._records.outstanding_until(now := time.monotonic()) > now

    async def _wait(self, seconds: float | None = None) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
