"""docs/how-to/moving-pods.md with real programs: which pods leave a labelled node, how fast, and what keeps others."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.process.manifests import read_yaml

from .api import ApiError, Object
from .chain import EXAMPLE, descheduler, evictions
from .cluster import Cluster, extender
from .processes import Process, until
from .product import product

NODES = ("leave-1", "leave-2", "leave-3")
POOL = {"pool": "leave"}
POLICY = "leave"
METRIC = "leave_health"
POLICIES = "/apis/telemetry.intel.com/v1alpha1/namespaces/{}/taspolicies"
POLICY_MANIFEST = f"""
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {{name: {POLICY}}}
spec:
  strategies:
    deschedule: {{rules: [{{metricname: {METRIC}, operator: Equals, target: 2}}]}}
    dontschedule: {{rules: [{{metricname: {METRIC}, operator: GreaterThan, target: 0}}]}}
"""
NOT_VIOLATING = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": POLICY, "operator": "NotIn", "values": ["violating"]}]},
        ]
    }
}


def workload(
    kind: str, name: str, *, replicas: int | None = None, policy: bool = True, affinity: bool = True
) -> Object:
    """A workload on the nodes of this test. With `affinity` its pods do not want to be on a labelled node."""
    labels = {"app": name} | ({"telemetry-policy": POLICY} if policy else {})
    pod: Object = {"nodeSelector": POOL, "containers": [{"name": "main", "image": "pause"}]}
    if affinity:
        pod["affinity"] = {"nodeAffinity": NOT_VIOLATING}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        | ({} if replicas is None else {"replicas": replicas}),
    }


BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "guarded"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
}


@pytest.fixture
def nodes(cluster: Cluster, crd: None) -> Iterator[None]:
    """Nodes of this test alone."""
    cluster.create_nodes(*NODES, labels=POOL)
    yield
    cluster.delete_nodes(*NODES)


@pytest.fixture
def agents(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Two DaemonSets on each node; only the second one has the affinity."""
    for name, affinity in (("agent", False), ("touchy", True)):
        create(cluster, namespace, workload("DaemonSet", name, policy=False, affinity=affinity))
    yield
    cluster.kubectl("delete", "daemonsets", "--all", "-n", namespace)


def test_which_pods_leave_a_labelled_node(
    cluster: Cluster, nodes: None, namespace: str, agents: None, tmp_path: Path
) -> None:
    def places(app: str) -> list[str]:
        """The node of each pod of an app, empty for a pod that does not run."""
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"app={app}")["items"]
        alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(pod["spec"]["nodeName"] if pod["status"].get("phase") == "Running" else "" for pod in alive)

    def labelled() -> set[str]:
        found = cluster.api.get("/api/v1/nodes", labelSelector=f"{POLICY}=violating")["items"]
        return {node["metadata"]["name"] for node in found}

    def all_settled(**expected: list[str]) -> bool:
        return all(places(app) == nodes for app, nodes in expected.items())

    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=POLICY_MANIFEST)
    with product(cluster, tmp_path, "--stale-after", "30m", kubeconfig=cluster.kubeconfig) as tas:
        tas.publish({"leave-1": {METRIC: 0}, "leave-2": {METRIC: 2}, "leave-3": {METRIC: 2}})
        until(lambda: labelled() == {"leave-2", "leave-3"}, "two nodes are labelled")
        # The extender is called for each pod, so that the pods need no resource.
        entry = extender(tas.url, names_only=True, httpTimeout="30s", managedResources=[])
        with cluster.scheduler(entry):
            create(cluster, namespace, workload("Deployment", "moves", replicas=2))
            create(cluster, namespace, workload("Deployment", "guarded", replicas=1))
            create(cluster, namespace, workload("Deployment", "stays", replicas=1, affinity=False))
            create(cluster, namespace, BUDGET)
            first = ["leave-1"]
            until(lambda: all_settled(moves=first * 2, guarded=first, stays=first), "all run on the healthy node")
            until(lambda: all_settled(agent=list(NODES), touchy=first), "an agent runs on each node")
            until(lambda: healthy(cluster, namespace) == 1, "the budget counts the pod")
            mark = cluster.audit.mark()
            with descheduler(cluster, configured(tmp_path)) as evicting:
                tas.publish({"leave-1": {METRIC: 2}})
                until(lambda: labelled() == set(NODES), "all nodes are labelled")
                # The controller of a DaemonSet deletes its pod itself; the descheduler finds no node for the others.
                until(lambda: places("touchy") == [], "the agent with the affinity is deleted")
                another_cycle(evicting)
                assert evictions(cluster, mark) == set()
                assert all_settled(moves=first * 2, guarded=first, stays=first, agent=list(NODES))

                tas.publish({"leave-2": {METRIC: 0}})
                until(lambda: all_settled(moves=["leave-2"] * 2), "the pods have moved to the healthy node")
                until(lambda: "disruption budget" in evicting.log.read_text(), "the budget protects a pod")
                assert all_settled(guarded=first, stays=first, agent=list(NODES))
                until(lambda: places("touchy") == ["leave-2"], "the agent with the affinity is back on one node")
                until(lambda: len(evictions(cluster, mark)) == 2, "two pods were evicted")

                cluster.kubectl("delete", "pdb", "guarded", "-n", namespace)
                until(lambda: all_settled(guarded=["leave-2"]), "without the budget the pod moves")
                until(lambda: len(evictions(cluster, mark)) == 3, "three pods were evicted")
                assert all_settled(stays=first, agent=list(NODES))

                # The metric says that every node is bad: the breaker keeps the last one, and its pods run on.
                limit = {"spec": {"breaker": {"maxNodes": 2}}}
                cluster.api.patch(f"{POLICIES.format(namespace)}/{POLICY}", limit)
                until(lambda: status(cluster, namespace)[0], "the limit is in force")
                tas.publish({"leave-2": {METRIC: 2}})
                until(lambda: status(cluster, namespace)[1] == "BreakerTripped", "the breaker has tripped")
                another_cycle(evicting)
                assert labelled() == {"leave-1", "leave-3"}
                assert all_settled(moves=["leave-2"] * 2, guarded=["leave-2"], stays=first, agent=list(NODES))
                assert len(evictions(cluster, mark)) == 3
                text = evicting.log.read_text()
    # At most one pod of a node in each cycle, as its configuration says.
    assert {int(count) for count in re.findall(r"totalEvicted=(\d+)", text)} == {0, 1}


def another_cycle(evicting: Process) -> None:
    """Waits until the descheduler has begun and ended a cycle."""
    cycles = evicting.log.read_text().count("Number of evictions")
    until(lambda: evicting.log.read_text().count("Number of evictions") > cycles + 1, "another cycle has ended")


def status(cluster: Cluster, namespace: str) -> tuple[bool, str]:
    """Whether the status of the policy is that of its spec, and the reason of its condition `Ready`."""
    found = cluster.api.get(f"{POLICIES.format(namespace)}/{POLICY}")
    reported = found.get("status", {})
    ready = [each["reason"] for each in reported.get("conditions", []) if each["type"] == "Ready"]
    return reported.get("observedGeneration") == found["metadata"]["generation"], "".join(ready)


def create(cluster: Cluster, namespace: str, manifest: Object) -> None:
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))


def healthy(cluster: Cluster, namespace: str) -> int:
    """The pods that the budget counts as healthy."""
    try:
        found = cluster.api.get(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/guarded")
    except ApiError:
        return 0
    return int(found.get("status", {}).get("currentHealthy", 0))


def configured(folder: Path) -> Path:
    """The policy of the example, for the nodes of this test."""
    (document,) = read_yaml((EXAMPLE / "descheduler.yaml").read_bytes())
    assert isinstance(document, dict)
    file = folder / "descheduler.yaml"
    file.write_text(json.dumps(document | {"nodeSelector": "pool=leave"}))
    return file
