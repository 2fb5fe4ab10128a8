"""The files of `deploy/examples/memory` with the real programs."""

from functools import partial
from pathlib import Path

from tests.e2e.chain import EXAMPLE as HEALTH
from tests.e2e.chain import ROOT, Scraped, scraped
from tests.e2e.cluster import NODES, Cluster
from tests.e2e.processes import until
from tests.e2e.product import product
from workers.process.manifests import read_yaml

from .counters import write_file
from .pods import places, rejections

EXAMPLE = ROOT / "deploy" / "examples" / "memory"
NAMESPACE = "memory-demo"
POLICY = "memory-policy"


def write(sources: Scraped, node: str, gibibytes: int) -> None:
    """Writes the file of the kernel that the collector `meminfo` reads."""
    lines = {"MemTotal": 32, "MemFree": gibibytes, "MemAvailable": gibibytes + 1}
    text = "".join(f"{name}: {size << 20:>12} kB\n" for name, size in lines.items())
    write_file(sources.kernels[node] / "proc" / "meminfo", text)


def test_pods_go_to_the_node_with_the_most_free_memory(cluster: Cluster, crd: None, tmp_path: Path) -> None:
    placed = partial(places, cluster, NAMESPACE)
    folders = {name: tmp_path / name for name in ("sources", "tas")}
    for folder in folders.values():
        folder.mkdir()
    with (
        scraped(cluster, folders["sources"], NODES, collectors=("meminfo",)) as sources,
        product(
            cluster, folders["tas"], "--source", f"prometheus={sources.prometheus}", kubeconfig=cluster.kubeconfig
        ) as tas,
    ):
        passing = partial(tas.passes, NAMESPACE, POLICY, NODES)
        for node, gibibytes in {"node-1": 4, "node-2": 8, "node-3": 1}.items():
            write(sources, node, gibibytes)
        cluster.apply(EXAMPLE / "policy.yaml")
        scores = {"node-1": 9, "node-2": 10, "node-3": 8}
        until(lambda: tas.scores(NAMESPACE, POLICY, NODES) == scores, "all nodes have scores")
        until(lambda: passing() == {"node-1", "node-2"}, "node-3 has too little free memory")
        (configuration,) = read_yaml((HEALTH / "scheduler.yaml").read_bytes())
        assert isinstance(configuration, dict)
        (entry,) = configuration["extenders"]
        # As in the file, except the address and a longer time limit for a slow machine.
        with cluster.scheduler(entry | {"urlPrefix": f"{tas.url}/scheduler", "httpTimeout": "30s"}):
            cluster.apply(EXAMPLE / "workload.yaml")
            until(lambda: placed() == ["node-2"], "the pod runs on the node with the most free memory")

            write(sources, "node-2", 1)
            until(lambda: passing() == {"node-1"}, "node-2 has too little free memory")
            cluster.kubectl("scale", "-n", NAMESPACE, "deployment/demo-app", "--replicas=2")
            until(lambda: placed() == ["node-1", "node-2"], "the second pod runs on the only node left")

            write(sources, "node-1", 1)
            until(lambda: passing() == set(), "no node has enough free memory")
            cluster.kubectl("scale", "-n", NAMESPACE, "deployment/demo-app", "--replicas=3")
            (message,) = until(lambda: rejections(cluster, NAMESPACE), "the third pod waits")
            expected = f"0/3 nodes are available: 3 Node violates {POLICY}: memory_MemFree_bytes LessThan"
            assert message.startswith(expected), message

            write(sources, "node-3", 16)
            until(lambda: placed() == ["node-1", "node-2", "node-3"], "the pod runs on the node with free memory")
        cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"))
