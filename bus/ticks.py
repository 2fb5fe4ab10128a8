"""The moments at which the loops of a process do what they do at intervals: all together, so it wakes up once."""

import asyncio
import random

_PHASE = random.random()  # noqa: S311 - the processes of a machine have one clock, and need not wake up together

_NEAR = 0.1
"""A tick that is nearer than this part of the time between two is left out: a timer may end a little early."""


def until_tick(now: float, seconds: float, *, near: float = _NEAR) -> float:
    """How long after `now`, by the clock of the event loop, the next tick is; ticks are `seconds` apart."""
    rest = seconds - (now + _PHASE) % seconds
    return rest if rest > seconds * near else rest + seconds


async def tick(seconds: float) -> None:
    """Waits for the next tick: a tenth of `seconds` at least, and a tenth more than `seconds` at most."""
    await asyncio.sleep(until_tick(asyncio.get_running_loop().time(), seconds))
