"""Garbage collection in small steps, so that it never holds up an answer for long.

Python counts how many more objects are made than freed. A process whose new values replace old ones makes as many as
it frees: so the young generation grows to thousands of live objects before it is collected, and all objects are
collected again and again. With 5,000 nodes this took up to 20 ms and 80 ms, while nothing else ran
(docs/decisions/2026-12-01-garbage.md).

So a worker's process collects its garbage itself: the young objects whenever there are about `YOUNG`, and all objects
only when the process has grown, or after an hour.
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bus.ticks import tick

YOUNG = 1000
"""So many objects are collected in about a third of a millisecond."""

SHORTEST_SECONDS = 0.05
LONGEST_SECONDS = 1.0
"""The limits of the time between two steps."""

MIDDLE_EVERY = 4
"""Of so many steps, one also collects what has survived the steps before."""

GROWTH = 1.25
SPARE_BLOCKS = 100_000
"""All objects are collected when the process has so many times the blocks of memory that it had after the last time,
and so many more: some 10 MB."""

FULL_APART_SECONDS = 60.0
FULL_SECONDS = 3600.0
"""The limits of the time between two collections of all objects."""

_YOUNGEST, _MIDDLE, _ALL = 0, 1, 2


@dataclass(slots=True)
class Steps:
    """Decides which generation the next step collects, and when. `full_at` is by the clock of the caller."""

    full_at: float
    blocks: int
    seconds: float = LONGEST_SECONDS
    count: int = 0

    def generation(self, blocks: int, now: float) -> int:
        """The generation to collect in a process with so many blocks of memory."""
        self.count += 1
        since = now - self.full_at
        has_grown = blocks > GROWTH * self.blocks + SPARE_BLOCKS
        if since >= FULL_SECONDS or (has_grown and since >= FULL_APART_SECONDS):
            return _ALL
        return _MIDDLE if self.count % MIDDLE_EVERY == 0 else _YOUNGEST

    def note_full(self, blocks: int, now: float) -> None:
        """Notes that all objects were collected, and how many blocks are left."""
        self.blocks, self.full_at = blocks, now

    def wait(self, young: int) -> float:
        """The seconds until the next step, when so many young objects have come since the last one."""
        wanted = self.seconds * YOUNG / max(young, 1)
        self.seconds = min(max(wanted, SHORTEST_SECONDS), LONGEST_SECONDS)
        return self.seconds


@asynccontextmanager
async def collected_in_steps() -> AsyncIterator[None]:
    """Within the body, garbage is collected in steps, and not whenever Python wants to.

    What exists before is not collected until the body ends: the modules of the product live as long as the process.
    """
    gc.freeze()
    steps = asyncio.create_task(_collect(), name="garbage")
    try:
        yield
    finally:
        steps.cancel()
        await asyncio.wait([steps])
        gc.unfreeze()


async def _collect() -> None:
    """Runs until cancelled."""
    was_enabled = gc.isenabled()
    gc.disable()
    steps = Steps(full_at=time.monotonic(), blocks=sys.getallocatedblocks())
    wait = LONGEST_SECONDS
    try:
        while True:
            await (tick(wait) if wait == LONGEST_SECONDS else asyncio.sleep(wait))  # an idle process wakes up once
            wait = steps.wait(len(gc.get_objects(_YOUNGEST)))
            generation = steps.generation(sys.getallocatedblocks(), time.monotonic())
            gc.collect(generation)
            if generation == _ALL:
                steps.note_full(sys.getallocatedblocks(), time.monotonic())
    finally:
        if was_enabled:
            gc.enable()
