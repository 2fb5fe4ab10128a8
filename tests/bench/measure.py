"""Times on a shared machine: interleaved, in rounds, so that a slow second slows both sides."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import log2

from tests.bench.rows import Row

Timed = Callable[[], float]
"""Runs once and returns its seconds."""

Rounds = list[list[float]]
"""For each round the seconds of each repetition."""


ROUND_SECONDS = 8.0
"""The longest time of a round: on a slow machine a round has fewer repetitions."""


async def interleaved(
    calls: Mapping[str, Timed], *, rounds: int, repetitions: int, period: float = 0.0
) -> dict[str, Rounds]:
    """Seconds by name, round and repetition: within a round the calls take turns (A B C, A B C, …).

    A repetition begins at least `period` seconds after the one before.
    """
    times: dict[str, Rounds] = {name: [] for name in calls}
    for call in calls.values():  # connections, caches and code paths are warm before anything counts
        call()
    with no_collection():
        for _ in range(rounds):
            for name in calls:
                times[name].append([])
            began = time.perf_counter()
            for number in range(1, repetitions + 1):
                for name, call in calls.items():
                    times[name][-1].append(call())
                now = time.perf_counter()
                if now > began + ROUND_SECONDS:
                    break
                # Even without a period: our own connection to the bus is kept alive, and Ctrl-C has an effect.
                await asyncio.sleep(max(0.0, began + number * period - now))
    return times


def processor_timed(action: Callable[[], object]) -> Timed:
    """`action` with its processor seconds, which other processes do not increase."""

    def seconds() -> float:
        began = time.thread_time()
        result = action()
        took = time.thread_time() - began
        del result  # so that its deallocation is not measured
        return took

    return seconds


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection in this process within the body."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def growth(rows: Sequence[Row]) -> Iterator[tuple[Row, Row, float]]:
    """For neighbouring sizes of a series: the smaller row, the larger, and the factor of each doubling in between."""
    series: dict[tuple[str, str], dict[int, Row]] = {}
    for row in rows:
        if row.size is not None:
            series.setdefault((row.series, row.statistic), {})[row.size.count] = row
    for found in series.values():
        for smaller, larger in pairwise(sorted(found)):
            if not found[smaller].measured:
                continue  # a count of nothing has no factor
            factor = found[larger].measured / found[smaller].measured
            yield found[smaller], found[larger], factor ** (1 / log2(larger / smaller))
