"""`deploy/admission/pods.yaml` on a real API server: what the accounts of GPU workers may change on pods."""

from collections.abc import Iterator

import pytest

from tas.gpu.names import CONTAINER_CARDS, CONTAINER_TILES, EVICTION_LABEL, EVICTION_VALUE, TIMESTAMP

from .admission import ACCOUNT, Attempt, admission, refusal
from .api import Object
from .cluster import NODES, Cluster

BINDER, EVICTIONS = f"{ACCOUNT}tas-gpu", f"{ACCOUNT}tas-evictions"
LABEL = {EVICTION_LABEL: EVICTION_VALUE}
CARDS = {CONTAINER_CARDS: "card0", CONTAINER_TILES: "card0:gt1", TIMESTAMP: "1795432100000000001"}


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Iterator[str]:
    """The path of a pod without a node."""
    namespace = cluster.create_namespace()
    metadata = {"name": "web", "labels": {"app": "web"}, "annotations": {"owner": "a"}}
    spec = {"containers": [{"name": "main", "image": "pause"}]}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": metadata, "spec": spec})
    yield f"/api/v1/namespaces/{namespace}/pods/web"
    cluster.delete_pods(namespace)


@pytest.fixture(scope="module", autouse=True)
def policy(cluster: Cluster, pod: str) -> Iterator[None]:
    probe = Attempt(EVICTIONS, "PATCH", pod, {"metadata": {"labels": {"app": "other"}}})
    with admission(cluster, "pods.yaml", {"tas-pods": probe}):
        yield


def binding(**metadata: object) -> Object:
    return {"metadata": {"name": "web"} | metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": NODES[0]}}


def test_evictions_sets_and_removes_its_label(cluster: Cluster, pod: str) -> None:
    assert refusal(cluster, Attempt(EVICTIONS, "PATCH", pod, {"metadata": {"labels": LABEL}})) == ""
    cluster.api.patch(pod, {"metadata": {"labels": LABEL}})
    assert refusal(cluster, Attempt(EVICTIONS, "PATCH", pod, {"metadata": {"labels": {EVICTION_LABEL: None}}})) == ""
    cluster.api.patch(pod, {"metadata": {"labels": {EVICTION_LABEL: None}}})


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        pytest.param({"metadata": {"labels": {"app": "b"}}}, "metadata.labels: app", id="label"),
        pytest.param({"metadata": {"labels": {"app": None}}}, "metadata.labels: app", id="no-label"),
        pytest.param({"metadata": {"labels": LABEL | {"new": "b"}}}, "metadata.labels: new", id="two-labels"),
        pytest.param({"metadata": {"annotations": {"owner": "b"}}}, "metadata.annotations: owner", id="annotation"),
        pytest.param({"metadata": {"annotations": CARDS}}, CONTAINER_CARDS, id="cards"),
        pytest.param({"metadata": {"finalizers": ["example.com/f"]}}, "metadata.finalizers", id="finalizer"),
        pytest.param({"spec": {"activeDeadlineSeconds": 1}}, "spec", id="deadline"),
    ],
)
def test_evictions_changes_nothing_else(cluster: Cluster, pod: str, patch: Object, words: str) -> None:
    assert cluster.api.request("PATCH", f"{pod}?dryRun=All", patch, content_type="application/merge-patch+json")
    message = refusal(cluster, Attempt(EVICTIONS, "PATCH", pod, patch))
    assert "tas-evictions may not change " in message
    assert words in message.partition("denied request: ")[2]


def test_evictions_does_nothing_else_with_pods(cluster: Cluster, pod: str) -> None:
    collection, _, _ = pod.rpartition("/")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}
    spec = {"containers": [{"name": "main", "image": "pause"}]}
    for attempt in (
        Attempt(EVICTIONS, "PATCH", f"{pod}/status", {"status": {"message": "a"}}),
        Attempt(EVICTIONS, "POST", f"{pod}/binding", binding()),
        Attempt(EVICTIONS, "POST", f"{pod}/eviction", eviction),
        Attempt(EVICTIONS, "POST", collection, {"metadata": {"name": "new", "labels": LABEL}, "spec": spec}),
        Attempt(EVICTIONS, "DELETE", pod),
    ):
        assert "tas-evictions may only label pods" in refusal(cluster, attempt), attempt


def test_the_binder_binds_with_cards_and_without(cluster: Cluster, pod: str) -> None:
    for annotations in (CARDS, {}):
        assert refusal(cluster, Attempt(BINDER, "POST", f"{pod}/binding", binding(annotations=annotations))) == ""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(binding(annotations={"owner": "b"}), "metadata.annotations: owner", id="annotation"),
        pytest.param(binding(annotations=CARDS | {"new": "b"}), "metadata.annotations: new", id="one-more"),
        pytest.param(binding(labels={"app": "b"}), "metadata.labels: app", id="label"),
        pytest.param(binding(labels=LABEL), f"metadata.labels: {EVICTION_LABEL}", id="eviction-label"),
    ],
)
def test_the_binder_writes_nothing_else_with_a_binding(cluster: Cluster, pod: str, body: Object, words: str) -> None:
    assert words in refusal(cluster, Attempt(BINDER, "POST", f"{pod}/binding", body))


def test_the_binder_does_nothing_else_with_pods(cluster: Cluster, pod: str) -> None:
    namespace = pod.partition("/pods/")[0]
    for attempt in (
        Attempt(BINDER, "PATCH", pod, {"metadata": {"annotations": CARDS}}),
        Attempt(BINDER, "PATCH", pod, {"metadata": {"labels": LABEL}}),
        Attempt(BINDER, "PATCH", f"{pod}/status", {"status": {"message": "a"}}),
        Attempt(BINDER, "POST", f"{namespace}/bindings", binding()),
        Attempt(BINDER, "DELETE", pod),
    ):
        assert "tas-gpu may only bind pods" in refusal(cluster, attempt), attempt


def test_nobody_else_is_concerned(cluster: Cluster, pod: str) -> None:
    for user in ("admin", "system:serviceaccount:other:tas-gpu", f"{ACCOUNT}tas-watch"):
        assert refusal(cluster, Attempt(user, "PATCH", pod, {"metadata": {"labels": {"app": "b"}}})) == ""
