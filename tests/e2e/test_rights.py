"""The rights in deploy/rbac suffice for each worker, and a worker reports a missing right."""

import asyncio
import re
from collections import defaultdict
from collections.abc import MutableMapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from tests.integration.servers import eventually
from tests.integration.workers.running import running
from tests.kubernetes.admin import Admin, Object
from tests.kubernetes.watch_scenarios import Watched, strategies
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ForbiddenError
from workers.kubernetes.reflectors import Reflectors
from workers.kubernetes.resources import FULL_NODES, NODES, PODS, POLICIES
from workers.watch.worker import WatchWorker

from .cluster import Cluster
from .processes import until

RBAC = Path(__file__).parents[2] / "deploy" / "rbac"
NAMESPACE = "telemetry-aware-scheduling"
REVIEWS = "/apis/authorization.k8s.io/v1"
EXAMPLE_METRIC = re.compile(r"nodes/(?!health_metric\.)\w+\.custom\.metrics\.k8s\.io")
TABLE = """
tas-watch      list watch              taspolicies.telemetry.intel.com
tas-watch      patch                   taspolicies/status.telemetry.intel.com
tas-watch      get list watch          nodes
tas-watch      list watch              pods
tas-labels     get list watch patch    nodes
tas-labels     list                    taspolicies.telemetry.intel.com
tas-labels     create                  events  default
tas-marks      get list watch patch    nodes
tas-marks      patch                   nodes/status
tas-marks      list                    taspolicies.telemetry.intel.com
tas-resources  get list watch          nodes
tas-resources  patch                   nodes/status
tas-collect    get                     nodes/health_metric.custom.metrics.k8s.io
tas-collect    list                    nodes.metrics.k8s.io
tas-notify     create patch            events.events.k8s.io
tas-inventory  list watch patch        nodes
tas-inventory  get list watch          pods
tas-gpu        get                     pods
tas-gpu        create                  pods/binding
tas-evictions  get                     nodes
tas-evictions  get list watch patch    pods
tas-all        get list watch patch    nodes
tas-all        patch                   nodes/status
tas-all        list watch              pods
tas-all        list watch              taspolicies.telemetry.intel.com
tas-all        patch                   taspolicies/status.telemetry.intel.com
tas-all        create                  events  default
tas-all        get                     nodes/health_metric.custom.metrics.k8s.io
tas-all        list                    nodes.metrics.k8s.io
tas-all        create patch            events.events.k8s.io
"""
"""All rights: account, verbs, resource, and the namespace if not the whole cluster. Of the metrics there is one."""

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RESOURCES = (
    *("nodes", "nodes/status", "nodes/proxy", "pods", "pods/status", "pods/binding", "pods/eviction", "pods/exec"),
    *("bindings", "events", "secrets", "configmaps", "namespaces", "serviceaccounts", "serviceaccounts/token"),
    *(
        "events.events.k8s.io",
        "deployments.apps",
        "leases.coordination.k8s.io",
        "clusterroles.rbac.authorization.k8s.io",
    ),
    *("taspolicies.telemetry.intel.com", "taspolicies/status.telemetry.intel.com", "nodes.metrics.k8s.io"),
    *("pods.metrics.k8s.io", "nodes/health_metric.custom.metrics.k8s.io", "nodes/another.custom.metrics.k8s.io"),
    *("pods/health_metric.custom.metrics.k8s.io", "validatingadmissionpolicies.admissionregistration.k8s.io"),
)
NAMESPACES = ("", "default", "kube-system", NAMESPACE)
"""The first one stands for the whole cluster."""


class Right(NamedTuple):
    verb: str
    resource: str
    namespace: str


def rights_in_table() -> dict[str, set[Right]]:
    """The rights of each account, each also for the namespaces that it covers."""
    found: dict[str, set[Right]] = defaultdict(set)
    for line in TABLE.strip().splitlines():
        account, verbs, resource, *namespace = re.split(" {2,}", line)
        for covered in namespace or NAMESPACES:
            found[account] |= {Right(verb, resource, covered) for verb in verbs.split()}
    return found


def used(cluster: Cluster, mark: int, account: str) -> set[tuple[str, str]]:
    """The verbs and resources of its accepted requests; every account may ask which APIs are served."""
    calls = cluster.audit.calls(mark, user=f"system:serviceaccount:{NAMESPACE}:{account}")
    found = {(call.verb, call.resource) for call in calls if call.status < 300 and call.resource}
    return {each for each in found if not EXAMPLE_METRIC.fullmatch(each[1])}


def granted(account: str) -> set[tuple[str, str]]:
    """Those of the table."""
    return {(right.verb, right.resource) for right in rights_in_table()[account]}


def account(cluster: Cluster, name: str) -> Path:
    """A kubeconfig with the token of a worker's ServiceAccount."""
    return cluster.account(NAMESPACE, name)


@pytest.fixture(scope="module", autouse=True)
def rights(cluster: Cluster, product_namespace: str) -> None:
    for file in sorted(RBAC.glob("*.yaml")):
        cluster.apply(file)
    wait_for_rights(cluster)


def wait_for_rights(cluster: Cluster) -> None:
    """Waits until all accounts have the rights of the table: the API server applies new rights with a delay."""
    for name, rights in rights_in_table().items():
        for verb, resource, namespace in rights:
            plural, _, group = resource.partition(".")
            what = partial(is_allowed, cluster, name, verb, *_parts(plural), group=group, namespace=namespace)
            until(what, f"{name} may {verb} {resource} {namespace}")


def _parts(plural: str) -> tuple[str, str]:
    resource, _, subresource = plural.partition("/")
    return resource, subresource


def is_allowed(
    cluster: Cluster,
    name: str,
    verb: str,
    resource: str,
    subresource: str,
    *,
    group: str = "",
    namespace: str = "",
) -> bool:
    """Whether the API server allows a ServiceAccount to do this now; without `namespace` in the whole cluster."""
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
    }
    spec = {"user": f"system:serviceaccount:{NAMESPACE}:{name}", "resourceAttributes": attributes}
    review = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(review["status"]["allowed"])


@pytest.mark.parametrize("name", rights_in_table())
async def test_each_account_has_the_rights_of_the_table_and_no_other(cluster: Cluster, name: str) -> None:
    async with Admin.connect(account(cluster, name)) as client:

        async def allows(right: Right) -> bool:
            plural, _, group = right.resource.partition(".")
            resource, subresource = _parts(plural)
            attributes = {"group": group, "resource": resource, "subresource": subresource}
            attributes |= {"verb": right.verb, "namespace": right.namespace}
            review = await client.create(
                f"{REVIEWS}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": attributes}}
            )
            allowed: bool = review["status"]["allowed"]
            return allowed

        asked = [Right(*each) for each in product(VERBS, RESOURCES, NAMESPACES)]
        answers = await asyncio.gather(*map(allows, asked))
    assert rights_in_table()[name] <= set(asked)
    assert {right for right, allowed in zip(asked, answers, strict=True) if allowed} == rights_in_table()[name]


@pytest.mark.parametrize("name", rights_in_table())
async def test_the_api_server_lists_no_other_rule_for_an_account(cluster: Cluster, name: str) -> None:
    async with (
        Admin.connect(account(cluster, name)) as client,
        Admin.connect(cluster.account("default", "default")) as nobody,
    ):
        for namespace in NAMESPACES[1:]:

            async def rules(client: Admin, namespace: str = namespace) -> set[tuple[str, str]]:
                body: Object = {"spec": {"namespace": namespace}}
                status = (await client.create(f"{REVIEWS}/selfsubjectrulesreviews", body))["status"]
                assert not status["incomplete"]
                return {
                    (verb, f"{resource}.{group}".rstrip("."))
                    for rule in status["resourceRules"]
                    for verb, group, resource in product(rule["verbs"], rule["apiGroups"], rule["resources"])
                }

            found = {
                each for each in await rules(client) - await rules(nobody) if not EXAMPLE_METRIC.fullmatch(each[1])
            }
            assert found == {
                (right.verb, right.resource) for right in rights_in_table()[name] if right.namespace == namespace
            }


async def test_the_rights_of_watch_suffice_for_its_work_and_allow_nothing_else(
    cluster: Cluster, admin: Admin, bus: Bus, namespace: str, node: str
) -> None:
    registry = CollectorRegistry()
    async with KubernetesClient.connect(account(cluster, "tas-watch"), worker="watch") as client:
        worker = WatchWorker(bus, Reflectors(client), registry=registry)
        watched = Watched(bus, worker, registry)
        async with running(worker):
            await watched.ready()
            await watched.has_facts(node)  # with its addresses: all lists have come
            mark = cluster.audit.mark()
            await admin.create_policy(namespace, "one", strategies=strategies())
            await watched.has_policy(namespace, "one", lambda _: True)
            await admin.create_pod(namespace, "web", "one")
            await watched.has_pod(namespace, "web")
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
        worker = WatchWorker(bus, Reflectors(client), registry=registry)
        async with running(worker):
            await Watched(bus, worker, registry).ready()
    registry = CollectorRegistry()
    with capture_logs() as logs:
        async with KubernetesClient.connect(cluster.kubeconfig_for("no-rights"), worker="watch") as client:
            worker = WatchWorker(bus, Reflectors(client), registry=registry)
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
