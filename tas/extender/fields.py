"""The fields of what the scheduler sends, and how it is told what is wrong with one.

The API types carry no JSON tags: the scheduler sends the exact Go field names and null for what is absent, and its own
decoder takes keys in any case (protocol c5).
"""

import re
from typing import TypeVar

import msgspec
from msgspec import Raw

from tas.errors import InvalidInputError

T = TypeVar("T")

NULL = Raw(b"null")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the decoder raises at bytes that are not JSON, not UTF-8, or nested too deeply."""

_fields = msgspec.json.Decoder(dict[str, Raw])


class Fields:
    """The fields of one JSON object by names of any case: the exact one counts before all others, of those the later.

    A field that is absent is null, as in Go. `subject` is the type of the object, with which complaints begin.

    Raises:
        InvalidInputError: if `raw`, which stands at `place`, is no JSON object.
    """

    def __init__(self, subject: str, raw: bytes | Raw, place: str = "body") -> None:
        self._subject = subject
        self._exact = decode_field(subject, place, raw, _fields)
        self._folded = {name.lower(): value for name, value in self._exact.items()}

    def __getitem__(self, name: str) -> Raw:
        """The field as it came."""
        return self._exact.get(name, self._folded.get(name.lower(), NULL))

    def decoded(self, name: str, decoder: msgspec.json.Decoder[T]) -> T:
        """The field's value. Raises InvalidInputError if it is none of that type."""
        return decode_field(self._subject, name, self[name], decoder)


def decode_field(subject: str, field: str, raw: bytes | Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """What `raw` holds, which stands at `field` of a `subject`. Raises InvalidInputError if that is of another type."""
    try:
        return decoder.decode(raw)
    except UNDECODABLE as error:
        raise invalid(subject, field, bytes(raw), error) from error


def invalid(subject: str, field: str, raw: bytes, error: Exception) -> InvalidInputError:
    """The decoder's complaint about `raw`, the value of `field` of a `subject`, in our form."""
    if isinstance(error, RecursionError):
        return InvalidInputError(subject, field, _shown(raw), "nested too deeply")
    reason, _, path = str(error).partition(" - at `$")
    steps = path.rstrip("`")
    return InvalidInputError(subject, field + steps, _shown(_value_at(raw, steps)), reason)


def _value_at(raw: bytes, path: str) -> bytes:
    """What stands at a decoder's path like `.metadata.labels[3]`, or around it as far as it can be followed."""
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        try:
            if key:
                raw = bytes(_fields.decode(raw)[key])
            else:
                raw = bytes(msgspec.json.decode(raw, type=list[Raw])[int(index)])
        except (*UNDECODABLE, LookupError):
            break
    return raw


def _shown(raw: bytes) -> object:
    """A small value as itself, a large one as the beginning of its text."""
    if len(raw) <= 100:
        try:
            return msgspec.json.decode(raw)
        except UNDECODABLE:
            pass
    return raw[:100].decode(errors="replace")
