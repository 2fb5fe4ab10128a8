"""Log lines about interruptions: the cause at once, and no flood while it lasts."""

import pytest
import structlog
from structlog.testing import capture_logs

from bus.errors import STREAM_NOT_FOUND, BusError, UnavailableError
from bus.interruptions import REPEAT_SECONDS, Interruptions

FULL = 10047


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, which a test moves."""
    now = [1000.0]
    monkeypatch.setattr("bus.interruptions.time.monotonic", lambda: now[0])
    return now


def test_an_error_that_lasts_is_logged_at_once_and_then_once_a_minute(clock: list[float]) -> None:
    interruptions = Interruptions(structlog.get_logger(), "watch_interrupted", bucket="NODES")
    with capture_logs() as logs:
        for second in range(121):
            clock[0] = 1000.0 + second
            # The text has the name of a consumer, another one each time.
            interruptions.note(UnavailableError(f"consumer-{second}: no answer", code=STREAM_NOT_FOUND), applied=7)
    assert [(line["error"], line["suppressed"]) for line in logs] == [
        ("consumer-0: no answer", 0),
        ("consumer-60: no answer", 59),
        ("consumer-120: no answer", 59),
    ]
    assert REPEAT_SECONDS == 60.0
    fields = [(line["event"], line["log_level"], line["bucket"], line["applied"]) for line in logs]
    assert set(fields) == {("watch_interrupted", "info", "NODES", 7)}


def test_another_kind_of_error_is_logged_at_once(clock: list[float]) -> None:
    interruptions = Interruptions(structlog.get_logger(), "watch_interrupted")
    errors = [
        UnavailableError("no answer"),
        UnavailableError("no stream", code=STREAM_NOT_FOUND),
        BusError("full", code=FULL),
        UnavailableError("no answer again"),
    ]
    with capture_logs() as logs:
        for error in errors:
            interruptions.note(error)
    assert [line["error"] for line in logs] == ["no answer", "no stream", "full"]
