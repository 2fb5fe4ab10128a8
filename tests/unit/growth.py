"""How the processor time of a piece of work grows with its size."""

import time
from collections.abc import Callable

FACTOR = 8
"""The large size divided by the small one."""

MOST = 24
"""The allowed ratio of the times: 8 if the time grows linearly, 64 if it grows with the square."""


def grows_linearly(prepare: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether the work that `prepare` returns for `size` takes about eight times as long as for an eighth of it."""

    def seconds(of: int) -> float:
        work = prepare(of)
        start = time.process_time()
        work()
        return time.process_time() - start

    return any(seconds(size) < MOST * seconds(size // FACTOR) for _ in range(3))
