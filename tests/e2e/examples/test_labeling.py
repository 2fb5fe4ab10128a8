"""The files of `deploy/examples/labeling` with the real programs."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.chain import ROOT, Scraped, descheduler, scraped
from tests.e2e.cluster import NODES, Cluster
from tests.e2e.processes import until
from tests.e2e.product import product

from .pods import places, rejections

EXAMPLE = ROOT / "deploy" / "examples" / "labeling"
NAMESPACE = "labeling-demo"
PREFIX = "telemetry.aware.scheduling.labeling-policy/"

NOTHING = (50, 50, 50, 50)
"""Values of two cards that violate no rule: how busy they are, and how much of them is free."""


@pytest.fixture
def cards(cluster: Cluster, crd: None, tmp_path: Path) -> Iterator[Scraped]:
    """The programs from the files to Prometheus."""
    (folder := tmp_path / "cards").mkdir()
    with scraped(cluster, folder, NODES) as cards:
        yield cards


def write(cards: Scraped, node: str, values: tuple[int, int, int, int]) -> None:
    """Writes the file of a node, by the script of the example."""
    subprocess.run([EXAMPLE / "set-cards.sh", *map(str, values), cards.folders[node]], check=True, timeout=60)


def labels(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The labels of the policy, without their prefix, by node. Nodes without such labels are left out."""
    found = {
        node["metadata"]["name"]: {
            key.removeprefix(PREFIX): value
            for key, value in node["metadata"]["labels"].items()
            if key.startswith(PREFIX)
        }
        for node in cluster.api.get("/api/v1/nodes")["items"]
    }
    return {node: labels for node, labels in found.items() if labels}


def scale(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("scale", "-n", NAMESPACE, "deployment/demo-app", f"--replicas={replicas}")


def why_waiting(cluster: Cluster) -> list[str]:
    """Why pods wait. A busy scheduler may place a pod before it has seen the last label: then it is created again."""
    if len(places(cluster, NAMESPACE)) == 2:
        scale(cluster, 1)
        until(lambda: len(places(cluster, NAMESPACE)) == 1, "one pod is deleted")
        scale(cluster, 2)
    return rejections(cluster, NAMESPACE)


def test_labels_of_cards_place_and_evict_pods(cluster: Cluster, cards: Scraped, tmp_path: Path) -> None:
    placed = partial(places, cluster, NAMESPACE)

    def until_labels(expected: dict[str, dict[str, str]]) -> None:
        until(lambda: labels(cluster) == expected, f"the labels are {expected}")

    busy0, busy1 = {"card0": "true", "busiest": "card0"}, {"card1": "true", "busiest": "card1"}
    with product(cluster, tmp_path, "--source", f"prometheus={cards.prometheus}", kubeconfig=cluster.kubeconfig):
        cluster.apply(EXAMPLE / "policy.yaml")
        write(cards, "node-1", NOTHING)
        write(cards, "node-2", (150, 50, 50, 50))
        write(cards, "node-3", (50, 250, 50, 50))
        until_labels({"node-2": busy0, "node-3": busy1})
        with cluster.scheduler(), descheduler(cluster):
            cluster.apply(EXAMPLE / "workload.yaml")
            until(lambda: placed() == ["node-1"], "the pod runs on the only node without labels")

            # Card 0 is further above its target, but card 1 has the largest value; card 0 has the smallest free value.
            write(cards, "node-3", NOTHING)
            until_labels({"node-2": busy0})
            write(cards, "node-1", (240, 250, 5, 10))
            until_labels({"node-1": busy0 | busy1 | {"fullest": "card0"}, "node-2": busy0})
            until(lambda: placed() == ["node-3"], "the pod is evicted, and its replacement runs on the free node")

            # No node is free: no pod can move, and a new pod waits.
            write(cards, "node-3", (50, 300, 50, 50))
            until_labels({"node-1": busy0 | busy1 | {"fullest": "card0"}, "node-2": busy0, "node-3": busy1})
            scale(cluster, 2)
            (message,) = until(lambda: why_waiting(cluster), "the second pod waits")
            assert message.startswith("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector")
            assert placed() == ["node-3"]

            # The waiting pod gets the node that has recovered, and then the pod of node-3 moves there, too.
            write(cards, "node-2", NOTHING)
            until(lambda: placed() == ["node-2", "node-2"], "both pods run on the node that has recovered")
        cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"))
        until_labels({})
