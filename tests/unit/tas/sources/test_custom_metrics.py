"""Answers of the custom metrics API, from files of both versions."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.sources.custom_metrics import decode_group, decode_metric_names, decode_metric_values
from tas.sources.result import RefusalReason, SourceResult
from tas.values.blanks import ANY, ValueRules
from tas.values.quantity import NANO, Quantity
from tests.unit.tas.generators import characters

GOLDEN = Path(__file__).parents[3] / "contract" / "golden" / "sources"
JANUARY = 1767225600.0


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def values(result: SourceResult) -> list[tuple[str, str, float]]:
    return [(each.node, each.metric, each.value / NANO) for each in result.samples]


@pytest.mark.parametrize(("version", "window"), [("v1beta1", 60.0), ("v1beta2", 30.0)])
def test_either_version_is_read(version: str, window: float) -> None:
    result = decode_metric_values(golden(f"custom-metrics-{version}.json"), "health_metric")
    assert values(result) == [
        ("node-1", "health_metric", 1.5),
        ("ip-10-0-0-2.ec2.internal", "health_metric", 2.0),
    ]
    assert [each.measured for each in result.samples] == [JANUARY, JANUARY + 1]
    assert [each.window for each in result.samples] == [window, None]
    assert result.refusals == {}
    assert result.missing == {}


@pytest.mark.parametrize(
    ("metric", "value", "rules"),
    [
        ("m", "-9223372036854775808m", ANY),
        ("m", "9223372036854775807", ANY),
        ("nvidia_Dcgm_temp", "2147483632", ANY),
        ("m", "140737488355328", ValueRules(blanks=True)),
        ("m", "111", ValueRules(most=Quantity(110 * NANO))),
    ],
)
def test_what_is_no_value_is_refused_alone_facts_n60_facts_n61(metric: str, value: str, rules: ValueRules) -> None:
    texts = {"a": value, "b": "3"}
    items = [{"describedObject": {"kind": "Node", "name": name}, "value": text} for name, text in texts.items()]
    body = json.dumps({"kind": "MetricValueList", "items": items}).encode()
    result = decode_metric_values(body, metric, rules)
    assert values(result) == [("b", metric, 3.0)]
    assert result.refusals[RefusalReason.VALUE].count == 1
    assert result.refusals[RefusalReason.VALUE].example.startswith(f"{metric} of a: value = ")


def test_only_the_names_of_metrics_of_nodes_are_listed() -> None:
    resources = [
        {"name": "nodes/load1"},
        {"name": "pods/load1"},
        {"name": "namespaces/x"},
        {"name": "nodes/node_load1"},
    ]
    body = json.dumps({"kind": "APIResourceList", "resources": resources}).encode()
    assert decode_metric_names(body) == {"load1", "node_load1"}
    assert decode_metric_names(b'{"kind": "APIResourceList", "resources": null}') == frozenset()
    for wrong in (b"{", b"[]", b'{"kind": "Status"}', b'{"kind": "APIResourceList", "resources": {}}'):
        with pytest.raises(InvalidInputError):
            decode_metric_names(wrong)


def test_facts_C10_an_empty_list_means_that_the_metric_is_missing() -> None:
    empty: tuple[list[object] | None, ...] = ([], None)
    for items in empty:
        result = decode_metric_values(json.dumps({"kind": "MetricValueList", "items": items}).encode(), "m")
        assert result.samples == ()
        assert result.missing == {"m": "the custom metrics API has no value of it for any node"}


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_values_of_another_metric_are_refused_and_counted(version: str) -> None:
    result = decode_metric_values(golden(f"custom-metrics-{version}.json"), "other_metric")
    assert not result.samples
    assert [(each, found.count) for each, found in result.refusals.items()] == [(RefusalReason.METRIC, 2)]


def test_values_of_pods_are_refused_and_counted() -> None:
    document = json.loads(golden("custom-metrics-v1beta1.json"))
    for item in document["items"]:
        item["describedObject"] = {"kind": "Pod", "namespace": "default", "name": "web"}
    result = decode_metric_values(json.dumps(document).encode(), "health_metric")
    assert result.samples == ()
    assert result.refusals[RefusalReason.NODE].count == 2


@pytest.mark.parametrize("window", [0, -1, 86401, None])
def test_facts_C9_an_invalid_window_is_left_out(window: int | None) -> None:
    """The original read an absent window as 60 s and did not use it; a value of one moment has no window."""
    document = json.loads(golden("custom-metrics-v1beta2.json"))
    document["items"][0]["windowSeconds"] = window
    result = decode_metric_values(json.dumps(document).encode(), "health_metric")
    assert result.samples[0].window is None
    assert result.refusals == {}


@pytest.mark.parametrize("time", [None, "0001-01-01T00:00:00Z"])
def test_a_value_without_a_time_is_taken_as_measured_when_it_came_facts_n72(time: str | None) -> None:
    document = json.loads(golden("custom-metrics-v1beta2.json"))
    document["items"][0]["timestamp"] = time
    result = decode_metric_values(json.dumps(document).encode(), "health_metric")
    assert (result.samples[0].measured, result.refusals) == (None, {})


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"{}", b"[]", b'{"kind":"List","items":[]}', b"\xff"])
def test_a_body_that_is_no_list_of_values_gives_an_error(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="values of m"):
        decode_metric_values(body, "m")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_result_or_an_error(body: bytes) -> None:
    for decode in (lambda: decode_metric_values(body, "m"), lambda: decode_group(body)):
        with contextlib.suppress(InvalidInputError):
            decode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(characters, max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["describedObject", "kind", "name", "value", "timestamp", "metric", "window"]), inner
            )
        ),
        max_leaves=10,
    )
)
def test_an_invalid_item_costs_no_other_item(item: Any) -> None:
    document = json.loads(golden("custom-metrics-v1beta1.json"))
    good = [("node-1", "health_metric", 1.5), ("ip-10-0-0-2.ec2.internal", "health_metric", 2.0)]
    document["items"].insert(1, item)
    result = decode_metric_values(json.dumps(document).encode(), "health_metric")
    assert [each for each in values(result) if each in good] == good
    assert len(result.samples) - 2 + sum(each.count for each in result.refusals.values()) == 1


def group(*versions: str, preferred: str | None = None, **more: Any) -> bytes:
    document: dict[str, Any] = {"kind": "APIGroup", "name": "custom.metrics.k8s.io"}
    document["versions"] = [{"groupVersion": f"g/{each}", "version": each} for each in versions]
    if preferred is not None:
        document["preferredVersion"] = {"version": preferred}
    return json.dumps(document | more).encode()


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (group("v1beta1"), "v1beta1"),
        (group("v1beta1", "v1beta2"), "v1beta2"),
        (group("v1beta2", "v1beta1", preferred="v1beta1"), "v1beta1"),
        (group("v2", "v1beta1", preferred="v2"), "v1beta1"),
        (group("v1beta1", preferred="v1beta2"), "v1beta1"),
        (golden("custom-metrics-group.json"), "v1beta2"),
    ],
)
def test_the_preferred_version_is_requested_if_supported(body: bytes, version: str) -> None:
    assert decode_group(body) == version


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "<html>"),
        (group(), "must hold one of"),
        (group("v2"), "versions = 'v2'"),
        (group("v1beta1", name="apps"), "must be APIGroup"),
        (b'{"kind": "Status"}', "must be APIGroup"),
    ],
)
def test_a_group_without_a_supported_version_gives_an_error(body: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        decode_group(body)
