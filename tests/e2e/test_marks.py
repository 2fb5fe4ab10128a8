"""The worker `marks` with a real API server, kube-scheduler and kwok, and a real nats-server."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chain import descheduler, evictions
from tests.e2e.cluster import Cluster
from tests.e2e.processes import until
from tests.e2e.product import product
from tests.e2e.test_rights import RBAC, account, is_allowed
from tests.integration.conftest import bus, server
from tests.integration.servers import Server, eventually
from tests.kubernetes.admin import Admin
from tests.kubernetes.fixtures import admin
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.mark_scenarios import (
    BOTH,
    PREFIX,
    MarkScenarios,
    is_bare,
    is_marked,
    is_met,
    marks,
    marks_running,
)
from tests.kubernetes.world import World, deschedule, rule
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ForbiddenError
from workers.kubernetes.resources import PODS, POLICIES
from workers.process.manifests import read_yaml

__all__ = ["admin", "bus", "marks", "server", "world"]

NODE, POLICY = "marked-1", "marked-disk"
KEY = PREFIX + POLICY
DEPLOY = RBAC.parent


class TestMarks(MarkScenarios):
    pass


async def test_the_rights_of_marks_suffice_for_its_work_and_allow_nothing_else(
    cluster: Cluster, product_namespace: str, admin: Admin, world: World, server: Server
) -> None:
    cluster.apply(RBAC / "marks.yaml")
    until(lambda: is_allowed(cluster, "tas-marks", "patch", "nodes", "status"), "tas-marks may patch nodes/status")
    kubeconfig = account(cluster, "tas-marks")
    async with marks_running(kubeconfig, server.url):
        node, name = await world.node(), world.name()
        policy = await world.policy(await world.namespace(), name, deschedule(**BOTH))
        await world.sample(node, health=1)
        await world.evaluate(node)
        await admin.label_node(node, {name: "violating"})
        await eventually(lambda: is_marked(world, node, name))
        await world.sample(node, health=0)
        await world.evaluate(node)
        await admin.label_node(node, {name: None})
        await eventually(lambda: is_met(world, node, name))
        await world.delete_policy(policy)
        await eventually(lambda: is_bare(world, node, name))
    async with KubernetesClient.connect(kubeconfig, worker="marks") as client:
        await client.list(POLICIES)
        with pytest.raises(ForbiddenError):
            await client.list(PODS)
        with pytest.raises(ForbiddenError):
            await client.merge_patch(POLICIES, "any", {"spec": {}}, namespace="default", field_manager="test")


def test_from_a_sample_to_a_pod_that_the_scheduler_places_elsewhere(
    cluster: Cluster, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    def marks() -> tuple[str | None, str | None]:
        """The effect of the taint, and the status of the condition."""
        found = cluster.api.get(f"/api/v1/nodes/{NODE}")
        effects = [each["effect"] for each in found["spec"].get("taints", []) if each["key"] == KEY]
        statuses = [each["status"] for each in found["status"]["conditions"] if each["type"] == KEY]
        return next(iter(effects), None), next(iter(statuses), None)

    def is_ready() -> bool:
        found = cluster.api.get(f"/api/v1/nodes/{NODE}")["status"]["conditions"]
        return any((each["type"], each["status"]) == ("Ready", "True") for each in found)

    spec = {"strategies": deschedule(rule("disk_errors", 100, "GreaterThan"), **BOTH)}
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies"
    on_node: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": NODE}}
    cluster.create_nodes(NODE)
    try:
        with (
            cluster.scheduler(),
            product(cluster, tmp_path, "--breaker", "100%,1", "--breaker-all", "100%,1", kubeconfig=kubeconfig) as tas,
        ):
            body = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "spec": spec}
            cluster.api.create(path, {**body, "metadata": {"name": POLICY}})
            tas.publish({NODE: {"disk_errors": 500}})
            until(lambda: marks() == ("NoSchedule", "True"), "the node is marked")

            cluster.create_pod(namespace, "waits", managed=False, **on_node)
            cluster.rejected(namespace, "waits", containing="1 node(s) had untolerated taint(s)")
            tolerates: dict[str, Any] = {"tolerations": [{"key": KEY, "operator": "Exists"}]}
            cluster.create_pod(namespace, "tolerates", managed=False, **on_node, **tolerates)
            assert cluster.placed(namespace, "tolerates") == NODE

            # kwok writes all its conditions again when the node is not Ready.
            unready = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
            cluster.kubectl("patch", "node", NODE, "--subresource=status", "--type=strategic", "--patch", unready)
            until(is_ready, "kwok has written the status of the node")
            assert marks() == ("NoSchedule", "True")

            tas.publish({NODE: {"disk_errors": 0}})
            until(lambda: marks() == (None, "False"), "the marks end")
            assert cluster.placed(namespace, "waits") == NODE

            cluster.api.delete(f"{path}/{POLICY}")
            until(lambda: marks() == (None, None), "the condition of a deleted policy is gone")
    finally:
        cluster.delete_pods(namespace)
        cluster.delete_nodes(NODE)


def test_facts_R7_the_descheduler_moves_pods_from_a_node_with_the_taint_unless_they_tolerate_it(
    cluster: Cluster, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    policy, pool, (first, second) = "disk-errors", {"pool": "tainted"}, ("tainted-1", "tainted-2")
    key = PREFIX + policy

    def nodes_of(app: str) -> list[str]:
        """The node of each pod of an app, empty for a pod that does not run."""
        found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"app={app}")["items"]
        alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return [pod["spec"]["nodeName"] if pod["status"].get("phase") == "Running" else "" for pod in alive]

    def create(app: str, **options: Any) -> None:
        pod = {"nodeSelector": pool, "containers": [{"name": "main", "image": "pause"}], **options}
        labels = {"app": app}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app}, "spec": spec}
        cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))

    def is_tainted() -> bool:
        found = cluster.api.get(f"/api/v1/nodes/{first}")["spec"].get("taints", [])
        return any(each["key"] == key for each in found)

    (document,) = read_yaml((DEPLOY / "descheduler" / "node-taints.yaml").read_bytes())
    assert isinstance(document, dict)
    file = tmp_path / "descheduler.yaml"
    file.write_text(json.dumps(document | {"nodeSelector": "pool=tainted"}))
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies"
    spec = {"strategies": deschedule(rule("disk_errors", 100, "GreaterThan"), **BOTH)}
    body = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "spec": spec}
    cluster.create_nodes(first, labels=pool)
    try:
        with cluster.scheduler(), product(cluster, tmp_path, kubeconfig=kubeconfig) as tas:
            cluster.api.create(path, {**body, "metadata": {"name": policy}})
            create("moves")
            create("stays", tolerations=[{"key": key, "operator": "Exists", "effect": "NoSchedule"}])
            until(lambda: nodes_of("moves") == nodes_of("stays") == [first], "both run on the only node")
            cluster.create_nodes(second, labels=pool)
            mark = cluster.audit.mark()
            tas.publish({first: {"disk_errors": 500}})
            until(is_tainted, "the node has the taint")
            with descheduler(cluster, file):
                until(lambda: nodes_of("moves") == [second], "the pod has moved")
                until(lambda: len(evictions(cluster, mark)) == 1, "one pod was evicted")
            assert nodes_of("stays") == [first]
    finally:
        cluster.kubectl("delete", "deployments", "--all", "-n", namespace)
        cluster.delete_pods(namespace)
        cluster.delete_nodes(first, second)
