"""What one call of a decoder costs: processor time, memory at the peak, and memory that it keeps."""

import gc
import tracemalloc
from statistics import median
from typing import NamedTuple

from tests.fuzz.decoders import Decoder, clock

GROWTH = 8.0
"""4 times the bytes take a linear decoder 4 times as long, and a quadratic one 16 times."""

NOTICEABLE = 0.01
"""Seconds: what takes less is not compared, since the time of so short a call varies too much."""


class Cost(NamedTuple):
    """The cost of a call: `error` is an error that is not allowed."""

    seconds: float
    error: Exception | None


def cost(decoder: Decoder, data: bytes) -> Cost:
    """The processor time of a call, and its error if that is not allowed."""
    error: Exception | None = None
    gc.disable()  # a collection of all objects begins at some size: a step that looks like growth
    started = clock()
    try:
        decoder.decode(data)
    except decoder.allowed:
        pass
    except Exception as raised:  # noqa: BLE001 - whatever a decoder raises is a finding
        error = raised
    finally:
        seconds = clock() - started
        gc.enable()
    return Cost(seconds, error)


def seconds(decoder: Decoder, data: bytes, *, times: int = 5) -> float:
    """The median of the processor time of some calls."""
    return median(cost(decoder, data).seconds for _ in range(times))


def memory(decoder: Decoder, data: bytes) -> tuple[int, int]:
    """The bytes at the peak of a call, and the bytes that it keeps, beside those of `data`."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        cost(decoder, data)
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        return peak - before, after - before
    finally:
        tracemalloc.stop()


def grows_linearly(decoder: Decoder, small: bytes, large: bytes) -> bool:
    """Whether the time for `large`, 4 times as long as `small`, is at most `GROWTH` times the time for `small`."""
    first = cost(decoder, large).seconds
    if first < NOTICEABLE or first < GROWTH * cost(decoder, small).seconds:
        return True
    return any(seconds(decoder, large) < GROWTH * seconds(decoder, small) for _ in range(3))
