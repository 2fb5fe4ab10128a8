"""The files of `deploy/examples/pressure` with the real programs."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.e2e.chain import EXAMPLE as HEALTH
from tests.e2e.chain import ROOT, descheduler, scraped
from tests.e2e.cluster import NODES, RESOURCE, Cluster
from tests.e2e.processes import until
from tests.e2e.product import product
from workers.process.manifests import read_yaml

from .counters import Counters, write_file
from .pods import places

EXAMPLE = ROOT / "deploy" / "examples" / "pressure"
NAMESPACE = "pressure-demo"
POLICY = "pressure-policy"

LONG = 300.0
"""Seconds until the label follows: the window of the rates, and `for` or `clearFor`, on a busy machine."""


def write(folders: Mapping[str, Path], node: str, seconds: Mapping[str, float]) -> None:
    """Writes the counters of a node for its node_exporter, under the names that the collector `pressure` uses."""
    names = {f"node_pressure_{resource}_waiting_seconds_total": total for resource, total in seconds.items()}
    text = "".join(f"# TYPE {name} counter\n{name} {total}\n" for name, total in names.items())
    write_file(folders[node] / "pressure.prom", text)


def queries() -> dict[str, str]:
    """The queries of the example, by metric."""
    (config,) = read_yaml((EXAMPLE / "source-config.yaml").read_bytes())
    assert isinstance(config, dict)
    return {name: metric["query"] for name, metric in config["metrics"].items()}


def answers(prometheus: str, query: str) -> dict[str, float]:
    """The answer of Prometheus, by node."""
    url = f"{prometheus}/api/v1/query?{urlencode({'query': query})}"
    with build_opener(ProxyHandler({})).open(url, timeout=60) as answer:
        result = json.load(answer)["data"]["result"]
    return {each["metric"]["instance"]: float(each["value"][1]) for each in result}


def labelled(cluster: Cluster) -> set[str]:
    nodes = cluster.api.get("/api/v1/nodes", labelSelector=f"{POLICY}=violating")["items"]
    return {node["metadata"]["name"] for node in nodes}


def all_offer(cluster: Cluster) -> bool:
    """Whether all nodes offer the resource: otherwise the descheduler finds that the pod fits no other node."""
    return all(RESOURCE in node["status"]["allocatable"] for node in cluster.api.get("/api/v1/nodes")["items"])


@pytest.mark.timeout(1200)
def test_lasting_pressure_moves_a_pod_and_a_burst_does_not(cluster: Cluster, crd: None, tmp_path: Path) -> None:
    placed = partial(places, cluster, NAMESPACE)
    folders = {name: tmp_path / name for name in ("sources", "tas")}
    for folder in folders.values():
        folder.mkdir()
    with scraped(cluster, folders["sources"], NODES) as sources:
        waiting = Counters({node: {"memory": 0.0, "io": 0.0} for node in NODES}, partial(write, sources.folders))
        flags = ["--source", f"prometheus={sources.prometheus}", "--source-config", str(EXAMPLE / "source-config.yaml")]
        flags += ["--node-resource", "1000"]
        with waiting.growing(), product(cluster, folders["tas"], *flags, kubeconfig=cluster.kubeconfig) as tas:
            percentages = partial(answers, sources.prometheus)
            passing = partial(tas.passes, NAMESPACE, POLICY, NODES)
            cluster.apply(EXAMPLE / "policy.yaml")
            calm = dict.fromkeys(NODES, 0.0)
            until(lambda: all(percentages(each) == calm for each in queries().values()), "Prometheus has all rates")
            until(partial(all_offer, cluster), "all nodes offer the resource")
            (configuration,) = read_yaml((HEALTH / "scheduler.yaml").read_bytes())
            assert isinstance(configuration, dict)
            (entry,) = configuration["extenders"]
            # As in the file, except the address and a longer time limit for a slow machine.
            extender = entry | {"urlPrefix": f"{tas.url}/scheduler", "httpTimeout": "30s"}
            with cluster.scheduler(extender), descheduler(cluster):
                # Enough pressure to keep new pods away from node-2 and node-3.
                waiting.rates["node-2"]["memory"] = 0.15
                waiting.rates["node-3"]["io"] = 0.9
                until(lambda: passing() == {"node-1"}, "two nodes are rejected")
                cluster.apply(EXAMPLE / "workload.yaml")
                until(lambda: placed() == ["node-1"], "the pod runs on the calm node")

                waiting.rates["node-1"]["memory"] = 0.5
                waiting.rates["node-2"]["memory"] = 0.0
                waiting.burst("node-2", "memory", 15)
                memory = queries()["memory_pressure_percent"]
                until(lambda: percentages(memory)["node-2"] > 20, "the burst violates the rule of the label")
                until(lambda: passing() == {"node-2"}, "node-1 is rejected, the burst is over", timeout=LONG)
                until(lambda: labelled(cluster) == {"node-1", "node-3"}, "lasting pressure sets labels", timeout=LONG)
                until(lambda: placed() == ["node-2"], "the pod is evicted, and its replacement runs on node-2")

                for node in ("node-1", "node-3"):
                    waiting.rates[node] = {"memory": 0.0, "io": 0.0}
                until(lambda: passing() == set(NODES), "all nodes are calm", timeout=LONG)
                assert labelled(cluster) == {"node-1", "node-3"}, "the labels stay for the time of clearFor"
                until(lambda: not labelled(cluster), "the labels are removed", timeout=LONG)
                assert placed() == ["node-2"]
            cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"))
    cluster.remove_resource()
