"""The allocation of a node for people."""

from tas.allocation.node import RECENT_SECONDS, NodeAllocation, Recent
from tas.explain.allocation import ResourceUse, explain_allocation

NOW = 10_000.0


def test_each_resource_that_a_node_has_or_pods_request_is_shown() -> None:
    found = NodeAllocation(
        uid="u",
        capacity={"example.com/card": 2, "memory": 64},
        allocatable={"memory": 60},
        requested={"cpu": 100, "pods": 3},
        limited={"cpu": 200, "ephemeral-storage": 5},
        unreadable=1,
    )
    shown = explain_allocation(found, NOW - 12, NOW)
    assert (shown.age_seconds, shown.pods, shown.unreadable) == (12.0, 3, 1)
    assert list(shown.resources) == ["cpu", "memory", "ephemeral-storage", "example.com/card", "pods"]
    assert shown.resources["memory"] == ResourceUse(capacity=64, allocatable=60, requested=0, limited=0)
    assert shown.resources["cpu"] == ResourceUse(capacity=0, allocatable=0, requested=100, limited=200)


def test_pods_that_are_not_new_any_more_are_not_shown() -> None:
    """The record has them until the next change of the node."""
    recent = (Recent(NOW + 1.0), Recent(NOW - 30.0, (("cpu", 250),)), Recent(NOW - RECENT_SECONDS))
    shown = explain_allocation(NodeAllocation(uid="u", recent=recent), NOW + 5.0, NOW)
    assert shown.age_seconds == 0.0
    assert [(each.age_seconds, each.requests) for each in shown.recent] == [(0.0, {}), (30.0, {"cpu": 250})]
