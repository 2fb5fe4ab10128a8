"""Garbage collection in small steps, so that it never holds up an answer for long.

Python counts how many more objects are made than freed. A process whose new values replace old ones makes as many as
it frees: so the young generation grows to thousands of live objects before it is collected, and all objects are
collected again and again. With 5,000 nodes this took up to 20 ms and 80 ms, while nothing else ran
(docs/decisions/2026-12-01-garbage.md).

So a worker's process collects its garbage itself: the young objects so often that it takes half a millisecond, and all
objects only when the process has grown, or after ten minutes. Python still collects the young ones when very many are
made before the event loop turns.
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bus.ticks import tick

STEP_SECONDS = 0.0005
"""How long a step should take: some thousand objects."""

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
FULL_SECONDS = 600.0
"""The limits of the time between two collections of all objects."""

BURST = 20_000
"""Python collects the young objects itself when so many more were made than freed since the last step."""

_NEVER = 1_000_000
_THRESHOLDS = gc.get_threshold()
_YOUNGEST, _MIDDLE, _ALL = 0, 1, 2

_IN_PIECES = sys.version_info[:2] >= (3, 14)
"""Python 3.14 collects old objects in pieces of its own."""


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

    def wait(self, taken: float) -> float:
        """The seconds until the next step, if this one has taken so many seconds."""
        wanted = self.seconds * STEP_SECONDS / max(taken, 1e-9)
        self.seconds = min(max(wanted, SHORTEST_SECONDS), LONGEST_SECONDS)
        return self.seconds


@asynccontextmanager
async def collected_in_steps() -> AsyncIterator[None]:
    """Within the body, garbage is collected in steps, and not whenever Python wants to.

    What exists before is not collected until the body ends: the modules of the product live as long as the process.
    """
    if _IN_PIECES:
        yield
        return
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
    gc.set_threshold(BURST, _NEVER, _NEVER)
    steps = Steps(full_at=time.monotonic(), blocks=sys.getallocatedblocks())
    wait = LONGEST_SECONDS
    try:
        while True:
            await (tick(wait) if wait == LONGEST_SECONDS else asyncio.sleep(wait))  # an idle process wakes up once
            generation = steps.generation(sys.getallocatedblocks(), time.monotonic())
            began = time.perf_counter()
            gc.collect(generation)
            if generation == _ALL:
                steps.note_full(sys.getallocatedblocks(), time.monotonic())
            else:
                wait = steps.wait(time.perf_counter() - began)
    finally:
        gc.set_threshold(*_THRESHOLDS)
