"""What one call of a decoder costs: processor time, memory at the peak, and memory that it keeps."""

import gc
import tracemalloc
from functools import partial
from itertools import pairwise, repeat
from math import inf
from typing import NamedTuple

from tests.fuzz.decoders import Decoder, clock
from tests.fuzz.hostile import Shape
from tests.unit.growth import is_within

GROWTH = 2.0**1.5
"""Twice the bytes take a linear decoder 2 times as long, and a quadratic one 4 times: this is halfway."""

NOTICEABLE = 0.05
"""Seconds: what takes less is not compared. A linear decoder of JSON takes a tenth of this for a quarter of a MiB. On a
busy machine it takes several times as long, most of it for new pages of memory, at each doubling.
"""

ROUNDS = 20
"""How often each size is measured again if the time seems to grow too much."""


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


def is_slow(decoder: Decoder, data: bytes, size: int) -> bool:
    """Whether a call takes longer than is allowed for `size` bytes.

    It is compared with a loop, which is measured in turn with the call: on a busy machine both take longer.
    """
    steps = size * decoder.steps_per_byte
    return not is_within(1, lambda: partial(cost, decoder, data), lambda: partial(_loop, steps))


def _loop(steps: int) -> None:
    for _ in repeat(None, steps):
        pass


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


def grows_linearly(decoder: Decoder, shape: Shape, size: int) -> bool:
    """Whether the time grows by less than `GROWTH` at one of the two doublings from a quarter of `size` bytes to all.

    The time of a linear decoder has a step where the bytes exceed a cache or the free memory of the process: this is
    at one doubling. The time of a quadratic decoder grows too much at both.
    """
    inputs = [shape(size // 4), shape(size // 2), shape(size)]
    first = cost(decoder, inputs[-1]).seconds
    if first < NOTICEABLE or first < GROWTH**2 * cost(decoder, inputs[0]).seconds:
        return True
    # On a busy machine a measurement may be several times too long, and none is too short: so the shortest ones count.
    shortest = [inf] * len(inputs)
    for _ in range(ROUNDS):
        shortest = [min(least, cost(decoder, each).seconds) for least, each in zip(shortest, inputs, strict=True)]
    return any(longer < GROWTH * shorter for shorter, longer in pairwise(shortest))
