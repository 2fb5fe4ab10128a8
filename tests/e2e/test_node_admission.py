"""`deploy/admission/nodes.yaml` on a real API server: what each account may change on nodes, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tas.allocation.node_annotations import WRITTEN
from tas.enforcing.waking import ANNOTATION

from .admission import ACCOUNT, Attempt, admission, refusal
from .api import Object
from .cluster import Cluster

NODE = "guarded-1"
PATH = f"/api/v1/nodes/{NODE}"
PREFIX = "telemetry.aware.scheduling."
MARK = "telemetry.aware.scheduling/"
LABELS = {"team": "a", "gone": "violating", "left": "null", "empty": "", "foreign": "yes", f"{PREFIX}p/key": "v"}
ANNOTATIONS = {"owner": "a", ANNOTATION: "before", "free-cpu": "1"}
TAINTS = [{"key": "dedicated", "value": "gpu", "effect": "PreferNoSchedule"}]
OURS = [{"key": f"{MARK}old", "value": "violating", "effect": "NoSchedule"}]
METADATA = {"metadata": {"labels": LABELS, "annotations": ANNOTATIONS}}
SPEC = {"taints": TAINTS + OURS, "unschedulable": True}
RESOURCE = "telemetry/scheduling"
ORIGINAL = "telemetry-aware-scheduling-service-account"
WRITERS = ("tas-labels", "tas-marks", "tas-resources", "tas-inventory", "tas-all", ORIGINAL)

Patch = Callable[[Object], Object]
"""The merge patch for a node as it is."""


@pytest.fixture(scope="module", autouse=True)
def policy(cluster: Cluster) -> Iterator[None]:
    cluster.create_nodes(NODE)
    cluster.api.patch(PATH, METADATA | {"spec": SPEC})
    node = cluster.api.get(PATH)
    status = {"conditions": [*node["status"]["conditions"], condition(f"{MARK}old"), condition("example.com/Disk")]}
    cluster.api.patch(f"{PATH}/status", {"status": status})
    probe = Attempt(f"{ACCOUNT}tas-labels", "PATCH", PATH, {"metadata": {"labels": {"team": "b"}}})
    with admission(cluster, "nodes.yaml", {"tas-nodes": probe}):
        yield
    cluster.delete_nodes(NODE)


def condition(kind: str, status: str = "True") -> Object:
    return {"type": kind, "status": status, "reason": "A", "message": "a"}


def label(**labels: str | None) -> Patch:
    return lambda _: {"metadata": {"labels": labels}}


def under(key: str, value: str | None) -> Patch:
    return lambda _: {"metadata": {"labels": {key: value}}}


def annotation(key: str, value: str | None) -> Patch:
    return lambda _: {"metadata": {"annotations": {key: value}}}


def taints(*others: Object, without: str = "") -> Patch:
    """Adds taints, and leaves those with this key out."""
    return lambda node: {
        "spec": {"taints": [each for each in node["spec"]["taints"] if each["key"] != without] + list(others)}
    }


def conditions(*others: Object, without: str = "") -> Patch:
    return lambda node: {
        "status": {
            "conditions": [each for each in node["status"]["conditions"] if each["type"] != without] + list(others)
        }
    }


def status(field: str, value: Any) -> Patch:
    return lambda _: {"status": {field: value}}


def offer(name: str, amount: str | None) -> Patch:
    return lambda _: {"status": {"capacity": {name: amount}, "allocatable": {name: amount}}}


def added(key: str, value: str = "violating", effect: str = "NoSchedule") -> Patch:
    return taints({"key": key, "value": value, "effect": effect})


CLEARED = condition(f"{MARK}old", "False")
ADDRESSES = [{"type": "ExternalIP", "address": "10.0.0.9"}]
ALL = frozenset({"tas-all", ORIGINAL})
BY_LABELS = ALL | {"tas-labels"}
BY_MARKS = ALL | {"tas-marks"}
BY_RESOURCES = ALL | {"tas-resources"}
NOBODY: frozenset[str] = frozenset()

CASES: list[tuple[str, str, Patch, frozenset[str], str]] = [
    # Name, subresource, patch, who may send it, and the words with which the others are refused.
    ("sets-a-label", "", label(new="violating"), BY_LABELS, "metadata.labels: new"),
    ("sets-a-label-of-the-original", "", label(left="violating"), BY_LABELS, "metadata.labels: left"),
    ("sets-an-empty-label", "", label(empty="violating"), BY_LABELS, "metadata.labels: empty"),
    ("removes-a-label", "", label(gone=None), BY_LABELS, "metadata.labels: gone"),
    ("sets-one-under-the-prefix", "", under(f"{PREFIX}q/k", "1"), BY_LABELS, f"metadata.labels: {PREFIX}q/k"),
    ("changes-one-under-the-prefix", "", under(f"{PREFIX}p/key", "2"), BY_LABELS, f"metadata.labels: {PREFIX}p/key"),
    ("removes-one-under-the-prefix", "", under(f"{PREFIX}p/key", None), BY_LABELS, f"metadata.labels: {PREFIX}p/key"),
    ("removes-a-label-by-status", "status", label(gone=None), BY_LABELS, "metadata.labels: gone"),
    ("another-value", "", label(new="compliant"), NOBODY, "metadata.labels: new"),
    ("another-value-of-ours", "", label(gone="compliant"), NOBODY, "metadata.labels: gone"),
    ("a-foreign-value", "", label(foreign="violating"), NOBODY, "metadata.labels: foreign"),
    ("removes-a-foreign-value", "", label(foreign=None), NOBODY, "metadata.labels: foreign"),
    ("removes-an-empty-value", "", label(empty=None), NOBODY, "metadata.labels: empty"),
    ("a-prefix-of-others", "", under("example.com/p", "violating"), NOBODY, "metadata.labels: example.com/p"),
    ("a-role", "", under("node-role.kubernetes.io/x", "violating"), NOBODY, "node-role.kubernetes.io/x"),
    ("nearly-the-prefix", "", under("telemetry.aware.schedulingx/p", "v"), NOBODY, "telemetry.aware.schedulingx/p"),
    ("two-of-which-one", "", label(new="violating", team=None), NOBODY, "team"),
    ("label-by-status", "status", label(team="b"), NOBODY, "metadata.labels: team"),
    ("wakes", "", annotation(ANNOTATION, "now"), BY_LABELS | {"tas-inventory"}, f"metadata.annotations: {ANNOTATION}"),
    ("removes-the-wake", "", annotation(ANNOTATION, None), NOBODY, f"metadata.annotations: {ANNOTATION}"),
    ("another-annotation", "", annotation("owner", "b"), NOBODY, "metadata.annotations: owner"),
    ("removes-an-annotation", "", annotation("owner", None), NOBODY, "metadata.annotations: owner"),
    ("annotation-by-status", "status", annotation("owner", "b"), NOBODY, "metadata.annotations: owner"),
    *(
        (f"measures-{name}", "", annotation(name, "7"), frozenset({"tas-inventory"}), f"metadata.annotations: {name}")
        for name in WRITTEN
    ),
    ("removes-a-measure", "", annotation("free-cpu", None), NOBODY, "metadata.annotations: free-cpu"),
    ("finalizer", "", lambda _: {"metadata": {"finalizers": ["example.com/f"]}}, NOBODY, "metadata.finalizers"),
    (
        "owner",
        "",
        lambda _: {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]}},
        NOBODY,
        "metadata.ownerReferences",
    ),
    ("uncordons", "", lambda _: {"spec": {"unschedulable": None}}, NOBODY, "spec.unschedulable"),
    ("cidr", "", lambda _: {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}, NOBODY, "spec.podCIDR"),
    ("taints", "", added(f"{MARK}p"), BY_MARKS, "spec.taints"),
    ("prefers", "", added(f"{MARK}p", effect="PreferNoSchedule"), BY_MARKS, "spec.taints"),
    ("removes-a-taint", "", taints(without=f"{MARK}old"), BY_MARKS, "spec.taints"),
    ("evicts", "", added(f"{MARK}p", effect="NoExecute"), NOBODY, "spec.taints"),
    ("taints-with-another-value", "", added(f"{MARK}p", "other"), NOBODY, "spec.taints"),
    ("a-taint-of-others", "", added("example.com/t"), NOBODY, "spec.taints"),
    ("removes-a-taint-of-others", "", taints(without="dedicated"), NOBODY, "spec.taints"),
    ("no-taints", "", lambda _: {"spec": {"taints": None}}, NOBODY, "spec.taints"),
    ("marks", "status", conditions(condition(f"{MARK}p")), BY_MARKS, "status.conditions"),
    ("clears", "status", conditions(CLEARED, without=f"{MARK}old"), BY_MARKS, "status.conditions"),
    ("removes-a-condition", "status", conditions(without=f"{MARK}old"), BY_MARKS, "status.conditions"),
    ("a-condition-of-others", "status", conditions(condition("example.com/New")), NOBODY, "status.conditions"),
    ("not-ready", "status", conditions(condition("Ready", "False"), without="Ready"), NOBODY, "status.conditions"),
    ("removes-another-one", "status", conditions(without="example.com/Disk"), NOBODY, "status.conditions"),
    ("offers", "status", offer(RESOURCE, "1000"), BY_RESOURCES, "status."),
    ("cpu", "status", offer("cpu", "1"), NOBODY, "status.capacity, status.allocatable"),
    ("removes-memory", "status", offer("memory", None), NOBODY, "status.capacity, status.allocatable"),
    ("another-resource", "status", offer("telemetry/schedulin", "1"), NOBODY, "status.capacity, status.allocatable"),
    ("only-allocatable", "status", status("allocatable", {"cpu": "1"}), NOBODY, "status.allocatable"),
    ("no-phase", "status", status("phase", None), NOBODY, "status.phase"),
    ("address", "status", status("addresses", ADDRESSES), NOBODY, "status.addresses"),
    ("image", "status", status("images", [{"names": ["a"], "sizeBytes": 1}]), NOBODY, "status.images"),
    ("phase", "status", status("phase", "Terminated"), NOBODY, "status.phase"),
    ("kubelet", "status", status("nodeInfo", {"kubeletVersion": "v0"}), NOBODY, "status.nodeInfo"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("subresource", "patch", "allowed", "words"), [pytest.param(*each[1:], id=each[0]) for each in CASES]
)
def test_each_account_may_change_only_its_own_fields(
    cluster: Cluster, subresource: str, patch: Patch, allowed: frozenset[str], words: str
) -> None:
    body = patch(cluster.api.get(PATH))
    path = f"{PATH}/{subresource}".rstrip("/")
    before = cluster.api.get(PATH)
    changed = cluster.api.request("PATCH", f"{path}?dryRun=All", body, content_type="application/merge-patch+json")
    assert {**changed, "metadata": None} != {**before, "metadata": None} or changed["metadata"] != before["metadata"]
    for account in WRITERS:
        message = refusal(cluster, Attempt(ACCOUNT + account, "PATCH", path, body))
        if account in allowed:
            assert message == "", account
        else:
            assert ": 422 " in message, account
            assert "'tas-nodes' with binding 'tas-nodes' denied request: " in message, account
            assert all(each in message.partition("denied request: ")[2] for each in words.split(", ")), account
            assert f"{account} may" in message


@pytest.mark.parametrize("account", WRITERS)
def test_no_account_creates_or_deletes_a_node(cluster: Cluster, account: str) -> None:
    for attempt in (
        Attempt(ACCOUNT + account, "POST", "/api/v1/nodes", {"metadata": {"name": "another"}}),
        Attempt(ACCOUNT + account, "DELETE", PATH),
    ):
        assert f"{account} may create and delete no nodes" in refusal(cluster, attempt)
    apply = Attempt(ACCOUNT + account, "PUT", PATH, cluster.api.get(PATH) | {"spec": SPEC | {"unschedulable": False}})
    assert "may not change spec." in refusal(cluster, apply)


@pytest.mark.parametrize("account", WRITERS)
def test_a_patch_that_changes_nothing_is_accepted(cluster: Cluster, account: str) -> None:
    nothing = METADATA | {"spec": SPEC}
    assert refusal(cluster, Attempt(ACCOUNT + account, "PATCH", PATH, nothing)) == ""
    assert refusal(cluster, Attempt(ACCOUNT + account, "PATCH", f"{PATH}/status", nothing)) == ""


@pytest.mark.parametrize("user", ["admin", "system:node:guarded-1", "system:serviceaccount:other:tas-labels"])
def test_nobody_else_is_concerned(cluster: Cluster, user: str) -> None:
    body = {"metadata": {"labels": {"team": "b"}}, "spec": {"unschedulable": None}}
    assert refusal(cluster, Attempt(user, "PATCH", PATH, body)) == ""
