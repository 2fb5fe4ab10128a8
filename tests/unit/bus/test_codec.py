"""Structs of the JSON of values: every field of one is a field of the other, and times are seconds."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType

import msgspec
import pytest

from bus.records import breakers, outcomes, sources, workers
from bus.records.codec import Time, struct_of, time_of, value_of
from tas.outcomes.outcome import Outcome, Placed
from tas.processes.process import LastAnswer, Process, RefusedSamples
from tas.samples.pace import LateMetric
from tas.sources.state import LostNodes, RefusedValues, SourceState
from tas.verdict.freeze import Pause, Trip

VALUES: Mapping[ModuleType, Mapping[str, object]] = {
    breakers: {"_Trip": Trip, "_Pause": Pause},
    outcomes: {"_Placed": Placed, "_Run": Outcome},
    sources: {"_Refusal": RefusedValues, "_Lost": LostNodes, "_SourceState": SourceState},
    workers: {
        "_LastAnswer": LastAnswer,
        "_RefusedSamples": RefusedSamples,
        "_LateMetric": LateMetric,
        "_Process": Process,
    },
}
"""What the structs of a module are the JSON of, by their names."""

BY_HAND = {"_Breaker", "_Outstanding", "_NotReady", "_Expected"}
"""Structs whose fields are all named where they are made: mypy notices what is missing."""

OF_THE_KEY = {"_Refusal": {"reason"}}
"""Fields that the value has as the key by which it is found."""


def names(kind: object) -> set[str]:
    return set(inspect.signature(kind).parameters)  # type: ignore[arg-type] # the types are called to make values


@pytest.mark.parametrize("module", VALUES, ids=lambda module: module.__name__)
def test_a_record_has_each_field_of_its_value_and_no_other(module: ModuleType) -> None:
    own = {
        name: each
        for name, each in vars(module).items()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__module__ == module.__name__
    }
    assert own.keys() - BY_HAND == VALUES[module].keys()
    for name, kind in VALUES[module].items():
        assert names(own[name]) - OF_THE_KEY.get(name, set()) == names(kind), name


class _Struct(msgspec.Struct):
    at: Time
    ended: Time | None
    never: Time | None
    by_name: dict[str, Time]
    text: str


@dataclass
class _Value:
    at: float
    ended: float | None
    never: float | None
    by_name: dict[str, datetime]
    text: str


def test_a_time_is_in_seconds_in_the_value_and_a_mapping_is_left_alone() -> None:
    value = _Value(at=1.0, ended=2.5, never=None, by_name={"a": datetime(2026, 1, 1, tzinfo=UTC)}, text="b")
    struct = struct_of(_Struct, value)
    assert struct == _Struct(time_of(1.0), time_of(2.5), None, value.by_name, "b")
    assert value_of(_Value, struct) == value
    assert value_of(_Value, struct, at=7.0).at == 7.0
