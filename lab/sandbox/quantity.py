"""Quantities as the API server writes them: `1000` becomes `1k`, `1024Ki` becomes `1Mi`.

Rules of apimachinery's `resource.Quantity`: the suffix is the largest suffix of the same family that gives a whole
number; fractions are rounded up to thousandths, as in lists of resources.
"""

import re
from decimal import ROUND_CEILING, Decimal

PATTERN = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]+)?")
SYNTAX = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
MILLI = Decimal("0.001")


def canonical(text: str) -> str:
    """The quantity as the API server stores it. Raises ValueError if the text is not a quantity."""
    match = PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(SYNTAX)
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in BINARY:
        return _binary(number * 1024 ** BINARY[suffix])
    if suffix in DECIMAL:
        return _decimal(number * Decimal(1000) ** DECIMAL[suffix], {power: name for name, power in DECIMAL.items()})
    powers = {power: f"e{3 * power}" if power else "" for power in range(-1, 7)}
    return _decimal(number * Decimal(10) ** int(suffix[1:]), powers)


def _binary(value: Decimal) -> str:
    if value != int(value):  # no binary suffix is small enough
        return canonical(f"{value.quantize(MILLI, ROUND_CEILING):f}")
    whole, power = int(value), 0
    while whole and whole % 1024 == 0 and power < len(BINARY):
        whole, power = whole // 1024, power + 1
    return f"{whole}{['', *BINARY][power]}"


def _decimal(value: Decimal, suffixes: dict[int, str]) -> str:
    milli = int(value.quantize(MILLI, ROUND_CEILING) * 1000)
    if milli == 0:
        return "0"
    power = -1
    while milli % 1000 == 0 and power + 1 in suffixes:
        milli, power = milli // 1000, power + 1
    return f"{milli}{suffixes[power]}"
