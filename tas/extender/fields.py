"""Reads the fields of a request from the scheduler, and makes the error messages for invalid values.

The API types have no JSON tags: the scheduler sends the exact Go field names, and null for an absent field. Its own
decoder accepts keys in any case (facts.md c5).
"""

import re
from typing import TypeVar

import msgspec
from msgspec import Raw

from tas.errors import InvalidInputError

T = TypeVar("T")

NULL = Raw(b"null")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of the decoder for bytes that are not JSON, not UTF-8, or nested too deeply."""

_fields = msgspec.json.Decoder(dict[str, Raw])


class Fields:
    """The fields of one JSON object by names in any case: the exact name counts first, else the last other spelling.

    An absent field is null, as in Go. `subject` is the type of the object, for errors.
    Raises InvalidInputError if `raw`, the value of the field `path`, is not a JSON object.
    """

    def __init__(self, subject: str, raw: bytes | Raw, path: str = "body") -> None:
        self._subject = subject
        self._exact = decode_field(subject, path, raw, _fields)
        self._folded = {name.lower(): value for name, value in self._exact.items()}

    def __getitem__(self, name: str) -> Raw:
        """The undecoded value of the field."""
        return self._exact.get(name, self._folded.get(name.lower(), NULL))

    def decoded(self, name: str, decoder: msgspec.json.Decoder[T]) -> T:
        """The decoded value of the field. Raises InvalidInputError if it has another type."""
        return decode_field(self._subject, name, self[name], decoder)


def decode_field(subject: str, field: str, raw: bytes | Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """The decoded value of `raw`, the `field` of a `subject`. Raises InvalidInputError if it has another type."""
    try:
        return decoder.decode(raw)
    except UNDECODABLE as error:
        raise invalid(subject, field, bytes(raw), error) from error


def invalid(subject: str, field: str, raw: bytes, error: Exception) -> InvalidInputError:
    """The error message for `raw`, the invalid `field` of a `subject`, from the error of the decoder."""
    if isinstance(error, RecursionError):
        return InvalidInputError(subject, field, _short_value(raw), "nested too deeply")
    reason, _, path = str(error).partition(" - at `$")
    steps = path.rstrip("`")
    return InvalidInputError(subject, field + steps, _short_value(_value_at(raw, steps)), reason)


def _value_at(raw: bytes, path: str) -> bytes:
    """The value at a decoder's path such as `.metadata.labels[3]`, or its innermost readable parent."""
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        try:
            if key:
                raw = bytes(_fields.decode(raw)[key])
            else:
                raw = bytes(msgspec.json.decode(raw, type=list[Raw])[int(index)])
        except (*UNDECODABLE, LookupError):
            break
    return raw


def _short_value(raw: bytes) -> object:
    """The invalid value for the error message: decoded if it is small, else the first characters of its text."""
    if len(raw) <= 100:
        try:
            return msgspec.json.decode(raw)
        except UNDECODABLE:
            pass
    return raw[:100].decode(errors="replace")
