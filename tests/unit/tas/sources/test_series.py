"""Series as metrics: the node and the metric of a series, and the value of several series."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.sources.nodes import NodeNames
from tas.sources.result import RefusalReason, ResultBuilder
from tas.sources.series import (
    Aggregate,
    Mappings,
    MetricMapping,
    SeriesSample,
    add_node_sample,
    has_labels,
    series_names,
    valid_node,
)
from tas.values.quantity import MAX_QUANTITY, NANO, Quantity, format_quantity, parse_quantity
from tests.unit.tas.generators import quantities


@pytest.mark.parametrize(
    ("labels", "node_label", "node"),
    [
        pytest.param({"node": "a", "instance": "b:9100"}, None, "a", id="node comes first"),
        pytest.param({"instance": "b:9100"}, None, "b", id="else instance, without its port"),
        pytest.param({"instance": "b.example"}, None, "b.example", id="an instance without a port"),
        pytest.param({"instance": "10.0.0.1:80"}, None, "10.0.0.1", id="an address"),
        pytest.param({"instance": "[::1]:80"}, None, "::1", id="an IPv6 address with a port"),
        pytest.param({"instance": "fd00::1"}, None, "fd00::1", id="an IPv6 address without a port"),
        pytest.param({"instance": "[fd00::1]"}, None, "fd00::1", id="an IPv6 address in brackets without a port"),
        pytest.param({"instance": "a:b"}, None, "a:b", id="the text after the colon is not a port"),
        pytest.param({"node": "", "instance": "b:1"}, None, "b", id="an empty label counts as absent"),
        pytest.param({"job": "x"}, None, None, id="no label for the node"),
        pytest.param({"node": "a", "host": "h"}, "host", "h", id="the configured label"),
        pytest.param({"node": "a", "instance": "b:1"}, "host", None, id="no other label instead of the configured one"),
        pytest.param({"host": "h:1"}, "host", "h:1", id="only an instance has a port"),
        pytest.param({"node": "a", "instance": "b:1"}, "instance", "b", id="instance, if configured"),
    ],
)
def test_the_node_of_a_series(labels: dict[str, str], node_label: str | None, node: str | None) -> None:
    cluster = NodeNames({"found": [node or "nothing"]}, is_complete=True)
    assert valid_node(ResultBuilder(cluster), "load1", labels, node_label) == (None if node is None else "found")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"job": "x"}, "labels = {'job': 'x'}: must name a node, "),
        ({"node": "Not A Node"}, "node = 'Not A Node': must be a lowercase DNS "),
        ({"instance": "[::1]:9100"}, "instance = '[::1]:9100': must be a lowercase DNS "),
    ],
)
def test_a_series_without_a_valid_node_is_refused(labels: dict[str, str], message: str) -> None:
    builder = ResultBuilder()
    assert valid_node(builder, "m", labels, None) is None
    refusal = builder.result().refusals[RefusalReason.NODE]
    assert refusal.count == 1
    assert message in refusal.example


def test_a_metric_is_the_series_of_its_name_with_or_without_the_prefix_node() -> None:
    assert series_names("load1", MetricMapping()) == ("load1", "node_load1")
    assert series_names("load1", MetricMapping(series="other")) == ("other",)


def test_an_absent_label_counts_as_empty() -> None:
    assert has_labels({"a": "1"}, {"a": "1", "b": ""})
    assert not has_labels({"a": "1"}, {"b": "2"})
    assert has_labels({"a": "1"}, {})


def test_the_common_node_label_counts_for_metrics_without_their_own() -> None:
    mappings = Mappings(metrics={"m": MetricMapping(node_label="host")}, node_label="kubernetes_node")
    assert mappings.of("m").node_label == "host"
    assert mappings.of("other").node_label == "kubernetes_node"


def point(value: int, *, rank: int = 0, measured: float = 100.0, **labels: str) -> SeriesSample:
    return SeriesSample(labels=lambda: labels, rank=rank, value=Quantity(value), measured=measured)


def test_the_value_of_a_single_series_is_exact() -> None:
    builder = ResultBuilder()
    add_node_sample(builder, "m", "a", [point(123_456_789, measured=7.5)], None)
    (sample,) = builder.result().samples
    assert (sample.node, sample.metric, sample.value, sample.measured) == ("a", "m", 123_456_789, 7.5)


def test_several_series_without_an_aggregate_are_refused_naming_two_by_their_differing_labels() -> None:
    builder = ResultBuilder()
    add_node_sample(
        builder, "m", "a", [point(1, cpu="0", job="x"), point(2, cpu="1", job="x"), point(3, cpu="2")], None
    )
    result = builder.result()
    assert result.samples == ()
    refusal = result.refusals[RefusalReason.DUPLICATE]
    assert refusal.count == 3
    assert refusal.example == (
        """m of a: series = '{cpu="0"}': and {cpu="1"}: """
        "3 series of one node, and no aggregate says which value counts"
    )


def test_a_duplicate_series_is_refused() -> None:
    builder = ResultBuilder()
    add_node_sample(builder, "m", "a", [point(1, cpu="0"), point(1, cpu="0")], None)
    assert """'{cpu="0"}': and {cpu="0"}""" in builder.result().refusals[RefusalReason.DUPLICATE].example


@pytest.mark.parametrize(
    ("aggregate", "value"),
    [(Aggregate.MIN, "-1"), (Aggregate.MAX, "5"), (Aggregate.AVG, "1.333333333"), (Aggregate.SUM, "4")],
)
def test_an_aggregate_combines_several_series(aggregate: Aggregate, value: str) -> None:
    builder = ResultBuilder()
    points = [point(5 * NANO, measured=3.0), point(-1 * NANO, measured=9.0), point(0, measured=6.0)]
    add_node_sample(builder, "m", "a", points, aggregate)
    (sample,) = builder.result().samples
    assert format_quantity(sample.value) == value
    assert sample.measured == 9.0


def test_the_first_of_several_series_names_counts() -> None:
    builder = ResultBuilder()
    add_node_sample(builder, "m", "a", [point(1, rank=1), point(2, rank=0), point(3, rank=1)], None)
    assert [sample.value for sample in builder.result().samples] == [2]


def test_a_sum_beyond_the_largest_quantity_is_refused() -> None:
    builder = ResultBuilder()
    add_node_sample(builder, "m", "a", [point(MAX_QUANTITY), point(MAX_QUANTITY)], Aggregate.SUM)
    assert builder.result().refusals[RefusalReason.VALUE].count == 1


@given(values=st.lists(quantities, min_size=1, max_size=6))
def test_aggregates_are_exact_and_do_not_depend_on_order(values: list[Quantity]) -> None:
    for aggregate in Aggregate:
        for order in (values, values[::-1], sorted(values)):
            builder = ResultBuilder()
            add_node_sample(builder, "m", "a", [point(value) for value in order], aggregate)
            result = builder.result()
            if abs(sum(values)) > MAX_QUANTITY and aggregate is Aggregate.SUM:
                assert result.samples == ()
                continue
            (sample,) = result.samples
            assert parse_quantity(format_quantity(sample.value)) == sample.value
            expected = {
                Aggregate.MIN: min(values),
                Aggregate.MAX: max(values),
                Aggregate.SUM: sum(values),
                Aggregate.AVG: sample.value,
            }
            assert sample.value == expected[aggregate]
            if aggregate is Aggregate.AVG:
                assert abs(sample.value * len(values) - sum(values)) * 2 <= len(values)
