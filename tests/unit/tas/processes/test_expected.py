"""How many processes should run: learned from those that ran together, never from a moment."""

import pytest

from tas.processes.expected import (
    MOST,
    RENEWED_SECONDS,
    TOGETHER_SECONDS,
    Expected,
    Lack,
    Sustained,
    lacks,
    to_store,
    together,
    unknown,
)
from tas.processes.process import ABANDONED_SECONDS, Running, alive, numbers
from tests.unit.tas.processes.samples import process, running


def played(*steps: tuple[float, int], until: float) -> int | None:
    """How many ran together at the end, if at each of these times so many of a worker were seen, read each 10 s."""
    sustained = Sustained()
    counts = dict(steps)
    count = 0
    for at in range(int(until) + 1):
        count = counts.get(at, count)
        if at % 10 == 0:
            sustained.note({"evaluate": count} if count else {}, float(at))
    return sustained.counts(until).get("evaluate")


@pytest.mark.parametrize(
    ("steps", "until", "found"),
    [
        pytest.param([(0, 2)], 590, None, id="not for ten minutes yet"),
        pytest.param([(0, 2)], 600, 2, id="for ten minutes"),
        pytest.param([(0, 2), (300, 3), (330, 2)], 900, 2, id="a rolling update: a third one for 30 s"),
        pytest.param([(0, 2), (300, 1), (310, 2)], 900, 1, id="one was away within the time"),
        pytest.param([(0, 2), (300, 1), (310, 2)], 920, 2, id="longer ago than that"),
        pytest.param([(0, 1), (300, 3)], 890, 1, id="scaled up, not long ago"),
        pytest.param([(0, 1), (300, 3)], 900, 3, id="scaled up ten minutes ago"),
        pytest.param([(0, 2), (300, 0)], 900, None, id="all are gone"),
        pytest.param([(0, 2), (300, 0), (310, 2)], 905, None, id="all were gone for a moment"),
    ],
)
def test_a_number_counts_after_ten_minutes(steps: list[tuple[float, int]], until: float, found: int | None) -> None:
    assert played(*steps, until=until) == found


def test_what_nobody_saw_for_some_time_counts_anew() -> None:
    sustained = Sustained()
    sustained.note({"labels": 2}, 0.0)
    assert sustained.counts(TOGETHER_SECONDS) == {"labels": 2}
    sustained.clear()
    sustained.note({"labels": 2}, TOGETHER_SECONDS)
    assert sustained.counts(TOGETHER_SECONDS + 1) == {}


def test_only_ready_processes_of_one_version_count_together() -> None:
    """So a rolling update that is stuck does not raise the number."""
    old, new = running("labels", 2), running("labels", 1, version="2")
    assert together([*old, *new]) == {"labels": 2}
    assert together([*old, *running("labels", 1, unready="no connection")]) == {"labels": 2}
    assert numbers([*old, *new]) == {"labels": 3}


@pytest.mark.parametrize(
    ("stored", "age", "sustained", "written"),
    [
        (None, 0.0, 2, Expected(count=2)),
        (Expected(count=2), 0.0, 2, None),
        (Expected(count=2), RENEWED_SECONDS, 2, Expected(count=2)),
        (Expected(count=2), RENEWED_SECONDS, 1, None),  # so it ends a day after two were last seen
        (Expected(count=1), 0.0, 2, Expected(count=2)),
        (Expected(count=1, dismissed="anna"), RENEWED_SECONDS, 1, Expected(count=1, dismissed="anna")),
        (None, 0.0, MOST + 1, Expected(count=MOST)),
    ],
)
def test_a_number_is_raised_and_renewed_but_never_lowered(
    stored: Expected | None, age: float, sustained: int, written: Expected | None
) -> None:
    assert to_store(stored, age, sustained) == written


def test_what_lacks_and_what_is_not_known_yet() -> None:
    expected = {"evaluate": Expected(count=2), "labels": Expected(count=1), "old": Expected(count=0)}
    found = [*running("evaluate", 1), *running("labels", 2), *running("watch", 1)]
    assert lacks(found, expected) == [Lack(worker="evaluate", running=1, expected=2)]
    assert unknown(found, expected) == ["watch"]
    assert [each.worker for each in lacks([], expected)] == ["evaluate", "labels"]


def test_a_record_without_a_ttl_is_of_no_process() -> None:
    """Whoever writes it with another client: by the clock of the server, whatever its own times say."""
    tomorrow = process("stranger", "labels")
    found = [Running("labels", "a", tomorrow, 0.0), *running("evaluate", 1, stored=ABANDONED_SECONDS)]
    assert [each.role for each in alive(found, ABANDONED_SECONDS)] == ["evaluate"]
    assert len(alive(found, ABANDONED_SECONDS - 1)) == 2
