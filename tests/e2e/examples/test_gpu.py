"""The files of `deploy/examples/gpu` with the real programs: from a file with temperatures to the cards of pods."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from tests.e2e.chain import ROOT, descheduler, evictions, scraped
from tests.e2e.cluster import Cluster
from tests.e2e.processes import clean_environment, free_ports, until
from tests.e2e.product import TAS, product
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

PAGE = EXAMPLE / "README.md"


def test_hot_cards_lose_their_pods(cluster: Cluster, server: Server, tmp_path: Path) -> None:
    kubeconfigs = accounts_of_the_page(cluster, tmp_path / "page")
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
        worker(cluster, server, tmp_path, "inventory", kubeconfig=kubeconfigs["inventory"]),
        worker(cluster, server, tmp_path, "evictions", kubeconfig=kubeconfigs["evictions"]),
        worker(cluster, server, tmp_path, "gpu", "--listen", f"127.0.0.1:{port}", kubeconfig=kubeconfigs["gpu"]),
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
        # Its effect may be visible before its entry in the log.
        until(lambda: evictions(cluster, mark) == {f"{PODS}/{leaves}/eviction"}, "only this pod was evicted")
        why = tas.tas("explain", "pod", f"{NAMESPACE}/new", "--manifest", str(EXAMPLE / "workload.yaml"))
        assert "card0: disabled by gpu-health" in why
        heat(node, 60, 60)
        until(lambda: "gpu-health" not in tas.tas("get", "gpus"), "the card is cool again")


def accounts_of_the_page(cluster: Cluster, folder: Path) -> dict[str, Path]:
    """The kubeconfigs of the workers, made by the commands of the page as they are, with the roles and the policies."""
    (commands,) = re.findall(r"^```sh\n(kubectl create namespace .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    (folder / "bin").mkdir()
    (folder / "bin" / "kubectl").symlink_to(cluster.kubectl_binary)
    (folder / "bin" / "tas").write_text(f'#!/bin/sh\nexec {shlex.join(TAS)} "$@"\n')
    (folder / "bin" / "tas").chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    env = clean_environment(HOME=str(folder), KUBECONFIG=str(cluster.kubeconfig), PATH=path)
    # The fixtures have created the namespace, so its command fails.
    done = subprocess.run(
        ["sh", "-c", commands], cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stderr.splitlines() == [
        'Error from server (AlreadyExists): namespaces "telemetry-aware-scheduling" already exists'
    ]
    assert done.returncode == 0, done.stdout
    return {name: folder / f"{name}.kubeconfig" for name in ("gpu", "inventory", "evictions")}


def scale(cluster: Cluster, replicas: int) -> None:
    cluster.kubectl("scale", "-n", NAMESPACE, "deployment/gpu-app", f"--replicas={replicas}")
