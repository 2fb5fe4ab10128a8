"""What a replica keeps in memory for each node: which changes of labels were declined, and how often it patched."""

from tas.enforcing.memory import Declined, PatchLimit
from tas.policy.policy import LABEL_PREFIX

CARD, BUS = f"{LABEL_PREFIX}p/card", f"{LABEL_PREFIX}q/bus"


def test_a_declined_change_is_remembered_for_its_time_and_its_node() -> None:
    declined = Declined(seconds=10.0)
    declined.add("a", CARD, "1", at=100.0)
    declined.add("a", BUS, None, at=105.0)
    assert declined.of("a", at=109.9) == {CARD: "1", BUS: None}
    assert declined.of("b", at=109.9) == {}
    assert declined.of("a", at=110.0) == {BUS: None}
    assert "a" in declined
    assert declined.of("a", at=115.0) == {}
    assert "a" not in declined


def test_of_the_desired_changes_those_with_the_declined_value_are_known_with_their_reason() -> None:
    declined = Declined(seconds=10.0)
    declined.add("a", CARD, "1", at=100.0, reason="why")
    declined.add("a", BUS, None, at=100.0, reason="no")
    assert declined.among("a", {CARD: "1", BUS: None, "q": None}) == {CARD: ("1", "why"), BUS: (None, "no")}
    assert declined.among("a", {CARD: "2"}) == {}
    assert declined.among("b", {CARD: "1"}) == {}


def test_the_last_change_of_a_label_that_was_declined_counts() -> None:
    declined = Declined(seconds=10.0)
    declined.add("a", CARD, "1", at=100.0)
    declined.add("a", CARD, "2", at=105.0)
    assert declined.of("a", at=112.0) == {CARD: "2"}
    declined.forget("a")
    declined.forget("a")
    assert declined.of("a", at=112.0) == {}


def test_everything_can_be_forgotten() -> None:
    declined = Declined(seconds=10.0)
    for node in ("a", "b", "c"):
        declined.add(node, CARD, None, at=100.0)
    declined.forget("b")
    assert sorted(declined.clear()) == ["a", "c"]
    assert declined.clear() == []


def test_patches_of_a_node_are_limited_in_each_span_of_time() -> None:
    limit = PatchLimit(3, seconds=5.0)
    for at in (100.0, 101.0, 102.0):
        assert limit.wait("a", at=at) == 0.0
        limit.patched("a", at=at)
    assert limit.wait("a", at=102.5) == 2.5
    assert limit.wait("b", at=102.5) == 0.0
    assert limit.wait("a", at=105.0) == 0.0
    limit.patched("a", at=105.0)
    assert limit.wait("a", at=105.0) == 1.0
    assert limit.wait("a", at=120.0) == 0.0
    limit.forget("a")
    assert limit.wait("a", at=105.0) == 0.0
