"""Instant queries in Prometheus' form: what is selected, what is answered, what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import InvalidInputError
from tas.extender.instant_query import (
    MAX_QUERY,
    TIME_TOLERANCE,
    InstantQuery,
    answer_instant_query,
    error_of_instant_query,
    parse_instant_query,
)
from tas.samples.sample import Scrape
from tas.sources.prometheus import AnswerError, query_of, read_answer
from tas.sources.series import MetricMapping
from tas.values.quantity import parse_quantity
from tas.view.indices import MetricKey
from tas.view.view import View

NOW = 1767225605.0
STALE_AFTER = 60.0


def scrape(source: str, age: float, **metrics: str) -> Scrape:
    values = {name: parse_quantity(text) for name, text in metrics.items()}
    return Scrape(source=source, measured=NOW - age, arrived=NOW - age, sequence=1, metrics=values)


@pytest.mark.parametrize(
    ("text", "metric", "node", "source"),
    [
        ("load1", "load1", None, None),
        (" node:load1:rate5m\n", "node:load1:rate5m", None, None),
        ("load1{}", "load1", None, None),
        ('load1 { instance = "node-1.example" }', "load1", "node-1.example", None),
        ("load1{source='machine',instance=\"node-1\",}", "load1", "node-1", "machine"),
        ('{__name__="disk-free"}', "disk-free", None, None),
        ('{source="a", __name__="1m"}', "1m", None, "a"),
    ],
)
def test_a_selector_names_a_metric_a_node_and_a_source(
    text: str, metric: str, node: str | None, source: str | None
) -> None:
    assert parse_instant_query({"query": text}, NOW) == InstantQuery(metric, node, source, NOW)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "{}", "1", "1m", "disk-free", "load1[5m]", "load1 offset 1m", "load1 @ 5", "max(load1)", "a + b"),
        *(
            '{instance="node-1"}',
            'load1{instance!="a"}',
            'load1{instance=~"a"}',
            'load1{node="a"}',
            "load1{instance=a}",
        ),
        *('load1{instance="a"', 'load1{instance="a"}}', 'load1{instance="a" source="b"}', 'load1{,instance="a"}'),
        *(
            'load1{instance="a",instance="a"}',
            'load1{__name__="load1"}',
            'load1{instance="a\\n"}',
            "load1{instance='a\"}",
        ),
        *('load1{instance="A"}', 'load1{source="A"}', 'load1{source=""}', 'load1{instance=""}', '{__name__="a b"}'),
        "ä",
        " " * MAX_QUERY + "a",
    ],
)
def test_any_other_expression_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_instant_query({"query": text}, NOW)
    assert refused.value.field in {"query", "instance", "source"}
    assert refused.value.field in {"instance", "source"} or "must " in refused.value.reason


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1767225605", NOW),
        ("1767225600.123456789", 1767225600.123),
        ("2026-01-01T00:00:05Z", NOW),
        ("2026-01-01T01:00:04.5+01:00", NOW - 0.5),
        (str(NOW + TIME_TOLERANCE), NOW + TIME_TOLERANCE),
    ],
)
def test_the_time_of_a_query_is_that_of_its_answer(text: str, time: float) -> None:
    query = parse_instant_query({"query": "load1", "time": text, "timeout": "2m"}, NOW)
    assert query.time == time
    view = View()
    view.add_samples("a", [scrape("s", 1, load1="1")], NOW)
    assert json.loads(answer_instant_query(view, query, NOW))["data"]["result"][0]["value"] == [time, "1"]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "query"),
        ({"query": "load1", "time": "now"}, "time"),
        ({"query": "load1", "time": "2026-01-01T00:00:05"}, "time"),
        ({"query": "load1", "time": str(NOW + TIME_TOLERANCE + 1)}, "time"),
        ({"query": "load1", "time": str(NOW - TIME_TOLERANCE - 1)}, "time"),
        ({"query": "load1", "time": "nan"}, "time"),
        ({"query": "load1", "limit": "1"}, "limit"),
    ],
)
def test_another_time_and_other_parameters_are_refused(parameters: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_instant_query(parameters, NOW)
    assert refused.value.field == field


def test_the_answer_has_the_fresh_value_of_each_node_with_its_source() -> None:
    view = View(default_stale_after=STALE_AFTER)
    view.add_samples("b", [scrape("old", 10, load1="5"), scrape("new", 1, load1="0.25", other="7")], NOW)
    view.add_samples("a", [scrape("old", STALE_AFTER - 1, load1="-2")], NOW)
    view.add_samples("stale", [scrape("old", STALE_AFTER, load1="1")], NOW)
    view.add_samples("without", [scrape("old", 1, other="1")], NOW)
    view.set_labels("unsampled", {})

    def answer(text: str) -> dict[tuple[str, str], str]:
        answered = json.loads(answer_instant_query(view, parse_instant_query({"query": text}, NOW), NOW))
        assert answered["status"] == "success"
        assert answered["data"]["resultType"] == "vector"
        found = answered["data"]["result"]
        assert {each["metric"]["__name__"] for each in found} <= {"load1"}
        assert [each["value"][0] for each in found] == [NOW] * len(found)
        return {(each["metric"]["instance"], each["metric"]["source"]): each["value"][1] for each in found}

    assert list(answer("load1").items()) == [(("a", "old"), "-2"), (("b", "new"), "0.25")]
    assert answer('load1{source="old"}') == {("a", "old"): "-2", ("b", "old"): "5"}
    assert answer('load1{instance="b"}') == {("b", "new"): "0.25"}
    assert answer('load1{instance="stale"}') == answer('load1{instance="none"}') == answer("load2") == {}


_SCRAPES = st.lists(
    st.builds(
        lambda source, age, value: scrape(source, age, load=str(value)),
        st.sampled_from(("a", "b")),
        st.integers(0, 2 * int(STALE_AFTER)),
        st.decimals(-1000, 1000, places=9),
    ),
    min_size=1,
    max_size=4,
)


@given(st.dictionaries(st.sampled_from(("n1", "n2", "n3")), _SCRAPES), st.sampled_from((None, "a")))
def test_a_client_of_prometheus_reads_the_values_by_which_the_scheduler_is_answered(
    samples: dict[str, list[Scrape]], source: str | None
) -> None:
    view = View(default_stale_after=STALE_AFTER)
    for node, scrapes in samples.items():
        view.add_samples(node, scrapes, NOW)
    labels = {} if source is None else {"source": source}
    mapping = MetricMapping(series="load", labels=labels, node_label="instance")
    query = parse_instant_query({"query": query_of("load", mapping)}, NOW)
    read = read_answer("load", mapping, answer_instant_query(view, query, NOW))
    values = view.metric(MetricKey("load", source, STALE_AFTER), NOW)
    assert {each.node: each.value for each in read.samples} == dict(values)
    assert not read.refusals


def test_an_error_is_one_for_a_client_of_prometheus() -> None:
    with pytest.raises(AnswerError, match=r"bad_data.*max") as error:
        read_answer("load", MetricMapping(), error_of_instant_query("bad_data", "max"), status=400)
    assert not error.value.unreadable
