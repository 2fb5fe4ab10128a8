"""Times and windows as sources write them."""

import pytest

from tas.sources.timestamps import GO_ZERO_SECONDS, InvalidTimeError, given_time, parse_time, parse_window, valid_window


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
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", [None, "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:00", "0001-01-01T01:00:00+01:00"]
)
def test_the_zero_time_of_go_is_no_time_facts_n72(text: str | None) -> None:
    assert given_time(text) is None


def test_another_time_of_long_ago_is_a_time() -> None:
    assert given_time("0001-01-01T00:00:01Z") == GO_ZERO_SECONDS + 1
    assert given_time("1970-01-01T00:00:00Z") == 0.0


@pytest.mark.parametrize("text", ["", "now", "1767225600", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01"])
def test_text_that_is_no_time_with_a_zone_gives_an_error(text: str) -> None:
    with pytest.raises(InvalidTimeError):
        parse_time(text)


def test_an_invalid_window_is_left_out() -> None:
    assert [valid_window(each) for each in (1, 0.5, 86400, 0, -1, 86401, float("nan"), float("inf"), None)] == [
        *(1.0, 0.5, 86400.0),
        *(None,) * 6,
    ]
    assert parse_window("15.02s") == 15.02
    assert parse_window("1m") == 60.0
    assert parse_window("") is None
