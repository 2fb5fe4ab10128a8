"""The processes that run, and how many should, in WORKERS."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from bus.records.codec import Time, encode, reader, seconds_of, struct_of, time_of, value_of
from tas.errors import line_of
from tas.processes.expected import MOST, Expected
from tas.processes.process import LastAnswer, NotReady, Process, RefusedSamples
from tas.samples.pace import MAX_LATE, LateMetric

MAX_REASON = 300
"""The most characters of a reason or an error in a stored record."""

MAX_WAITING = 50
"""The most policies with waiting nodes in a stored record: those for which most wait."""

MAX_NOT_READY = 10
"""The most policies of one reason that have their names in a stored record; the others are counted."""

MAX_REFUSED = 20
"""The most sources and reasons of refused samples in a stored record: those that were refused last."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _LastAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    time: Time
    status: int = 200
    error: str = ""
    requests: Count = 1
    failed: Count = 0


class _RefusedSamples(msgspec.Struct, kw_only=True):
    source: str
    reason: str
    count: Count
    example: str
    time: Time


class _LateMetric(msgspec.Struct, kw_only=True, omit_defaults=True):
    metric: str
    source: str
    measured: Time
    every: Seconds = msgspec.field(default=0.0, name="everySeconds")
    others_come: bool = msgspec.field(default=False, name="othersCome")


class _NotReady(msgspec.Struct, kw_only=True):
    count: Count
    policies: Sequence[str]


class _Process(msgspec.Struct, kw_only=True, omit_defaults=True):
    version: str
    name: str = msgspec.field(name="process")
    started: Time
    workers: dict[str, str | None]
    leases: list[str] = []
    behind: dict[str, dict[str, Seconds]] = msgspec.field(default_factory=dict, name="behindSeconds")
    lag: dict[str, Count] = {}
    bus: str | None = None
    answers: dict[str, _LastAnswer] = {}
    expires: dict[str, Time] = {}
    waiting_labels: dict[str, Count] = msgspec.field(default_factory=dict, name="waitingLabels")
    refused_samples: list[_RefusedSamples] = msgspec.field(default_factory=list, name="refusedSamples")
    late_metrics: list[_LateMetric] = msgspec.field(default_factory=list, name="lateMetrics")
    concerns: dict[str, list[str]] = {}
    newest_pods: dict[str, Time] = msgspec.field(default_factory=dict, name="newestPods")
    not_ready: dict[str, _NotReady] = msgspec.field(default_factory=dict, name="notReady")
    time: Time | None = None


class _Expected(msgspec.Struct, kw_only=True, omit_defaults=True):
    count: Annotated[int, msgspec.Meta(ge=0, le=MOST)]
    dismissed: str = ""


_read_process = reader("process", _Process)
_read_expected = reader("expected number", _Expected)


def encode_process(process: Process) -> bytes:
    """The value of `<role>.<id>` in WORKERS."""
    most_waiting = sorted(process.waiting_labels.items(), key=lambda each: (-each[1], each[0]))[:MAX_WAITING]
    stored = struct_of(
        _Process,
        process,
        workers={name: line_of(why, MAX_REASON) or None for name, why in sorted(process.workers.items())},
        leases=sorted(process.leases),
        behind={name: dict(behind) for name, behind in process.behind.items()},
        lag=dict(process.lag),
        bus=line_of(process.bus, MAX_REASON) or None,
        answers={
            verb: struct_of(_LastAnswer, each, error=line_of(each.error, MAX_REASON))
            for verb, each in process.answers.items()
        },
        expires={name: time_of(expires) for name, expires in process.expires.items()},
        waiting_labels=dict(most_waiting),
        refused_samples=[
            struct_of(_RefusedSamples, each, example=line_of(each.example, MAX_REASON))
            for each in process.refused_samples[:MAX_REFUSED]
        ],
        late_metrics=[
            struct_of(_LateMetric, each, every=round(each.every, 1)) for each in process.late_metrics[:MAX_LATE]
        ],
        concerns={
            worker: [line_of(each, MAX_REASON) for each in concerns] for worker, concerns in process.concerns.items()
        },
        newest_pods={state: time_of(created) for state, created in process.newest_pods.items()},
        not_ready={
            reason: _NotReady(count=each.count, policies=each.policies[:MAX_NOT_READY])
            for reason, each in sorted(process.not_ready.items())
        },
    )
    return encode(stored)


def decode_process(data: bytes) -> Process:
    """The inverse of `encode_process`. Raises InvalidInputError."""
    stored = _read_process(data)
    return value_of(
        Process,
        stored,
        workers={name: why or "" for name, why in stored.workers.items()},
        leases=tuple(stored.leases),
        bus=stored.bus or "",
        answers={verb: value_of(LastAnswer, each) for verb, each in stored.answers.items()},
        expires={name: seconds_of(time) for name, time in stored.expires.items()},
        refused_samples=[value_of(RefusedSamples, each) for each in stored.refused_samples],
        late_metrics=[value_of(LateMetric, each) for each in stored.late_metrics],
        concerns={worker: tuple(concerns) for worker, concerns in stored.concerns.items()},
        newest_pods={state: seconds_of(created) for state, created in stored.newest_pods.items()},
        not_ready={
            reason: NotReady(each.count, tuple(each.policies[:MAX_NOT_READY]))
            for reason, each in stored.not_ready.items()
        },
    )


def encode_expected(expected: Expected) -> bytes:
    """The value of `_expected.<worker>` in WORKERS."""
    return encode(_Expected(count=expected.count, dismissed=line_of(expected.dismissed, MAX_REASON)))


def decode_expected(data: bytes) -> Expected:
    """The inverse of `encode_expected`. Raises InvalidInputError."""
    stored = _read_expected(data)
    return Expected(count=stored.count, dismissed=stored.dismissed)
