"""Helpers of all encoders and decoders."""

import re
import zlib
from collections.abc import Callable, Mapping
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import fields

from tas.errors import InvalidInputError
from tas.values.quantity import Quantity, format_quantity

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a time zone. A time without a zone is refused, since every machine would read another time."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of decoding: invalid JSON, other JSON than expected, invalid UTF-8, or too deep nesting."""

encode = msgspec.json.Encoder().encode
"""The JSON of a struct."""


def decoded(subject: str, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """The decoded `data`. Raises InvalidInputError, which names `subject`."""
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise InvalidInputError(subject, "body", data.decode(errors="replace"), str(error)) from error


def reader(subject: str, of: type[T]) -> Callable[[bytes], T]:
    """A decoder of JSON of a type, which raises InvalidInputError with `subject`."""
    return partial(decoded, subject, msgspec.json.Decoder(of))


# Python's json module and others write these without quotes, which is invalid JSON. With quotes, the decoder refuses
# only their values. A string without an end matches too, up to the end of the text: else the expression would search
# again from every quote within it, and take minutes for a message full of escaped quotes.
_CONSTANT = re.compile(rb'("(?:[^"\\]++|\\.)*+"?)|(-?\b(?:NaN|Infinity)\b)', re.DOTALL)


def with_quoted_constants(data: bytes) -> bytes:
    """`data`, with quotes around each `NaN` and `Infinity`."""
    return _CONSTANT.sub(lambda match: match[1] or b'"' + match[2] + b'"', data)


def body_of(subject: str, decoder: msgspec.json.Decoder[T], data: bytes, most: int) -> T:
    """The body of a message that programs in any language write, of at most so many bytes. Raises InvalidInputError."""
    if len(data) > most:
        raise InvalidInputError(subject, "body", f"{len(data)} bytes", f"must be at most {most} bytes")
    try:
        return decoder.decode(data)
    except UNREADABLE:
        return decoded(subject, decoder, with_quoted_constants(data))


text_decoder = msgspec.json.Decoder(str)
time_decoder: msgspec.json.Decoder[datetime] = msgspec.json.Decoder(Time)
window_decoder: msgspec.json.Decoder[float] = msgspec.json.Decoder(Annotated[float, msgspec.Meta(gt=0, le=86400)])
"""The decoders of a text, a time and a window that a message has as raw JSON."""

MAX_JSON_BYTES = 16 << 20
"""The most bytes of JSON that are read of a compressed value, many times those of the largest one."""


def compressed(data: bytes) -> bytes:
    """JSON in zlib's format (RFC 1950), so it does not begin with a brace."""
    return zlib.compress(data, 1)


def json_within(subject: str, data: bytes) -> bytes:
    """The JSON of a value, compressed or not, at most `MAX_JSON_BYTES` if it is. Raises InvalidInputError."""
    if data[:1] == b"{":
        return data
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, MAX_JSON_BYTES)
    except zlib.error as error:
        raise InvalidInputError(subject, "body", repr(data[:32]), f"neither JSON nor zlib: {error}") from error
    if not inflate.eof:
        raise InvalidInputError(subject, "body", repr(data[:32]), f"not complete within {MAX_JSON_BYTES} bytes")
    return found


def time_of(seconds: float) -> datetime:
    """The time of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def optional_time_of(seconds: float | None) -> datetime | None:
    """`time_of`, or None of None."""
    return None if seconds is None else time_of(seconds)


def seconds_of(time: datetime) -> float:
    """The inverse of `time_of`.

    Raises InvalidInputError if UTC has no year for the time, as for `0001-01-01T00:00:00+01:00`, so that no record with
    this time can be written.
    """
    seconds = time.timestamp()
    if time.year in (MINYEAR, MAXYEAR):
        try:
            time_of(seconds)
        except ValueError as error:
            raise InvalidInputError("record", "time", time.isoformat(), str(error)) from error
    return seconds


def optional_seconds_of(time: datetime | None) -> float | None:
    """`seconds_of`, or None of None."""
    return None if time is None else seconds_of(time)


@cache
def _times_in(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that are a time, or may be one; not those that contain times."""
    found = ((each.name, each.type) for each in fields(kind))
    unions = (Union, UnionType)
    return tuple(name for name, of in found if of == Time or (get_origin(of) in unions and Time in get_args(of)))


def struct_of(kind: type[S], value: object, **others: Any) -> S:
    """A struct for the JSON of a value: `others`, and the fields of the same names, with times in place of seconds."""
    values = {name: getattr(value, name) for name in kind.__struct_fields__ if name not in others}
    times = {name: optional_time_of(values[name]) for name in _times_in(kind) if name in values}
    return kind(**values | times, **others)


def value_of(kind: type[T], struct: msgspec.Struct, **others: Any) -> T:
    """The inverse of `struct_of`. Raises InvalidInputError as `seconds_of`."""
    values = {name: getattr(struct, name) for name in struct.__struct_fields__ if name not in others}
    times = {name: optional_seconds_of(values[name]) for name in _times_in(type(struct)) if name in values}
    return kind(**values | times, **others)


def quantity_texts(metrics: Mapping[str, Quantity]) -> dict[str, str]:
    """Each value as Kubernetes text."""
    return {metric: format_quantity(value) for metric, value in metrics.items()}
