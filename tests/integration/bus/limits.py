"""Long time limits of the bus, for tests of other things: a busy machine exceeds those of the product.

A test of a limit adds `WORK_SECONDS` and the measured lateness of its process to the limit.
"""

import pytest

LONG_LIMITS = {
    "bus.connection.CALL_SECONDS": 60.0,
    "bus.connection.ENTRIES_SECONDS": 60.0,
    "bus.connection.WRITE_SECONDS": 60.0,
    "bus.consumers.CALL_SECONDS": 60.0,
    "bus.feed.CALL_SECONDS": 60.0,
    "bus.feed.REMOVE_SECONDS": 60.0,
    "bus.link.UNANSWERED_PINGS": 60,
    "bus.pull.CALL_SECONDS": 60.0,
}

PULSE_SECONDS = 20.0
"""After how long a subscription without a heartbeat has ended, for tests of other things."""

WORK_SECONDS = 1.0
"""What the work of a call may add to its time limit, beside the lateness of the test."""


@pytest.fixture
def long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of this process wait long for answers. The fixture comes before those that connect."""
    for path, limit in LONG_LIMITS.items():
        monkeypatch.setattr(path, limit)


@pytest.fixture
def late_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server may send its heartbeats late: a new attachment would deliver messages, or ask for them, again."""
    monkeypatch.setattr("bus.link.BEAT_SECONDS", PULSE_SECONDS)
