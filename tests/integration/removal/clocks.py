"""Wrong clocks of replicas that are tasks on one loop."""

import random
import time
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

ERRORS_SECONDS = (-0.7, -0.3, 0.3)
"""By how much a clock is wrong: below 0 it is behind. Ahead by more than `staleAfter`, every sample would be stale."""

_error: ContextVar[float] = ContextVar("clock error", default=0.0)
_time = time.time


def _wrong_time() -> float:
    return _time() + _error.get()


@pytest.fixture
def clocks_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives `time.time` the error of the current task."""
    monkeypatch.setattr(time, "time", _wrong_time)


def set_error(seconds: float) -> None:
    """Makes the clock wrong in this task, and in all that it starts. Requires `clocks_may_be_wrong`."""
    _error.set(seconds)
    assert not seconds or time.time is _wrong_time, "the test needs the fixture `clocks_may_be_wrong`"


def some_errors(chance: random.Random, names: Sequence[str]) -> dict[str, float]:
    """The error of some of these replicas; in half of all histories all clocks are right."""
    if chance.random() < 0.5:
        return {}
    return {name: chance.choice(ERRORS_SECONDS) for name in names if chance.random() < 0.6}
