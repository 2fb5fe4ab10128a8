"""What a replica has observed of labels with `clearFor`."""

from math import inf

import pytest

from tas.policy.policy import PolicyKey
from tas.verdict.watched import UnmetLabels, Watched

NODE, KEY, OTHER = "node-1", PolicyKey("default", "p"), PolicyKey("default", "q")


@pytest.mark.parametrize(
    ("met", "until"),
    [
        ([], None),
        ([True], None),
        ([False], inf),
        ([False, False], inf),
        ([False, True], 2.0),
        ([False, False, True], 3.0),  # the end counts, not the start
        ([False, True, True], 2.0),
        ([False, True, False], inf),
        ([False, True, False, True], 4.0),
    ],
)
def test_unmet_ends_when_the_rules_are_met_again(met: list[bool], until: float | None) -> None:
    unmet = UnmetLabels()
    for second, each in enumerate(met, start=1):
        unmet.note(NODE, KEY, {"x": each}, float(second))
    assert unmet.until(NODE, KEY) == ({} if until is None else {"x": until})


@pytest.mark.parametrize(("before", "until"), [(None, 9.0), (True, 9.0), (False, 9.0)])
def test_after_a_missed_change_the_time_before_counts_as_unmet(before: bool | None, until: float) -> None:
    unmet = UnmetLabels()
    if before is not None:
        unmet.note(NODE, KEY, {"x": before}, 1.0)
    unmet.note(NODE, KEY, {"x": True}, 9.0, missed=True)
    assert unmet.until(NODE, KEY) == {"x": until}


def test_labels_policies_and_nodes_are_independent() -> None:
    unmet = UnmetLabels()
    unmet.note(NODE, KEY, {"x": False, "y": True}, 1.0)
    unmet.note(NODE, OTHER, {"x": False}, 2.0)
    unmet.note("node-2", KEY, {"x": False}, 3.0)
    unmet.note(NODE, OTHER, {"x": True}, 4.0)
    assert unmet.until(NODE, KEY) == {"x": inf}
    assert unmet.until(NODE, OTHER) == {"x": 4.0}
    assert unmet.until("node-2", KEY) == {"x": inf}
    assert unmet.until("node-2", OTHER) == {}


def test_deleted_labels_and_nodes_are_forgotten() -> None:
    unmet = UnmetLabels()
    unmet.note(NODE, KEY, {"x": False, "y": False}, 1.0)
    unmet.note(NODE, OTHER, {"x": False}, 1.0)
    unmet.note(NODE, KEY, {"y": False}, 2.0)
    assert unmet.until(NODE, KEY) == {"y": inf}
    unmet.note(NODE, KEY, {}, 3.0)
    assert unmet.until(NODE, KEY) == {}
    assert unmet.until(NODE, OTHER) == {"x": inf}
    unmet.forget(NODE)
    assert len(unmet) == 0
    unmet.note(NODE, KEY, {"x": False}, 4.0)
    unmet.note(NODE, KEY, {}, 5.0)
    assert len(unmet) == 0


@pytest.mark.parametrize(
    ("since", "unmet_until", "met_since"),
    [(5.0, {}, 5.0), (5.0, {"x": 3.0}, 5.0), (5.0, {"x": 7.0}, 7.0), (5.0, {"x": inf}, inf), (5.0, {"y": 7.0}, 5.0)],
)
def test_met_since_is_the_later_of_watched_and_unmet(
    since: float, unmet_until: dict[str, float], met_since: float
) -> None:
    assert Watched(since, unmet_until).met_since("x") == met_since
