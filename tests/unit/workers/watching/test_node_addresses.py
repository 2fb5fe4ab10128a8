"""How often the addresses of nodes are listed."""

import math
from typing import Any, cast

import pytest

from bus.records.nodes import NodeFacts
from workers.kubernetes.resources import Writes
from workers.watching.node_addresses import AGAIN_SECONDS, NODE_SECONDS, ChangedNodes, NodeAddresses


def facts(version: int, uid: str = "u", **labels: str) -> NodeFacts:
    return NodeFacts(uid=uid, labels=labels, resource_version=str(version))


def note(nodes: ChangedNodes, version: int, at: float, *, uid: str = "u", **labels: str) -> bool:
    """A change of the status, of which `writes` does not tell more: as twice within a second."""
    return nodes.note(uid, facts(version, uid, **labels), Writes(), at)


def changed_twice(nodes: ChangedNodes, uid: str, version: int, at: float) -> None:
    for number in range(3):
        note(nodes, version + number, at, uid=uid)


def test_a_node_that_changes_twice_within_a_minute_is_read_again_facts_n80() -> None:
    """Heartbeats and changes of labels are not meant."""
    nodes = ChangedNodes()
    assert not note(nodes, 1, 0.0)
    assert not note(nodes, 2, 1.0), "the first change that was seen"
    assert not note(nodes, 2, 2.0), "listed again"
    assert not note(nodes, 3, 1.5 + AGAIN_SECONDS), "a heartbeat"
    for number in range(10):
        assert not note(nodes, 10 + number, 100.0, changes=str(number))
    assert (nodes.take(100.0), nodes.wait(100.0)) == (None, math.inf)
    assert note(nodes, 20, 101.0, changes="9")
    assert nodes.wait(101.0) == 0.0
    assert nodes.take(101.0) == ("u", "u")
    assert nodes.take(200.0) is None, "once"


def test_changes_of_anything_but_the_status_do_not_count_facts_n82() -> None:
    """An annotator writes to each node again and again: each would be read again for ever."""
    nodes = ChangedNodes()
    seconds = (f"2026-01-01T00:00:{second:02}Z" for second in range(60))
    heartbeat = next(seconds)
    assert not nodes.note("a", facts(1), Writes(heartbeat, ""), 0.0)
    for version, second in enumerate(seconds, 2):
        assert not nodes.note("a", facts(version), Writes(heartbeat, second), float(version))
    last = second
    for version in range(70, 80):
        assert not nodes.note("a", facts(version), Writes(heartbeat, last), 60.0), "within the same second"
    assert not nodes.note("a", facts(100), Writes("2026-01-01T00:01:00Z", last), 61.0), "the next heartbeat"
    assert not nodes.note("a", facts(101), Writes("2026-01-01T00:01:00Z", "2026-01-01T00:01:00Z"), 61.5)
    assert nodes.note("a", facts(102), Writes("2026-01-01T00:01:02Z", "2026-01-01T00:01:00Z"), 62.0)


def test_nodes_are_read_again_one_after_the_other_and_each_at_most_once_a_minute() -> None:
    nodes = ChangedNodes()
    for uid in "abc":
        changed_twice(nodes, uid, 1, 10.0)
    assert nodes.take(10.0) == ("a", "a")
    assert nodes.take(10.0) is None
    assert nodes.wait(10.0) == pytest.approx(NODE_SECONDS)
    assert nodes.take(10.0 + NODE_SECONDS) == ("b", "b")
    assert note(nodes, 4, 11.0, uid="a")
    nodes.keep({"a"}, "4")
    assert nodes.take(20.0) is None, "all have been listed"
    assert note(nodes, 5, 12.0, uid="a")
    assert nodes.take(20.0) is None
    assert nodes.wait(20.0) == pytest.approx(10.0 + AGAIN_SECONDS - 20.0)
    assert nodes.take(10.0 + AGAIN_SECONDS) == ("a", "a")
    nodes.put_back("a", "a")
    assert nodes.wait(100.0) == pytest.approx(10.0 + 2 * AGAIN_SECONDS - 100.0)


def test_a_node_that_restarts_does_not_wait_behind_those_that_change_for_ever() -> None:
    nodes = ChangedNodes()
    for number in range(100):
        changed_twice(nodes, f"n{number}", 1, 0.0)
    for number in range(100):
        assert nodes.take(float(number)) == (f"n{number}", f"n{number}")
    now = 100 + AGAIN_SECONDS
    for number in range(100):
        changed_twice(nodes, f"n{number}", 10, now)
    changed_twice(nodes, "restarts", 1, now)
    assert nodes.take(now) == ("restarts", "restarts")


def test_what_changes_while_all_are_listed_is_not_forgotten() -> None:
    nodes = ChangedNodes()
    changed_twice(nodes, "a", 1, 0.0)
    changed_twice(nodes, "b", 3, 0.0)
    changed_twice(nodes, "new", 7, 0.0)
    nodes.keep({"a", "b"}, "4")
    assert [nodes.take(float(number)) for number in range(3)] == [("b", "b"), ("new", "new"), None]


def test_a_deleted_node_is_not_read_again() -> None:
    nodes = ChangedNodes()
    changed_twice(nodes, "a", 1, 0.0)
    nodes.forget("a")
    assert (nodes.take(0.0), nodes.wait(0.0)) == (None, math.inf)


@pytest.mark.parametrize(
    ("nodes", "pause"), [(0, 60.0), (80, 60.0), (300, 216.0), (2500, 1800.0), (5000, 3600.0), (15_000, 3600.0)]
)
def test_a_small_cluster_is_listed_soon_and_none_costs_more_than_5000_nodes_an_hour(nodes: int, pause: float) -> None:
    addresses = NodeAddresses(cast("Any", None), on_read=lambda _: None)
    addresses._known = dict.fromkeys(map(str, range(nodes)), cast("Any", None))
    assert addresses.pause == pytest.approx(pause)
