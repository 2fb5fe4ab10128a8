"""Series as metrics: which node one is of, which are a metric, what counts of several."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.quantity import MAX_QUANTITY, NANO, Quantity, format_quantity, parse_quantity
from tas.sources.reading import Gathering, Refused
from tas.sources.series import (
    Aggregate,
    Mappings,
    MetricMapping,
    Point,
    carries,
    named_node,
    node_of,
    series_names,
    settle,
)
from tests.unit.tas.generators import quantities


@pytest.mark.parametrize(
    ("labels", "node_label", "node"),
    [
        pytest.param({"node": "a", "instance": "b:9100"}, None, "a", id="node comes first"),
        pytest.param({"instance": "b:9100"}, None, "b", id="else instance, without its port"),
        pytest.param({"instance": "b.example"}, None, "b.example", id="an instance without a port"),
        pytest.param({"instance": "10.0.0.1:80"}, None, "10.0.0.1", id="an address"),
        pytest.param({"instance": "[::1]:80"}, None, "[::1]", id="an IPv6 address, which names no node"),
        pytest.param({"instance": "a:b"}, None, "a:b", id="what follows the colon is no port"),
        pytest.param({"node": "", "instance": "b:1"}, None, "b", id="an empty label is as one that is absent"),
        pytest.param({"job": "x"}, None, None, id="no label that names one"),
        pytest.param({"node": "a", "host": "h"}, "host", "h", id="the label that the user names"),
        pytest.param({"node": "a", "instance": "b:1"}, "host", None, id="and no other in its place"),
        pytest.param({"host": "h:1"}, "host", "h:1", id="only an instance has a port"),
        pytest.param({"node": "a", "instance": "b:1"}, "instance", "b", id="instance, if the user names that"),
    ],
)
def test_the_node_of_a_series(labels: dict[str, str], node_label: str | None, node: str | None) -> None:
    assert node_of(labels, node_label) == node


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"job": "x"}, "labels = {'job': 'x'}: must name a node, "),
        ({"node": "Not A Node"}, "labels = 'Not A Node': must name a node, "),
        ({"instance": "[::1]:9100"}, "labels = '[::1]': must name a node, "),
    ],
)
def test_a_series_that_names_no_node_is_refused(labels: dict[str, str], told: str) -> None:
    gathering = Gathering()
    assert named_node(gathering, "m", labels, None) is None
    refusal = gathering.batch().refusals[Refused.NODE]
    assert refusal.count == 1
    assert told in refusal.example
    assert refusal.example.endswith("by its label node or instance")


def test_a_metric_is_the_series_of_its_name_or_with_node_before_it() -> None:
    assert series_names("load1", MetricMapping()) == ("load1", "node_load1")
    assert series_names("load1", MetricMapping(series="other")) == ("other",)


def test_a_label_that_is_absent_is_empty() -> None:
    assert carries({"a": "1"}, {"a": "1", "b": ""})
    assert not carries({"a": "1"}, {"b": "2"})
    assert carries({"a": "1"}, {})


def test_the_label_for_all_counts_where_a_metric_names_none() -> None:
    mappings = Mappings(metrics={"m": MetricMapping(node_label="host")}, node_label="kubernetes_node")
    assert mappings.of("m").node_label == "host"
    assert mappings.of("other").node_label == "kubernetes_node"


def point(value: int, *, rank: int = 0, measured: float = 100.0, **labels: str) -> Point:
    return Point(labels=lambda: labels, rank=rank, value=Quantity(value), measured=measured)


def test_one_series_of_a_node_counts_exactly() -> None:
    gathering = Gathering()
    settle(gathering, "m", "a", [point(123_456_789, measured=7.5)], None)
    (reading,) = gathering.batch().readings
    assert (reading.node, reading.metric, reading.value, reading.measured) == ("a", "m", 123_456_789, 7.5)


def test_several_without_an_aggregate_are_refused_naming_both_by_what_differs() -> None:
    gathering = Gathering()
    settle(gathering, "m", "a", [point(1, cpu="0", job="x"), point(2, cpu="1", job="x"), point(3, cpu="2")], None)
    batch = gathering.batch()
    assert batch.readings == ()
    refusal = batch.refusals[Refused.TWICE]
    assert refusal.count == 3
    assert refusal.example == (
        """m of a: series = '{cpu="0"}': and {cpu="1"}: """
        "3 series of one node, and no aggregate says which value counts"
    )


def test_the_same_series_twice_is_refused_as_well() -> None:
    gathering = Gathering()
    settle(gathering, "m", "a", [point(1, cpu="0"), point(1, cpu="0")], None)
    assert """'{cpu="0"}': and {cpu="0"}""" in gathering.batch().refusals[Refused.TWICE].example


@pytest.mark.parametrize(
    ("aggregate", "value"),
    [(Aggregate.MIN, "-1"), (Aggregate.MAX, "5"), (Aggregate.AVG, "1.333333333"), (Aggregate.SUM, "4")],
)
def test_an_aggregate_says_what_counts(aggregate: Aggregate, value: str) -> None:
    gathering = Gathering()
    points = [point(5 * NANO, measured=3.0), point(-1 * NANO, measured=9.0), point(0, measured=6.0)]
    settle(gathering, "m", "a", points, aggregate)
    (reading,) = gathering.batch().readings
    assert format_quantity(reading.value) == value
    assert reading.measured == 9.0


def test_of_several_names_the_first_one_counts() -> None:
    gathering = Gathering()
    settle(gathering, "m", "a", [point(1, rank=1), point(2, rank=0), point(3, rank=1)], None)
    assert [reading.value for reading in gathering.batch().readings] == [2]


def test_a_sum_beyond_every_quantity_is_refused() -> None:
    gathering = Gathering()
    settle(gathering, "m", "a", [point(MAX_QUANTITY), point(MAX_QUANTITY)], Aggregate.SUM)
    assert gathering.batch().refusals[Refused.VALUE].count == 1


@given(values=st.lists(quantities, min_size=1, max_size=6))
def test_aggregates_are_exact_and_do_not_depend_on_order(values: list[Quantity]) -> None:
    for aggregate in Aggregate:
        for order in (values, values[::-1], sorted(values)):
            gathering = Gathering()
            settle(gathering, "m", "a", [point(value) for value in order], aggregate)
            batch = gathering.batch()
            if abs(sum(values)) > MAX_QUANTITY and aggregate is Aggregate.SUM:
                assert batch.readings == ()
                continue
            (reading,) = batch.readings
            assert parse_quantity(format_quantity(reading.value)) == reading.value
            expected = {
                Aggregate.MIN: min(values),
                Aggregate.MAX: max(values),
                Aggregate.SUM: sum(values),
                Aggregate.AVG: reading.value,
            }
            assert reading.value == expected[aggregate]
            if aggregate is Aggregate.AVG:
                assert abs(reading.value * len(values) - sum(values)) * 2 <= len(values)
