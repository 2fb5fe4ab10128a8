"""A cluster of the original TAS is taken over as docs/how-to/migration.md says, and no label flickers."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import pytest

from cli.crd import crd_manifest
from tas.enforcing.managers import OWN_MANAGERS
from tests.e2e.adapter import AggregatedAdapter
from tests.kubernetes.admin import Admin
from workers.kubernetes.resources import POLICIES as RESOURCE

from .api import Object
from .cluster import Cluster
from .original import ACCOUNT, NAMESPACE, account, containers, deployed
from .processes import until

__all__ = ["account", "containers"]

T = TypeVar("T")
Labels = dict[str, str]

USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "how-to" / "migration.md"

NAME = str(RESOURCE)

VIOLATING, RECOVERED, OTHER = HOSTS = ("migrated-1", "migrated-2", "migrated-3")
"""Nodes of this test: on the others the product may remove what tests before it left."""

CLIENT = "extender/v0.0.0 (linux/amd64) kubernetes/$Format"
"""The `User-Agent` of a Go program named `extender`: the API server takes the field manager from it."""

RULE: Object = {
    "type": "object",
    "required": ["metricname", "operator"],
    "properties": {
        "metricname": {"type": "string"},
        "operator": {"type": "string"},
        "target": {"type": "integer", "format": "int64"},
        "labels": {"type": "array", "items": {"type": "string"}},
    },
}
STRATEGY: Object = {
    "type": "object",
    "required": ["rules"],
    "properties": {
        "policyName": {"type": "string"},
        "logicalOperator": {"type": "string"},
        "rules": {"type": "array", "items": RULE},
    },
}
SCHEMA: Object = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["strategies"],
            "properties": {"strategies": {"type": "object", "additionalProperties": STRATEGY}},
        },
        "status": {
            "type": "object",
            "properties": {"compliance": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
ORIGINAL_CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": NAME},
    "spec": {
        "group": "telemetry.intel.com",
        "scope": "Namespaced",
        "names": {"kind": "TASPolicy", "listKind": "TASPolicyList", "plural": "taspolicies", "singular": "taspolicy"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": SCHEMA},
                "subresources": {"status": {}},
            }
        ],
    },
}
POLICIES = "/apis/telemetry.intel.com/v1alpha1/taspolicies"
PREFIX = "telemetry.aware.scheduling.demo-policy"
SPEC: Object = {
    "strategies": {
        "deschedule": {
            "policyName": "deschedule",
            "rules": [{"metricname": "health_metric", "operator": "Equals", "target": 2}],
        },
        "labeling": {
            "policyName": "labeling",
            "rules": [{"metricname": "cards", "operator": "GreaterThan", "target": 0, "labels": ["card0=true"]}],
        },
    }
}


@pytest.fixture
def left_behind(cluster: Cluster, namespace: str) -> Iterator[Object]:
    """What the original leaves when it is stopped: its CRD, a policy, and labels on the nodes. Returns the policy."""
    cluster.create_nodes(*HOSTS)
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    cluster.kubectl("delete", "crd", NAME, "--ignore-not-found")
    cluster.api.create(crds, ORIGINAL_CRD)
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=90s")
    manifest = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "demo-policy", "namespace": namespace},
        "spec": SPEC,
    }
    cluster.apply(json.dumps(manifest))
    label(cluster, VIOLATING, {"demo-policy": "violating", f"{PREFIX}/card0": "true"})
    label(cluster, RECOVERED, {"demo-policy": "violating", f"{PREFIX}/card0": "true"})
    label(cluster, OTHER, {"demo-policy": "null", "gone-policy": "violating", f"{PREFIX}/card1": "true"})
    cluster.api.patch(f"/api/v1/nodes/{OTHER}", {"metadata": {"labels": {"team": "violating"}}})
    yield cluster.api.get(POLICIES)["items"][0]
    cluster.apply(crd_manifest())  # that of the other tests, also if this one fails
    cluster.kubectl("delete", "--ignore-not-found", "-f", str(REPOSITORY / "deploy" / "rbac" / "original.yaml"))
    cluster.delete_nodes(*HOSTS)


def label(cluster: Cluster, node: str, labels: Mapping[str, str]) -> None:
    """Labels a node with a JSON patch, as the original does."""
    paths = {key: f"/metadata/labels/{key.replace('~', '~0').replace('/', '~1')}" for key in labels}
    patch = [{"op": "add", "path": paths[key], "value": value} for key, value in labels.items()]
    cluster.api.request(
        "PATCH",
        f"/api/v1/nodes/{node}",
        patch,
        content_type="application/json-patch+json",
        headers={"User-Agent": CLIENT},
    )


def states(cluster: Cluster, node: str, since: str, before: Labels) -> list[Labels]:
    """The labels of TAS on a node, `before` this resource version and after each later change of them."""
    newest = cluster.api.get(f"/api/v1/nodes/{node}")["metadata"]["resourceVersion"]
    found: list[Object] = []

    def is_complete() -> bool:
        """The watch ends after a second, in which a busy API server may not have sent all."""
        text = cluster.kubectl(
            "get",
            "--raw",
            f"/api/v1/nodes?watch=1&resourceVersion={since}&timeoutSeconds=1&fieldSelector=metadata.name%3D{node}",
        )
        events = [json.loads(line) for line in text.splitlines()]
        assert {event["type"] for event in events} <= {"MODIFIED"}
        found[:] = [event["object"] for event in events]
        return newest in {since, *(each["metadata"]["resourceVersion"] for each in found)} or int(newest) < int(since)

    until(is_complete, f"the watch sends all changes of {node}")
    return distinct([before, *map(tas_labels, found)])


def distinct(values: Sequence[T]) -> list[T]:
    """The values without repetitions of the one before."""
    return [value for value, _ in groupby(values)]


def tas_labels(node: Object) -> Labels:
    return {
        key: value
        for key, value in node["metadata"]["labels"].items()
        if key.startswith(PREFIX) or key in {"demo-policy", "gone-policy", "team"}
    }


def labels_of(nodes: Object) -> dict[str, Labels]:
    """The labels of TAS of each of the nodes of this test."""
    found = {node["metadata"]["name"]: tas_labels(node) for node in nodes["items"]}
    return {node: found[node] for node in HOSTS}


def commands(page: Path) -> list[list[str]]:
    """The commands `kubectl apply` of a page."""
    return [line.split()[1:] for line in re.findall(r"^ *(kubectl apply -f .*)$", page.read_text(), re.MULTILINE)]


async def test_a_cluster_of_the_original_is_taken_over_and_no_label_flickers(
    cluster: Cluster, admin: Admin, account: Path, left_behind: Object, tmp_path: Path
) -> None:
    metadata = cluster.api.get(f"/api/v1/nodes/{VIOLATING}")["metadata"]
    managers = {
        each["manager"]
        for each in metadata["managedFields"]
        if "f:demo-policy" in each["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
    }
    assert managers == {"extender"} < OWN_MANAGERS  # the API server names the original so

    for arguments in commands(PAGE):
        cluster.kubectl(*(str(REPOSITORY / each) if "/" in each else each for each in arguments))
    nodes, mark = cluster.api.get("/api/v1/nodes"), cluster.audit.mark()
    since, before = nodes["metadata"]["resourceVersion"], labels_of(nodes)

    async with AggregatedAdapter.start(admin, tmp_path) as adapter:
        await adapter.serve("v1beta2")
        for node, health, cards in ((VIOLATING, "2", "1"), (RECOVERED, "0", "1"), (OTHER, "2", "0")):
            adapter.metrics.set("health_metric", node, health)
            adapter.metrics.set("cards", node, cards)

        expected = {
            VIOLATING: {"demo-policy": "violating", f"{PREFIX}/card0": "true"},
            RECOVERED: {f"{PREFIX}/card0": "true"},
            OTHER: {"demo-policy": "violating", "team": "violating"},
        }
        with deployed(cluster, account) as product:
            await asyncio.to_thread(
                until,
                lambda: labels_of(cluster.api.get("/api/v1/nodes")) == expected,
                "the labels are those of the policy",
            )
            await asyncio.to_thread(until, product.is_ready, "the product is ready")
            assert product.status_of_filter() == 200

    def patched() -> set[str]:
        calls = cluster.audit.calls(mark, user=USER)
        paths = {call.uri.partition("?")[0] for call in calls if call.verb == "patch"}
        return paths & {f"/api/v1/nodes/{node}" for node in HOSTS}

    # The effect of a patch may be visible before its entry in the audit log.
    wanted = {f"/api/v1/nodes/{RECOVERED}", f"/api/v1/nodes/{OTHER}"}
    until(lambda: patched() >= wanted, "the audit log has the patches")
    assert patched() == wanted
    assert states(cluster, VIOLATING, since, before[VIOLATING]) == [expected[VIOLATING]]
    assert states(cluster, RECOVERED, since, before[RECOVERED]) == [before[RECOVERED], expected[RECOVERED]]
    seen = states(cluster, OTHER, since, before[OTHER])
    for key, values in {
        "demo-policy": ["null", "violating"],
        f"{PREFIX}/card1": ["true", None],
        "gone-policy": ["violating", None],
        "team": ["violating"],
    }.items():
        assert distinct([each.get(key) for each in seen]) == values, key

    stored = cluster.api.get(POLICIES)["items"][0]
    for field in ("uid", "generation", "creationTimestamp"):
        assert stored["metadata"][field] == left_behind["metadata"][field]
    assert stored["spec"] == SPEC
