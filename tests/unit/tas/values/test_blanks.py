"""Numbers that mean that there is no value: in each form in which a source may carry them."""

import pytest

from tas.values.blanks import ANY, SMALL_BLANKS, ValueRules, has_blanks, has_small_blanks, refusal_of
from tas.values.quantity import Quantity, parse_quantity

NAN = -(2**63)
BLANK_64 = 0x7FFFFFFFFFFFFFF0
BLANK_32 = 0x7FFFFFF0
BLANK_FLOAT = 140737488355328

NEVER = [
    "-9223372036854775808m",  # facts.md n60
    "-9223372036854775.808",
    "-9223372036854775808",
    "-8Ei",
    "-9223372036854775808000m",
    "9223372036854775807m",
    *(repr(float(NAN)), f"{float(NAN):g}", f"{float(NAN):e}", f"{float(NAN):.15g}", f"{float(NAN):f}"),
    *(repr(NAN / 1000), f"{NAN / 1000:g}", f"{NAN / 1000:.3f}", f"{NAN / 1000:e}"),
    *(repr(2.0**63 / 1000), f"{2.0**63 / 1000:.3f}"),
    *(str(BLANK_64 + number) for number in range(17)),  # facts.md n61
    "9223372036854775807",
    "9223372036854775808",
    "8Ei",
    "9223372036854776000",
    *(repr(float(BLANK_64)), f"{float(BLANK_64):g}", f"{float(BLANK_64):.15g}", "9.223372036854776E18"),
    "9223372036854771712",  # no limit, as a whole number of pages
]
SMALL = [
    *(str(BLANK_32 + number) for number in range(4)),
    *(str(BLANK_FLOAT + number) for number in range(4)),
    *("2147483632.0", "2.147483632e9", "1.40737488355328e+14", "140737488355328.0", "128Ti", "2147483632000m"),
]


@pytest.mark.parametrize("text", NEVER)
def test_no_metric_has_these_values_facts_n60_facts_n61(text: str) -> None:
    value = parse_quantity(text)
    assert "no value" in (refusal_of(value, ANY, small=False) or "")
    assert has_blanks((Quantity(1), value), small=False)


@pytest.mark.parametrize("text", SMALL)
def test_these_are_none_only_for_metrics_that_say_so_facts_n61(text: str) -> None:
    value = parse_quantity(text)
    assert value in SMALL_BLANKS
    assert refusal_of(value, ANY, small=False) is None
    assert not has_blanks((value,), small=False)
    assert "DCGM" in (refusal_of(value, ANY, small=True) or "")
    assert "DCGM" in (refusal_of(value, ValueRules(blanks=True), small=False) or "")
    assert has_blanks((Quantity(1), value), small=True)


@pytest.mark.parametrize(
    "text",
    [
        *("0", "-1", "2147483631", "2147483648", "-2147483648", "4294967295", "140737488355327", "140737488355344"),
        *("8Pi", "-8Pi", "9007199254740993", "9223372036854", "4Ei", "7Ei", "16Ei", "-1e18", "-1e19", "1e18", "1e30"),
    ],
)
def test_values_near_them_are_values(text: str) -> None:
    assert refusal_of(parse_quantity(text), ANY, small=True) is None


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("DCGM_FI_DEV_FB_USED", True),
        ("dcgm_gpu_temperature", True),
        ("nvidia:Dcgm:power", True),
        ("gpu_memory", False),
        ("dcg_m", False),
    ],
)
def test_a_name_says_that_small_blanks_are_none(name: str, small: bool) -> None:
    assert has_small_blanks(name) == small


def test_values_out_of_bounds_are_none_and_the_bounds_are_values() -> None:
    rules = ValueRules(least=parse_quantity("0"), most=parse_quantity("110"))
    shown = {text: refusal_of(parse_quantity(text), rules, small=False) for text in ("-1m", "0", "110", "644245923")}
    assert shown == {"-1m": "is less than min, 0", "0": None, "110": None, "644245923": "is more than max, 110"}


def test_a_column_of_usual_values_needs_no_look_at_each() -> None:
    assert not has_blanks((), small=True)
    assert not has_blanks(tuple(map(parse_quantity, ("1", "-7Pi", "256Gi", "7Pi"))), small=True)
