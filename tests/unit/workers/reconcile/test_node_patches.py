"""What is kept of a node of the API server."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from workers.kubernetes.resources import (
    FULL_NODES,
    LABELLED_NODES,
    MAX_ANNOTATION,
    WHOLE_NODES,
    AnnotatedMetadata,
    Object,
    Resource,
    annotated_nodes,
)
from workers.reconcile.node_patches import NodeLabels

LABELS = {f"example.com/a-label-with-a-long-name-{number}": f"value-{number}" for number in range(30)}
ANNOTATIONS = {f"example.com/annotation-{number}": "x" * 200 for number in range(8)}


def entry(manager: str, *labels: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "f:metadata": {"f:labels": {f"f:{label}": {} for label in labels}, "f:annotations": {"f:a": {}}}
    }
    return {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}


def node(number: int, *managed: Any, **labels: str) -> bytes:
    metadata = {
        "name": f"node-{number}",
        "uid": f"uid-{number}",
        "resourceVersion": str(number),
        "labels": LABELS | {"kubernetes.io/hostname": f"node-{number}"} | labels,
        "annotations": ANNOTATIONS,
        "managedFields": [entry("kubelet", *LABELS), *managed],
    }
    images = [{"names": [f"registry.example/image-{each}-{number}"], "sizeBytes": each} for each in range(50)]
    return json.dumps({"metadata": metadata, "spec": {}, "status": {"images": images}}).encode()


@pytest.mark.parametrize(
    "resource",
    [LABELLED_NODES, WHOLE_NODES, FULL_NODES, annotated_nodes(["a"])],
    ids=["labels", "marks", "resources", "annotations"],
)
def test_a_decoded_node_takes_little_memory(resource: Resource[Object]) -> None:
    nodes = [node(number) for number in range(200)]
    assert min(map(len, nodes)) > 8000
    decoder = msgspec.json.Decoder(resource.type)
    first = decoder.decode(nodes[0])  # the texts that all nodes have
    tracemalloc.start(8)  # frames of each: some objects are made by code that the decoder calls
    try:
        kept = [decoder.decode(each) for each in nodes]
        made_here = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.Filter(inclusive=True, filename_pattern=__file__, all_frames=True)]
        )
    finally:
        tracemalloc.stop()
    assert {each.metadata.labels["kubernetes.io/hostname"] for each in kept} == {f"node-{n}" for n in range(200)}
    assert kept[0] == first
    # A dict of 31 labels takes 1.2 KB; its texts would take 4 KB more, annotations and field managers 10 KB.
    # Only what this file made: what other threads of the process allocate meanwhile does not count.
    taken = sum(each.size for each in made_here.traces)
    assert 500 < taken / len(nodes) < 3000


def test_the_managers_of_a_label_without_a_prefix_are_kept_and_no_others() -> None:
    ours, theirs = entry("tas-labels", "demo", "other"), entry("kubectl", "demo", "example.com/x")
    odd = {"manager": "odd", "fieldsV1": {"f:metadata": "no object"}}
    own = {"demo": "violating", "other": "met", "example.com/x": "violating"}
    data = node(1, ours, theirs, odd, {"manager": "empty"}, **own)
    found = msgspec.json.decode(data, type=LABELLED_NODES.type)
    assert [each.manager for each in found.metadata.managed_fields] == ["tas-labels", "kubectl"]
    labels = NodeLabels.of(found.metadata)
    assert labels.managers == {"demo": ("tas-labels", "kubectl")}
    assert labels.labels == LABELS | {"kubernetes.io/hostname": "node-1"} | own


def annotated(annotations: dict[str, str], *managed: Any) -> AnnotatedMetadata:
    text = json.dumps({"metadata": {"name": "n", "annotations": annotations, "managedFields": managed}})
    metadata = msgspec.json.decode(text, type=annotated_nodes(["a", "example.com/b"]).type).metadata
    assert isinstance(metadata, AnnotatedMetadata)
    return metadata


def wrote(time: Any, *annotations: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in annotations}}}
    return {"manager": "m", "operation": "Update", "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields}


def test_only_the_named_annotations_are_kept_each_with_the_last_time_of_its_writers() -> None:
    found = annotated(
        {"a": "1", "example.com/b": "x" * 100_000, "c": "3"},
        wrote("2026-01-01T00:00:05Z", "a"),
        wrote("2026-01-01T00:00:09Z", "c"),
        wrote("2026-01-01T00:00:00Z", "a", "c"),
        wrote("2026-01-01T00:00:02Z", "example.com/b"),
    )
    assert found.annotations == {"a": "1", "example.com/b": "x" * MAX_ANNOTATION}
    new_year = 1767225600.0
    assert found.written == {"a": new_year + 5, "example.com/b": new_year + 2}
    assert found.managed_fields == ()


@pytest.mark.parametrize("time", [None, "", "soon", "0000-01-01T00:00:00Z"])
def test_an_unreadable_time_of_a_writer_is_no_time(time: Any) -> None:
    odd = {"manager": "odd", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:annotations": "no object"}}}
    found = annotated({"a": "1"}, wrote(time, "a"), odd)
    assert (found.annotations, found.written) == ({"a": "1"}, {})
