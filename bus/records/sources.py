"""The state of a source in SOURCES."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

import msgspec

from bus.records.codec import Time, encode, optional_seconds_of, optional_time_of, reader, seconds_of, time_of
from tas.sources.result import RefusalReason, SuspectReason
from tas.sources.state import LOST_NAMES, LostNodes, RefusedValues, SourceMetric, SourceState

R = TypeVar("R", bound=StrEnum)


class _Refusal(msgspec.Struct, kw_only=True):
    reason: str
    count: int
    example: str
    time: Time


class _Lost(msgspec.Struct, kw_only=True):
    metric: str
    count: int
    nodes: int
    since: Time
    names: list[str]


class _SourceState(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    kind: str
    holder: str
    since: Time
    time: Time
    period: float | None = msgspec.field(default=None, name="periodSeconds")
    problem: str = ""
    last_success: Time | None = None
    last_failure: Time | None = None
    metrics: dict[str, SourceMetric] = {}
    polls: int = 0
    failures: int = 0
    samples: int = 0
    refused: list[_Refusal] = []
    refused_now: dict[str, dict[str, str]] = {}
    suspect: list[_Refusal] = []
    without_tables: str = ""
    behind: float | None = msgspec.field(default=None, name="behindSeconds")
    metrics_left_out: int = 0
    missing_left_out: int = 0
    lost: _Lost | None = None


_TIMES = ("since", "time", "last_success", "last_failure")

_read = reader("state of a source", _SourceState)


def encode_source_state(state: SourceState) -> bytes:
    """The value of `<source>` in SOURCES."""
    fields = msgspec.structs.asdict(state)
    fields |= {name: optional_time_of(fields[name]) for name in _TIMES}
    fields["refused"], fields["suspect"] = _encoded(state.refused), _encoded(state.suspect)
    fields["behind"] = state.behind or None
    if state.lost is not None:
        lost = msgspec.structs.asdict(state.lost)
        fields["lost"] = _Lost(**lost | {"since": time_of(state.lost.since), "names": list(state.lost.names)})
    return encode(_SourceState(**fields))


def decode_source_state(data: bytes) -> SourceState:
    """The inverse of `encode_source_state`, without unknown reasons. Raises InvalidInputError."""
    written = _read(data)
    fields = msgspec.structs.asdict(written)
    fields |= {name: optional_seconds_of(fields[name]) for name in _TIMES}
    fields["refused"] = _decoded(written.refused, RefusalReason)
    fields["suspect"] = _decoded(written.suspect, SuspectReason)
    fields["behind"] = written.behind or 0.0
    if written.lost is not None:
        lost = msgspec.structs.asdict(written.lost)
        names = tuple(written.lost.names[:LOST_NAMES])
        fields["lost"] = LostNodes(**lost | {"since": seconds_of(written.lost.since), "names": names})
    return SourceState(**fields)


def _encoded(counts: Mapping[R, RefusedValues]) -> list[_Refusal]:
    return [
        _Refusal(reason=why.value, count=values.count, example=values.example, time=time_of(values.time))
        for why, values in sorted(counts.items())
    ]


def _decoded(written: list[_Refusal], reasons: type[R]) -> dict[R, RefusedValues]:
    return {
        reasons(each.reason): RefusedValues(count=each.count, example=each.example, time=seconds_of(each.time))
        for each in written
        if each.reason in set(reasons)
    }
