from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sandbox.validation import BINARY, DECIMAL, canonical

numbers = st.decimals(min_value=-(10**6), max_value=10**6, allow_nan=False, allow_infinity=False, places=3)
suffixes = st.sampled_from([*DECIMAL, *BINARY, "e2", "E-1"])


def value(text: str) -> Decimal:
    for suffix, power in BINARY.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * Decimal(1024**power)
    if text[-1] in DECIMAL:
        return Decimal(text[:-1]).scaleb(3 * DECIMAL[text[-1]])
    return Decimal(text)


@given(numbers, suffixes)
def test_the_canonical_form_keeps_the_value_to_a_thousandth(number: Decimal, suffix: str) -> None:
    sent = f"{number:f}{suffix}"
    assert 0 <= value(canonical(sent)) - value(sent) < Decimal("0.001")


@given(numbers, suffixes)
def test_a_canonical_form_is_canonical(number: Decimal, suffix: str) -> None:
    once = canonical(f"{number:f}{suffix}")
    assert canonical(once) == once


@pytest.mark.parametrize("text", ["", "k", "1 k", "1kk", "NaN", "1e", "0x1", "1K"])
def test_an_invalid_quantity_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        canonical(text)
