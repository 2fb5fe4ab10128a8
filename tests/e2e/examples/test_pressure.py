"""The files of `deploy/examples/pressure` with the real programs."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.e2e.chain import EXAMPLE as HEALTH
from tests.e2e.chain import ROOT, descheduler, scraped
from tests.e2e.cluster import NODES, RESOURCE, Cluster
from tests.e2e.processes import until
from tests.e2e.product import product
from workers.process.manifests import read_yaml

from .pods import places

EXAMPLE = ROOT / "deploy" / "examples" / "pressure"
NAMESPACE = "pressure-demo"
POLICY = "pressure-policy"

LONG = 300.0
"""Seconds until the label follows: the window of the rates, and `for` or `clearFor`, on a busy machine."""


class Waiting:
    """The counters of each node in a file of its node_exporter, under the names that the collector `pressure` uses.

    `shares` may be changed at any time: the part of each second by which a counter grows, by node and resource.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.shares = {node: {"memory": 0.0, "io": 0.0} for node in folders}
        self._totals = {node: {"memory": 1000.0, "io": 1000.0} for node in folders}
        self._bursts: list[tuple[str, str, float]] = []
        self._folders = folders
        self._ended = Event()

    def burst(self, node: str, resource: str, seconds: float) -> None:
        """Adds seconds to one counter at once."""
        self._bursts.append((node, resource, seconds))

    @contextmanager
    def growing(self) -> Iterator[None]:
        """The counters grow until the context ends."""
        thread = Thread(target=self._grow)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _grow(self) -> None:
        before = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            for node, totals in self._totals.items():
                for resource, share in self.shares[node].items():
                    totals[resource] += share * (now - before)
            before = now
            while self._bursts:
                node, resource, seconds = self._bursts.pop()
                self._totals[node][resource] += seconds
            for node, totals in self._totals.items():
                self._write(node, totals)
            self._ended.wait(0.5)

    def _write(self, node: str, totals: Mapping[str, float]) -> None:
        names = {f"node_pressure_{resource}_waiting_seconds_total": total for resource, total in totals.items()}
        text = "".join(f"# TYPE {name} counter\n{name} {total}\n" for name, total in names.items())
        temporary = self._folders[node] / ".pressure"
        temporary.write_text(text)
        temporary.rename(self._folders[node] / "pressure.prom")


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
        waiting = Waiting(sources.folders)
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
                waiting.shares["node-2"]["memory"] = 0.15
                waiting.shares["node-3"]["io"] = 0.9
                until(lambda: passing() == {"node-1"}, "two nodes are rejected")
                cluster.apply(EXAMPLE / "workload.yaml")
                until(lambda: placed() == ["node-1"], "the pod runs on the calm node")

                waiting.shares["node-1"]["memory"] = 0.5
                waiting.shares["node-2"]["memory"] = 0.0
                waiting.burst("node-2", "memory", 15)
                memory = queries()["memory_pressure_percent"]
                until(lambda: percentages(memory)["node-2"] > 20, "the burst violates the rule of the label")
                until(lambda: passing() == {"node-2"}, "node-1 is rejected, the burst is over", timeout=LONG)
                until(lambda: labelled(cluster) == {"node-1", "node-3"}, "lasting pressure sets labels", timeout=LONG)
                until(lambda: placed() == ["node-2"], "the pod is evicted, and its replacement runs on node-2")

                for node in ("node-1", "node-3"):
                    waiting.shares[node] = {"memory": 0.0, "io": 0.0}
                until(lambda: passing() == set(NODES), "all nodes are calm", timeout=LONG)
                assert labelled(cluster) == {"node-1", "node-3"}, "the labels stay for the time of clearFor"
                until(lambda: not labelled(cluster), "the labels are removed", timeout=LONG)
                assert placed() == ["node-2"]
            cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"))
    cluster.remove_resource()
