"""The real descheduler's LowNodeUtilization decides by the values from which the scheduler is answered."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.process.manifests import read_yaml

from .binaries import DESCHEDULER_CA
from .chain import DESCHEDULER, descheduler, evictions
from .cluster import Cluster, extender
from .processes import until
from .product import product

FILE = Path(__file__).parents[2] / "deploy" / "descheduler" / "low-node-utilization.yaml"
NODES = ("shared-1", "shared-2", "shared-3")
POOL = {"pool": "shared"}
POLICY = "busy"
METRIC = "memory_used_share"
STRATEGIES = {
    "dontschedule": {"rules": [{"metricname": METRIC, "operator": "GreaterThan", "target": "800m"}]},
    "scheduleonmetric": {"rules": [{"metricname": METRIC, "operator": "LessThan"}]},
}
SECRET_RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {user}, namespace: {namespace}}}
rules: [{{apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {user}, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {user}}}
subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {user}}}]
---
apiVersion: v1
kind: Secret
metadata: {{name: tas-query, namespace: {namespace}}}
stringData: {{prometheusAuthToken: unused}}
"""
WORKLOAD = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "app"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "app"}},
        "template": {
            "metadata": {"labels": {"app": "app", "telemetry-policy": POLICY}},
            "spec": {
                "nodeSelector": POOL,
                "containers": [
                    {
                        "name": "app",
                        "image": "pause",
                        "resources": {"limits": {"telemetry/scheduling": 1}},
                    }
                ],
            },
        },
    },
}


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[None]:
    """Nodes of this test alone."""
    cluster.create_nodes(*NODES, labels=POOL)
    yield
    cluster.delete_nodes(*NODES)


def test_the_descheduler_reads_the_values_of_the_scheduler(
    cluster: Cluster, nodes: None, namespace: str, tmp_path: Path
) -> None:
    cluster.apply(SECRET_RIGHTS.format(user=DESCHEDULER, namespace=namespace))
    (cluster.folder / DESCHEDULER_CA).write_bytes((cluster.folder / "server.crt").read_bytes())

    def pods() -> dict[str, str | None]:
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {
            pod["metadata"]["name"]: pod["spec"].get("nodeName")
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
        }

    with product(cluster, tmp_path, "--prometheus-query", "on", "--stale-after", "30m") as tas:
        tas.publish({"shared-1": {METRIC: 0.1}, "shared-2": {METRIC: 0.85}})
        with (
            tas.policy(namespace, POLICY, STRATEGIES),
            cluster.scheduler(extender(tas.url, names_only=True, httpTimeout="30s")),
        ):
            until(lambda: tas.passes(namespace, POLICY, NODES[:2]) == {"shared-1"}, "the policy is in force")
            cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(WORKLOAD))
            until(lambda: "shared-1" in pods().values(), "the pod is on the node with the low value")
            old = set(pods())
            mark = cluster.audit.mark()
            file = configured(tmp_path, namespace, tas.health)
            with descheduler(cluster, file) as evicting:
                until(
                    lambda: "unable to find metric entry for shared-3" in evicting.log.read_text(),
                    "the descheduler misses the value of a node",
                )
                # The node of the pod has a high value now, and another node a low one.
                tas.publish({"shared-1": {METRIC: 0.95}, "shared-2": {METRIC: 0.1}})
                assert set(pods()) == old
                tas.publish({"shared-3": {METRIC: 0.5}})
                until(lambda: list(pods().values()) == ["shared-2"], "the pod is on the node with the low value again")
                assert not old & set(pods())
                text = evicting.log.read_text()
                assert evicting.is_running
            evicted = f"/api/v1/namespaces/{namespace}/pods/{old.pop()}/eviction"
            until(lambda: evictions(cluster, mark) == {evicted}, "the descheduler has evicted one pod")
    assert 'category="overutilized" node="shared-1"' in text
    assert 'category="underutilized" node="shared-2"' in text


def configured(folder: Path, namespace: str, url: str) -> Path:
    """The policy in `deploy/`, for the nodes, the Secret and the product of this test."""
    (document,) = read_yaml(FILE.read_bytes())
    assert isinstance(document, dict)
    document["nodeSelector"] = "pool=shared"
    prometheus = document["metricsProviders"][0]["prometheus"]
    prometheus["url"] = url
    prometheus["authToken"]["secretReference"]["namespace"] = namespace
    file = folder / "descheduler.yaml"
    file.write_text(json.dumps(document))
    return file
