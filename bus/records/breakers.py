"""The breakers, the pause and the announcements of outstanding verdicts, in BREAKERS."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from bus.records.codec import Time, encode, reader, struct_of, value_of
from tas.errors import InvalidInputError, line_of
from tas.verdict.freeze import Breaker, Pause, Trip
from tas.verdict.outstanding import MAX_ANNOUNCED, Announcement, Announcements


class _Trip(msgspec.Struct, kw_only=True):
    since: Time
    limit: int
    wanted: int
    selected: int


class _Breaker(msgspec.Struct, kw_only=True):
    nodes: dict[str, int] | UnsetType = UNSET
    trip: _Trip | UnsetType | None = UNSET


class _Pause(msgspec.Struct, kw_only=True, omit_defaults=True):
    by: str
    since: Time
    reason: str = ""


class _Outstanding(msgspec.Struct, kw_only=True):
    evaluate: Mapping[str, Announcement]


_read_breaker = reader("breaker", _Breaker)
_read_pause = reader("pause", _Pause)
_read_outstanding = reader("outstanding verdicts", _Outstanding)


def encode_breaker(breaker: Breaker) -> bytes:
    """The value of `<policy>` or `_all` in BREAKERS."""
    trip = UNSET if breaker.trip is None else struct_of(_Trip, breaker.trip)
    return encode(_Breaker(nodes=dict(breaker.nodes) or UNSET, trip=trip))


def decode_breaker(data: bytes) -> Breaker:
    """The inverse of `encode_breaker`. Raises InvalidInputError.

    JSON with other fields only is no breaker that has not tripped: a server writes its answers to any subject that a
    sender names as reply subject.
    """
    stored = _read_breaker(data)
    if stored.nodes is UNSET and stored.trip is UNSET and data.strip() != b"{}":
        raise InvalidInputError("breaker", "body", data.decode(errors="replace"), "must have nodes or trip, or be {}")
    return Breaker(nodes=stored.nodes or {}, trip=value_of(Trip, stored.trip) if stored.trip else None)


def encode_pause(pause: Pause) -> bytes:
    """The value of `_paused` in BREAKERS."""
    return encode(struct_of(_Pause, pause))


def decode_pause(data: bytes) -> Pause:
    """The inverse of `encode_pause`, with texts of one line. Raises InvalidInputError."""
    stored = _read_pause(data)
    return value_of(Pause, stored, by=line_of(stored.by), reason=line_of(stored.reason))


def encode_outstanding(announcements: Announcements) -> bytes:
    """The value of `_outstanding` in BREAKERS."""
    return encode(_Outstanding(evaluate=dict(announcements)))


def decode_outstanding(data: bytes) -> Announcements:
    """The inverse of `encode_outstanding`. Raises InvalidInputError."""
    found = _read_outstanding(data).evaluate
    if len(found) > MAX_ANNOUNCED:
        raise InvalidInputError("outstanding verdicts", "evaluate", str(len(found)), f"more than {MAX_ANNOUNCED}")
    return found
