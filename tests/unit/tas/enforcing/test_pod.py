"""Which pods wait for their policy, since when a pod is bound, and which pods need filter."""

from typing import Any

import pytest

from tas.enforcing.pod import BoundSince, PodKey, Unscheduled, binding_of, needs_filter, waiting_since

MESSAGE = (
    "0/3 nodes are available: 1 Insufficient cpu, 2 Node violates gold: load GreaterThan 80. no new claims to "
    "deallocate, preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is "
    "not helpful for scheduling."
)
REFUSAL = Unscheduled(reason="Unschedulable", message=MESSAGE, since=100.0)
PENDING: dict[str, Any] = {"node": None, "phase": "Pending", "deleting": False}


def test_a_pod_waits_since_the_scheduler_found_no_node_and_named_a_rejection_by_its_policy() -> None:
    assert waiting_since("gold", REFUSAL, **PENDING) == 100.0
    assert waiting_since("gold", REFUSAL, **PENDING | {"phase": ""}) == 100.0


@pytest.mark.parametrize(
    ("pod", "scheduled", "started", "earliest", "expected"),
    [
        pytest.param((None, "Pending"), None, None, 7.0, None, id="not bound"),
        pytest.param(("n", "Pending"), 9.0, None, 7.0, BoundSince(9.0), id="bound"),
        pytest.param(("n", "Running"), 9.0, 10.0, 7.0, BoundSince(9.0), id="running"),
        pytest.param(("n", "Running"), None, 10.0, 7.0, BoundSince(10.0), id="only the kubelet tells"),
        pytest.param(("n", "Running"), None, 6.0, 7.0, BoundSince(7.0), id="the clock of the kubelet is behind"),
        pytest.param(("n", "Pending"), None, None, 7.0, BoundSince(20.0, is_seen=True), id="nothing tells"),
        pytest.param(("n", "Pending"), None, None, None, BoundSince(20.0, is_seen=True), id="no time at all"),
        pytest.param(("n", "Pending"), 9e9, 10.0, 7.0, BoundSince(10.0), id="a condition of the future"),
        pytest.param(("n", "Pending"), 9e9, 9e9, 9e9, BoundSince(20.0, is_seen=True), id="all of the future"),
        pytest.param(("n", "Pending"), 21.0, None, 7.0, BoundSince(21.0), id="a clock that is a little ahead"),
        pytest.param(("n", "Succeeded"), 9.0, None, 7.0, None, id="succeeded"),
        pytest.param(("n", "Failed"), 9.0, None, 7.0, None, id="failed"),
    ],
)
def test_a_pod_is_bound_since_what_is_proven_until_it_ends(
    pod: tuple[str | None, str],
    scheduled: float | None,
    started: float | None,
    earliest: float | None,
    expected: BoundSince | None,
) -> None:
    found = binding_of(*pod, scheduled=scheduled, started=started, earliest=earliest, now=20.0)
    assert found == expected


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(None, id="not tried yet"),
        pytest.param(REFUSAL._replace(message="0/3 nodes are available: 3 Insufficient cpu."), id="lacks cpu"),
        pytest.param(REFUSAL._replace(message="0/3 nodes are available: 3 Node violates."), id="another extender"),
        pytest.param(REFUSAL._replace(message=""), id="no message"),
        pytest.param(REFUSAL._replace(reason="SchedulerError"), id="the extender failed"),
        pytest.param(REFUSAL._replace(reason="SchedulingGated"), id="gated"),
    ],
)
def test_a_pod_that_its_policy_does_not_keep_away_does_not_wait(refusal: Unscheduled | None) -> None:
    assert waiting_since("gold", refusal, **PENDING) is None


@pytest.mark.parametrize("policy", ["gol", "old", "gold-2", "go.d", "", "gold: load GreaterThan 80"])
def test_rejections_by_another_policy_are_not_those_of_the_pods_policy(policy: str) -> None:
    assert waiting_since(policy, REFUSAL, **PENDING) is None
    other = REFUSAL._replace(message=MESSAGE.replace("gold", f"{policy}-2"))
    assert waiting_since(policy, other, **PENDING) is None


@pytest.mark.parametrize(
    "change", [{"node": "node-1"}, {"deleting": True}, {"phase": "Failed"}, {"phase": "Succeeded"}]
)
def test_a_pod_that_the_scheduler_would_not_place_does_not_wait(change: dict[str, Any]) -> None:
    assert waiting_since("gold", REFUSAL, **PENDING | change) is None


def test_a_pod_is_told_with_its_namespace() -> None:
    assert str(PodKey("web", "a.b")) == "web/a.b"


def test_filter_is_asked_about_each_pod_that_is_placed_not_tried_yet_or_tried_with_an_error() -> None:
    error = REFUSAL._replace(reason="SchedulerError", message="Post https://tas:9001/filter: certificate has expired")
    gated = REFUSAL._replace(reason="SchedulingGated")
    assert needs_filter(None, node="n", deleting=False)
    assert needs_filter(REFUSAL, node="n", deleting=True)
    assert needs_filter(None, node=None, deleting=False)
    assert needs_filter(error, node=None, deleting=False)
    # The scheduler may have found that no node fits, before it would have asked.
    assert not needs_filter(REFUSAL, node=None, deleting=False)
    assert not needs_filter(gated, node=None, deleting=False)
    assert not needs_filter(error, node=None, deleting=True)
