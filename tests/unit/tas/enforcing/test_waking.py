"""When a node is annotated so that the scheduler tries rejected pods again, and which node."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.enforcing.pod import PodKey
from tas.enforcing.waking import LAST, LATER, QUICK, SOON, SPACING, Wake, Wakes, attempts, pause, rejecting
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.verdict import PolicyVerdict, StrategyVerdict
from tests.unit.growth import grows_linearly

A, B = PolicyKey("default", "a"), PolicyKey("default", "b")
POD, OTHER = PodKey("default", "web"), PodKey("default", "other")


def verdict(*, rejects: bool) -> PolicyVerdict:
    strategy = StrategyVerdict(state=State.UNKNOWN, changed=0.0, rejects=rejects)
    return PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DONTSCHEDULE: strategy})


REJECTS, PASSES = verdict(rejects=True), verdict(rejects=False)
ONLY_LABELS = PolicyVerdict(uid="u", generation=1, strategies={})


def taken(wakes: Wakes, until: float, *, since: float = 0.0) -> list[tuple[float, str]]:
    """When each node is annotated, up to a time."""
    found = []
    while wakes.due is not None and wakes.due <= until:
        at = max(since, wakes.due)
        wake = wakes.take(at)
        if wake is not None:
            found.append((at, wake.node))
    return found


def times(wakes: Wakes, until: float) -> list[float]:
    return [at for at, _ in taken(wakes, until)]


def rejected_everywhere(*nodes: str) -> Wakes:
    """A pod that has waited for long for a policy which rejects all nodes."""
    wakes = Wakes()
    for node in nodes:
        wakes.set_node(node, "u", {A: REJECTS, B: PASSES}, at=-1000.0)
    wakes.set_pod(POD, A, 1.0, at=-1000.0)
    assert taken(wakes, -10.0) == []
    return wakes


class TestTheSchedule:
    def test_a_recovery_wakes_at_once_then_less_and_less_often(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        assert times(wakes, 130.0) == [0.0, 1.5, 3.0, 6.0, 11.0, 21.0, 36.0, 51.0, 66.0, 126.0]

    def test_a_pod_that_begins_to_wait_wakes_soon_then_less_and_less_often(self) -> None:
        wakes = Wakes()
        wakes.set_node("n", "u", {A: PASSES}, at=-1000.0)
        wakes.set_pod(POD, A, 1.0, at=0.0)
        assert times(wakes, 130.0) == [5.0, 10.0, 20.0, 35.0, 50.0, 65.0, 125.0]

    def test_the_first_verdict_of_a_node_is_news_and_no_recovery(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("first", "u", {A: PASSES}, at=0.0)
        assert times(wakes, 12.0) == [5.0, 10.0]

    def test_the_first_verdict_of_another_node_of_the_same_name_is_news_and_no_recovery(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "another", {A: PASSES}, at=0.0)
        assert wakes.take(5.0) == Wake("n", "another")

    def test_a_pod_is_woken_within_15_s_after_an_extender_that_was_behind_has_caught_up(self) -> None:
        """If it was behind for less than a minute."""
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        found = times(wakes, 66.0)
        assert max(after - before for before, after in pairwise(found)) == 15.0

    @pytest.mark.parametrize("after", [0.0, 0.5, 6.0])
    def test_a_pod_that_begins_to_wait_just_after_the_recovery_is_woken_at_once(self, after: float) -> None:
        wakes = rejected_everywhere("n")
        wakes.drop_pod(POD)
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        assert taken(wakes, after) == []
        wakes.set_pod(OTHER, A, 1.0, at=after)
        assert wakes.take(after) == Wake("n", "u")

    def test_a_pod_that_begins_to_wait_long_after_the_recovery_is_woken_soon(self) -> None:
        wakes = Wakes()
        wakes.set_node("n", "u", {A: REJECTS}, at=-1000.0)
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        wakes.set_pod(OTHER, A, 1.0, at=6.1)
        assert wakes.due == 6.1 + SOON

    def test_nodes_that_recover_one_after_the_other_wake_at_most_40_times_a_minute(self) -> None:
        nodes = [f"node-{number}" for number in range(500)]
        wakes = rejected_everywhere(*nodes)
        found: list[float] = []
        for number, node in enumerate(nodes):
            wakes.set_node(node, "u", {A: PASSES}, at=number / 10)
            found += [at for at, _ in taken(wakes, number / 10, since=number / 10)]
        assert len(found) == pytest.approx(34, abs=1)
        assert min(after - before for before, after in pairwise(found)) >= SPACING
        # The last of them does not wait longer than the first.
        assert times(wakes, 49.9 + SPACING)

    def test_pods_that_begin_to_wait_all_the_time_wake_every_five_seconds(self) -> None:
        wakes = Wakes()
        wakes.set_node("n", "u", {A: PASSES}, at=-1000.0)
        found: list[float] = []
        for second in range(60):
            wakes.set_pod(PodKey("default", f"pod-{second}"), A, 1.0, at=float(second))
            found += times(wakes, float(second))
        assert found == [5.0 * number for number in range(1, 12)]

    def test_news_never_postpone_a_wake(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        assert times(wakes, 0.0) == [0.0]
        wakes.soon(1.0)
        assert wakes.due == 1.5

    def test_a_pod_that_waits_as_before_is_no_news(self) -> None:
        wakes = Wakes()
        wakes.set_node("n", "u", {A: PASSES}, at=-1000.0)
        wakes.set_pod(POD, A, 1.0, at=0.0)
        assert len(times(wakes, 100.0)) == 6
        wakes.set_pod(POD, A, 1.0, at=100.0)
        assert wakes.due == 125.0
        wakes.set_pod(POD, A, 90.0, at=100.0)
        assert wakes.due == 105.0

    def test_it_ends_with_the_waiting(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        assert times(wakes, 0.0) == [0.0]
        wakes.drop_pod(POD)
        assert taken(wakes, 1000.0) == []
        assert wakes.due is None

    def test_a_replica_that_was_on_standby_wakes_at_once_for_all_that_was_missed(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        assert taken(wakes, 103.0, since=100.0) == [(100.0, "n"), (101.5, "n"), (103.0, "n")]


class TestWhatCostsNothing:
    def test_nodes_that_no_policy_rejects(self) -> None:
        wakes = Wakes()
        for number in range(100):
            wakes.set_node(f"node-{number}", "u", {}, at=0.0)
            wakes.set_node(f"node-{number}", "u", {A: PASSES}, at=1.0)
        assert wakes.due is None

    def test_a_recovery_for_which_nobody_waits(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_pod(POD, B, 1.0, at=-1000.0)
        assert taken(wakes, -1.0)
        due = wakes.due
        wakes.set_node("n", "u", {A: PASSES, B: PASSES}, at=0.0)
        assert wakes.due == due

    def test_a_pod_whose_policy_rejects_every_node(self) -> None:
        wakes = rejected_everywhere("m", "n")
        wakes.soon(0.0)
        assert taken(wakes, 1000.0) == []

    def test_a_node_that_is_rejected_again_before_the_wake(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        wakes.set_node("n", "u", {A: REJECTS}, at=0.0)
        assert taken(wakes, 1000.0) == []

    def test_a_deleted_node(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        wakes.drop_node("n")
        wakes.drop_node("unknown")
        assert taken(wakes, 1000.0) == []

    def test_pods_of_a_bus_that_was_wiped_until_they_are_reported_again(self) -> None:
        wakes = rejected_everywhere("n")
        wakes.drop_pods()
        wakes.drop_pod(POD)
        wakes.set_node("n", "u", {A: PASSES}, at=0.0)
        assert taken(wakes, 10.0) == []
        wakes.set_pod(POD, A, 1.0, at=10.0)
        assert times(wakes, 15.0) == [15.0]


class TestTheNode:
    def test_what_recovered_last_comes_first_then_each_in_turn(self) -> None:
        wakes = rejected_everywhere("a", "b", "c", "d")
        for node in ("c", "b", "d"):
            wakes.set_node(node, "u", {A: PASSES}, at=0.0)
        assert [node for _, node in taken(wakes, 21.0)] == ["d", "b", "c", "d", "b", "c"]

    def test_every_node_passes_a_policy_that_is_deleted(self) -> None:
        wakes = rejected_everywhere("a", "b")
        wakes.set_node("a", "u", {B: PASSES}, at=0.0)
        assert wakes.take(0.0) == Wake("a", "u")

    def test_a_policy_that_only_labels_rejects_nothing(self) -> None:
        assert rejecting({A: ONLY_LABELS, B: REJECTS}) == {B}

    def test_a_pod_waits_for_one_policy_at_a_time(self) -> None:
        wakes = rejected_everywhere("n")
        assert wakes.waiting == 1
        wakes.set_pod(POD, B, 1.0, at=0.0)
        assert wakes.waiting == 1
        assert [at for at, _ in taken(wakes, 5.0, since=0.0)] == [5.0]

    def test_the_time_grows_with_the_pods_and_not_with_their_square(self) -> None:
        def waited(size: int) -> Callable[[], object]:
            pods = [(PodKey("default", f"p{number}"), PolicyKey("default", f"q{number}")) for number in range(size)]

            def work() -> None:
                wakes = Wakes()
                for pod, policy in pods:
                    wakes.set_pod(pod, policy, 1.0, at=0.0)
                for pod, _ in pods:
                    wakes.drop_pod(pod)

            return work

        assert grows_linearly(waited, 4000)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(0, 1), (99, 1), (100, 1), (101, 2), (200, 2), (500, 3), (1000, 3), (5000, 10), (15_000, 20), (100_000, 20)],
)
def test_facts_c21_the_scheduler_examines_some_nodes_at_a_time(nodes: int, expected: int) -> None:
    assert attempts(nodes) == expected


def test_facts_c21_a_wake_follows_soon_for_each_share_of_the_nodes() -> None:
    pauses = [pause(number, 5000) for number in range(len(QUICK) + 10 + len(LATER) + 2)]
    assert pauses == [*QUICK, *[SOON] * 10, *LATER, LAST, LAST]


class Event(NamedTuple):
    """Something that happens some seconds after the event before."""

    after: float
    pod: int
    node: int
    policies: tuple[bool, bool] | None  # whether A and B reject the node; None: something happens to the pod
    waits: PolicyKey | None  # for which the pod waits


EVENTS = st.lists(
    st.builds(
        Event,
        after=st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0]),
        pod=st.integers(0, 2),
        node=st.integers(0, 2),
        policies=st.none() | st.tuples(st.booleans(), st.booleans()),
        waits=st.sampled_from([A, B, None]),
    ),
    max_size=40,
)


@given(EVENTS)
def test_a_wake_is_seldom_has_a_reason_and_follows_every_recovery(events: Sequence[Event]) -> None:
    """Against a model that knows only who waits and who rejects."""
    wakes, now = Wakes(), 1000.0
    waits: dict[PodKey, PolicyKey] = {}
    rejects: dict[str, frozenset[PolicyKey]] = {}
    sent: list[float] = []
    wake_by = inf  # if a pod still waits then, and a node has passed its policy all the time

    def passing() -> list[str]:
        return [node for node, policies in rejects.items() if any(each not in policies for each in waits.values())]

    for event in [*events, Event(100.0, 0, 0, (True, True), None)]:
        until = now + event.after
        while wakes.due is not None and wakes.due <= until:
            at = max(now, wakes.due)
            wake = wakes.take(at)
            assert (wake is None) == (not passing())
            if wake is not None:
                assert wake.node in passing()
                assert not sent or at - sent[-1] >= SPACING - 1e-9
                sent.append(at)
                wake_by = at + LAST
        now = until
        assert now < wake_by + 1e-9 or not passing()
        recovers, before = False, bool(passing())
        if event.policies is None:
            pod = PodKey("default", str(event.pod))
            if event.waits is None:
                waits.pop(pod, None)
                wakes.drop_pod(pod)
            else:
                waits[pod] = event.waits
                wakes.set_pod(pod, event.waits, now, at=now)
        else:
            name = str(event.node)
            policies = frozenset(key for key, reject in zip((A, B), event.policies, strict=True) if reject)
            recovers = not (rejects.get(name, frozenset()) - policies).isdisjoint(waits.values())
            rejects[name] = policies
            verdicts = {key: REJECTS if key in policies else PASSES for key in (A, B)}
            wakes.set_node(name, "u", verdicts, at=now)
        if not passing():
            wake_by = inf
        elif recovers:
            wake_by = min(wake_by, max(now, sent[-1] + SPACING if sent else now))
        elif not before:
            wake_by = min(wake_by, now + SOON)
