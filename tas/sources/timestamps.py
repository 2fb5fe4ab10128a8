"""Times and windows as sources write them, in seconds."""

from datetime import datetime

from tas.values.duration import DurationError, parse_duration

MAX_WINDOW_SECONDS = 86400.0
"""The longest window of a sample; a longer one is left out."""

GO_ZERO_SECONDS = -62135596800.0
"""0001-01-01T00:00:00Z, in seconds since 1970."""


class InvalidTimeError(ValueError):
    """Text that is not a time."""


def parse_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time with a zone, as `metav1.Time` is written. Raises InvalidTimeError."""
    try:
        time = datetime.fromisoformat(text)
        seconds = time.timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidTimeError("must be a time as in RFC 3339") from error
    if time.tzinfo is None:
        raise InvalidTimeError("must have a zone")
    return seconds


def given_time(text: str | None) -> float | None:
    """As `parse_time`; None if no time is given: the zero time of Go, of the year 1, is none (facts.md n72).

    Raises InvalidTimeError.
    """
    seconds = None if text is None else parse_time(text)
    return None if seconds == GO_ZERO_SECONDS else seconds


def valid_window(seconds: float | None) -> float | None:
    """`seconds` if a sample can have that window, else None: no value is refused for its window."""
    if seconds is None or not 0 < seconds <= MAX_WINDOW_SECONDS:  # NaN as well, and integers beyond any float
        return None
    return float(seconds)


def parse_window(text: str) -> float | None:
    """The window of a Go duration such as `15.02s`, or None as in `valid_window`."""
    try:
        return valid_window(parse_duration(text))
    except DurationError:
        return None
