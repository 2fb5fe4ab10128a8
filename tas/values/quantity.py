"""Kubernetes quantities, exactly.

A quantity is an integer of 10⁻⁹, as the API server itself keeps it: `1500m` is 1 500 000 000. More than nine
fractional digits are rounded away from zero. Source of the grammar: `resource.Quantity` of apimachinery. Unlike its
parser, which caps at int64, larger values keep their value and so compare correctly (facts.md Q10).
"""

import re
from typing import NewType

from tas.errors import TasError, shortened

Quantity = NewType("Quantity", int)
"""A value in integers of 10⁻⁹."""

NANO = 10**9
MAX_QUANTITY = 10**40 * NANO
"""The largest absolute value: far beyond any metric, and small enough that arithmetic stays cheap."""

# The parts of a quantity. [0-9] and not \d, which also matches digits of other scripts.
_GRAMMAR = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]+))?")
_FACTOR = {
    None: NANO,
    "n": 1,
    "u": 10**3,
    "m": 10**6,
    "k": 10**3 * NANO,
    "M": 10**6 * NANO,
    "G": 10**9 * NANO,
    "T": 10**12 * NANO,
    "P": 10**15 * NANO,
    "E": 10**18 * NANO,
    "Ki": 2**10 * NANO,
    "Mi": 2**20 * NANO,
    "Gi": 2**30 * NANO,
    "Ti": 2**40 * NANO,
    "Pi": 2**50 * NANO,
    "Ei": 2**60 * NANO,
}
_MAX_TEXT = 1000  # every step below is at worst quadratic in the length, so parsing takes microseconds
_MAX_PLAIN = 40
"""Numbers with at most so many characters are read without the grammar: they cannot be out of range."""

_POWERS = tuple(10**n for n in range(_MAX_PLAIN))


class QuantityError(TasError, ValueError):
    """Text that is not a quantity; the message gives the reason."""


def plain_quantity(text: str) -> Quantity | None:
    """The value of a number without a sign, an exponent or a suffix, as nearly every sample; None for other text."""
    whole, _, fraction = text.partition(".")
    digits = whole + fraction
    if len(text) > _MAX_PLAIN or not digits.isdigit() or not digits.isascii():
        return None
    places = len(fraction)
    if places < 10:
        return Quantity(int(digits) * _POWERS[9 - places])
    return Quantity(-(-int(digits) // _POWERS[places - 9]))  # the two signs round up


def parse_quantity(text: str) -> Quantity:
    """The value of a quantity such as `2`, `-1.5`, `1500m`, `2Gi`, `1e3`.

    Raises QuantityError for anything else, NaN and infinities included, and beyond ±10⁴⁰.
    """
    plain = plain_quantity(text)
    if plain is not None:
        return plain
    if len(text) > _MAX_TEXT:
        raise QuantityError(f"{shortened(text)} is longer than {_MAX_TEXT} characters")
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise QuantityError(f"{shortened(text)} is no Kubernetes quantity")
    sign, whole, fraction, suffix, exponent = match.groups()
    if fraction:
        digits = whole + fraction
        places = len(fraction)
    else:
        digits = whole
        places = 0
    if not digits:
        raise QuantityError(f"{shortened(text)} has no digits")
    if exponent is not None:
        value = _scaled(digits, 9 + int(exponent) - places)
    elif places == 0:
        value = int(digits) * _FACTOR[suffix]
    else:
        divisor = _POWERS[places] if places < 10 else 10**places
        value = -(-int(digits) * _FACTOR[suffix] // divisor)  # the two signs round up, that is away from zero
    if value > MAX_QUANTITY:
        raise QuantityError(f"{shortened(text)} is beyond 10^40")
    return Quantity(-value if sign == "-" else value)


def _scaled(digits: str, power: int) -> int:
    """`digits` times 10**`power`, rounded up; for results beyond the limit some number beyond the limit.

    A few characters can name a number that fills the memory, so the magnitude is checked before anything is computed.
    """
    mantissa = int(digits)
    if mantissa == 0:
        return 0
    magnitude = len(digits.lstrip("0")) + power  # 10**(magnitude - 1) <= the value < 10**magnitude
    if magnitude <= 0:
        return 1
    if magnitude > 60:
        return MAX_QUANTITY + 1
    scale: int = 10 ** abs(power)
    return mantissa * scale if power >= 0 else -(-mantissa // scale)


def format_quantity(value: Quantity) -> str:
    """The shortest decimal text that `parse_quantity` reads back exactly: `1.5`, `2147483648`, `-0.000000001`."""
    if value >= NANO and value % NANO:  # as most samples
        text = str(value)
        return f"{text[:-9]}.{text[-9:].rstrip('0')}"
    sign = "-" if value < 0 else ""
    whole, fraction = divmod(abs(value), NANO)
    if fraction == 0:
        return f"{sign}{whole}"
    return f"{sign}{whole}.{fraction:09d}".rstrip("0")


_BINARY = ("Ei", "Pi", "Ti", "Gi", "Mi")


def exact_text(value: Quantity) -> str:
    """The exact value for people: as `format_quantity`, but `2Gi` for a multiple of a binary unit from 1 Mi."""
    for suffix in _BINARY:
        if abs(value) >= _FACTOR[suffix] and value % _FACTOR[suffix] == 0:
            return f"{value // _FACTOR[suffix]}{suffix}"
    return format_quantity(value)


def short_text(value: Quantity) -> str:
    """The value for people, rounded to four digits where `exact_text` is long: `28.88Gi`, `0.3333`, `123457`."""
    size = abs(value)
    for suffix in _BINARY:
        if size >= _FACTOR[suffix]:
            return f"{value / _FACTOR[suffix]:.4g}{suffix}"
    text = format_quantity(value)
    if "." not in text:
        return text
    return f"{value / NANO:.4g}" if size < 1000 * NANO else f"{value / NANO:.0f}"
