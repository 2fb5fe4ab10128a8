"""Which changes of nodes get an Event of their own."""

from tas.notifying.node_events import MAX_ALIKE, MAX_EVENTS, WINDOW_SECONDS, NodeEvents
from tests.unit.tas.notifying.making import ended, notice, started


def test_of_one_policy_and_reason_the_first_nodes_of_a_minute_have_one() -> None:
    events = NodeEvents()
    nodes = [f"node-{number}" for number in range(MAX_ALIKE + 5)]
    assert [events.admits(notice(started(node)), 10.0) for node in nodes] == [True] * MAX_ALIKE + [False] * 5
    assert events.admits(notice(ended("node-1")), 10.0), "another reason"
    assert events.admits(notice(started("node-1", policy="other")), 10.0)
    assert not events.admits(notice(started("node-1")), 10.0 + WINDOW_SECONDS - 0.1)
    assert events.admits(notice(started("node-1")), 10.0 + WINDOW_SECONDS)


def test_all_policies_together_have_a_bound() -> None:
    events = NodeEvents()
    admitted = [
        events.admits(notice(started(f"node-{number}", policy=f"policy-{policy}")), 10.0)
        for policy in range(30)
        for number in range(MAX_ALIKE)
    ]
    assert sum(admitted) == MAX_EVENTS
    assert events.admits(notice(started("node-1")), 70.0)
