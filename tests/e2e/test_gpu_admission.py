"""`deploy/admission/gpu.yaml` on a real API server: who may write what the product says about GPU cards on pods."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tas.gpu.names import CONTAINER_CARDS, CONTAINER_TILES, EVICTION_LABEL, EVICTION_VALUE, TIMESTAMP
from tests.integration.servers import eventually
from tests.kubernetes.admin import Admin, AdminError, Object
from workers.process.manifests import read_yaml

from .api import ApiError
from .cluster import Cluster
from .processes import until

FILE = Path(__file__).parents[2] / "deploy" / "admission" / "gpu.yaml"
ACCOUNT = "system:serviceaccount:telemetry-aware-scheduling:tas-"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
NODE = "node-1"
CARDS = {CONTAINER_CARDS: "card0", CONTAINER_TILES: "card0:gt1", TIMESTAMP: "1795432100000000001"}
TEMPLATE_SPEC = {"containers": [{"name": "main", "image": "pause"}]}
EVICTION = {EVICTION_LABEL: EVICTION_VALUE}


def pods(namespace: str, *parts: str) -> str:
    return "/".join((f"/api/v1/namespaces/{namespace}/pods", *parts))


def pod(name: str, **metadata: Any) -> Object:
    return {"metadata": {"name": name} | metadata, "spec": TEMPLATE_SPEC}


def binding(name: str, **metadata: Any) -> Object:
    return {"metadata": {"name": name} | metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}


def template(**metadata: Any) -> Object:
    return {"metadata": {"labels": {"app": "web"}} | metadata, "spec": TEMPLATE_SPEC}


def deployment(name: str, replicas: int, template: Object) -> Object:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def deployments(namespace: str, *parts: str) -> str:
    return "/".join((f"/apis/apps/v1/namespaces/{namespace}/deployments", *parts))


async def refusal(admin: Admin, method: str, path: str, body: Object) -> str:
    """The message with which the API server refuses a request; the request changes nothing otherwise."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    with pytest.raises(AdminError) as error:
        await admin.request(method, f"{path}?dryRun=All", body, content_type=kind)
    assert error.value.status == 403, error.value
    return str(error.value)


@pytest.fixture
async def binder(cluster: Cluster) -> AsyncIterator[Admin]:
    """The account of `tas run gpu`. RBAC would allow this one everything, as it does the administrator."""
    async with Admin.connect(cluster.kubeconfig_for(f"{ACCOUNT}gpu", "system:masters")) as binder:
        yield binder


@pytest.fixture
async def evictions(cluster: Cluster) -> AsyncIterator[Admin]:
    """The account of `tas run evictions`, also with all rights."""
    async with Admin.connect(cluster.kubeconfig_for(f"{ACCOUNT}evictions", "system:masters")) as evictions:
        yield evictions


@pytest.fixture(scope="module")
def old_namespace(cluster: Cluster) -> str:
    """A namespace with two Deployments from before the policies: one template has an annotation, the other the label.

    Each has one of them only: the API server names one policy that refuses a pod, and of two it names either.
    """
    namespace = cluster.create_namespace()
    annotated = template(annotations={CONTAINER_CARDS: "card0"})
    labelled = template(labels={"app": "web"} | EVICTION)
    cluster.api.create(deployments(namespace), deployment("old-annotation", 0, annotated))
    cluster.api.create(deployments(namespace), deployment("old-label", 0, labelled))
    return namespace


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: Cluster, old_namespace: str) -> Iterator[None]:
    """The file is applied, and in force."""

    def refused() -> int:
        probes = (
            (pods(old_namespace), pod("probe", annotations=CARDS)),
            (pods(old_namespace), pod("probe", labels=EVICTION)),
            (deployments(old_namespace), deployment("probe", 0, template(annotations=CARDS))),
        )
        count = 0
        for path, body in probes:
            try:
                cluster.api.create(f"{path}?dryRun=All", body)
            except ApiError as error:
                assert error.status == 403, error  # noqa: PT017
                count += 1
        return count

    cluster.apply(FILE)
    until(lambda: refused() == 3, "the policies are in force")
    yield
    cluster.kubectl("delete", "-f", str(FILE))
    until(lambda: refused() == 0, "the policies are gone")
    cluster.delete_pods(old_namespace)


async def test_the_expressions_have_the_right_types_and_fail_closed(admin: Admin) -> None:
    documents = [each for each in read_yaml(FILE.read_bytes()) if isinstance(each, dict)]
    names = [each["metadata"]["name"] for each in documents if "Binding" not in each["kind"]]
    assert names == ["tas-gpu-cards", "tas-gpu-eviction", "tas-gpu-templates"]
    for name in names:

        async def checked(name: str = name) -> bool:
            found = await admin.get(f"{POLICIES}/{name}")
            checked: bool = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
            return checked

        await eventually(checked)
        policy = await admin.get(f"{POLICIES}/{name}")
        assert policy["status"].get("typeChecking", {}) == {}
        assert policy["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("name", CARDS)
async def test_facts_g20_g21_nobody_else_creates_a_pod_with_cards_or_adds_them(
    admin: Admin, namespace: str, name: str
) -> None:
    await admin.create(pods(namespace), pod("plain", annotations={"gas-allow": "card0"}))
    for value in (CARDS[name], ""):
        metadata = {"annotations": {name: value}}
        message = await refusal(admin, "POST", pods(namespace), pod("forged", **metadata))
        assert f'may write or remove the annotations {name}"' in message
        for subresource in ((), ("status",)):
            path = pods(namespace, "plain", *subresource)
            assert name in await refusal(admin, "PATCH", path, {"metadata": metadata})
    for path in (pods(namespace, "plain", "binding"), f"/api/v1/namespaces/{namespace}/bindings"):
        assert name in await refusal(admin, "POST", path, binding("plain", annotations={name: "card0"}))


async def test_facts_g21_other_subresources_change_no_annotations(admin: Admin, namespace: str) -> None:
    await admin.create(pods(namespace), pod("plain"))
    for subresource in ("ephemeralcontainers", "resize"):
        with suppress(AdminError):
            await admin.patch(pods(namespace, "plain", subresource), {"metadata": {"annotations": CARDS}})
    assert "annotations" not in (await admin.get(pods(namespace, "plain")))["metadata"]


async def test_the_binder_writes_cards_with_the_binding_and_nobody_changes_them(
    admin: Admin, binder: Admin, namespace: str
) -> None:
    await admin.create(pods(namespace), pod("web", annotations={"gas-deny": "card1"}))
    path = pods(namespace, "web")
    await binder.create(f"{path}/binding", binding("web", annotations=CARDS))
    bound = await admin.get(path)
    assert bound["spec"]["nodeName"] == NODE
    assert bound["metadata"]["annotations"] == {"gas-deny": "card1"} | CARDS
    for name in CARDS:
        for value in ("card1", "", None):
            for place in (path, f"{path}/status"):
                assert name in await refusal(admin, "PATCH", place, {"metadata": {"annotations": {name: value}}})
    # Whatever else the pod has may change: the kubelet reports its status, its owner labels it.
    await admin.patch(path, {"metadata": {"annotations": {"gas-deny": None, "a": "b"}, "labels": {"a": "b"}}})
    await admin.patch(f"{path}/status", {"status": {"message": "still there"}})
    after = await admin.get(path)
    assert after["metadata"]["annotations"] == {"a": "b"} | CARDS
    assert after["status"]["message"] == "still there"
    await admin.delete_pod(namespace, "web")


async def test_others_may_bind_a_pod_without_cards(admin: Admin, namespace: str) -> None:
    await admin.create(pods(namespace), pod("plain"))
    await admin.create(pods(namespace, "plain", "binding"), binding("plain", annotations={"a": "b"}, labels={"a": "b"}))
    assert (await admin.get(pods(namespace, "plain")))["spec"]["nodeName"] == NODE


async def test_only_evictions_adds_its_label_and_anybody_removes_it(
    admin: Admin, binder: Admin, evictions: Admin, namespace: str
) -> None:
    path = pods(namespace, "web")
    await admin.create(pods(namespace), pod("web", labels={"a": "b"}))
    assert EVICTION_LABEL in await refusal(admin, "POST", pods(namespace), pod("other", labels=EVICTION))
    assert EVICTION_LABEL in await refusal(admin, "PATCH", path, {"metadata": {"labels": EVICTION}})
    assert EVICTION_LABEL in await refusal(admin, "PATCH", f"{path}/status", {"metadata": {"labels": EVICTION}})
    assert EVICTION_LABEL in await refusal(admin, "POST", f"{path}/binding", binding("web", labels=EVICTION))
    assert EVICTION_LABEL in await refusal(binder, "PATCH", path, {"metadata": {"labels": EVICTION}})
    await evictions.patch(path, {"metadata": {"labels": EVICTION}})
    assert EVICTION_LABEL in await refusal(admin, "PATCH", path, {"metadata": {"labels": {EVICTION_LABEL: "other"}}})
    await admin.patch(path, {"metadata": {"labels": {"a": "c"}}})
    assert (await admin.get(path))["metadata"]["labels"] == {"a": "c"} | EVICTION
    await admin.patch(path, {"metadata": {"labels": {EVICTION_LABEL: None}}})
    assert (await admin.get(path))["metadata"]["labels"] == {"a": "c"}


async def test_a_deployment_replaces_its_pod_that_has_cards_and_the_label(
    admin: Admin, binder: Admin, evictions: Admin, namespace: str
) -> None:
    async def names() -> list[str]:
        found = await admin.get(pods(namespace))
        return [each["metadata"]["name"] for each in found["items"] if "deletionTimestamp" not in each["metadata"]]

    async def has_one() -> bool:
        return len(await names()) == 1

    await admin.create(deployments(namespace), deployment("web", 1, template()))
    await eventually(has_one)
    (first,) = await names()
    await binder.create(pods(namespace, first, "binding"), binding(first, annotations=CARDS))
    await evictions.patch(pods(namespace, first), {"metadata": {"labels": EVICTION}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": first}}
    await admin.create(pods(namespace, first, "eviction"), eviction)

    async def is_replaced() -> bool:
        found = await names()
        return len(found) == 1 and found != [first]

    await eventually(is_replaced)
    (second,) = await names()
    metadata = (await admin.get(pods(namespace, second)))["metadata"]
    assert "annotations" not in metadata
    assert EVICTION_LABEL not in metadata["labels"]


WORKLOADS: dict[str, Object | None] = {
    "apps/v1 deployments": {"selector": {"matchLabels": {"app": "web"}}},
    "apps/v1 replicasets": {"selector": {"matchLabels": {"app": "web"}}},
    "apps/v1 daemonsets": {"selector": {"matchLabels": {"app": "web"}}},
    "apps/v1 statefulsets": {"selector": {"matchLabels": {"app": "web"}}, "serviceName": "web"},
    "batch/v1 jobs": {},
    "batch/v1 cronjobs": {"schedule": "0 0 1 1 *"},
    "v1 replicationcontrollers": {"selector": {"app": "web"}},
    "v1 podtemplates": None,
}


def workload(kind: str, template: Object) -> Object:
    spec = WORKLOADS[kind]
    body: Object = {"metadata": {"name": "web"}}
    if kind.endswith("jobs"):
        template = template | {"spec": TEMPLATE_SPEC | {"restartPolicy": "Never"}}
    if spec is None:
        return body | {"template": template}
    if kind.endswith("cronjobs"):
        return body | {"spec": spec | {"jobTemplate": {"spec": {"template": template}}}}
    return body | {"spec": spec | {"template": template}}


@pytest.mark.parametrize("kind", WORKLOADS)
async def test_a_template_must_not_have_them(admin: Admin, namespace: str, kind: str) -> None:
    version, resource = kind.split()
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    path = f"{root}/namespaces/{namespace}/{resource}"
    for name in CARDS:
        message = await refusal(admin, "POST", path, workload(kind, template(annotations={name: ""})))
        assert f"remove from the template: {name}. Only the product writes this on pods" in message
    both = template(annotations={TIMESTAMP: "1"}, labels={"app": "web"} | EVICTION)
    message = await refusal(admin, "POST", path, workload(kind, both))
    assert f"remove from the template: {TIMESTAMP}, {EVICTION_LABEL}." in message
    await admin.create(f"{path}?dryRun=All", workload(kind, template(annotations={"gas-allow": "card0"})))


@pytest.mark.parametrize(
    ("name", "key", "other"),
    [
        pytest.param("old-annotation", CONTAINER_CARDS, {"annotations": {CONTAINER_CARDS: "card1"}}, id="annotation"),
        pytest.param("old-label", EVICTION_LABEL, {"labels": {EVICTION_LABEL: "other"}}, id="label"),
    ],
)
async def test_a_workload_from_before_can_be_changed_and_says_why_it_has_no_pods(
    admin: Admin, old_namespace: str, name: str, key: str, other: dict[str, dict[str, str]]
) -> None:
    writer = {CONTAINER_CARDS: "only the binder of GPU cards", EVICTION_LABEL: "only the product may add the label"}
    path = deployments(old_namespace, name)
    await admin.patch(path, {"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 1}})

    async def message() -> str:
        conditions = (await admin.get(path)).get("status", {}).get("conditions", [])
        return "".join(each["message"] for each in conditions if each["type"] == "ReplicaFailure")

    async def is_explained() -> bool:
        return key in await message()

    await eventually(is_explained)
    assert writer[key] in await message()
    # Another value is a new one; removing it mends the workload.
    assert key in await refusal(admin, "PATCH", path, {"spec": {"template": {"metadata": other}}})
    nothing = {field: {key: None} for field in other}
    await admin.patch(path, {"spec": {"template": {"metadata": nothing}}})

    async def has_pod() -> bool:
        found = (await admin.get(pods(old_namespace)))["items"]
        return any(each["metadata"]["name"].startswith(name) for each in found)

    await eventually(has_pod)
