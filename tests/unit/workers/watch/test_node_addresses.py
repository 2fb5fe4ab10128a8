"""How often the addresses of nodes are listed."""

import math
import random
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from typing import Any, cast

import pytest

from bus.records.nodes import NodeFacts
from workers.kubernetes.resources import Writes
from workers.watch.node_addresses import AGAIN_SECONDS, NODE_SECONDS, ChangedNodes, NodeAddresses


def facts(version: int, uid: str = "u", **labels: str) -> NodeFacts:
    return NodeFacts(uid=uid, labels=labels, resource_version=str(version))


def text_of(seconds: float) -> str:
    """A time as the API server writes it."""
    return datetime.fromtimestamp(1_767_225_600 + int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status(**seconds: float) -> Writes:
    """Who has written the status, and when."""
    return Writes(tuple(sorted((manager, text_of(each)) for manager, each in seconds.items())))


class Cluster:
    """Nodes whose status kubelets write: regularly, and when it changes. It counts the nodes that are read again."""

    def __init__(self, count: int, *, others: tuple[str, ...] = (), delays: bool = True) -> None:
        self._random = random.Random(count)
        self._nodes = ChangedNodes()
        self._delays = delays
        self._version = 0
        self._now = 0.0
        self._events: list[tuple[float, str, str]] = []  # when which node is written by whom
        self._writes: dict[str, dict[str, float]] = {}
        self.read: list[tuple[str, float]] = []
        for number in range(count):
            node = f"n{number}"
            began = {writer: -self._random.uniform(0, 300) for writer in ("kubelet", *others)}
            self._writes[node] = began
            self._nodes.note(node, facts(0, node), status(**began), 0.0)
            for writer, at in began.items():
                heappush(self._events, (at + self._interval(), node, writer))

    def _interval(self) -> float:
        return 300 + self._random.uniform(0, 10.4)

    def play(self, seconds: float, changes: dict[str, float]) -> None:
        """Plays so long. `changes` says when the status of a node changes."""
        for node, at in changes.items():
            heappush(self._events, (at + self._random.uniform(0, 10.4), node, "change"))
        while self._events[0][0] < seconds:
            at, node, writer = heappop(self._events)
            self._drain(at)
            after = self._interval()
            if writer == "change":
                writer = "kubelet"
                self._events = [each for each in self._events if each[1:] != (node, writer)]
                heapify(self._events)
                after += self._random.uniform(-150, 150) if self._delays else 0.0
            self._version += 1
            self._writes[node][writer] = at
            self._nodes.note(node, facts(self._version, node), status(**self._writes[node]), at)
            self._now = at
            heappush(self._events, (at + after, node, writer))
        self._drain(seconds)

    def _drain(self, until: float) -> None:
        """Reads what is due, one after the other."""
        at = self._now
        while (at := at + self._nodes.wait(at)) <= until:
            if (found := self._nodes.take(at)) is not None:
                self.read.append((found[1], at))


def note(nodes: ChangedNodes, version: int, at: float, *, uid: str = "u", **labels: str) -> bool:
    """A change of the status, of which `writes` does not tell more: as twice within a second."""
    return nodes.note(uid, facts(version, uid, **labels), Writes(), at)


def changed_twice(nodes: ChangedNodes, uid: str, version: int, at: float) -> None:
    for number in range(3):
        note(nodes, version + number, at, uid=uid)


def test_a_node_that_changes_twice_within_a_minute_is_read_again_if_nothing_says_who_writes() -> None:
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
    heartbeat = (("kubelet", next(seconds)),)
    assert not nodes.note("a", facts(1), Writes(heartbeat, ""), 0.0)
    for version, second in enumerate(seconds, 2):
        assert not nodes.note("a", facts(version), Writes(heartbeat, second), float(version))
    last = second
    for version in range(70, 80):
        assert not nodes.note("a", facts(version), Writes(heartbeat, last), 60.0), "within the same second"
    later = (("kubelet", "2026-01-01T00:05:03Z"),)
    assert not nodes.note("a", facts(100), Writes(later, last), 303.0), "the next heartbeat"
    assert not nodes.note("a", facts(101), Writes(later, later[0][1]), 303.5)
    assert nodes.note("a", facts(102), Writes((("kubelet", "2026-01-01T00:05:04Z"),), later[0][1]), 304.0)


@pytest.mark.parametrize(
    ("intervals", "is_read"),
    [
        ((300, 310, 305), (False, False, False)),
        ((300, 120), (False, True)),
        ((294,), (True,)),
        ((321,), (True,)),  # it was down
        ((310, 240, 300), (False, True, False)),
        ((60, 60, 61, 55, 30), (True, False, False, False, True)),  # a cluster with other heartbeats
    ],
)
def test_a_write_of_the_status_when_no_heartbeat_is_due_has_the_node_read_facts_n95(
    intervals: tuple[int, ...], is_read: tuple[bool, ...]
) -> None:
    nodes = ChangedNodes()
    at = 0.0
    assert not nodes.note("a", facts(1), status(kubelet=at), at)
    found = []
    for version, interval in enumerate(intervals, 2):
        at += interval
        found.append(nodes.note("a", facts(version), status(kubelet=at), at))
    assert tuple(found) == is_read


def test_each_writer_of_a_status_has_heartbeats_of_its_own_facts_n95() -> None:
    nodes = ChangedNodes()
    assert not nodes.note("a", facts(1), status(detector=10, kubelet=0), 10.0)
    assert not nodes.note("a", facts(2), status(detector=10, kubelet=300), 300.0)
    assert not nodes.note("a", facts(3), status(detector=310, kubelet=300), 310.0)
    assert nodes.note("a", facts(4), status(cloud=320, detector=310, kubelet=300), 320.0), (
        "it writes for the first time"
    )
    assert nodes.note("a", facts(5), status(cloud=90_000, detector=310, kubelet=300), 90_000.0), "and seldom"


def test_heartbeats_of_a_large_cluster_cost_no_request_and_a_change_two() -> None:
    quiet = Cluster(100, others=("detector",))
    quiet.play(3600.0, {})
    assert quiet.read == []
    busy = Cluster(100, others=("detector",))
    busy.play(3600.0, {f"n{number}": 7.0 + 30 * number for number in range(100)})
    assert 80 <= len(busy.read) <= 200


def test_two_nodes_that_swap_their_addresses_are_read_within_seconds_unless_a_heartbeat_is_just_due() -> None:
    """So long the values of each were those of the other one: before, until the next list, up to an hour."""
    swaps = {f"n{number}": 600.0 + 10 * number for number in range(100)}
    cluster = Cluster(100, delays=False)
    cluster.play(1800.0, swaps)
    soon = {node for node, at in cluster.read if 0 <= at - swaps[node] <= 12}
    assert len(soon) >= 90


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
