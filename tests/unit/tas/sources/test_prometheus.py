"""Answers of Prometheus: real ones, stored as files, and whatever else a server may send."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.sources.prometheus import (
    MAX_SERIES_BYTES,
    AnswerError,
    mapping_of,
    query_of,
    read_answer,
    with_common_times,
)
from tas.sources.result import MAX_ITEMS, MAX_VALUES, RefusalReason, SourceResult, combined
from tas.sources.series import Aggregate, Mappings, MetricMapping
from tas.values.quantity import format_quantity, parse_quantity
from tests.sources.answers import EVALUATED, QUERIES, Answer, golden
from tests.unit.tas.generators import characters

PLAIN = MetricMapping()
JSON = {"Content-Type": "application/json"}


def read(metric: str, answer: Answer, mapping: MetricMapping = PLAIN) -> SourceResult:
    return read_answer(metric, mapping, answer.body, status=answer.status)


def vector(*series: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}}).encode()


def one(text: str, **labels: str) -> dict[str, object]:
    return {"metric": labels or {"node": "a"}, "value": [EVALUATED, text]}


def values(result: SourceResult) -> list[tuple[str, str, str, float | None]]:
    return [(each.node, each.metric, format_quantity(each.value), each.measured) for each in result.samples]


@pytest.mark.parametrize(
    ("mapping", "query"),
    [
        (PLAIN, QUERIES["two-names"]),
        (MetricMapping(series="node_load"), '{__name__="node_load"}'),
        (MetricMapping(series="a:b", labels={"mode": 'i"d\\le'}), '{__name__="a:b",mode="i\\"d\\\\le"}'),
        (MetricMapping(labels={"mountpoint": "/"}), '{__name__=~"load|node_load",mountpoint="/"}'),
        (MetricMapping(query="max(load)", series="other"), "max(load)"),
    ],
)
def test_the_query_for_a_metric(mapping: MetricMapping, query: str) -> None:
    assert query_of("load", mapping) == query


@pytest.mark.parametrize(
    ("name", "metric", "value"),
    [
        ("vector", "health_metric", "2"),
        ("two-names", "load", "0.7"),  # and not the 99 of node_load
        ("exponent", "tiny", "0.00000001"),
        ("aggregated", "cpu", "0.5"),
    ],
)
def test_values_are_exact_and_have_the_time_of_the_evaluation(name: str, metric: str, value: str) -> None:
    mapping = MetricMapping(query=QUERIES[name]) if name == "aggregated" else PLAIN
    result = read(metric, golden(name), mapping)
    assert values(result) == [("node-1", metric, value, EVALUATED)]
    assert result.refusals == {}
    assert result.missing == {}


def test_several_series_of_a_node_need_an_aggregate() -> None:
    result = read("cpu", golden("several-series"))
    assert result.samples == ()
    assert """'{cpu="0"}': and {cpu="1"}""" in result.refusals[RefusalReason.DUPLICATE].example
    assert "2 refused, as cpu of node-1" in result.missing["cpu"]
    summed = read("cpu", golden("several-series"), MetricMapping(aggregate=Aggregate.SUM))
    assert values(summed) == [("node-1", "cpu", "0.75", EVALUATED)]


@pytest.mark.parametrize(("name", "shown"), [("nan", "'NaN'"), ("infinity", "'+Inf'"), ("huge", "beyond 10^40")])
def test_facts_n51_a_value_that_is_no_finite_number_is_refused(name: str, shown: str) -> None:
    result = read(QUERIES[name], golden(name))
    assert result.samples == ()
    assert result.refusals[RefusalReason.VALUE].count == 1
    assert shown in result.refusals[RefusalReason.VALUE].example
    assert shown in result.missing[QUERIES[name]]


def test_a_series_without_labels_has_no_node() -> None:
    result = read("cpu", golden("no-labels"), MetricMapping(query="max(node_cpu)"))
    assert "by its label node or instance" in result.refusals[RefusalReason.NODE].example


def test_a_result_without_series_names_the_query() -> None:
    result = read("nothing", golden("empty"))
    assert result.missing == {"nothing": """no value from the query '{__name__=~"nothing|node_nothing"}'"""}
    assert result.refusals == {}


def test_a_warning_of_prometheus_is_reported_if_there_is_no_value() -> None:
    body = b'{"status":"success","warnings":["store s1 is away"],"data":{"resultType":"vector","result":[]}}'
    assert "Prometheus warns: 'store s1 is away'" in read_answer("m", PLAIN, body).missing["m"]


def test_a_bad_series_is_refused_alone() -> None:
    body = vector(
        one("1", node="a"),
        one("NaN", node="b"),
        {"metric": {"node": "c"}, "value": [EVALUATED, 3]},
        {"metric": {"node": 5}, "value": [EVALUATED, "3"]},
        {"metric": {"node": "d"}, "histogram": [EVALUATED, {}]},
        {"metric": {"node": "e"}},
        "what",
        one("2", job="x"),
        one("5", node="f"),
    )
    result = read_answer("m", PLAIN, body)
    assert [(node, value) for node, _, value, _ in values(result)] == [("a", "1"), ("f", "5")]
    assert {why: refusal.count for why, refusal in result.refusals.items()} == {
        RefusalReason.VALUE: 1,
        RefusalReason.SHAPE: 5,
        RefusalReason.NODE: 1,
    }
    assert result.missing == {}


@pytest.mark.parametrize(
    ("mapping", "bad", "why"),
    [
        (PLAIN, "-9223372036854775808", "no value"),
        (PLAIN, "-9.223372036854776e+18", "no value"),
        (PLAIN, "9.223372036854776e+18", "no value"),
        (MetricMapping(series="DCGM_FI_DEV_FB_USED"), "2147483632", "blank of GPU"),
        (MetricMapping(query="max by (node, gpu) (dcgm_fb_used)"), "1.40737488355328e+14", "blank of GPU"),
        (MetricMapping(blanks=True), "2147483635", "blank of GPU"),
        (MetricMapping(max="110"), "644245923", "is more than max, 110"),
        (MetricMapping(min=0), "-1", "is less than min, 0"),
    ],
)
@pytest.mark.parametrize(
    ("aggregate", "value"), [(Aggregate.SUM, "70"), (Aggregate.MAX, "40"), (Aggregate.MIN, "30"), (Aggregate.AVG, "35")]
)
def test_what_is_no_value_is_refused_and_in_no_aggregate_facts_n60_facts_n61(
    mapping: MetricMapping, bad: str, why: str, aggregate: Aggregate, value: str
) -> None:
    mapping = msgspec.structs.replace(mapping, aggregate=aggregate)
    name = mapping.series or "m"
    gpus = [one(text, __name__=name, node="a", gpu=str(gpu)) for gpu, text in enumerate(("30", bad, "40"))]
    result = read_answer("m", mapping, vector(*gpus))
    assert [each[2] for each in values(result)] == [value]
    refused = result.refusals[RefusalReason.VALUE]
    assert refused.count == 1
    assert refused.example.startswith("m of a: value = '")
    assert why in refused.example


def test_bounds_are_those_of_the_values_and_not_of_a_statistic() -> None:
    mappings = Mappings(metrics={"load": MetricMapping(min=10, max=20)})
    mapping = mapping_of(mappings, "load:std:5m")
    assert [each[2] for each in values(read_answer("load:std:5m", mapping, vector(one("0.5"))))] == ["0.5"]


@pytest.mark.parametrize("text", ["1k", "2Gi", "1E", "0x10", "1_0", "", " 1", "1e", "٣", "inf", "nan", "1" * 5000])
def test_suffixes_of_quantities_and_other_texts_are_refused(text: str) -> None:
    result = read_answer("m", PLAIN, vector(one(text)))
    assert result.samples == ()
    assert result.refusals[RefusalReason.VALUE].count == 1


@pytest.mark.parametrize(
    ("answer", "message", "unreadable"),
    [
        pytest.param(golden("scalar"), "a scalar, which names no node", False, id="a scalar"),
        pytest.param(golden("matrix"), "the result is a 'matrix': a query must give", False, id="a matrix"),
        pytest.param(golden("string"), "the result is a 'string': a query must give", False, id="a string"),
        pytest.param(golden("no-query"), "answered 400 'error': 'bad_data: ", False, id="no query"),
        pytest.param(
            Answer(golden("no-query").body), "answered 200 'error': 'bad_data: ", False, id="an error with status 200"
        ),
        pytest.param(
            Answer(golden("vector").body, status=502), "answered 502 'success'", False, id="success with status 502"
        ),
        pytest.param(Answer(b'{"status":"pending"}'), "answered 200 'pending'", False, id="neither"),
        pytest.param(Answer(b""), "an empty body with status 200", True, id="empty"),
        pytest.param(Answer(b"<!doctype html><p>Log in", status=200), "HTML with status 200", True, id="HTML"),
        pytest.param(Answer(golden("vector").body[:-9]), "no answer of a Prometheus", True, id="truncated"),
        pytest.param(Answer(b"[1, 2]"), "no answer of a Prometheus", True, id="other JSON"),
        pytest.param(Answer(b'{"status":"success"}'), "data = ", True, id="no data"),
        pytest.param(
            Answer(b'{"status":"success","data":{"resultType":"vector","result":7}}'), "result = ", True, id="no list"
        ),
        pytest.param(Answer(b"\xff\xfe" * 10), "no answer of a Prometheus", True, id="no text"),
        pytest.param(Answer(b"[" * 100_000), "no answer of a Prometheus", True, id="nested without end"),
    ],
)
def test_an_answer_without_a_result_gives_an_error(answer: Answer, message: str, unreadable: bool) -> None:
    with pytest.raises(AnswerError) as caught:
        read("m", answer)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 700
    assert caught.value.unreadable is unreadable


def test_an_error_contains_the_error_of_prometheus() -> None:
    with pytest.raises(AnswerError, match="unclosed left parenthesis"):
        read("m", golden("no-query"))
    with pytest.raises(AnswerError, match="answered 422 'error': 'execution: "):
        read("m", golden("not-executed"))


@given(number=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e39, max_value=1e39))
def test_every_number_as_prometheus_may_write_it_is_exact(number: float) -> None:
    for text in (repr(number), f"{number:f}", f"{number:+.17e}"):
        (sample,) = read_answer("m", PLAIN, vector(one(text))).samples
        assert sample.value == parse_quantity(text)


@given(
    junk=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(characters),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["status", "data", "resultType", "result", "metric", "value", "x"]), inner
            )
        ),
    )
)
def test_any_json_gives_a_result_or_an_error(junk: object) -> None:
    for body in (
        json.dumps(junk).encode(),
        json.dumps({"status": "success", "data": junk}).encode(),
        vector(junk, one("1")),
    ):
        try:
            result = read_answer("m", PLAIN, body)
        except AnswerError as error:
            assert len(str(error)) < 1000  # noqa: PT017 - either is right
        else:
            assert result.samples or result.refusals or result.missing


def evaluated(metric: str, *times: float) -> SourceResult:
    """An answer with one series for each node, each with its time."""
    series = [{"metric": {"node": f"n{number}"}, "value": [time, "1"]} for number, time in enumerate(times)]
    return read(metric, Answer(vector(*series)))


def times(*results: SourceResult) -> dict[str, set[float | None]]:
    """The times of each metric's values, as of one poll that takes at most 5 s."""
    result = combined(with_common_times(results, within=5.0))
    return {
        metric: {each.measured for each in result.samples if each.metric == metric}
        for metric in {each.metric for each in result.samples}
    }


def test_queries_of_one_poll_get_the_time_of_the_first() -> None:
    found = times(evaluated("b", 100.2, 100.2), evaluated("a", 100.0, 100.0), evaluated("c", 105.0, 105.0))
    assert found == {"a": {100.0}, "b": {100.0}, "c": {100.0}}


def test_a_query_with_a_wrong_time_changes_no_other() -> None:
    found = times(evaluated("a", 100.0), evaluated("past", 3.0), evaluated("b", 100.1), evaluated("ahead", 105.1))
    assert found == {"past": {3.0}, "a": {100.0}, "b": {100.0}, "ahead": {105.1}}


def test_an_answer_with_different_times_is_unchanged() -> None:
    assert times(evaluated("a", 100.0), evaluated("b", 100.1, 100.2)) == {"a": {100.0}, "b": {100.1, 100.2}}


def test_refusals_and_missing_metrics_are_unchanged() -> None:
    empty = read("nothing", golden("empty"))
    bad = read("b", Answer(vector({"metric": {"node": "n"}, "value": [100.1, "1"]}, one("NaN", node="m"))))
    result = combined(with_common_times([evaluated("a", 100.0), bad, empty], within=5.0))
    assert set(result.missing) == {"nothing"}
    assert result.refusals[RefusalReason.VALUE].count == 1
    assert [(each.metric, each.node, each.measured) for each in result.samples] == [
        ("a", "n0", 100.0),
        ("b", "n", 100.0),
    ]


def _vector_of(items: str) -> bytes:
    return ('{"status":"success","data":{"resultType":"vector","result":[' + items + "]}}").encode()


class TestLargeAnswers:
    def test_too_many_series_are_an_error_that_names_the_query(self) -> None:
        body = _vector_of(",".join(['{"metric":{},"value":[1,"1"]}'] * (MAX_ITEMS + 1)))
        with pytest.raises(AnswerError, match=r"100001 series from the query '\{__name__=~.*node_load.*\}': must be"):
            read_answer("load", MetricMapping(), body)

    def test_too_many_values_are_an_error_that_names_the_query(self) -> None:
        with pytest.raises(AnswerError, match=r"must be at most 2000000, from the query '\{__name__"):
            read_answer("load", MetricMapping(), _vector_of(",".join("1" * (MAX_VALUES + 1))))

    def test_a_too_large_series_is_refused_alone(self) -> None:
        large = '{"metric":{"node":"a","x":"%s"},"value":[1,"1"]}' % ("x" * MAX_SERIES_BYTES)
        result = read_answer("load", MetricMapping(), _vector_of(large + ',{"metric":{"node":"b"},"value":[1,"2"]}'))
        assert [sample.node for sample in result.samples] == ["b"]
        assert "must be at most 65536 bytes" in result.refusals[RefusalReason.SHAPE].example

    @pytest.mark.ci
    def test_the_memory_for_many_series_is_a_few_times_that_of_the_answer(self) -> None:
        labels = ",".join(f'"label{number}":"value"' for number in range(8))
        body = _vector_of(
            ",".join(f'{{"metric":{{"node":"n{each}",{labels}}},"value":[1,"1"]}}' for each in range(20_000))
        )
        tracemalloc.start()
        try:
            assert len(read_answer("load", MetricMapping(), body).samples) == 20_000
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 6 * len(body)


WINDOWS = Mappings(
    metrics={
        "load": MetricMapping(query="avg by (node) (node_load1)", node_label="node"),
        "cpu:mean:5m": MetricMapping(series="recorded"),
        "memory": MetricMapping(series="mem", labels={"a": "b"}),
    }
)
CPU, NODE_CPU = '{__name__="cpu"}', '{__name__="node_cpu"}'


@pytest.mark.parametrize(
    ("metric", "query"),
    [
        (
            "cpu:std:5m",
            f"stddev_over_time({CPU}[300s]) and {CPU} or stddev_over_time({NODE_CPU}[300s]) and {NODE_CPU}",
        ),
        ("memory:p95:1h", 'quantile_over_time(0.95, {__name__="mem",a="b"}[3600s]) and {__name__="mem",a="b"}'),
        ("memory:forecast:30m", 'predict_linear({__name__="mem",a="b"}[1800s], 1800) and {__name__="mem",a="b"}'),
        (
            "load:mean:10m",
            "avg_over_time((avg by (node) (node_load1))[600s:10s]) and (avg by (node) (node_load1))",
        ),
        (
            "load:mean:90s",
            "avg_over_time((avg by (node) (node_load1))[90s:2s]) and (avg by (node) (node_load1))",
        ),
    ],
)
def test_a_statistic_of_a_window_is_a_query_over_its_metric(metric: str, query: str) -> None:
    mapping = mapping_of(WINDOWS, metric)
    assert query_of(metric, mapping) == query
    assert mapping.node_label == WINDOWS.of(metric.partition(":")[0]).node_label


def test_a_mapping_of_its_own_counts_before() -> None:
    assert mapping_of(WINDOWS, "cpu:mean:5m") == WINDOWS.of("cpu:mean:5m")
    assert mapping_of(WINDOWS, "cpu:mean") == WINDOWS.of("cpu:mean")


def test_a_statistic_that_prometheus_does_not_have_is_named() -> None:
    with pytest.raises(AnswerError, match=r"cpu:ewma:5m.*no function for ewma"):
        mapping_of(WINDOWS, "cpu:ewma:5m")
