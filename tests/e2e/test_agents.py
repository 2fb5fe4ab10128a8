"""Agents with a real kube-scheduler: several at once beside telemetry, and the scheduler with its agents in one pod."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.forks import ForkedProcess
from tests.installed import ROOT, write_package

from .cluster import NODES, Cluster, extender
from .processes import Process, free_ports, running, until
from .product import Product, environment, is_ready, product

EXAMPLE = ROOT / "deploy" / "examples" / "agents" / "scheduler.yaml"
OWN = """
    import numpy as np
    from tas.agent import Agent, Passes, Scores


    def every(nodes):
        return np.ones(len(nodes.names), dtype=bool)


    class Known(Agent):
        points = {}
        refused = ()

        def filter(self, pod, nodes):
            passed = np.array([name not in self.refused for name in nodes.names], dtype=bool)
            return Passes(passed=passed, known=every(nodes), reason="refused by name")

        def score(self, pod, nodes):
            points = np.array([float(self.points[name]) for name in nodes.names])
            return Scores(values=points / 10, known=every(nodes), terms={"points by name": points})


    class Overload(Known):
        points = {"node-1": 7, "node-2": 0, "node-3": 10}


    class Balance(Known):
        points = {"node-1": 5, "node-2": 6, "node-3": 4}


    class First(Known):
        refused = ("node-2",)
        points = {"node-1": 0, "node-2": 10, "node-3": 0}


    class Second(Known):
        points = {"node-1": 0, "node-2": 10, "node-3": 0}
"""
FILE = "agents: {overload: , balance: {weight: 10}, first: , second: }"


class Agents:
    """A running `tas run agents`."""

    def __init__(self, process: Process, url: str, health: str) -> None:
        self.process = process
        self.url = url
        self.health = health

    def entry(self, name: str, weight: int, *, names_only: bool = True, filters: bool = False) -> dict[str, Any]:
        """An entry as the original agents have it, in the form of today."""
        verbs = {"prioritizeVerb": f"priorities/{name}"} | ({"filterVerb": f"predicates/{name}"} if filters else {})
        return {
            "urlPrefix": f"{self.url}/scheduler",
            "weight": weight,
            "bindVerb": "",
            "preemptVerb": "",
            "enableHTTPS": False,
            "nodeCacheCapable": names_only,
            "httpTimeout": "10s",
        } | verbs

    def scores(self, agent: str, namespace: str, **labels: str) -> dict[str, int]:
        """The score that an agent gives to each node, for a pod with these labels."""
        pod = {"metadata": {"name": "asked", "namespace": namespace, "labels": labels}, "spec": {"containers": []}}
        body = json.dumps({"Pod": pod, "NodeNames": list(NODES)}).encode()
        request = Request(f"{self.url}/scheduler/priorities/{agent}", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as response:
            return {each["Host"]: each["Score"] for each in json.load(response)}

    def answers(self, pod: str, verb: str) -> dict[str, dict[str, Any]]:
        """The last answer of each agent for a pod."""
        with urlopen(f"http://{self.health}/answers", timeout=30) as response:
            found = json.load(response)
        return {each["path"]: each for each in found if (each["pod"], each["verb"]) == (pod, verb)}


@contextmanager
def agents(cluster: Cluster, tas: Product, folder: Path, text: str, **environ: str) -> Iterator[Agents]:
    folder.mkdir(exist_ok=True)
    file = folder / "agents.yaml"
    file.write_text(text)
    port, health_port = free_ports(2)
    command = ["-m", "cli", "run", "agents", "--bus", tas.bus, "--agents", str(file)]
    command += ["--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health_port}"]
    env = environment(cluster.folder) | environ
    label = f"agents-{len(cluster.processes)}"
    with running(label, command, folder=cluster.folder, env=env, kind=ForkedProcess) as process:
        cluster.processes.append(process)
        until(lambda: is_ready(process, health_port), "the agents are ready")
        yield Agents(process, f"http://127.0.0.1:{port}", f"127.0.0.1:{health_port}")


@pytest.fixture(scope="module")
def tas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(cluster, Path(tmp_path_factory.mktemp("tas"))) as found:
        yield found


@pytest.mark.parametrize("names_only", [True, False], ids=["names", "nodes"])
def test_scores_are_added_by_weight_and_filters_are_asked_in_order(
    cluster: Cluster, namespace: str, tas: Product, tmp_path: Path, names_only: bool
) -> None:
    """570 points for node-1 (7 · 1 + 5 · 10, times 10), 600 for node-2, 500 for node-3; unweighted node-3 wins."""
    kinds = {name.lower(): f"own:{name}" for name in ("Overload", "Balance", "First", "Second")}
    site = write_package(tmp_path / "site", OWN, group="tas.agents", **kinds)
    rules = [{"metricname": "health_metric", "operator": "Equals", "target": 2}]
    with agents(cluster, tas, tmp_path / "agents", FILE, PYTHONPATH=str(site)) as found:
        weighted = [
            found.entry("overload", 1, names_only=names_only),
            found.entry("balance", 10, names_only=names_only),
        ]
        with cluster.scheduler(*weighted):
            cluster.create_pod(namespace, "summed", managed=False)
            assert cluster.placed(namespace, "summed") == "node-2"
        best = {path: dict(each["best"]) for path, each in found.answers("summed", "prioritize").items()}
        assert (best["/overload"]["node-1"], best["/balance"]["node-1"]) == (7, 5)
        told = tas.tas("explain", "pod", f"{namespace}/summed", "--extender-health", found.health, "--json")
        values = [value for answer in json.loads(told)["answered"] for value in answer["values"]]
        assert {("node-1", "points by name", "7"), ("node-2", "points by name", "6")} <= {
            (value["node"], value["rule"], value["value"]) for value in values
        }
        cluster.delete_pods(namespace)

        # The same beside telemetry: it rejects node-3, then `first` rejects node-2, which both agents score highest.
        tas.publish({name: {"health_metric": 2 if name == "node-3" else 0} for name in NODES})
        filters = [found.entry(name, 10, names_only=names_only, filters=True) for name in ("first", "second")]
        with (
            tas.policy(namespace, "demo", {"dontschedule": {"rules": rules}}),
            cluster.scheduler(extender(tas.url, names_only=names_only), *filters),
        ):
            until(lambda: tas.passes(namespace, "demo", NODES) == {"node-1", "node-2"}, "node-3 is rejected")
            cluster.create_pod(namespace, "filtered", policy="demo")
            assert cluster.placed(namespace, "filtered") == "node-1"
            asked = found.answers("filtered", "filter")
            assert [(asked[path]["candidates"], asked[path]["passed"]) for path in ("/first", "/second")] == [
                (2, 1),
                (1, 1),
            ]
            assert asked["/first"]["reasons"] == {"first: refused by name": 1}
        cluster.delete_pods(namespace)


@contextmanager
def inventory(cluster: Cluster, tas: Product, *flags: str) -> Iterator[None]:
    """A running `tas run inventory` as agents need it."""
    (health_port,) = free_ports(1)
    command = ["-m", "cli", "run", "inventory", "--bus", tas.bus]
    command += ["--kubeconfig", str(cluster.kubeconfig), "--cards", "off"]
    command += ["--allocations", "on", *flags, "--health-listen", f"127.0.0.1:{health_port}"]
    name = f"inventory-{len(cluster.processes)}"
    env = environment(cluster.folder)
    with running(name, command, folder=cluster.folder, env=env, kind=ForkedProcess) as process:
        cluster.processes.append(process)
        until(lambda: is_ready(process, health_port), "the inventory is ready")
        yield


def test_annotations_that_somebody_writes_are_what_the_agents_of_the_original_score_by(
    cluster: Cluster, namespace: str, tas: Product, tmp_path: Path
) -> None:
    """Under the names of the original, with nothing in the file of agents but their options of the original."""

    def annotate(node: str, *annotations: str) -> None:
        cluster.kubectl("annotate", "--overwrite", "node", node, *annotations)

    # `much` must cost the other annotation of the node nothing.
    annotate("node-1", "congestion-factor=1", "mean-free-cpu=much")
    annotate("node-2", "congestion-factor=10", "mean-free-cpu=4300", "std-free-cpu=100")
    annotate("node-3", "congestion-factor=5.0", "mean-free-cpu=N/A")
    text = "agents: {congestion: {options: {limit: 10}}, safe-balance: }"
    with inventory(cluster, tas, "--annotations", "on"), agents(cluster, tas, tmp_path / "agents", text) as found:

        def scores(agent: str) -> dict[str, int]:
            return found.scores(agent, namespace)

        until(lambda: scores("congestion") == {"node-1": 9, "node-2": 0, "node-3": 5}, "the annotations count")
        until(lambda: scores("safe-balance")["node-2"] > 0, "the free cpu counts")
        assert len(set(scores("safe-balance").values())) == 1  # `neutral`: the others get the mean of node-2
        why = "annotation mean-free-cpu = 'much': must be a plain decimal number"
        until(lambda: why in tas.tas("explain", "node", "node-1"), "people see what is refused")
        with cluster.scheduler(found.entry("congestion", 10)):
            cluster.create_pod(namespace, "first", managed=False)
            assert cluster.placed(namespace, "first") == "node-1"
            annotate("node-1", "congestion-factor=10")
            until(lambda: scores("congestion")["node-1"] == 0, "the change counts")
            cluster.create_pod(namespace, "second", managed=False)
            assert cluster.placed(namespace, "second") == "node-3"
            annotate("node-3", "congestion-factor-")  # what is not there any more is no reason to act: the value ages
            annotate("node-1", "congestion-factor=8")
            until(lambda: scores("congestion")["node-1"] == 2, "a later change counts")
            assert scores("congestion")["node-3"] == 5
    for node in NODES:
        annotate(node, "congestion-factor-", "mean-free-cpu-", "std-free-cpu-")
    cluster.delete_pods(namespace)


def test_a_node_on_which_a_pod_has_failed_gets_no_other_pod_of_its_kind(
    cluster: Cluster, namespace: str, tas: Product, tmp_path: Path
) -> None:
    """Also if the process was killed meanwhile, and by another replica. Pods of other kinds go there."""
    text = "agents: {rl-priority: }"
    tried: list[str] = []

    def place_and_fail(name: str) -> None:
        cluster.create_pod(namespace, name, labels={"app": "web"}, managed=False)
        tried.append(cluster.placed(namespace, name))
        until(lambda: cluster.is_running(namespace, name), f"{name} runs")
        ended = {"terminated": {"exitCode": 1, "finishedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}
        containers = [
            {"name": "main", "image": "pause", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
        ]
        status = {"status": {"phase": "Failed", "containerStatuses": containers}}
        cluster.kubectl(
            "patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", json.dumps(status)
        )

    def knows(found: Agents) -> bool:
        try:
            scores = found.scores("rl-priority", namespace, app="web")
        except OSError:  # it starts, or answers 503 yet
            return False
        return scores == {node: 9 if node in tried else 10 for node in NODES}

    with inventory(cluster, tas, "--outcomes", "on"), agents(cluster, tas, tmp_path / "one", text) as found:
        for name in ("first", "second"):
            with cluster.scheduler(found.entry("rl-priority", 100)):
                place_and_fail(name)
            until(lambda: knows(found), f"the failure of {name} counts")
            found.process.restart()
            until(lambda: knows(found), "it counts after a kill")
        assert len(set(tried)) == 2
        with agents(cluster, tas, tmp_path / "other", text) as other:
            until(lambda: knows(other), "another replica knows the same")
        assert set(found.scores("rl-priority", namespace, app="other").values()) == {10}
        with cluster.scheduler(found.entry("rl-priority", 100)):
            cluster.create_pod(namespace, "third", labels={"app": "web"}, managed=False)
            assert cluster.placed(namespace, "third") not in tried
    cluster.delete_pods(namespace)


def test_defect_f7_the_example_is_accepted_and_its_configuration_places_a_pod(
    cluster: Cluster, namespace: str, tas: Product, tmp_path: Path
) -> None:
    cluster.kubectl("apply", "--dry-run=server", "-f", str(EXAMPLE))
    objects: list[Mapping[str, Any]] = list(yaml.safe_load_all(EXAMPLE.read_text()))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    entries = yaml.safe_load(maps["my-scheduler"]["scheduler-config.yaml"])["extenders"]
    scheduler, *sidecars = deployment["spec"]["template"]["spec"]["containers"]
    assert (scheduler["name"], len(sidecars), len(entries)) == ("kube-scheduler", 2, 3)
    for sidecar in sidecars:
        settings = {each["name"]: each["value"] for each in sidecar["env"]}
        port = settings.pop("HTTP_PORT")
        text = maps["my-scheduler-agents"][f"{sidecar['name']}.yaml"]
        (folder := tmp_path / sidecar["name"]).mkdir()
        with agents(cluster, tas, folder, text, **settings) as found:
            own = [
                entry | {"urlPrefix": f"{found.url}/scheduler"}
                for entry in entries
                if f":{port}/" in entry["urlPrefix"]
            ]
            assert own
            with cluster.scheduler(*own):
                pod = f"{sidecar['name']}-pod"
                cluster.create_pod(namespace, pod, managed=False)
                assert cluster.placed(namespace, pod) in NODES
            asked = found.answers(pod, "prioritize")
            assert len(asked) == len(own)
            assert {each["status"] for each in asked.values()} == {200}
        cluster.delete_pods(namespace)
