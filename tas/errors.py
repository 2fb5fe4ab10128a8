"""The errors of the core."""

import re
import reprlib

_USER = re.compile(r"//[^/\s]*@")  # to the last @, as a URL is read


class TasError(Exception):
    """Base of every error the core raises."""


class InvalidInputError(TasError, ValueError):
    """Input that can never work, told with the object, the field and the value.

    Attributes:
        subject: What was wrong as a whole, as its user knows it: `sample node-1/machine`, `policy default/demo`.
        field: The place inside it, in the notation of its source: `metrics.load1`, `spec.strategies.deschedule`.
        value: What stood there, cut to a length that fits a log line.
        reason: Why that cannot be.
    """

    def __init__(self, subject: str, field: str, value: object, reason: str) -> None:
        self.subject = subject
        self.field = field
        self.value = shortened(value)
        self.reason = reason
        super().__init__(f"{subject}: {field} = {self.value}: {reason}")


def without_password(text: str) -> str:
    """`text` without the names and passwords that stand in its URLs."""
    return _USER.sub("//", text)


def shortened(value: object, limit: int = 80) -> str:
    """`value` as one printable line of at most `limit` characters, however large or deep it is."""
    text = repr(value[:limit]) if isinstance(value, str) else _OUTLINE.repr(value)
    too_long = len(text) > limit or (isinstance(value, str) and len(value) > limit)
    return f"{text[: limit - 1]}…" if too_long else text


class _Outline(reprlib.Repr):
    """Containers by their first items, a few levels deep: plain `repr` fails on deep nesting and on huge integers."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 300 else f"<an integer of {x.bit_length()} bits>"


_OUTLINE = _Outline()
