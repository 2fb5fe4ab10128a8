"""Annotations and containers of the pod of a request: decoded when they are read, and only then."""

from typing import Any

import pytest

from tas.errors import InvalidInputError
from tas.extender.decision import Pod
from tas.extender.preemption import decode_preemption_args
from tas.extender.wire import decode_args
from tas.gpu.claim import ContainerRequest
from tests.unit.tas.extender.generators import POD, body

CARD = "gpu.intel.com/i915"


def pod(**more: Any) -> Pod:
    """The pod of a request, with further fields."""
    return decode_args(body(Pod=POD | more, NodeNames=["a"])).pod


def test_a_pod_has_its_annotations_and_the_resources_of_its_containers() -> None:
    spec = {
        "containers": [
            {"name": "a", "image": "x", "resources": {"requests": {CARD: "1", "cpu": "500m"}, "limits": {CARD: "1"}}},
            {"name": "b", "resources": {}},
        ],
        "initContainers": [{"name": "i", "resources": {"limits": {CARD: "2"}}}],
    }
    found = pod(metadata=POD["metadata"] | {"annotations": {"gas-allow": "card0"}}, spec=spec)
    assert found.annotations == {"gas-allow": "card0"}
    assert found.containers == (
        ContainerRequest(name="a", requests={CARD: "1", "cpu": "500m"}, limits={CARD: "1"}),
        ContainerRequest(name="b"),
    )
    assert found.init_containers == (ContainerRequest(name="i", limits={CARD: "2"}),)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"spec": None},
        {"spec": {"containers": None, "initContainers": None}},
        {"spec": {"containers": [], "initContainers": []}},
    ],
)
def test_absent_and_null_fields_are_empty(more: dict[str, Any]) -> None:
    found = pod(**more)
    assert (found.annotations, found.containers, found.init_containers) == ({}, (), ())


@pytest.mark.parametrize("resources", [None, {}, {"requests": None, "limits": None}])
def test_a_container_without_resources_requests_nothing(resources: object) -> None:
    assert pod(spec={"containers": [{"name": "a", "resources": resources}]}).containers == (ContainerRequest(name="a"),)


def test_an_invalid_field_is_an_error_only_when_it_is_read() -> None:
    found = pod(metadata=POD["metadata"] | {"annotations": {"a": 7}}, spec={"containers": [{"name": 5}]})
    assert found.labels == POD["metadata"]["labels"]
    with pytest.raises(InvalidInputError, match=r"metadata\.annotations"):
        _ = found.annotations
    with pytest.raises(InvalidInputError, match=r"containers\[0\]\.name = 5"):
        _ = found.containers


def test_a_victim_has_neither_annotations_nor_containers() -> None:
    victim = {"metadata": {"uid": "u", "annotations": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    request = body(Pod=POD, NodeNameToVictims={"n": {"Pods": [victim], "NumPDBViolations": 0}})
    (found,) = decode_preemption_args(request).victims["n"].pods
    assert (found.uid, found.annotations, found.containers) == ("u", {}, ())


def test_pods_with_equal_decoded_fields_are_equal() -> None:
    known = Pod(namespace="default", name="p", uid="u-1", labels={"telemetry-policy": "demo"})
    assert pod() == known
    for field in ("namespace", "name", "uid"):
        assert pod(metadata=POD["metadata"] | {field: "other"}) != known
    assert pod(metadata=POD["metadata"] | {"labels": {}}) != known
    assert pod() != "p"
