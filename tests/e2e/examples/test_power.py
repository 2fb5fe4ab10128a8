"""The files of `deploy/examples/power` with the real programs."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.e2e.api import Object
from tests.e2e.chain import EXAMPLE as HEALTH
from tests.e2e.chain import ROOT, Scraped, adapter, scraped
from tests.e2e.cluster import NODES, Cluster
from tests.e2e.processes import Process, running, until
from tests.e2e.product import product
from tests.e2e.prometheus import prometheus
from workers.process.manifests import read_yaml

from .counters import Counters, write_file
from .pods import places, rejections

EXAMPLE = ROOT / "deploy" / "examples" / "power"
NAMESPACE = "power-demo"
POLICY = "power-sensitive-scheduling-policy"
MONITORING = "monitoring"
APPLICATION = "power-hungry-application"

PACKAGES = ("0", "1")
TDP = 140
"""Watts of one package, of which each node has two."""


def document(name: str) -> Object:
    """The only document of a file of the example."""
    (found,) = read_yaml((EXAMPLE / name).read_bytes())
    assert isinstance(found, dict)
    return found


def zone(sources: Scraped, node: str, package: str) -> Path:
    """The folder of a package, as the kernel has it in powercap."""
    return sources.kernels[node] / "sys" / "class" / "powercap" / f"intel-rapl:{package}"


def build(sources: Scraped) -> None:
    """Writes the files of powercap that do not change, and the thermal design power by the script of the example."""
    for node in NODES:
        for package in PACKAGES:
            folder = zone(sources, node, package)
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"package-{package}\n")
            (folder / "max_energy_range_uj").write_text("262143328850\n")
            (folder / "constraint_0_max_power_uw").write_text(f"{TDP}000000\n")
        script = [EXAMPLE / "package-tdp.sh", sources.folders[node], sources.kernels[node] / "sys"]
        subprocess.run(script, check=True, timeout=60)


def write(sources: Scraped, node: str, joules: Mapping[str, float]) -> None:
    """Writes the energy counters of a node."""
    for package, total in joules.items():
        write_file(zone(sources, node, package) / "energy_uj", f"{total * 1e6:.0f}\n")


class Power(Counters):
    """The power of the packages of each node, in percent of their thermal design power."""

    def __init__(self, sources: Scraped) -> None:
        super().__init__({node: dict.fromkeys(PACKAGES, 0.0) for node in NODES}, partial(write, sources))

    def set(self, node: str, percent: float) -> None:
        """The power of a node. One package uses more than the other one."""
        difference = percent / 2
        self.rates[node] = {
            "0": (percent + difference) * TDP / 100,
            "1": (percent - difference) * TDP / 100,
        }


def prometheus_configuration(cluster: Cluster, folder: Path) -> dict[str, object]:
    """The file of the example, with addresses of this machine. `folder` gets the file of the scheduler's address."""
    configuration = document("prometheus.yaml")
    node, scheduler = configuration["scrape_configs"]
    for job in (node, scheduler):
        del job["kubernetes_sd_configs"], job["relabel_configs"]
    token = folder / "token"
    token.write_text(cluster.kubectl("create", "token", "prometheus", "-n", MONITORING))
    scheduler |= {
        "authorization": {"credentials_file": str(token)},
        "file_sd_configs": [{"files": [str(folder / "scheduler.json")]}],
    }
    return configuration | {"rule_files": [str(EXAMPLE / name) for name in configuration["rule_files"]]}


def publish_address(folder: Path, scheduler: Process) -> None:
    """Writes the address of a running scheduler for Prometheus."""
    found = re.search(r"Serving securely on (127\.0\.0\.1:\d+)", scheduler.log.read_text())
    assert found is not None
    write_file(folder / "scheduler.json", json.dumps([{"targets": [found[1]]}]))


def active_targets(url: str) -> dict[str, str]:
    """The URL that Prometheus scrapes for each value of `instance`."""
    with build_opener(ProxyHandler({})).open(f"{url}/api/v1/targets", timeout=60) as answer:
        targets = json.load(answer)["data"]["activeTargets"]
    return {each["labels"]["instance"]: each["scrapeUrl"] for each in targets}


def test_prometheus_finds_node_exporter_and_the_scheduler_by_the_labels_of_the_discovery(
    prometheus_binary: Path, tmp_path: Path
) -> None:
    """The Prometheus of the tests lacks the discovery of Kubernetes, so the test gives its labels."""
    configuration = document("prometheus.yaml")
    del configuration["rule_files"]
    for job in configuration["scrape_configs"]:
        del job["kubernetes_sd_configs"]
    scheduler = {"__meta_kubernetes_pod_ip": "127.0.0.8"}
    configuration["scrape_configs"][1]["static_configs"] = [{"targets": ["127.0.0.8"], "labels": scheduler}]
    node = {"__meta_kubernetes_node_name": "node-1", "__meta_kubernetes_node_address_InternalIP": "127.0.0.7"}
    with prometheus(prometheus_binary, tmp_path, {"127.0.0.7:10250": node}, based_on=configuration) as (url, process):
        expected = {
            "node-1": "http://127.0.0.7:9100/metrics",
            "127.0.0.8:10259": "https://127.0.0.8:10259/metrics/resources",
        }

        def found() -> bool:
            process.must_run()
            with suppress(URLError):  # it does not listen yet
                return active_targets(url) == expected
            return False

        until(found, "Prometheus has the targets")


@contextmanager
def monitoring(cluster: Cluster) -> Iterator[None]:
    """The service account of Prometheus with the rights of the example."""
    cluster.create_namespace(MONITORING)
    cluster.kubectl("create", "serviceaccount", "prometheus", "-n", MONITORING)
    cluster.apply(EXAMPLE / "prometheus-rights.yaml")
    yield
    cluster.kubectl("delete", "-f", str(EXAMPLE / "prometheus-rights.yaml"))
    cluster.kubectl("delete", "namespace", MONITORING)


@contextmanager
def autoscaling(cluster: Cluster) -> Iterator[None]:
    """Runs the controller of HorizontalPodAutoscalers, which the control plane of the tests lacks."""
    flags = [
        f"--kubeconfig={cluster.kubeconfig}",
        "--controllers=horizontal-pod-autoscaler-controller",
        "--horizontal-pod-autoscaler-sync-period=2s",
        "--leader-elect=false",
        "--secure-port=0",
    ]
    name = f"autoscaler-{len(cluster.processes)}"
    command: list[str | Path] = [cluster.programs["kube-controller-manager"], *flags]
    with running(name, command, folder=cluster.folder) as process:
        cluster.processes.append(process)
        yield


def autoscaler(cluster: Cluster) -> Object:
    """The status of the HorizontalPodAutoscaler."""
    path = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers/power-autoscaler"
    status: Object = cluster.api.get(path)["status"]
    return status


def replicas(cluster: Cluster) -> int:
    """The number of replicas that the Deployment should have."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{APPLICATION}"
    number: int = cluster.api.get(path)["spec"]["replicas"]
    return number


@pytest.mark.timeout(1200)
def test_pods_of_an_autoscaled_application_go_to_the_node_with_the_least_power(
    cluster: Cluster, crd: None, tmp_path: Path
) -> None:
    placed = partial(places, cluster, NAMESPACE)
    folders = {name: tmp_path / name for name in ("sources", "tas")}
    for folder in folders.values():
        folder.mkdir()
    with (
        monitoring(cluster),
        scraped(
            cluster,
            folders["sources"],
            NODES,
            collectors=("rapl",),
            prometheus_configuration=prometheus_configuration(cluster, tmp_path),
        ) as sources,
        adapter(cluster, folders["sources"], sources.prometheus, (EXAMPLE / "adapter.yaml").read_text()),
    ):
        build(sources)
        power = Power(sources)
        for node, percent in {"node-1": 20, "node-2": 30, "node-3": 75}.items():
            power.set(node, percent)
        with (
            power.growing(),
            product(cluster, folders["tas"], "--source", "custom-metrics", kubeconfig=cluster.kubeconfig) as tas,
        ):
            passing = partial(tas.passes, NAMESPACE, POLICY, NODES)
            scores = partial(tas.scores, NAMESPACE, POLICY, NODES)
            (configuration,) = read_yaml((HEALTH / "scheduler.yaml").read_bytes())
            assert isinstance(configuration, dict)
            (entry,) = configuration["extenders"]
            # As in the file, except the address and a longer time limit for a slow machine.
            extender = entry | {"urlPrefix": f"{tas.url}/scheduler", "httpTimeout": "30s"}
            with cluster.scheduler(extender) as scheduler, autoscaling(cluster):
                publish_address(tmp_path, scheduler)
                cluster.apply(EXAMPLE / "policy.yaml")
                cluster.apply(EXAMPLE / "autoscaler.yaml")
                until(lambda: scores() == {"node-1": 10, "node-2": 9, "node-3": 8}, "all nodes have scores")
                until(lambda: passing() == {"node-1", "node-2"}, "node-3 uses too much power")
                cluster.apply(EXAMPLE / "workload.yaml")
                until(lambda: placed() == ["node-1"], "the pod runs on the node with the least power")

                # The application works. Meanwhile node-3 has less to do, but still uses more power than node-2.
                power.set("node-1", 65)
                power.set("node-3", 40)
                until(lambda: replicas(cluster) == 2, "the autoscaler adds a replica")
                until(lambda: placed() == ["node-1", "node-2"], "the new pod runs on the node with less power")

                until(lambda: "node-1" not in passing(), "node-1 uses too much power")
                power.set("node-2", 75)
                until(lambda: replicas(cluster) == 3, "the autoscaler adds another replica")
                until(lambda: placed() == ["node-1", "node-2", "node-3"], "the third pod runs on the third node")

                # All nodes use too much power: a new pod waits.
                power.set("node-3", 70)
                until(lambda: passing() == set(), "all nodes use too much power")
                until(lambda: limits(cluster) == {"TooManyReplicas"}, "the autoscaler wants more than maxReplicas")
                (lost,) = [pod for pod, node in nodes_of(cluster).items() if node == "node-3"]
                cluster.kubectl("delete", "pod", "-n", NAMESPACE, lost)
                (message,) = until(lambda: rejections(cluster, NAMESPACE), "the replacement waits")
                expected = f"3 Node violates {POLICY}: package_power_avg GreaterThan"
                assert message.startswith(f"0/3 nodes are available: {expected} 60"), message

                power.set("node-3", 20)
                until(
                    lambda: placed() == ["node-1", "node-2", "node-3"],
                    "the replacement runs on the node with less power",
                )
                assert replicas(cluster) == 3
            cluster.kubectl("delete", "-f", str(EXAMPLE / "policy.yaml"))


def nodes_of(cluster: Cluster) -> dict[str, str]:
    """The node of each pod of the application."""
    pods = cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}


def limits(cluster: Cluster) -> set[str]:
    """Why the autoscaler does not want more or fewer replicas."""
    conditions = autoscaler(cluster).get("conditions", [])
    return {each["reason"] for each in conditions if each["type"] == "ScalingLimited"}
