"""The state of a source in SOURCES."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec

from bus.records.codec import Time, encode, reader, seconds_of, struct_of, value_of
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
    names: Sequence[str]


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


_read = reader("state of a source", _SourceState)


def encode_source_state(state: SourceState) -> bytes:
    """The value of `<source>` in SOURCES."""
    refused, suspect = _encoded(state.refused), _encoded(state.suspect)
    lost = None if state.lost is None else struct_of(_Lost, state.lost)
    return encode(
        struct_of(_SourceState, state, refused=refused, suspect=suspect, behind=state.behind or None, lost=lost)
    )


def decode_source_state(data: bytes) -> SourceState:
    """The inverse of `encode_source_state`, without unknown reasons. Raises InvalidInputError."""
    written = _read(data)
    lost = written.lost
    return value_of(
        SourceState,
        written,
        refused=_decoded(written.refused, RefusalReason),
        suspect=_decoded(written.suspect, SuspectReason),
        behind=written.behind or 0.0,
        lost=None if lost is None else value_of(LostNodes, lost, names=tuple(lost.names[:LOST_NAMES])),
    )


def _encoded(counts: Mapping[R, RefusedValues]) -> list[_Refusal]:
    return [struct_of(_Refusal, values, reason=why.value) for why, values in sorted(counts.items())]


def _decoded(written: list[_Refusal], reasons: type[R]) -> dict[R, RefusedValues]:
    return {
        reasons(each.reason): RefusedValues(count=each.count, example=each.example, time=seconds_of(each.time))
        for each in written
        if each.reason in set(reasons)
    }
