"""When a recovered node gets a wake, and its annotation."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from tas.enforcing.waking import (
    FLUSH_SECONDS,
    REPEATS,
    TURN_SECONDS,
    Recoveries,
    Recovery,
    Waiting,
    is_sent,
    just_recovered,
    recovered,
    rejecting,
)
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.verdict import PolicyVerdict, StrategyVerdict

A, B = PolicyKey("default", "a"), PolicyKey("default", "b")


def verdict(*, rejects: bool, changed: float = 0.0) -> PolicyVerdict:
    strategy = StrategyVerdict(state=State.UNKNOWN, changed=changed, rejects=rejects)
    return PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DONTSCHEDULE: strategy})


REJECTS, PASSES = verdict(rejects=True), verdict(rejects=False)


def test_a_node_that_a_policy_no_longer_rejects_has_recovered() -> None:
    before = rejecting({A: REJECTS, B: REJECTS})
    assert before == {A, B}
    assert recovered(before, {A: PASSES, B: REJECTS}) == {A}


def test_a_deleted_policy_no_longer_rejects() -> None:
    assert recovered({A}, {}) == {A}


def test_a_node_that_was_not_rejected_has_not_recovered() -> None:
    assert recovered(rejecting({A: PASSES}), {A: PASSES}) == frozenset()


def test_a_wake_is_due_at_once_and_repeated_with_its_number() -> None:
    recovery = Recovery(revision=7, at=100.0, turn=100.0, policies=frozenset({A}))
    wakes = []
    while recovery.due is not None:
        wakes.append((recovery.value, recovery.due))
        recovery = msgspec.structs.replace(recovery, sent=recovery.sent + 1)
    assert wakes == [("7", 100.0), ("7.1", 101.0), ("7.2", 102.0), ("7.3", 104.0), ("7.4", 108.0)]


def test_a_later_turn_has_fewer_repetitions() -> None:
    recovery = Recovery(revision=7, at=100.0, turn=103.0, policies=frozenset({A}))
    assert recovery.due == 103.0
    recovery = msgspec.structs.replace(recovery, sent=1)
    assert (recovery.value, recovery.due) == ("7.1", 107.0)
    assert msgspec.structs.replace(recovery, sent=3).due is None


def test_repetitions_before_the_turn_are_left_out() -> None:
    recovery = Recovery(revision=7, at=100.0, turn=102.0, policies=frozenset({A}), sent=1)
    assert recovery.due == 106.0


def test_a_turn_at_the_flush_is_not_due() -> None:
    recovery = Recovery(revision=7, at=100.0, turn=100.0 + FLUSH_SECONDS, policies=frozenset({A}))
    assert recovery.due is None
    assert msgspec.structs.replace(recovery, turn=recovery.turn - 1).due == recovery.turn - 1


@pytest.mark.parametrize(
    ("annotation", "sent"),
    [
        (None, False),
        ("", False),
        ("something else", False),
        ("6", False),
        ("6.9", False),
        ("7", False),
        ("7.1", True),
        ("7.2", True),
        ("8", True),
        ("7.1x", False),
    ],
)
def test_the_same_or_a_later_annotation_needs_no_wake(annotation: str | None, sent: bool) -> None:
    assert is_sent(annotation, Recovery(revision=7, at=0.0, turn=0.0, policies=frozenset({A}), sent=1)) is sent


def test_without_an_earlier_verdict_the_time_of_the_state_decides() -> None:
    policies = {
        A: verdict(rejects=False, changed=100.0),
        B: verdict(rejects=True, changed=100.0),
    }
    assert just_recovered(policies, now=100.0 + REPEATS[-1]) == {A}
    assert just_recovered(policies, now=100.1 + REPEATS[-1]) == frozenset()


class TestRecoveries:
    def waiting_for(self, *policies: PolicyKey) -> Recoveries:
        waiting = Waiting()
        for number, policy in enumerate(policies):
            waiting.set(f"pod-{number}", policy)
        return Recoveries(waiting)

    def take_in(self, recoveries: Recoveries, revision: int, found: PolicyVerdict, *, at: float) -> None:
        recoveries.take_in_verdict("n", revision, {A: found}, at=at, now=1e9)

    def test_a_wake_is_due_until_all_repetitions_are_sent(self) -> None:
        recoveries = self.waiting_for(A)
        self.take_in(recoveries, 1, REJECTS, at=0.0)
        assert recoveries.due("n", None, at=0.0) is None
        self.take_in(recoveries, 2, PASSES, at=10.0)
        wakes, annotation = [], None
        for step in range(200):
            at = 10.0 + step / 10
            while (recovery := recoveries.due("n", annotation, at=at)) is not None:
                annotation = recovery.value
                wakes.append((at, annotation))
                recoveries.mark_sent("n", recovery)
        assert wakes == [(10.0, "2"), (11.0, "2.1"), (12.0, "2.2"), (14.0, "2.3"), (18.0, "2.4")]
        assert recoveries.next("n") is None

    def test_without_a_waiting_pod_no_wake_is_due_and_a_later_pod_gets_the_next(self) -> None:
        waiting = Waiting()
        recoveries = Recoveries(waiting)
        self.take_in(recoveries, 1, REJECTS, at=0.0)
        self.take_in(recoveries, 2, PASSES, at=10.0)
        assert recoveries.due("n", None, at=10.0) is None
        waiting.set("late", A)
        assert recoveries.due("n", None, at=10.5) is None
        assert recoveries.next("n") == 11.0
        recovery = recoveries.due("n", None, at=11.0)
        assert recovery is not None
        assert recovery.value == "2.1"
        waiting.drop("late")
        assert recoveries.due("n", None, at=11.0) is None

    def test_a_node_that_is_rejected_again_has_not_recovered(self) -> None:
        recoveries = self.waiting_for(A)
        for revision, found in enumerate((REJECTS, PASSES, REJECTS)):
            self.take_in(recoveries, revision, found, at=float(revision))
        assert recoveries.due("n", None, at=99.0) is None

    def test_a_wake_of_another_replica_is_not_repeated(self) -> None:
        recoveries = self.waiting_for(A)
        self.take_in(recoveries, 1, REJECTS, at=0.0)
        self.take_in(recoveries, 2, PASSES, at=10.0)
        assert recoveries.due("n", "2.1", at=11.0) is None
        assert recoveries.next("n") == 12.0

    def test_a_later_recovery_for_a_second_policy_starts_again_for_both(self) -> None:
        recoveries = self.waiting_for(A)
        both = {A: REJECTS, B: REJECTS}
        recoveries.take_in_verdict("n", 1, both, at=0.0, now=1e9)
        recoveries.take_in_verdict("n", 2, both | {A: PASSES}, at=10.0, now=1e9)
        recoveries.take_in_verdict("n", 3, {A: PASSES, B: PASSES}, at=10.5, now=1e9)
        recovery = recoveries.due("n", "2", at=10.5)
        assert recovery is not None
        assert recovery.value == "3"
        assert recovery.policies == {A, B}

    def test_many_nodes_that_recover_at_once_take_turns(self) -> None:
        wakes = self.wakes_of_500(self.waiting_for(A), at=10.0)
        first = [at for at, value in wakes if "." not in value]
        assert len(first) == 500
        assert [round(one - other, 2) for other, one in pairwise(first)] == [0.02] * 499
        seconds = Counter(int(at) for at, _ in wakes)
        assert max(seconds.values()) <= 2 / TURN_SECONDS + 2
        assert abs(len(wakes) - 1250) < 10

    def test_recoveries_for_another_policy_do_not_wait_for_these_turns(self) -> None:
        recoveries = self.waiting_for(A, B)
        recoveries.take_in_verdict("other", 1, {B: REJECTS}, at=0.0, now=1e9)
        self.recover_500(recoveries, at=10.0)
        recoveries.take_in_verdict("other", 2, {B: PASSES}, at=10.0, now=1e9)
        assert recoveries.due("other", None, at=10.0) is not None

    def test_a_recovery_for_two_policies_has_the_earlier_turn_and_uses_one_of_each(self) -> None:
        recoveries = self.waiting_for(A, B)

        def turn(node: str, *policies: PolicyKey) -> float | None:
            recoveries.take_in_verdict(node, 1, dict.fromkeys(policies, REJECTS), at=10.0, now=1e9)
            recoveries.take_in_verdict(node, 2, dict.fromkeys(policies, PASSES), at=10.0, now=1e9)
            return recoveries.next(node)

        assert [turn(node, A) for node in ("a1", "a2", "a3")] == pytest.approx([10.0, 10.02, 10.04])
        assert turn("both", A, B) == 10.0
        assert turn("a4", A) == pytest.approx(10.08)
        assert turn("b1", B) == pytest.approx(10.02)

    def test_a_node_rejected_again_by_one_policy_still_wakes_for_the_other(self) -> None:
        recoveries = self.waiting_for(A, B)
        for revision, found in enumerate(
            ({A: REJECTS, B: REJECTS}, {A: PASSES, B: PASSES}, {A: REJECTS, B: PASSES}), 1
        ):
            recoveries.take_in_verdict("n", revision, found, at=10.0, now=1e9)
        recovery = recoveries.due("n", None, at=10.0)
        assert recovery is not None
        assert (recovery.revision, recovery.policies) == (2, frozenset({B}))

    def test_marking_an_outdated_recovery_changes_no_newer_one(self) -> None:
        recoveries = self.waiting_for(A)
        self.take_in(recoveries, 1, REJECTS, at=0.0)
        self.take_in(recoveries, 2, PASSES, at=10.0)
        overtaken = recoveries.due("n", None, at=10.0)
        assert overtaken is not None
        self.take_in(recoveries, 3, REJECTS, at=11.0)
        self.take_in(recoveries, 4, PASSES, at=12.0)
        recoveries.mark_sent("n", overtaken)
        recovery = recoveries.due("n", "2", at=12.0)
        assert recovery is not None
        assert recovery.value == "4"

    def test_without_waiting_pods_no_turns_are_reserved(self) -> None:
        waiting = Waiting()
        waiting.set("pod", A)
        recoveries = Recoveries(waiting)
        self.recover_500(recoveries, at=10.0)
        assert recoveries.due("node-0", None, at=10.0) is not None
        waiting.drop("pod")
        assert all(recoveries.due(f"node-{number}", None, at=30.0) is None for number in range(500))
        self.take_in(recoveries, 1, REJECTS, at=40.0)
        waiting.set("pod", A)
        self.take_in(recoveries, 2, PASSES, at=41.0)
        assert recoveries.due("n", None, at=41.0) is not None

    def test_no_turn_is_after_the_flush_of_the_scheduler(self) -> None:
        """However often nodes recover, a wake is due before the flush."""
        recoveries = self.waiting_for(A)
        for at in range(100):
            self.recover_500(recoveries, at=float(at))
        turns = [when for number in range(500) if (when := recoveries.next(f"node-{number}")) is not None]
        assert all(when < 99.0 + FLUSH_SECONDS for when in turns)
        self.recover_500(recoveries, at=1000.0)
        assert recoveries.next("node-0") == 1000.0

    def recover_500(self, recoveries: Recoveries, *, at: float) -> None:
        for revision, found in enumerate((REJECTS, PASSES)):
            for number in range(500):
                recoveries.take_in_verdict(f"node-{number}", revision, {A: found}, at=at, now=1e9)

    def wakes_of_500(self, recoveries: Recoveries, *, at: float) -> list[tuple[float, str]]:
        """The times and annotations of all wakes of 500 nodes that recover together, while a pod waits."""
        self.recover_500(recoveries, at=at)
        wakes: list[tuple[float, str]] = []
        for number in range(500):
            node, annotation = f"node-{number}", None
            while (when := recoveries.next(node)) is not None:
                recovery = recoveries.due(node, annotation, at=when)
                assert recovery is not None
                annotation = recovery.value
                wakes.append((when, annotation))
                recoveries.mark_sent(node, recovery)
        return sorted(wakes)

    def test_a_deleted_node_is_forgotten(self) -> None:
        recoveries = self.waiting_for(A)
        self.take_in(recoveries, 1, REJECTS, at=0.0)
        self.take_in(recoveries, 2, PASSES, at=10.0)
        recoveries.forget("n")
        assert recoveries.due("n", None, at=10.0) is None

    def test_a_new_node_has_no_rejections_of_a_deleted_one_of_its_name(self) -> None:
        recoveries = self.waiting_for(A)
        self.take_in(recoveries, 1, REJECTS, at=0.0)
        recoveries.forget("n")
        self.take_in(recoveries, 2, PASSES, at=10.0)
        assert recoveries.due("n", None, at=10.0) is None


def test_a_pod_waits_for_one_policy_at_a_time() -> None:
    waiting = Waiting()
    waiting.set("p", A)
    waiting.set("q", A)
    waiting.set("p", B)
    assert waiting.any_for([A])
    waiting.drop("q")
    waiting.drop("unknown")
    assert not waiting.any_for([A])
    assert waiting.any_for([A, B])
    waiting.clear()
    assert not waiting.any_for([A, B])
