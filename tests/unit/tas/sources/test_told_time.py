"""Times and spans as sources write them."""

import pytest

from tas.sources.told_time import NoTimeError, told_duration, told_time, told_window


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T01:00:00+01:00", 1767225600.0),
        ("2026-01-01T00:00:00.25Z", 1767225600.25),
        ("2026-01-01T00:00:00.123456789Z", 1767225600.123456),
    ],
)
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert told_time(text) == seconds


@pytest.mark.parametrize("text", ["", "now", "1767225600", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01"])
def test_what_is_no_time_with_a_zone_is_told(text: str) -> None:
    with pytest.raises(NoTimeError):
        told_time(text)


def test_a_window_is_told_if_a_sample_may_say_it() -> None:
    assert [told_window(each) for each in (1, 0.5, 86400, 0, -1, 86401, float("nan"), float("inf"), None)] == [
        *(1.0, 0.5, 86400.0),
        *(None,) * 6,
    ]
    assert told_duration("15.02s") == 15.02
    assert told_duration("1m") == 60.0
    assert told_duration("") is None
