"""Answers of the metrics API, from a file."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.sources.metrics_api import METRICS, decode_node_metrics
from tas.sources.result import RefusalReason
from tas.values.blanks import ValueRules
from tas.values.quantity import NANO, Quantity

GOLDEN = Path(__file__).parents[3] / "contract" / "golden" / "sources" / "node-metrics.json"
JANUARY = 1767225600.0


def test_cores_and_bytes_of_every_node_are_read() -> None:
    result = decode_node_metrics(GOLDEN.read_bytes(), METRICS)
    assert [(each.node, each.metric, each.value / NANO, each.measured, each.window) for each in result.samples] == [
        ("node-1", "cpu", 0.123456789, JANUARY, 20.06),
        ("node-1", "memory", 2 << 30, JANUARY, 20.06),
        ("node-2", "cpu", 2, JANUARY + 1, 15),
        ("node-2", "memory", 1 << 30, JANUARY + 1, 15),
    ]


def test_only_requested_metrics_are_read_and_absent_ones_are_missing() -> None:
    result = decode_node_metrics(GOLDEN.read_bytes(), frozenset({"cpu", "load1"}))
    assert {each.metric for each in result.samples} == {"cpu"}
    assert result.missing == {"load1": "the metrics API has only cpu and memory"}


def test_an_empty_list_means_that_the_metrics_are_missing() -> None:
    result = decode_node_metrics(b'{"kind": "NodeMetricsList", "items": []}', METRICS)
    assert result.missing.keys() == METRICS


@pytest.mark.parametrize("time", [None, "0001-01-01T00:00:00Z"])
def test_without_a_time_a_value_is_taken_as_measured_when_it_came(time: str | None) -> None:
    document = json.loads(GOLDEN.read_bytes())
    document["items"][0] |= {"timestamp": time}
    result = decode_node_metrics(json.dumps(document).encode(), METRICS)
    assert not result.refusals
    assert [each.measured for each in result.samples if each.measured is None] == [None, None]


@pytest.mark.parametrize(
    ("change", "why", "left"),
    [
        ({"timestamp": "?"}, RefusalReason.TIME, 2),
        ({"usage": None}, RefusalReason.SHAPE, 2),
        ({"usage": {"cpu": 1}}, RefusalReason.SHAPE, 2),
        ({"usage": {"cpu": "much", "memory": "1"}}, RefusalReason.VALUE, 3),
        ({"metadata": {"name": "Node_1"}}, RefusalReason.NODE, 2),
        ({"metadata": {"name": "node-2"}}, RefusalReason.DUPLICATE, 0),
    ],
)
def test_a_bad_item_is_refused_alone(change: dict[str, object], why: RefusalReason, left: int) -> None:
    document = json.loads(GOLDEN.read_bytes())
    document["items"][0] |= change
    result = decode_node_metrics(json.dumps(document).encode(), METRICS)
    assert result.refusals.keys() == {why}
    assert len(result.samples) == left


def test_what_is_no_value_is_refused_alone_facts_n60() -> None:
    document = json.loads(GOLDEN.read_bytes())
    document["items"][0]["usage"] = {"cpu": "-9223372036854775808m", "memory": "1"}
    rules = {"memory": ValueRules(least=Quantity(2 * NANO))}
    result = decode_node_metrics(json.dumps(document).encode(), METRICS, rules)
    assert [(each.node, each.metric) for each in result.samples] == [("node-2", "cpu"), ("node-2", "memory")]
    assert result.refusals[RefusalReason.VALUE].count == 2


@pytest.mark.parametrize("window", ["", "soon", "-1s", "0s", "25h"])
def test_an_invalid_window_is_left_out(window: str) -> None:
    document = json.loads(GOLDEN.read_bytes())
    document["items"][0]["window"] = window
    result = decode_node_metrics(json.dumps(document).encode(), METRICS)
    assert result.samples[0].window is None
    assert not result.refusals


@given(st.binary(max_size=200) | st.sampled_from([b"", b"<html>", b"null", b'{"kind":"PodMetricsList","items":[]}']))
def test_a_body_that_is_no_list_of_nodes_gives_an_error(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="metrics of nodes"):
        decode_node_metrics(body, METRICS)
