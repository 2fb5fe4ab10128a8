"""When a node that has recovered is annotated, and with what."""

import msgspec
import pytest

from tas.policy import PolicyKey, StrategyType
from tas.rules import State
from tas.verdict import PolicyVerdict, StrategyVerdict
from tas.waking import REPEATS, Recoveries, Recovery, Waiting, is_said, just_recovered, recovered, violated

A, B = PolicyKey("default", "a"), PolicyKey("default", "b")


def verdict(state: State, *, changed: float = 0.0, kind: StrategyType = StrategyType.DONTSCHEDULE) -> PolicyVerdict:
    return PolicyVerdict(uid="u", generation=1, strategies={kind: StrategyVerdict(state=state, changed=changed)})


@pytest.mark.parametrize("state", [State.MET, State.UNKNOWN])
def test_what_is_not_violated_any_more_has_recovered(state: State) -> None:
    before = violated({A: verdict(State.VIOLATED), B: verdict(State.VIOLATED)})
    assert before == {A, B}
    assert recovered(before, {A: verdict(state), B: verdict(State.VIOLATED)}) == {A}


def test_a_policy_that_is_gone_is_not_violated_any_more() -> None:
    assert recovered({A}, {}) == {A}


def test_only_dontschedule_keeps_pods_away() -> None:
    assert violated({A: verdict(State.VIOLATED, kind=StrategyType.DESCHEDULE)}) == frozenset()


def test_what_was_met_all_along_has_not_recovered() -> None:
    assert recovered(violated({A: verdict(State.MET)}), {A: verdict(State.UNKNOWN)}) == frozenset()


def test_a_recovery_is_said_at_once_and_then_repeated_with_its_number() -> None:
    recovery = Recovery(revision=7, at=100.0, policies=frozenset({A}))
    told = []
    while recovery.due is not None:
        told.append((recovery.value, recovery.due))
        recovery = msgspec.structs.replace(recovery, said=recovery.said + 1)
    assert told == [("7", 100.0), ("7.1", 101.0), ("7.2", 102.0), ("7.3", 104.0), ("7.4", 108.0)]


@pytest.mark.parametrize(
    ("standing", "said"),
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
def test_what_stands_with_as_much_need_not_be_said_again(standing: str | None, said: bool) -> None:
    assert is_said(standing, Recovery(revision=7, at=0.0, policies=frozenset({A}), said=1)) is said


def test_who_has_not_seen_it_goes_by_how_long_ago_the_state_changed() -> None:
    policies = {
        A: verdict(State.MET, changed=100.0),
        B: verdict(State.VIOLATED, changed=100.0),
    }
    assert just_recovered(policies, now=100.0 + REPEATS[-1]) == {A}
    assert just_recovered(policies, now=100.1 + REPEATS[-1]) == frozenset()


class TestRecoveries:
    def waiting_for(self, *policies: PolicyKey) -> Recoveries:
        waiting = Waiting()
        for number, policy in enumerate(policies):
            waiting.set(f"pod-{number}", policy)
        return Recoveries(waiting)

    def judge(self, recoveries: Recoveries, revision: int, state: State, *, at: float, policy: PolicyKey = A) -> None:
        recoveries.judged("n", revision, {policy: verdict(state)}, at=at, now=1e9)

    def test_what_is_said_is_due_again_until_it_has_been_said_often_enough(self) -> None:
        recoveries = self.waiting_for(A)
        self.judge(recoveries, 1, State.VIOLATED, at=0.0)
        assert recoveries.due("n", None, at=0.0) is None
        self.judge(recoveries, 2, State.MET, at=10.0)
        told, standing = [], None
        for step in range(200):
            at = 10.0 + step / 10
            while (recovery := recoveries.due("n", standing, at=at)) is not None:
                standing = recovery.value
                told.append((at, standing))
                recoveries.said("n", recovery)
        assert told == [(10.0, "2"), (11.0, "2.1"), (12.0, "2.2"), (14.0, "2.3"), (18.0, "2.4")]
        assert recoveries.next("n") is None

    def test_nobody_waits_nothing_is_said_and_who_comes_later_hears_the_next(self) -> None:
        waiting = Waiting()
        recoveries = Recoveries(waiting)
        self.judge(recoveries, 1, State.VIOLATED, at=0.0)
        self.judge(recoveries, 2, State.MET, at=10.0)
        assert recoveries.due("n", None, at=10.0) is None
        waiting.set("late", A)
        assert recoveries.due("n", None, at=10.5) is None
        assert recoveries.next("n") == 11.0
        recovery = recoveries.due("n", None, at=11.0)
        assert recovery is not None
        assert recovery.value == "2.1"
        waiting.drop("late")
        assert recoveries.due("n", None, at=11.0) is None

    def test_a_node_that_is_violated_again_has_not_recovered(self) -> None:
        recoveries = self.waiting_for(A)
        for revision, state in enumerate((State.VIOLATED, State.MET, State.VIOLATED)):
            self.judge(recoveries, revision, state, at=float(revision))
        assert recoveries.due("n", None, at=99.0) is None

    def test_what_another_replica_has_said_is_not_said_again(self) -> None:
        recoveries = self.waiting_for(A)
        self.judge(recoveries, 1, State.VIOLATED, at=0.0)
        self.judge(recoveries, 2, State.MET, at=10.0)
        assert recoveries.due("n", "2.1", at=11.0) is None
        assert recoveries.next("n") == 12.0

    def test_a_second_policy_that_recovers_later_begins_anew_for_both(self) -> None:
        recoveries = self.waiting_for(A)
        both = {A: verdict(State.VIOLATED), B: verdict(State.VIOLATED)}
        recoveries.judged("n", 1, both, at=0.0, now=1e9)
        recoveries.judged("n", 2, both | {A: verdict(State.MET)}, at=10.0, now=1e9)
        recoveries.judged("n", 3, {A: verdict(State.MET), B: verdict(State.MET)}, at=10.5, now=1e9)
        recovery = recoveries.due("n", "2", at=10.5)
        assert recovery is not None
        assert recovery.value == "3"
        assert recovery.policies == {A, B}

    def test_a_node_that_is_gone_is_forgotten(self) -> None:
        recoveries = self.waiting_for(A)
        self.judge(recoveries, 1, State.VIOLATED, at=0.0)
        self.judge(recoveries, 2, State.MET, at=10.0)
        recoveries.forget("n")
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
