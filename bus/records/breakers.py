"""The breakers and the pause, in BREAKERS."""

import msgspec

from bus.records.codec import Time, encode, reader, seconds_of, time_of
from tas.errors import line_of
from tas.verdict.brake import Breaker, Pause, Trip


class _Trip(msgspec.Struct, kw_only=True):
    since: Time
    limit: int
    wanted: int
    selected: int


class _Breaker(msgspec.Struct, kw_only=True, omit_defaults=True):
    nodes: dict[str, int] = {}
    trip: _Trip | None = None


class _Pause(msgspec.Struct, kw_only=True, omit_defaults=True):
    by: str
    since: Time
    reason: str = ""


_read_breaker = reader("breaker", _Breaker)
_read_pause = reader("pause", _Pause)


def encode_breaker(breaker: Breaker) -> bytes:
    """The value of `<policy>` or `_all` in BREAKERS."""
    trip = breaker.trip
    stored = (
        None
        if trip is None
        else _Trip(since=time_of(trip.since), limit=trip.limit, wanted=trip.wanted, selected=trip.selected)
    )
    return encode(_Breaker(nodes=dict(breaker.nodes), trip=stored))


def decode_breaker(data: bytes) -> Breaker:
    """The inverse of `encode_breaker`. Raises InvalidInputError."""
    stored = _read_breaker(data)
    trip = stored.trip
    return Breaker(
        nodes=stored.nodes,
        trip=None
        if trip is None
        else Trip(since=seconds_of(trip.since), limit=trip.limit, wanted=trip.wanted, selected=trip.selected),
    )


def encode_pause(pause: Pause) -> bytes:
    """The value of `_paused` in BREAKERS."""
    return encode(_Pause(by=pause.by, since=time_of(pause.since), reason=pause.reason))


def decode_pause(data: bytes) -> Pause:
    """The inverse of `encode_pause`, with texts of one line. Raises InvalidInputError."""
    stored = _read_pause(data)
    return Pause(by=line_of(stored.by), since=seconds_of(stored.since), reason=line_of(stored.reason))
