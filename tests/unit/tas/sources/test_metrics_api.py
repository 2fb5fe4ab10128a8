"""Answers of the metrics API, by a sample file."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.quantity import NANO
from tas.sources.metrics_api import METRICS, decode_node_metrics
from tas.sources.reading import Refused

GOLDEN = Path(__file__).parents[3] / "contract" / "golden" / "sources" / "node-metrics.json"
JANUARY = 1767225600.0


def test_cores_and_bytes_of_every_node_are_read() -> None:
    batch = decode_node_metrics(GOLDEN.read_bytes(), METRICS)
    assert [(each.node, each.metric, each.value / NANO, each.measured, each.window) for each in batch.readings] == [
        ("node-1", "cpu", 0.123456789, JANUARY, 20.06),
        ("node-1", "memory", 2 << 30, JANUARY, 20.06),
        ("node-2", "cpu", 2, JANUARY + 1, 15),
        ("node-2", "memory", 1 << 30, JANUARY + 1, 15),
    ]


def test_only_what_is_wanted_is_taken_and_what_there_is_not_is_missing() -> None:
    batch = decode_node_metrics(GOLDEN.read_bytes(), frozenset({"cpu", "load1"}))
    assert {each.metric for each in batch.readings} == {"cpu"}
    assert batch.missing == {"load1": "the metrics API has only cpu and memory"}


def test_a_list_of_none_says_what_is_missing() -> None:
    batch = decode_node_metrics(b'{"kind": "NodeMetricsList", "items": []}', METRICS)
    assert batch.missing.keys() == METRICS


@pytest.mark.parametrize(
    ("change", "why", "left"),
    [
        ({"timestamp": "?"}, Refused.TIME, 2),
        ({"usage": None}, Refused.SHAPE, 2),
        ({"usage": {"cpu": 1}}, Refused.SHAPE, 2),
        ({"usage": {"cpu": "much", "memory": "1"}}, Refused.VALUE, 3),
        ({"metadata": {"name": "Node_1"}}, Refused.NODE, 2),
        ({"metadata": {"name": "node-2"}}, Refused.TWICE, 0),
    ],
)
def test_a_bad_item_is_refused_alone(change: dict[str, object], why: Refused, left: int) -> None:
    document = json.loads(GOLDEN.read_bytes())
    document["items"][0] |= change
    batch = decode_node_metrics(json.dumps(document).encode(), METRICS)
    assert batch.refusals.keys() == {why}
    assert len(batch.readings) == left


@pytest.mark.parametrize("window", ["", "soon", "-1s", "0s", "25h"])
def test_a_window_that_says_nothing_is_left_out(window: str) -> None:
    document = json.loads(GOLDEN.read_bytes())
    document["items"][0]["window"] = window
    batch = decode_node_metrics(json.dumps(document).encode(), METRICS)
    assert batch.readings[0].window is None
    assert not batch.refusals


@given(st.binary(max_size=200) | st.sampled_from([b"", b"<html>", b"null", b'{"kind":"PodMetricsList","items":[]}']))
def test_what_is_no_list_of_nodes_is_told_as_a_whole(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="metrics of nodes"):
        decode_node_metrics(body, METRICS)
