"""Errors fit a log line, for any invalid value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import MAX_TEXT, InvalidInputError, TasError, line_of, printable, shortened
from tests.unit.tas.generators import anything, characters


def test_invalid_input_names_object_field_value_and_reason() -> None:
    error = InvalidInputError("policy default/demo", "spec.staleAfter", 90, "must be a duration")
    assert str(error) == "policy default/demo: spec.staleAfter = 90: must be a duration"
    assert (error.subject, error.field, error.value) == ("policy default/demo", "spec.staleAfter", "90")
    assert isinstance(error, TasError)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("é\n", "'é\\n'"),
        ("\ud800", "'\\ud800'"),
        (1.5, "1.5"),
        (None, "None"),
        ({"a": [1, None]}, "{'a': [1, None]}"),
        ("x" * 78, "'" + "x" * 78 + "'"),
        ("x" * 79, "'" + "x" * 78 + "…"),
        (10**5000, "<an integer of 16610 bits>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_shortened(value: Any, text: str) -> None:
    assert shortened(value) == text


@given(st.text(characters))
def test_a_line_is_printable_and_printable_text_is_unchanged(text: str) -> None:
    assert printable(text).isprintable()
    assert line_of(text).isprintable()
    assert not text.isprintable() or printable(text) == text


@pytest.mark.parametrize("unit", ["a", "\x1b", "\ud800", "\U000e0001"])
def test_a_line_has_limited_length(unit: str) -> None:
    assert len(line_of(unit * 10_000_000)) == MAX_TEXT
    assert line_of(unit * 10_000_000).endswith("…")


@pytest.mark.parametrize("text", ["a\x1b[31m", "x" * 10_000_000])
def test_every_part_of_an_error_is_one_line_of_limited_length(text: str) -> None:
    error = InvalidInputError(text, text, text, text)
    for part in (str(error), error.subject, error.field, error.value, error.reason):
        assert part.isprintable()
        assert len(part) <= 4 * MAX_TEXT


@given(anything(), st.integers(1, 100))
def test_shortened_is_one_printable_line(value: Any, limit: int) -> None:
    text = shortened(value, limit)
    assert len(text) <= limit
    assert text.isprintable()
    text.encode()


def test_shortened_of_values_on_which_repr_fails() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert shortened(deep) == "[[[[[[[...]]]]]]]"
    assert len(shortened(dict.fromkeys(range(100_000), "x" * 1000))) == 80
