"""What a replica has observed of labels with `clearFor`."""

from math import inf

import pytest

from tas.policy.policy import PolicyKey
from tas.verdict.watched import UnmetLabels, Watched, is_gap, watched

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


def test_a_label_is_counted_since_the_policy_has_it_with_clear_for() -> None:
    unmet = UnmetLabels()
    unmet.count(KEY, {"x"}, 1.0)
    unmet.count(OTHER, {"x"}, 2.0)
    unmet.count(KEY, {"x", "y"}, 3.0)
    assert (unmet.since(KEY), unmet.since(OTHER)) == ({"x": 1.0, "y": 3.0}, {"x": 2.0})
    unmet.count(KEY, {"y"}, 4.0)
    unmet.count(KEY, {"x", "y"}, 5.0)
    assert unmet.since(KEY) == {"x": 5.0, "y": 3.0}
    unmet.count(KEY, (), 6.0)
    assert unmet.since(KEY) == {}
    unmet.count(KEY, {"y"}, 7.0)
    assert (unmet.since(KEY), unmet.since(OTHER)) == ({"y": 7.0}, {"x": 2.0})
    assert Watched(1.0, {"x": 2.0}, counted_since={"x": 3.0}).met_since("x") == 3.0


@pytest.mark.parametrize(
    ("since", "unmet_until", "met_since"),
    [(5.0, {}, 5.0), (5.0, {"x": 3.0}, 5.0), (5.0, {"x": 7.0}, 7.0), (5.0, {"x": inf}, inf), (5.0, {"y": 7.0}, 5.0)],
)
def test_met_since_is_the_later_of_watched_and_unmet(
    since: float, unmet_until: dict[str, float], met_since: float
) -> None:
    assert Watched(since, unmet_until).met_since("x") == met_since


@pytest.mark.parametrize(
    ("noted_since", "attached", "node_since", "since"),
    [
        pytest.param(5.0, 3.0, 1.0, 5.0, id="a watch is not enough before the lists are complete"),
        pytest.param(5.0, 7.0, 1.0, 7.0, id="the watch was interrupted since"),
        pytest.param(5.0, 3.0, 8.0, 8.0, id="the node is new"),
        pytest.param(5.0, 3.0, inf, 9.0, id="the watch has not delivered the node yet"),
        pytest.param(5.0, inf, 1.0, 9.0, id="no feed now"),
        pytest.param(inf, 3.0, 1.0, 9.0, id="the lists are not complete"),
        pytest.param(9.5, 3.0, 1.0, 9.0, id="never later than now"),
    ],
)
def test_a_replica_has_watched_since_it_noted_every_change(
    noted_since: float, attached: float, node_since: float, since: float
) -> None:
    seen = watched(now=9.0, clock=9.0, noted_since=noted_since, attached=attached, node_since=node_since, before=None)
    assert seen == Watched(since, stored_until=0.0, ahead=0.0)


@pytest.mark.parametrize(
    ("time", "known_since", "stored_until"),
    [(4.0, 6.0, 4.0), (6.0, 4.0, 4.0), (99.0, 4.0, 4.0)],
    ids=["received later", "by a clock that is ahead", "by a clock of the far future"],
)
def test_a_stored_verdict_counts_up_to_the_earlier_of_its_time_and_its_receipt(
    time: float, known_since: float, stored_until: float
) -> None:
    seen = watched(now=9.0, clock=9.0, noted_since=1.0, attached=1.0, node_since=0.0, before=(time, known_since))
    assert seen.stored_until == stored_until


@pytest.mark.parametrize(("clock", "ahead"), [(9.0, 0.0), (6.0, 3.0), (11.0, 0.0)])
def test_the_evaluation_is_ahead_of_a_clock_that_is_behind(clock: float, ahead: float) -> None:
    assert watched(now=9.0, clock=clock, noted_since=1.0, attached=1.0, node_since=0.0, before=None).ahead == ahead


@pytest.mark.parametrize(
    ("previous", "seen", "expected"),
    [
        (7, 7, False),
        (0, 0, False),  # a new key
        (0, 7, False),  # its tombstone was purged: its deletion was seen
        (9, 7, True),  # 9 was overwritten before it was delivered
        (9, 0, True),
        (None, 7, True),  # a writer that does not say what it has replaced
    ],
)
def test_a_version_that_replaced_one_that_was_never_seen_shows_a_gap(
    previous: int | None, seen: int, *, expected: bool
) -> None:
    assert is_gap(previous, seen) is expected
