"""The files of `deploy/examples/gpu` with the real programs: from a file with temperatures to the cards of pods."""

import subprocess
from pathlib import Path

from tests.e2e.chain import ROOT, descheduler, evictions, scraped
from tests.e2e.cluster import Cluster
from tests.e2e.processes import free_ports, until
from tests.e2e.product import product
from tests.e2e.test_gpu_example import (
    EXAMPLE,
    GPU_NODES,
    NAMESPACE,
    PODS,
    cards,
    extenders,
    labelled,
    nodes,
    place,
    running,
    worker,
    workload,
)
from tests.integration.servers import Server

__all__ = ["nodes", "workload"]


def test_hot_cards_lose_their_pods(cluster: Cluster, server: Server, tmp_path: Path) -> None:
    for file in ("rbac/gpu.yaml", "rbac/inventory.yaml", "rbac/evictions.yaml", "admission/gpu.yaml"):
        cluster.apply(ROOT / "deploy" / file)
    (folder := tmp_path / "tas").mkdir()
    (textfiles := tmp_path / "cards").mkdir()
    (port,) = free_ports(1)
    with (
        scraped(cluster, textfiles, GPU_NODES) as exporters,
        product(
            cluster,
            folder,
            *("--source", f"prometheus={exporters.prometheus}"),
            kubeconfig=cluster.kubeconfig,
            bus=server.url,
        ) as tas,
        worker(cluster, server, tmp_path, "inventory"),
        worker(cluster, server, tmp_path, "evictions"),
        worker(cluster, server, tmp_path, "gpu", "--listen", f"127.0.0.1:{port}"),
        cluster.scheduler(*extenders(f"http://127.0.0.1:{port}/scheduler")),
    ):

        def heat(node: str, card0: int, card1: int) -> None:
            """Writes the file of a node, by the script of the example."""
            script = EXAMPLE / "set-temperature.sh"
            subprocess.run([script, str(card0), str(card1), exporters.folders[node]], check=True, timeout=60)

        for node in GPU_NODES:
            heat(node, 60, 60)
        cluster.apply(EXAMPLE / "workload.yaml")
        until(lambda: len(running(cluster)) == 2, "both pods run")
        scale(cluster, 1)
        until(lambda: tas.tas("get", "gpus").count("500 of 1000") == 1, "one card has one pod, and room for another")
        ((node, card),) = cards(cluster)
        assert card == "card0"

        heat(node, 90, 60)
        until(lambda: "disabled by gpu-health" in tas.tas("get", "gpus"), "a label disables the hot card")
        scale(cluster, 3)
        until(lambda: len(running(cluster)) == 3, "two more pods run")
        assert cards(cluster)[node, "card0"] == 1

        (leaves,) = (name for name, pod in running(cluster).items() if place(pod) == (node, "card0"))
        mark = cluster.audit.mark()
        heat(node, 99, 60)
        until(lambda: labelled(cluster) == {leaves}, "the pod of the card, and no other, is to leave")
        with descheduler(cluster, EXAMPLE / "descheduler.yaml"):
            until(lambda: len(running(cluster)) == 3 and leaves not in running(cluster), "the pod has a replacement")
        # The hot card is free, but the replacement does not get it.
        assert (node, "card0") not in cards(cluster)
        assert evictions(cluster, mark) == {f"{PODS}/{leaves}/eviction"}
        why = tas.tas("explain", "pod", f"{NAMESPACE}/new", "--manifest", str(EXAMPLE / "workload.yaml"))
        assert "card0: disabled by gpu-health" in why
        heat(node, 60, 60)
        until(lambda: "gpu-health" not in tas.tas("get", "gpus"), "the card is cool again")


def scale(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("scale", "-n", NAMESPACE, "deployment/gpu-app", f"--replicas={replicas}")
