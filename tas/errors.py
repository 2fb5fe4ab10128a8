"""The base errors of the core, and texts for error messages."""

import re
import reprlib

MAX_TEXT = 1000
"""The most characters of a text from elsewhere in a log line, a stored state or a status."""

_USER = re.compile(r"//[^/\s]*@")  # to the last @, as a URL is read


class TasError(Exception):
    """Base of every error the core raises."""


class InvalidInputError(TasError, ValueError):
    """Invalid input; the message names the object, the field, the value and the reason.

    Attributes:
        subject: The object, as a user knows it: `sample node-1/machine`, `policy default/demo`.
        field: The field in it, in the notation of its source: `metrics.load1`, `spec.strategies.deschedule`.
        value: The value of the field, shortened to fit a log line.
        reason: Why the value is invalid, or what it must be.
    """

    def __init__(self, subject: str, field: str, value: object, reason: str) -> None:
        self.subject = line_of(subject)
        self.field = line_of(field)
        self.value = shortened(value)
        self.reason = line_of(reason)
        super().__init__(f"{self.subject}: {self.field} = {self.value}: {self.reason}")


def without_password(text: str) -> str:
    """`text` without the user names and passwords in its URLs."""
    return _USER.sub("//", text)


def line_of(text: str, limit: int = MAX_TEXT) -> str:
    """`text` as one printable line of at most `limit` characters, for a text from elsewhere of any size."""
    line = printable(text[: limit + 1])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def printable(text: str) -> str:
    r"""`text` with an escape such as `\x1b` in place of each character that is no space and cannot be printed.

    Such characters move the cursor of a terminal, change its colours, or show a text in another order.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()  # also of lone surrogates
        for each in text
    )


def shortened(value: object, limit: int = 80) -> str:
    """`value` as one printable line of at most `limit` characters, for values of any size and depth."""
    text = repr(value[:limit]) if isinstance(value, str) else _OUTLINE.repr(value)
    too_long = len(text) > limit or (isinstance(value, str) and len(value) > limit)
    return f"{text[: limit - 1]}…" if too_long else text


class Unquoted:
    """Stands for a value that a message must not quote: only its type is shown."""

    def __init__(self, value: object) -> None:
        self._type = type(value).__name__

    def __repr__(self) -> str:
        return f"<{self._type}>"


class _Outline(reprlib.Repr):
    """A short `repr` of containers, a few levels deep: plain `repr` fails on deep nesting and on huge integers."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() < 300 else f"<an integer of {x.bit_length()} bits>"


_OUTLINE = _Outline()
