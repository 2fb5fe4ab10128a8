"""The whole path: samples and a policy are published, and a real kube-scheduler places pods accordingly.

With the weight 100 one step of a score outweighs the in-tree scores of three equal nodes.
"""

import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from .cluster import NODES, Cluster, extender
from .processes import free_ports, until
from .product import Product, product
from .recorder import FILTER, PRIORITIZE, forwarding, recording

both_forms = pytest.mark.parametrize("names_only", [True, False], ids=["names", "nodes"])

POLICY = "demo-policy"
# 1 and 2 reject a node; of the others the node with the most room is best.
STRATEGIES = {
    "dontschedule": {
        "logicalOperator": "anyOf",
        "rules": [
            {"metricname": "health_metric", "operator": "Equals", "target": 1},
            {"metricname": "health_metric", "operator": "Equals", "target": 2},
        ],
    },
    "scheduleonmetric": {"rules": [{"metricname": "room", "operator": "GreaterThan"}]},
}


@pytest.fixture(scope="module")
def shared(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(cluster, tmp_path_factory.mktemp("tas")) as running:
        yield running


@pytest.fixture
def tas(shared: Product, namespace: str) -> Iterator[Product]:
    """The product with one policy in the test's namespace, and three healthy nodes of different room."""
    shared.publish({name: {"health_metric": 0, "room": room} for room, name in enumerate(NODES)})
    with shared.policy(namespace, POLICY, STRATEGIES):
        best = {"node-1": 8, "node-2": 9, "node-3": 10}
        until(lambda: shared.scores(namespace, POLICY, NODES) == best, "policy and room are applied")
        until(lambda: shared.passes(namespace, POLICY, NODES) == set(NODES), "health is applied")
        yield shared


def is_best(tas: Product, namespace: str, node: str) -> bool:
    """Whether this node has the highest score."""
    return tas.scores(namespace, POLICY, NODES)[node] == 10


def is_listening(address: str) -> bool:
    """Whether a process accepts connections at this address."""
    host, _, port = address.rpartition("@")[2].rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


@both_forms
def test_each_pod_goes_to_the_node_with_the_highest_score_at_its_time(
    cluster: Cluster, namespace: str, tas: Product, names_only: bool
) -> None:
    with cluster.scheduler(extender(tas.url, names_only=names_only)):
        cluster.create_pod(namespace, "first", policy=POLICY)
        assert cluster.placed(namespace, "first") == "node-3"
        for best in NODES:
            tas.publish({best: {"room": 100 + NODES.index(best)}})
            until(partial(is_best, tas, namespace, best), f"{best} is best")
            cluster.create_pod(namespace, f"to-{best}", policy=POLICY)
            assert cluster.placed(namespace, f"to-{best}") == best


@both_forms
def test_a_pod_is_not_placed_on_a_node_that_its_policy_rejects(
    cluster: Cluster, namespace: str, tas: Product, names_only: bool
) -> None:
    """Although the node has the highest score. A pod without the label of the policy can be placed on it."""
    tas.publish({"node-3": {"health_metric": 1}})
    until(lambda: tas.passes(namespace, POLICY, NODES) == {"node-1", "node-2"}, "node-3 is rejected")
    with cluster.scheduler(extender(tas.url, names_only=names_only)):
        cluster.create_pod(namespace, "bound", policy=POLICY)
        assert cluster.placed(namespace, "bound") == "node-2"
        cluster.create_pod(namespace, "free", nodeSelector={"kubernetes.io/hostname": "node-3"})
        assert cluster.placed(namespace, "free") == "node-3"


@both_forms
def test_a_pod_waits_with_the_reason_while_all_nodes_are_rejected_and_is_placed_when_one_passes(
    cluster: Cluster, namespace: str, tas: Product, names_only: bool
) -> None:
    tas.publish({name: {"health_metric": 2} for name in NODES})
    until(lambda: not tas.passes(namespace, POLICY, NODES), "all nodes are rejected")
    with cluster.scheduler(extender(tas.url, names_only=names_only)):
        cluster.create_pod(namespace, "waiting", policy=POLICY)
        condition = cluster.rejected(namespace, "waiting", containing="3 Preemption is not helpful for scheduling.")
        for message in (condition, *cluster.events(namespace, "waiting", reason="FailedScheduling")):
            # One reason for all three nodes, which is counted; evictions would not help (facts.md c19, c20).
            assert message.startswith("0/3 nodes are available: 3 Node violates")
            assert POLICY in message
            assert "3 Preemption is not helpful for scheduling." in message
        assert cluster.node_of(namespace, "waiting") is None

        tas.publish({"node-1": {"health_metric": 0}})
        until(lambda: tas.passes(namespace, POLICY, NODES) == {"node-1"}, "node-1 passes again")
        cluster.touch_node("node-1")
        assert cluster.placed(namespace, "waiting") == "node-1"


@both_forms
def test_answers_have_the_form_of_the_request_and_return_nodes_unchanged(
    cluster: Cluster, namespace: str, tas: Product, names_only: bool
) -> None:
    """A proxy records the answers of the product to a real scheduler."""
    tas.publish({"node-3": {"health_metric": 1}})
    until(lambda: tas.passes(namespace, POLICY, NODES) == {"node-1", "node-2"}, "node-3 is rejected")
    with (
        recording(forwarding(tas.url)) as recorder,
        cluster.scheduler(extender(recorder.url, names_only=names_only)),
    ):
        cluster.create_pod(namespace, "web", policy=POLICY)
        assert cluster.placed(namespace, "web") == "node-2"
    (filtering, *_) = recorder.about("web", FILTER)
    (scoring, *_) = recorder.about("web", PRIORITIZE)
    assert {request.response.status for request in (filtering, scoring)} == {200}
    kept = filtering.response.body
    assert kept["FailedAndUnresolvableNodes"].keys() == {"node-3"}
    if names_only:
        assert sorted(kept["NodeNames"]) == ["node-1", "node-2"]
        assert kept["Nodes"] is None
    else:
        sent = {node["metadata"]["name"]: node for node in filtering.body["Nodes"]["items"]}
        returned = {node["metadata"]["name"]: node for node in kept["Nodes"]["items"]}
        assert returned == {name: sent[name] for name in ("node-1", "node-2")}
        assert kept["NodeNames"] is None
    assert {item["Host"]: item["Score"] for item in scoring.response.body} == {"node-1": 9, "node-2": 10}


def test_without_an_extender_a_pod_waits_or_is_placed_if_the_extender_is_ignorable(
    cluster: Cluster, namespace: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """As in docs/start/scheduler.md: with `ignorable: false` the pod waits, with `true` the policy has no effect."""
    (port,) = free_ports(1)
    entry = extender(f"http://127.0.0.1:{port}", names_only=True, httpTimeout="1s")
    with cluster.scheduler(entry | {"ignorable": True}):
        cluster.create_pod(namespace, "goes", policy=POLICY)
        assert cluster.placed(namespace, "goes") in NODES
    with cluster.scheduler(entry):
        cluster.create_pod(namespace, "waits", policy=POLICY)
        assert "connection refused" in cluster.rejected(namespace, "waits", containing="connection refused")
        with product(cluster, tmp_path, "--listen", f"127.0.0.1:{port}"):
            began = time.monotonic()
            # Without a change in the cluster the scheduler retries after at most 10 s.
            assert cluster.placed(namespace, "waits") in NODES
            measured(f"extender: a pod that waited for it is placed {time.monotonic() - began:.1f} s after it is ready")


def test_the_nats_server_of_a_killed_product_ends(cluster: Cluster, tmp_path: Path) -> None:
    with product(cluster, tmp_path) as running:
        assert is_listening(running.bus)
        running.process.kill()
        until(lambda: not is_listening(running.bus), "its nats-server has ended")
