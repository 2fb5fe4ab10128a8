"""How often the addresses of nodes are listed."""

import math
from typing import Any, cast

import pytest

from bus.records.nodes import NodeFacts
from workers.watching.node_addresses import AGAIN_SECONDS, NODE_SECONDS, ChangedNodes, NodeAddresses


def facts(version: int, **labels: str) -> NodeFacts:
    return NodeFacts(uid="u", labels=labels, resource_version=str(version))


def test_a_node_that_changes_twice_within_a_minute_is_read_again_facts_n80() -> None:
    """Heartbeats and changes of labels are not meant."""
    nodes = ChangedNodes()
    assert not nodes.note("u", "a", facts(1), 0.0)
    assert not nodes.note("u", "a", facts(2), 1.0), "the first change that was seen"
    assert not nodes.note("u", "a", facts(2), 2.0), "listed again"
    assert not nodes.note("u", "a", facts(3), 1.5 + AGAIN_SECONDS), "a heartbeat"
    for number in range(10):
        assert not nodes.note("u", "a", facts(10 + number, changes=str(number)), 100.0)
    assert (nodes.take(100.0), nodes.wait(100.0)) == (None, math.inf)
    assert nodes.note("u", "a", facts(20, changes="9"), 101.0)
    assert nodes.wait(101.0) == 0.0
    assert nodes.take(101.0) == ("u", "a")
    assert nodes.take(200.0) is None, "once"


def test_nodes_are_read_again_one_after_the_other_and_each_at_most_once_a_minute() -> None:
    nodes = ChangedNodes()
    for uid in "abc":
        for version in range(3):
            nodes.note(uid, uid, facts(version), 10.0)
    assert nodes.take(10.0) == ("a", "a")
    assert nodes.take(10.0) is None
    assert nodes.wait(10.0) == pytest.approx(NODE_SECONDS)
    assert nodes.take(10.0 + NODE_SECONDS) == ("b", "b")
    assert nodes.note("a", "a", facts(4), 11.0)
    nodes.keep({"a"})
    assert nodes.take(20.0) is None, "all have been listed"
    assert nodes.note("a", "a", facts(5), 12.0)
    assert nodes.take(20.0) is None
    assert nodes.wait(20.0) == pytest.approx(10.0 + AGAIN_SECONDS - 20.0)
    assert nodes.take(10.0 + AGAIN_SECONDS) == ("a", "a")
    nodes.put_back("a", "a")
    assert nodes.wait(100.0) == pytest.approx(10.0 + 2 * AGAIN_SECONDS - 100.0)


@pytest.mark.parametrize(
    ("nodes", "pause"), [(0, 60.0), (80, 60.0), (300, 216.0), (2500, 1800.0), (5000, 3600.0), (15_000, 3600.0)]
)
def test_a_small_cluster_is_listed_soon_and_none_costs_more_than_5000_nodes_an_hour(nodes: int, pause: float) -> None:
    addresses = NodeAddresses(cast("Any", None), on_read=lambda _: None)
    addresses._known = dict.fromkeys(map(str, range(nodes)), cast("Any", None))
    assert addresses.pause == pytest.approx(pause)
