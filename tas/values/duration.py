"""Durations as Go and the CRD write them: `90s`, `2m`, `1h30m`, `500ms`."""

import re

from tas.errors import TasError, shortened

_UNITS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,  # micro sign and Greek mu, as in Go
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_MAX_TEXT = 100
_MAX_NANOSECONDS = 2**63 - 1  # Go's limit, about 292 years


class DurationError(TasError, ValueError):
    """Text that is not a duration; the message gives the reason."""


def parse_duration(text: str) -> float:
    """The seconds of a duration: numbers with units, as `time.ParseDuration` of Go reads them.

    Raises DurationError for anything else, a number without a unit included (except `0`).
    """
    if len(text) > _MAX_TEXT:
        raise DurationError(f"{shortened(text)} is longer than {_MAX_TEXT} characters")
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    nanoseconds = 0
    position = 0
    if unsigned != "0":
        while position < len(unsigned) or not unsigned:
            part = _PART.match(unsigned, position)
            if part is None or not (part[1] or part[2]):
                raise DurationError(f"{shortened(text)} is no duration such as 90s, 2m or 1h30m")
            fraction = part[2] or ""
            nanoseconds += int(part[1] + fraction) * _UNITS[part[3]] // 10 ** len(fraction)
            position = part.end()
    if nanoseconds > _MAX_NANOSECONDS:
        raise DurationError(f"{shortened(text)} is longer than 292 years")
    return (-nanoseconds if text.startswith("-") else nanoseconds) / 1e9


def format_duration(seconds: float) -> str:
    """Text that `parse_duration` reads back as the same number, in the largest unit that needs no fraction up to `s`.

    Exact below 26 days; beyond, a float of seconds does not hold each nanosecond.
    """
    nanoseconds = round(seconds * 1e9)
    for unit in ("s", "ms", "us"):
        if nanoseconds % _UNITS[unit] == 0:
            return f"{nanoseconds // _UNITS[unit]}{unit}"
    return f"{nanoseconds}ns"
