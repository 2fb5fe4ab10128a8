"""Times and spans as sources write them, made seconds."""

import math
from datetime import datetime

from tas.duration import DurationError, parse_duration

MAX_WINDOW_SECONDS = 86400.0
"""The longest span that a sample may say it stands for; a longer one is not told."""


class NoTimeError(ValueError):
    """Text that is no time."""


def told_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time with a zone, as `metav1.Time` is written. Raises NoTimeError."""
    try:
        time = datetime.fromisoformat(text)
        seconds = time.timestamp()
    except (ValueError, OverflowError) as error:
        raise NoTimeError("must be a time as in RFC 3339") from error
    if time.tzinfo is None:
        raise NoTimeError("must have a zone")
    return seconds


def told_window(seconds: float | None) -> float | None:
    """The span if a sample may say it, else None: of a source's window nothing more depends than that it is told."""
    if seconds is None or not math.isfinite(seconds) or not 0 < seconds <= MAX_WINDOW_SECONDS:
        return None
    return float(seconds)


def told_duration(text: str) -> float | None:
    """The span that a Go duration such as `15.02s` says, as `told_window` has it."""
    try:
        return told_window(parse_duration(text))
    except DurationError:
        return None
