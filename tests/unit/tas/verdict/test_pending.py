"""Pending evaluations of nodes."""

from math import inf

import pytest

from tas.policy.policy import PolicyKey
from tas.verdict.pending import PendingNodes, Touched

P, Q = PolicyKey("default", "p"), PolicyKey("default", "q")


def test_changes_of_a_node_are_combined_since_the_first() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    pending.add("a", {Q}, at=2.0)
    pending.add("b", {Q}, at=3.0)
    assert len(pending) == 2
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, False, {P, Q})
    assert len(pending) == 1
    assert pending.take("a", at=9.0, now=0.0) == Touched(9.0)


def test_all_policies_include_some_policies() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    pending.add_by_all("a", at=2.0)
    pending.add("a", {Q}, at=3.0)
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, True, {P, Q})


def test_a_taken_evaluation_does_not_change() -> None:
    pending, policies = PendingNodes(), {P}
    pending.add("a", policies, at=1.0)
    pending.add("a", {Q}, at=1.0)
    taken = pending.take("a", at=9.0, now=0.0)
    pending.add("a", {Q}, at=2.0)
    assert (taken, policies) == (Touched(1.0, False, {P, Q}), {P})


def test_a_failed_evaluation_is_repeated_for_all_policies() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    taken = pending.take("a", at=9.0, now=0.0)
    pending.add("a", {Q}, at=2.0)  # meanwhile
    pending.put_back("a", taken)
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, True, {Q})
    pending.put_back("a", taken)
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, True, {P})


@pytest.mark.parametrize(("now", "by_all"), [(9.9, False), (10.0, True), (11.0, True)])
def test_a_node_is_due_for_all_policies_at_its_time(now: float, by_all: bool) -> None:
    pending = PendingNodes()
    pending.set_due("a", 10.0)
    assert pending.due("a") == 10.0
    assert pending.take("a", at=1.0, now=now).by_all is by_all
    assert pending.take("b", at=1.0, now=now).by_all is False
    pending.set_due("a", inf)
    assert pending.due("a") == inf


def test_clear_forgets_evaluations_but_not_due_times() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    pending.set_due("a", 10.0)
    pending.clear()
    assert (len(pending), pending.due("a")) == (0, 10.0)
