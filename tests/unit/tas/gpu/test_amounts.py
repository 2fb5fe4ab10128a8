"""Amounts and their sums."""

import pytest

from tas.gpu.amounts import MAX_AMOUNT, AmountError, amount_text, decreased, increased, parse_amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("500M", 500_000_000), ("8Gi", 8 * 2**30), ("2000m", 2), ("1e1", 10), (str(MAX_AMOUNT), MAX_AMOUNT)],
)
def test_whole_quantities_are_amounts(text: str, amount: int) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize("text", ["-1", "-1n", "1n", "1.5", "", "x", "9223372036854775808", "1e30", "9" * 1_000_000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(AmountError) as caught:
        parse_amount(text)
    assert len(str(caught.value)) < 200


def test_amounts_for_people() -> None:
    assert [amount_text(each) for each in (0, 500, 8 * 2**30)] == ["0", "500", "8Gi"]


def test_LIF_06_sums_stay_within_their_bounds() -> None:
    sums = {"a": 5, "b": MAX_AMOUNT}
    assert increased(sums, {"a": 1, "c": 2, "d": 0}) == {"a": 6, "b": MAX_AMOUNT, "c": 2}
    assert increased(sums, {"a": MAX_AMOUNT - 5})["a"] == MAX_AMOUNT
    with pytest.raises(AmountError, match="b = 9223372036854775808: must be at most 9223372036854775807"):
        increased(sums, {"a": 1, "b": 1})
    assert decreased(sums, {"a": 2, "d": 0}) == {"a": 3, "b": MAX_AMOUNT}
    assert decreased(sums, {"a": 7}) == {"b": MAX_AMOUNT}
    with pytest.raises(AmountError, match="c = 1: nothing of it is held"):
        decreased(sums, {"a": 1, "c": 1})
    for operation in (increased, decreased):
        with pytest.raises(AmountError, match="a = -1: must not be negative"):
            operation(sums, {"a": -1})
    assert sums == {"a": 5, "b": MAX_AMOUNT}
