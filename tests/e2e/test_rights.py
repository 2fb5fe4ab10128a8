"""The rights in deploy/rbac suffice for each worker, and a worker reports a missing right."""

from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from tests.integration.servers import eventually
from tests.integration.workers.running import running
from tests.kubernetes.admin import Admin
from tests.kubernetes.watch_scenarios import Watched, strategies
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ForbiddenError
from workers.kubernetes.resources import FULL_NODES, NODES, PODS, POLICIES
from workers.watching.watch import WatchWorker

from .cluster import Cluster
from .processes import until

RBAC = Path(__file__).parents[2] / "deploy" / "rbac"
NAMESPACE = "telemetry-aware-scheduling"
RIGHTS = (
    ("tas-watch", "list", "pods", ""),
    ("tas-labels", "patch", "nodes", ""),
    ("tas-resources", "patch", "nodes", "status"),
)
"""Some right of each account: ServiceAccount, verb, resource and subresource."""


def account(cluster: Cluster, name: str) -> Path:
    """A kubeconfig with exactly the rights of a worker's ServiceAccount."""
    return cluster.kubeconfig_for(
        f"system:serviceaccount:{NAMESPACE}:{name}", "system:serviceaccounts", "system:authenticated"
    )


@pytest.fixture(scope="module", autouse=True)
def rights(cluster: Cluster, product_namespace: str) -> None:
    for file in sorted(RBAC.glob("*.yaml")):
        cluster.apply(file)
    # The API server applies new rights with a delay.
    for name, verb, resource, subresource in RIGHTS:
        until(partial(is_allowed, cluster, name, verb, resource, subresource), f"{name} may {verb} {resource}")


def is_allowed(cluster: Cluster, name: str, verb: str, resource: str, subresource: str, *, group: str = "") -> bool:
    """Whether the API server allows a ServiceAccount to do this now."""
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:{name}", "resourceAttributes": attributes}
    review = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(review["status"]["allowed"])


async def test_the_rights_of_watch_suffice_for_its_work_and_allow_nothing_else(
    cluster: Cluster, admin: Admin, bus: Bus, namespace: str, node: str
) -> None:
    registry = CollectorRegistry()
    async with KubernetesClient.connect(account(cluster, "tas-watch"), worker="watch") as client:
        worker = WatchWorker(bus, client, registry=registry)
        watched = Watched(bus, worker, registry)
        async with running(worker):
            await watched.ready()
            mark = cluster.audit.mark()
            await admin.create_policy(namespace, "one", strategies=strategies())
            await watched.has_policy(namespace, "one", lambda _: True)
            await admin.create_pod(namespace, "web", "one")
            await watched.has_pod(namespace, "web")
            await watched.has_facts(node)
            # The three watches deliver all changes: no other request is sent.
            requests = cluster.audit.calls(mark, user=f"system:serviceaccount:{NAMESPACE}:tas-watch")
            assert {call.verb for call in requests} <= {"watch"}
        patch = {"status": {"message": "a message"}}
        await client.merge_patch(
            POLICIES, "one", patch, namespace=namespace, subresource="status", field_manager="test"
        )
        with pytest.raises(ForbiddenError, match="cannot patch resource"):
            await client.merge_patch(POLICIES, "one", {"spec": {}}, namespace=namespace, field_manager="test")
        with pytest.raises(ForbiddenError, match="cannot patch resource"):
            await client.merge_patch(NODES, node, {"metadata": {"labels": {"a": "b"}}}, field_manager="test")


async def test_labels_may_patch_only_nodes_and_resources_only_their_status(
    cluster: Cluster, admin: Admin, node: str
) -> None:
    label = {"metadata": {"labels": {"a": "b"}}}
    offer = {"status": {"capacity": {"telemetry/scheduling": "1"}}}
    async with KubernetesClient.connect(account(cluster, "tas-labels"), worker="labels") as client:
        assert (await client.merge_patch(NODES, node, label, field_manager="test")).metadata.labels["a"] == "b"
        await client.list(POLICIES)
        with pytest.raises(ForbiddenError):
            await client.merge_patch(FULL_NODES, node, offer, subresource="status", field_manager="test")
        with pytest.raises(ForbiddenError):
            await client.list(PODS)
    async with KubernetesClient.connect(account(cluster, "tas-resources"), worker="resources") as client:
        await client.merge_patch(FULL_NODES, node, offer, subresource="status", field_manager="test")
        with pytest.raises(ForbiddenError):
            await client.merge_patch(NODES, node, label, field_manager="test")


async def test_a_missing_right_is_reported_and_removes_no_record(
    cluster: Cluster, admin: Admin, bus: Bus, namespace: str
) -> None:
    await admin.create_policy(namespace, "one", strategies=strategies())
    registry = CollectorRegistry()
    async with KubernetesClient.connect(admin.kubeconfig, worker="watch") as client:
        worker = WatchWorker(bus, client, registry=registry)
        async with running(worker):
            await Watched(bus, worker, registry).ready()
    registry = CollectorRegistry()
    with capture_logs() as logs:
        async with KubernetesClient.connect(cluster.kubeconfig_for("no-rights"), worker="watch") as client:
            worker = WatchWorker(bus, client, registry=registry)
            async with running(worker):
                watched = Watched(bus, worker, registry)
                await eventually(lambda: "cannot list resource" in (worker.unready() or ""))
                # Each of the three lists is refused at another time.
                everything = {"taspolicies.telemetry.intel.com", "nodes", "pods"}
                await eventually(lambda: {line["resource"] for line in _refusals(logs)} == everything)
                assert await watched.policy(namespace, "one") is not None
    refusals = _refusals(logs)
    assert all('User "no-rights" cannot list resource' in line["error"] for line in refusals)


def _refusals(logs: list[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in logs if line["event"] == "kubernetes_permission_missing"]
