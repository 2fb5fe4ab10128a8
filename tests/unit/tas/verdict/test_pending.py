"""What is to be judged, and since when."""

from math import inf

import pytest

from tas.policy.policy import PolicyKey
from tas.verdict.pending import PendingNodes, Touched

P, Q = PolicyKey("default", "p"), PolicyKey("default", "q")


def test_changes_of_a_node_come_together_since_the_first() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    pending.add("a", {Q}, at=2.0)
    pending.add("b", {Q}, at=3.0)
    assert len(pending) == 2
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, False, {P, Q})
    assert len(pending) == 1
    assert pending.take("a", at=9.0, now=0.0) == Touched(9.0)


def test_by_all_is_more_than_by_some() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    pending.add_by_all("a", at=2.0)
    pending.add("a", {Q}, at=3.0)
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, True, {P, Q})


def test_what_is_taken_changes_no_more() -> None:
    pending, policies = PendingNodes(), {P}
    pending.add("a", policies, at=1.0)
    pending.add("a", {Q}, at=1.0)
    taken = pending.take("a", at=9.0, now=0.0)
    pending.add("a", {Q}, at=2.0)
    assert (taken, policies) == (Touched(1.0, False, {P, Q}), {P})


def test_what_failed_is_judged_by_all_since_it_was_touched_first() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    taken = pending.take("a", at=9.0, now=0.0)
    pending.add("a", {Q}, at=2.0)  # meanwhile
    pending.put_back("a", taken)
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, True, {Q})
    pending.put_back("a", taken)
    assert pending.take("a", at=9.0, now=0.0) == Touched(1.0, True, {P})


@pytest.mark.parametrize(("now", "by_all"), [(9.9, False), (10.0, True), (11.0, True)])
def test_a_node_is_judged_by_all_when_its_wait_is_over(now: float, by_all: bool) -> None:
    pending = PendingNodes()
    pending.set_due("a", 10.0)
    assert pending.due("a") == 10.0
    assert pending.take("a", at=1.0, now=now).by_all is by_all
    assert pending.take("b", at=1.0, now=now).by_all is False
    pending.set_due("a", inf)
    assert pending.due("a") == inf


def test_all_that_was_added_can_be_forgotten() -> None:
    pending = PendingNodes()
    pending.add("a", {P}, at=1.0)
    pending.set_due("a", 10.0)
    pending.clear()
    assert (len(pending), pending.due("a")) == (0, 10.0)
