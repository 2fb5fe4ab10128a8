"""Answers of the custom metrics API, by sample files of either version."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.quantity import NANO
from tas.sources.custom_metrics import decode_group, decode_metric_values
from tas.sources.reading import Batch, Refused

GOLDEN = Path(__file__).parents[3] / "contract" / "golden" / "sources"
JANUARY = 1767225600.0


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def values(batch: Batch) -> list[tuple[str, str, float]]:
    return [(each.node, each.metric, each.value / NANO) for each in batch.readings]


@pytest.mark.parametrize(("version", "window"), [("v1beta1", 60.0), ("v1beta2", 30.0)])
def test_either_version_is_read(version: str, window: float) -> None:
    batch = decode_metric_values(golden(f"custom-metrics-{version}.json"), "health_metric")
    assert values(batch) == [
        ("node-1", "health_metric", 1.5),
        ("ip-10-0-0-2.ec2.internal", "health_metric", 2.0),
    ]
    assert [each.measured for each in batch.readings] == [JANUARY, JANUARY + 1]
    assert [each.window for each in batch.readings] == [window, None]
    assert batch.refusals == {}
    assert batch.missing == {}


def test_tas_C10_a_list_of_none_says_that_the_metric_is_missing() -> None:
    empty: tuple[list[object] | None, ...] = ([], None)
    for items in empty:
        batch = decode_metric_values(json.dumps({"kind": "MetricValueList", "items": items}).encode(), "m")
        assert batch.readings == ()
        assert batch.missing == {"m": "the custom metrics API has no value of it for any node"}


def test_values_of_pods_are_refused_with_their_number() -> None:
    document = json.loads(golden("custom-metrics-v1beta1.json"))
    for item in document["items"]:
        item["describedObject"] = {"kind": "Pod", "namespace": "default", "name": "web"}
    batch = decode_metric_values(json.dumps(document).encode(), "health_metric")
    assert batch.readings == ()
    assert batch.refusals[Refused.NODE].count == 2


@pytest.mark.parametrize("window", [0, -1, 86401, None])
def test_tas_C9_a_window_that_says_nothing_is_left_out(window: int | None) -> None:
    """The original took 60 s for one that is absent, and made nothing of it: a value at one moment has none."""
    document = json.loads(golden("custom-metrics-v1beta2.json"))
    document["items"][0]["windowSeconds"] = window
    batch = decode_metric_values(json.dumps(document).encode(), "health_metric")
    assert batch.readings[0].window is None
    assert batch.refusals == {}


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"{}", b"[]", b'{"kind":"List","items":[]}', b"\xff"])
def test_what_is_no_list_of_values_is_told_as_a_whole(body: bytes) -> None:
    with pytest.raises(InvalidInputError, match="values of m"):
        decode_metric_values(body, "m")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    for decode in (lambda: decode_metric_values(body, "m"), lambda: decode_group(body)):
        with contextlib.suppress(InvalidInputError):
            decode()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["describedObject", "kind", "name", "value", "timestamp", "metric", "window"]), inner
            )
        ),
        max_leaves=10,
    )
)
def test_whatever_an_item_is_the_others_are_read(item: Any) -> None:
    document = json.loads(golden("custom-metrics-v1beta1.json"))
    good = [("node-1", "health_metric", 1.5), ("ip-10-0-0-2.ec2.internal", "health_metric", 2.0)]
    document["items"].insert(1, item)
    batch = decode_metric_values(json.dumps(document).encode(), "health_metric")
    assert [each for each in values(batch) if each in good] == good
    assert len(batch.readings) - 2 + sum(each.count for each in batch.refusals.values()) == 1


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
def test_the_preferred_version_is_asked_for_if_it_is_read_here(body: bytes, version: str) -> None:
    assert decode_group(body) == version


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>", "<html>"),
        (group(), "must hold one of"),
        (group("v2"), "versions = 'v2'"),
        (group("v1beta1", name="apps"), "must be APIGroup"),
        (b'{"kind": "Status"}', "must be APIGroup"),
    ],
)
def test_a_group_that_offers_nothing_is_told(body: bytes, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        decode_group(body)
