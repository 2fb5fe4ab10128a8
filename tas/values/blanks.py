"""Numbers that mean that there is no value, and values out of the range of their metric.

- A NaN that was converted to an integer is −2⁶³, and a number that is too large −2⁶³ or 2⁶³ − 1, depending on the
  processor. prometheus-adapter does so with thousandths (facts.md n60).
- Exporters of GPUs have a blank for each type, and a few numbers after it for *not found*, *not supported* and *not
  permitted* (facts.md n61). Those of 64 bits are 2⁶³ − 16 and more, for any metric. Those of 32 bits and of
  floating-point numbers are also valid numbers of bytes, so they are blanks only of metrics that say so.

A number that came as a float, or was written with six digits, is only near one of these, and counts as well. As a
number of bytes, 2⁶³ thousandths are 8 Pi: there only what a float makes of them counts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tas.values.quantity import NANO, Quantity, format_quantity

LEAST = 2**53 * 10**9
"""The absolute value below which no number is a blank for any metric: a thousandth of 2⁶³, and a bit less."""

_HIGHEST = 2**63 * NANO
_MILLI = _HIGHEST // 1000
_OF_SIX_DIGITS, _OF_FLOAT = 10**6, 10**15
"""A number with so many digits may differ by one part in so many."""

_BLANKS = 16
_SMALL = tuple(start + number for start in (2**31 - _BLANKS, 2**47) for number in range(_BLANKS))
SMALL_BLANKS = frozenset(Quantity(number * NANO) for number in _SMALL)
"""The blanks that are also valid values, such as numbers of bytes."""

_NAME = "dcgm"


class ValueRules(NamedTuple):
    """Which values of a metric are none: with `blanks` also `SMALL_BLANKS`, and values out of `least` to `most`."""

    blanks: bool = False
    least: Quantity | None = None
    most: Quantity | None = None


ANY = ValueRules()


def has_small_blanks(name: str) -> bool:
    """Whether `SMALL_BLANKS` are blanks of a metric or series of this name: it names the exporter DCGM."""
    return _NAME in name.lower()


def is_plain(value: Quantity, rules: ValueRules) -> bool:
    """Whether a number is a value of any metric without rules, as nearly all are; else `refusal_of` decides."""
    return rules is ANY and -LEAST < value < LEAST and value not in SMALL_BLANKS


def refusal_of(value: Quantity, rules: ValueRules, *, small: bool) -> str | None:
    """Why a number is no value; None if it is one. `small`: as `has_small_blanks` says of its names."""
    if abs(value) >= LEAST and _is_blank(value):
        return "is what NaN or a missing value becomes as an integer of 64 bits: it means that there is no value"
    if (small or rules.blanks) and value in SMALL_BLANKS:
        return "is a blank of GPU exporters (DCGM): it means that there is no value"
    if rules.least is not None and value < rules.least:
        return f"is less than min, {format_quantity(rules.least)}"
    if rules.most is not None and value > rules.most:
        return f"is more than max, {format_quantity(rules.most)}"
    return None


def has_blanks(values: Sequence[Quantity], *, small: bool) -> bool:
    """Whether any of many values may be a blank: as nearly always none is, this takes a few passes in C."""
    if small and not SMALL_BLANKS.isdisjoint(values):
        return True
    return bool(values) and not -LEAST < min(values) <= max(values) < LEAST


def _is_blank(value: Quantity) -> bool:
    size = abs(value)
    return _is_near(size, _HIGHEST, _OF_SIX_DIGITS) or _is_near(
        size, _MILLI, _OF_SIX_DIGITS if value < 0 else _OF_FLOAT
    )


def _is_near(size: int, blank: int, digits: int) -> bool:
    return abs(size - blank) * digits <= blank
