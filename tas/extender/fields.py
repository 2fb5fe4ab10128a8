"""Reads the fields of a request from the scheduler, and makes the error messages for invalid values.

The API types have no JSON tags: the scheduler sends the exact Go field names, and null for an absent field. Its own
decoder accepts keys in any case (facts.md c5). In a large request only the exact names count, because to
decode a million keys takes seconds.
"""

import re
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from tas.errors import InvalidInputError

T = TypeVar("T")

NULL = Raw(b"null")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of the decoder for bytes that are not JSON, not UTF-8, or nested too deeply."""

MAX_ANY_CASE_BYTES = 1 << 20
"""In a longer object only the exact names of fields count. The scheduler always sends the exact names."""

_fields = msgspec.json.Decoder(dict[str, Raw])


class Fields:
    """The fields `names` of one JSON object, in any case: the exact name counts first, else the last other spelling.

    Of an object longer than `MAX_ANY_CASE_BYTES`, only the exact names count.
    An absent field is null, as in Go. `subject` is the type of the object, for errors.
    Raises InvalidInputError if `raw`, the value of the field `path`, is not a JSON object.
    """

    def __init__(self, subject: str, raw: bytes | Raw, names: tuple[str, ...], path: str = "body") -> None:
        self._subject = subject
        self._exact: dict[str, Raw]
        self._folded: dict[str, Raw] = {}
        if len(memoryview(raw)) > MAX_ANY_CASE_BYTES:
            self._exact = msgspec.structs.asdict(decode_field(subject, path, raw, _exact_decoder(names)))
        else:
            self._exact = decode_field(subject, path, raw, _fields)
            self._folded = {name.lower(): value for name, value in self._exact.items()}

    def __getitem__(self, name: str) -> Raw:
        """The undecoded value of the field."""
        return self._exact.get(name, self._folded.get(name.lower(), NULL))

    def decoded(self, name: str, decoder: msgspec.json.Decoder[T]) -> T:
        """The decoded value of the field. Raises InvalidInputError if it has another type."""
        return decode_field(self._subject, name, self[name], decoder)


@cache
def _exact_decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Decodes the fields `names` of an object, and skips all others."""
    return msgspec.json.Decoder(msgspec.defstruct("Exact", [(name, Raw, NULL) for name in names]))


def limit_field(subject: str, field: str, raw: Raw, max_bytes: int) -> None:
    """Raises InvalidInputError if the `field` of a `subject` is longer than `max_bytes`."""
    if (size := len(memoryview(raw))) > max_bytes:
        raise InvalidInputError(subject, field, _short_value(bytes(raw)), f"{size} bytes: the limit is {max_bytes}")


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
    at = steps.removeprefix(".") if field == "body" and steps else field + steps
    return InvalidInputError(subject, at, _short_value(_value_at(raw, steps)), reason)


def _value_at(raw: bytes, path: str) -> bytes:
    """The value at a decoder's path such as `.metadata.labels[3]`, or its innermost readable and short parent."""
    for key, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        if len(raw) > MAX_ANY_CASE_BYTES:
            break
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
