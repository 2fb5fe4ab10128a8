"""What a replica has seen of labels with a `clearFor`, against tables written by hand."""

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
        ([False, False, True], 3.0),  # its end counts, not its beginning
        ([False, True, True], 2.0),
        ([False, True, False], inf),
        ([False, True, False, True], 4.0),
    ],
)
def test_rules_were_not_met_until_they_are_met_again(met: list[bool], until: float | None) -> None:
    unmet = UnmetLabels()
    for second, each in enumerate(met, start=1):
        unmet.note(NODE, KEY, {"x": each}, float(second))
    assert unmet.until(NODE, KEY) == ({} if until is None else {"x": until})


@pytest.mark.parametrize(("before", "until"), [(None, 9.0), (True, 9.0), (False, 9.0)])
def test_who_missed_what_was_before_takes_it_for_not_met(before: bool | None, until: float) -> None:
    unmet = UnmetLabels()
    if before is not None:
        unmet.note(NODE, KEY, {"x": before}, 1.0)
    unmet.note(NODE, KEY, {"x": True}, 9.0, missed=True)
    assert unmet.until(NODE, KEY) == {"x": until}


def test_each_label_policy_and_node_counts_for_itself() -> None:
    unmet = UnmetLabels()
    unmet.note(NODE, KEY, {"x": False, "y": True}, 1.0)
    unmet.note(NODE, OTHER, {"x": False}, 2.0)
    unmet.note("node-2", KEY, {"x": False}, 3.0)
    unmet.note(NODE, OTHER, {"x": True}, 4.0)
    assert unmet.until(NODE, KEY) == {"x": inf}
    assert unmet.until(NODE, OTHER) == {"x": 4.0}
    assert unmet.until("node-2", KEY) == {"x": inf}
    assert unmet.until("node-2", OTHER) == {}


def test_what_is_gone_is_forgotten() -> None:
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
def test_met_is_seen_since_the_later_of_two(since: float, unmet_until: dict[str, float], met_since: float) -> None:
    assert Watched(since, unmet_until).met_since("x") == met_since
