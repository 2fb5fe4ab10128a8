"""Errors fit a log line, for any invalid value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError, TasError, shortened
from tests.unit.tas.generators import anything


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
