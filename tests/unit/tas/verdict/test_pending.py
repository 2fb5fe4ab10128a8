"""Pending evaluations of nodes."""

import random
from collections.abc import Iterator
from math import inf

import pytest

from tas.policy.policy import PolicyKey
from tas.verdict.outstanding import GIVE_UP_SECONDS
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


def test_the_longest_pending_evaluation_counts_until_it_has_ended_also_while_others_come_and_go() -> None:
    pending = PendingNodes()
    assert pending.seconds(at=9.0) == 0.0
    pending.add("a", {P}, at=1.0)
    pending.add("b", {P}, at=3.0)
    pending.add("a", {Q}, at=8.0)  # a change of a node that waits already
    assert pending.seconds(at=9.0) == 8.0
    taken = pending.take("a", at=9.0, now=0.0)
    assert pending.seconds(at=9.0) == 8.0, "it is being evaluated"
    pending.put_back("a", taken)
    pending.end("a")
    assert pending.seconds(at=10.0) == 9.0, "it has failed"
    pending.take("a", at=10.0, now=0.0)
    pending.end("a")
    assert pending.seconds(at=10.0) == 7.0
    pending.clear()
    assert pending.seconds(at=10.0) == 0.0


def test_whether_others_are_pending_is_what_a_look_at_all_of_them_says() -> None:
    chance = random.Random(1)
    pending, at = PendingNodes(), 0.0
    taken: dict[str, Touched] = {}
    answers: list[bool] = []
    for _ in range(5000):
        at += chance.choice((0.0, 0.1, GIVE_UP_SECONDS / 3))
        node = chance.choice("abc")
        match chance.randrange(5):
            case 0:
                pending.add(node, {P}, at=at)
            case 1 if node not in taken:
                taken[node] = pending.take(node, at=at, now=0.0)
            case 2 if node in taken:
                pending.put_back(node, taken.pop(node))
                pending.end(node)
            case 3 if node in taken:
                del taken[node]
                pending.end(node)
            case 4 if chance.random() < 0.05:
                pending.clear()
        both = [*pending._touched.items(), *pending._taken.items()]
        expected = any(touched.since > at - GIVE_UP_SECONDS for each, touched in both if each != node)
        assert pending.are_others(node, at=at, now=0.0) is expected
        answers.append(expected)
    assert 500 < sum(answers) < 4500, "both cases came up"


def test_who_is_far_behind_looks_at_each_pending_node_once() -> None:
    """Not once for each verdict: 64,000 nodes took most of a processor for minutes."""

    class Counted(dict[str, float]):
        seen = 0

        def items(self) -> Iterator[tuple[str, float]]:  # type: ignore[override]
            for each in super().items():
                Counted.seen += 1
                yield each

    pending = PendingNodes()
    pending._young = Counted()
    for number in range(1000):
        pending.add(f"n{number}", {P}, at=0.0)
    for number in range(1000):
        assert not pending.are_others(f"n{number}", at=GIVE_UP_SECONDS, now=0.0)
    assert 0 < Counted.seen <= 1000
