"""Durations, against a model that works with fractions, and back."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.values.duration import DurationError, format_duration, parse_duration
from tests.unit.tas.generators import seconds

UNITS = {
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("0s", 0.0),
        ("90s", 90.0),
        ("2m", 120.0),
        ("1h30m", 5400.0),
        ("1h30m5.5s", 5405.5),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("5.s", 5.0),
        ("+1s", 1.0),
        ("-1m30s", -90.0),
        ("1us", 1e-6),
        ("1\u00b5s", 1e-6),
        ("1\u03bcs", 1e-6),
        ("1ns", 1e-9),
        ("0.9ns", 0.0),
        ("1m1h", 3660.0),
        ("2562047h", 2562047 * 3600.0),
    ],
)
def test_durations_of_go_are_read(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "+", "-", "s", ".s", "-.s", "90", "1.5", "00", "1d", "1S", "1 s", " 1s", "1s ", "1s\n", "1s2", "1_0s",
        "1e3s", "--1s", "1-s", "1s-1s", "\u0661s", "inf", "nan", "2562048h", "9" * 99 + "s", "1" * 101 + "ns",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DurationError):
        parse_duration(text)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from(sorted(UNITS))), min_size=1, max_size=6))
def test_parts_add_up(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert parse_duration(text) == float(sum(number * UNITS[unit] for number, unit in parts))


@given(seconds)
def test_formatted_text_reads_back(length: float) -> None:
    assert parse_duration(format_duration(length)) == length


@pytest.mark.parametrize(
    ("length", "text"), [(0.0, "0s"), (90.0, "90s"), (0.5, "500ms"), (1e-6, "1us"), (1.000000001, "1000000001ns")]
)
def test_formats_in_the_largest_unit_that_needs_no_fraction(length: float, text: str) -> None:
    assert format_duration(length) == text


@given(st.text("0123456789.hmnsu+-", max_size=10))
def test_anything_is_a_duration_or_refused(text: str) -> None:
    try:
        length = parse_duration(text)
    except DurationError:
        return
    assert text.strip("+-") == "0" or text[-1] in "hms"
    assert (length < 0) <= text.startswith("-")
