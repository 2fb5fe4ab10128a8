"""The pods on nodes: what a list and the changes after it make of them."""

from typing import Any

import msgspec
import structlog

from workers.inventory.pods_on_nodes import PodsOnNodes
from workers.kubernetes.client import Change, ChangeType
from workers.kubernetes.resources import GpuPod


def pod(name: str, node: str = "", cpu: str = "100m", **status: Any) -> GpuPod:
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
        "status": status,
    }
    return msgspec.convert(body, GpuPod)


class Followed:
    def __init__(self) -> None:
        self.lists = 0
        self.touched: list[str] = []
        self.pods = PodsOnNodes(on_list=self._listed, on_node=self.touched.append, log=structlog.get_logger("test"))

    def _listed(self) -> None:
        self.lists += 1

    def take_list(self, *pods: GpuPod) -> None:
        self.pods.begin()
        self.pods.read(pods)
        self.pods.end("1")

    def change(self, kind: ChangeType, found: GpuPod) -> list[str]:
        self.touched.clear()
        self.pods.change(Change(type=kind, object=found))
        return list(self.touched)

    def cpu(self, node: str) -> list[int]:
        totals = [dict(each.totals.requests)["cpu"] for each in self.pods.on(node) if each.totals is not None]
        return sorted(totals)


def test_until_a_list_is_complete_the_last_one_counts() -> None:
    followed = Followed()
    assert not followed.pods.are_listed
    followed.pods.begin()
    followed.pods.read([pod("lost", "a", "1")])
    followed.take_list(pod("one", "a"), pod("waiting"), pod("done", "a", phase="Succeeded"), pod("bad", "b", "much"))
    assert (followed.cpu("a"), followed.pods.count, followed.pods.unreadable) == ([100], 2, 1)
    assert (followed.pods.are_listed, followed.lists, followed.touched) == (True, 1, [])

    followed.pods.begin()
    followed.pods.read([pod("two", "a", "2")])
    assert (followed.cpu("a"), followed.lists) == ([100], 1)
    followed.pods.end("2")
    assert (followed.cpu("a"), followed.pods.unreadable, followed.lists) == ([2000], 0, 2)


def test_a_change_touches_the_nodes_whose_pods_are_other_ones() -> None:
    followed = Followed()
    followed.take_list(pod("one", "a"))
    assert followed.change(ChangeType.MODIFIED, pod("one", "a")) == []
    assert followed.change(ChangeType.MODIFIED, pod("one", "a", "200m")) == ["a"]
    assert followed.change(ChangeType.MODIFIED, pod("one", "b", "200m")) == ["a", "b"]
    assert (followed.cpu("a"), followed.cpu("b")) == ([], [200])
    assert followed.change(ChangeType.ADDED, pod("two")) == []
    assert followed.change(ChangeType.MODIFIED, pod("two", "b")) == ["b"]
    assert followed.change(ChangeType.MODIFIED, pod("two", "b", "much")) == ["b"]
    assert followed.pods.unreadable == 1
    assert followed.change(ChangeType.MODIFIED, pod("two", "b", "much", phase="Failed")) == ["b"]
    assert (followed.pods.unreadable, followed.pods.count) == (0, 1)
    assert followed.change(ChangeType.DELETED, pod("one", "b", "200m")) == ["b"]
    assert followed.change(ChangeType.DELETED, pod("one", "b", "200m")) == []
    assert followed.pods.count == 0


def test_equal_requests_are_one_object() -> None:
    followed = Followed()
    followed.take_list(*(pod(f"p{number}", "a") for number in range(3)))
    assert len({id(each.totals) for each in followed.pods.on("a")}) == 1
