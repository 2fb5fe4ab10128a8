"""What was refused of samples, by source."""

import pytest

from tas.processes.process import Process, RefusedSamples, Running, refused_samples
from tas.processes.refused import KEPT_SECONDS, MAX_KEPT, RefusedBySource, source_of


@pytest.mark.parametrize(
    ("subject", "source"),
    [
        ("sample node-1/agent", "agent"),
        ("samples a.b.c/agent", "agent"),
        ("table agent/2-0", "agent"),
        ("sample", ""),
        ("samples of node-1", ""),
        ("entry of NODES", ""),
    ],
)
def test_the_object_of_an_error_names_the_source(subject: str, source: str) -> None:
    assert source_of(subject) == source


def test_each_source_and_reason_has_its_count_and_its_newest_example() -> None:
    found = RefusedBySource()
    found.note("sample a/agent", "value", "first", count=1, now=1.0)
    found.note("sample a/agent", "names", "other", count=1, now=2.0)
    found.note("table agent/1-0", "value", "last", count=4, now=3.0)
    found.note("sample", "subject", "of nobody", count=1, now=4.0)
    assert found.newest(5.0) == [
        RefusedSamples("agent", "value", 5, "last", 3.0),
        RefusedSamples("agent", "names", 1, "other", 2.0),
    ]
    assert [each.reason for each in found.newest(2.0 + KEPT_SECONDS)] == ["value"]


def test_a_stranger_with_many_names_takes_no_room_and_hides_no_source_that_is_refused_now() -> None:
    found = RefusedBySource()
    for number in range(3 * MAX_KEPT):
        found.note(f"sample a/stranger-{number}", "value", "x", count=1, now=float(number))
        found.note("sample a/agent", "value", "y", count=1, now=float(number))
    shown = found.newest(float(3 * MAX_KEPT))
    assert len(shown) == MAX_KEPT
    assert (shown[0].source, shown[0].count) == ("agent", 3 * MAX_KEPT)


def test_replicas_share_the_messages_and_only_those_that_read_them_count() -> None:
    def process(worker: str, count: int, at: float) -> Running:
        refused = [RefusedSamples("agent", "value", count, f"at {at:g}", at)]
        return Running(
            worker, "x", Process(version="1", name="h", started=0, workers={worker: ""}, refused_samples=refused), 0.0
        )

    running = [process("materialize", 2, 7.0), process("materialize", 3, 5.0), process("collect", 99, 9.0)]
    assert refused_samples(running) == [RefusedSamples("agent", "value", 5, "at 7", 7.0)]
