"""What a replica keeps in memory for each node: which changes of labels were declined, and how often it patched."""

from tas.enforcing.memory import Declined, FlapBudget, PatchLimit
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


def test_what_was_patched_long_ago_takes_no_memory() -> None:
    """Policies come and go for years, each with labels on the same nodes."""
    limit = PatchLimit(3, seconds=5.0)
    for second in range(100):
        limit.patched("again and again", at=float(second))
        limit.patched(f"once-{second}", at=float(second))
    assert len(limit) == 6  # of the last five seconds
    assert limit.wait("again and again", at=99.0) == 3.0


def test_an_oscillation_costs_at_most_the_budget_and_ends_with_what_is_desired() -> None:
    budget, current, changes = FlapBudget(20, seconds=300.0), False, []
    for half_second in range(4 * 600):
        at = half_second / 2
        desired = half_second % 2 == 0 if at < 600 else True
        if current != desired and budget.wait("a", "p", at=at) == 0.0:
            budget.changed("a", "p", at=at)
            changes.append(at)
            current = desired
    assert current
    assert 20 < len(changes) <= 4 * 20
    assert all(sum(since <= at < since + 300 for at in changes) <= 20 for since in changes)
    assert budget.wait("a", "q", at=600.0) == budget.wait("b", "p", at=600.0) == 0.0


def test_a_flap_budget_of_0_is_no_limit_and_a_deleted_node_is_forgotten() -> None:
    free, one = FlapBudget(0, seconds=300.0), FlapBudget(1, seconds=300.0)
    for budget in (free, one):
        budget.changed("a", "p", at=1.0)
    assert free.wait("a", "p", at=1.0) == 0.0
    assert one.wait("a", "p", at=1.0) == 300.0
    one.forget("a")
    assert one.wait("a", "p", at=1.0) == 0.0


def test_the_policies_on_nodes_whose_budget_is_used_up_are_counted_until_it_is_free_again() -> None:
    budget = FlapBudget(2, seconds=300.0)
    for node, policy, at in (
        ("a", "p", 0),
        ("a", "p", 10),
        ("a", "q", 10),
        ("a", "q", 20),
        ("b", "p", 0),
        ("b", "q", 5),
    ):
        budget.changed(node, policy, at=float(at))
    assert budget.exhausted(20.0) == 2
    assert budget.exhausted(305.0) == 1
    assert budget.exhausted(311.0) == 0
    budget.changed("b", "p", at=40.0)
    budget.forget("a")
    assert budget.exhausted(40.0) == 1
