"""Helpers of all encoders and decoders."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, TypeVar

import msgspec

from tas.errors import InvalidInputError
from tas.values.quantity import Quantity, format_quantity

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


def time_of(seconds: float) -> datetime:
    """The time of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def optional_time_of(seconds: float | None) -> datetime | None:
    """`time_of`, or None of None."""
    return None if seconds is None else time_of(seconds)


def optional_seconds_of(time: datetime | None) -> float | None:
    """The seconds since 1970 of a time, or None of None."""
    return None if time is None else time.timestamp()


def quantity_texts(metrics: Mapping[str, Quantity]) -> dict[str, str]:
    """Each value as Kubernetes text."""
    return {metric: format_quantity(value) for metric, value in metrics.items()}
