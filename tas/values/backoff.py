"""How long to wait after failures in a row."""

import random
from collections.abc import Callable
from typing import NamedTuple


class Backoff(NamedTuple):
    """Waits in seconds that double from `first` up to `longest`."""

    first: float
    longest: float

    def after(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """The wait after so many failures in a row, where none counts as one.

        `chance` gives a number from 0 to 1: up to a half of the wait is taken off, so that replicas that failed
        together do not try again together.
        """
        doublings = min(max(failures, 1) - 1, 20)
        return min(self.first * 2.0**doublings, self.longest) * (1 - chance() / 2)
