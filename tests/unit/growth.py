"""Processor time, compared with that of other work in the same process: of another size, or of another kind.

Neighbours that use the processor make a measurement several times too long, and none too short. So the two are
measured in turn, the shortest ones count, and the comparison is repeated as often as it fails, up to a limit. The
garbage collector rests: what it takes depends on all other objects of the process.
"""

import gc
import time
from collections.abc import Callable
from math import inf

FACTOR = 8
"""The large size divided by the small one."""

MOST = 24
"""The allowed ratio of the times: 8 if the time grows linearly, 64 if it grows with the square."""

ROUNDS = 8
"""How often both are measured at most."""

Work = Callable[[], object]


def grows_linearly(prepare: Callable[[int], Work], size: int) -> bool:
    """Whether the work that `prepare` returns for `size` takes about eight times as long as for an eighth of it."""
    return is_within(MOST, lambda: prepare(size), lambda: prepare(size // FACTOR))


def is_within(factor: float, prepare: Callable[[], Work], reference: Callable[[], Work]) -> bool:
    """Whether the work that `prepare` returns takes less than `factor` times as long as that of `reference`.

    Only the work is measured, not its preparation.
    """
    measured = allowed = inf
    for _ in range(ROUNDS):
        measured = min(measured, _seconds(prepare()))
        allowed = min(allowed, factor * _seconds(reference()))
        if measured < allowed:
            return True
    return False


def _seconds(work: Work) -> float:
    gc.disable()
    try:
        start = time.process_time()
        work()
        return time.process_time() - start
    finally:
        gc.enable()
