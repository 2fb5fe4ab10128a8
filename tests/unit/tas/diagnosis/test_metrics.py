"""The checks of metrics."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from tas.diagnosis.finding import Missing, Severity
from tas.diagnosis.metrics import MetricFacts, check_metrics, other_name
from tas.processes.process import RefusedSamples
from tas.samples.sample import NodeSamples, Scrape
from tas.sources.result import RefusalReason, SuspectReason
from tas.sources.state import RefusedValues, SourceMetric, SourceState
from tas.values.quantity import parse_quantity
from tests.unit.tas.diagnosis.found import bad, one, severities
from tests.unit.tas.diagnosis.samples import policy, policy_of

NOW = 1000.0


def samples(*metrics: str, age: float = 1.0, source: str = "agent") -> NodeSamples:
    at = NOW - age
    values = {metric: parse_quantity("1") for metric in metrics}
    return (Scrape(source=source, measured=at, arrived=at, sequence=1, metrics=values),)


def facts(
    metric: str = "health_metric",
    *,
    source: str | None = None,
    stored: dict[str, NodeSamples] | None = None,
    offered: Collection[str] | Missing = (),
    sources: dict[str, SourceState] | None = None,
    held: Collection[str] = (),
) -> MetricFacts:
    return MetricFacts(
        policies=[policy_of(metric, source=source)],
        samples={"a": samples("health_metric")} if stored is None else stored,
        nodes={"a": {"zone": "x"}},
        sources=sources or {},
        held=held,
        offered=offered,
        now=NOW,
        stale_after=120.0,
    )


def test_a_metric_with_fresh_samples_of_all_nodes_has_no_finding() -> None:
    assert bad(check_metrics(facts())) == {}
    assert len(severities(check_metrics(facts()))) == 7


def test_the_name_of_node_exporter_in_a_policy_is_found_under_the_name_of_the_adapter() -> None:
    found = one(check_metrics(facts("node_health_metric")), "metrics.present")
    assert found.severity is Severity.ERROR
    assert found.what.endswith("but there is health_metric")
    assert found.mend == "set metricname: health_metric"
    assert found.run == "kubectl edit taspolicy --namespace default demo"


def test_a_policy_of_a_directory_is_corrected_in_its_file() -> None:
    found = one(check_metrics(msgspec.structs.replace(facts("node_health_metric"), in_files=True)), "metrics.present")
    assert found.mend == "set metricname: health_metric in the file of default/demo, which this shows"
    assert found.run == "tas get policies"


def test_a_name_that_only_the_custom_metrics_api_has_is_suggested() -> None:
    found = one(check_metrics(facts("node_load1", stored={}, offered=["load1"])), "metrics.present")
    assert "but there is load1" in found.what


def test_a_metric_that_is_offered_and_not_collected_differs_from_one_that_does_not_exist() -> None:
    found = one(check_metrics(facts("load1", stored={}, offered=["load1"])), "metrics.present")
    assert "the custom metrics API has the metric" in found.what
    assert "tas run collect" in found.mend
    nothing = one(check_metrics(facts("load1", stored={}, offered=Missing("403"))), "metrics.present")
    assert nothing.what.endswith("no node has a sample; which metrics the custom metrics API has is not known: 403")
    assert nothing.run == "tas trace load1 a"


def test_a_metric_of_another_source_is_found() -> None:
    found = one(check_metrics(facts(source="prometheus")), "metrics.present")
    assert "but of agent" in found.what
    assert "set source: agent" in found.mend


def test_stale_samples_and_nodes_without_samples_are_found() -> None:
    stale = {"a": samples("health_metric", age=121.0)}
    assert bad(check_metrics(facts(stored=stale))) == {"metrics.fresh": Severity.ERROR}
    some = facts(stored={"b": samples("health_metric")})
    assert bad(check_metrics(some)) == {"metrics.nodes": Severity.WARNING}
    assert "1 of 1 node has no fresh sample: a" in one(check_metrics(some), "metrics.nodes").what


def test_each_policy_has_its_own_limit_of_age() -> None:
    """A sample that is fresh for one policy is stale for another."""
    rules = {"dontschedule": {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 1}]}}
    quick = policy("quick", spec={"staleAfter": "10s", "strategies": rules})
    slow = policy("slow", spec={"staleAfter": "5m", "strategies": rules})
    found = MetricFacts(
        policies=[quick, slow],
        samples={"a": samples("m", age=60.0), "b": samples("m", age=60.0)},
        nodes={"a": {}, "b": {}},
        now=NOW,
        stale_after=120.0,
    )
    stale = one(check_metrics(found), "metrics.fresh")
    assert stale.what == "m of default/quick: the newest sample is 60 s old, and stale after 10 s"
    assert bad(check_metrics(found)) == {"metrics.fresh": Severity.ERROR}
    one_fresh = msgspec.structs.replace(found, samples={**found.samples, "a": samples("m", age=1.0)})
    lacking = one(check_metrics(one_fresh), "metrics.nodes")
    assert lacking.what == "m of default/quick: 1 of 2 nodes has no fresh sample: b"


def test_metrics_that_the_same_nodes_lack_are_one_finding() -> None:
    rules = [{"metricname": name, "operator": "GreaterThan", "target": 1} for name in ("m", "n", "o")]
    found = MetricFacts(
        policies=[policy("demo", spec={"strategies": {"dontschedule": {"rules": rules}}})],
        samples={"a": samples("m", "n", "o"), "b": samples("o")},
        nodes=dict.fromkeys(("a", "b", "c")),
        now=NOW,
        stale_after=120.0,
    )
    two, one_more = (each for each in check_metrics(found) if each.check == "metrics.nodes")
    assert two.what == "m, n of default/demo: 2 of 3 nodes have no fresh sample: b, c"
    assert two.run == "tas trace m b"
    assert one_more.what == "o of default/demo: 1 of 3 nodes has no fresh sample: c"


def test_a_node_that_no_policy_selects_needs_no_sample() -> None:
    rules = {"dontschedule": {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 1}]}}
    selective = policy("demo", spec={"nodeSelector": {"matchLabels": {"zone": "y"}}, "strategies": rules})
    found = MetricFacts(
        policies=[selective],
        samples={"b": samples("m")},
        nodes={"a": {"zone": "x"}, "b": {"zone": "y"}},
        now=NOW,
        stale_after=120.0,
    )
    assert bad(check_metrics(found)) == {}
    assert bad(check_metrics(msgspec.structs.replace(found, nodes={"c": None}))) == {"metrics.nodes": Severity.WARNING}


@pytest.mark.parametrize(
    ("state", "held", "severity"),
    [
        ({"problem": "connection refused", "polls": 1}, ("p",), Severity.ERROR),
        (
            {"metrics": {"a": SourceMetric(missing="404"), "b": SourceMetric(nodes=1)}, "polls": 1},
            ("p",),
            Severity.WARNING,
        ),
        ({"polls": 1}, (), Severity.ERROR),
        ({"polls": 1}, ("p",), None),
    ],
    ids=["failing", "partial", "unattended", "healthy"],
)
def test_a_source_that_does_not_work_is_found(
    state: dict[str, Any], held: tuple[str, ...], severity: Severity | None
) -> None:
    fields: dict[str, Any] = {"metrics": {"health_metric": SourceMetric(nodes=1)}} | state
    source = SourceState(kind="prometheus", holder="h", since=0.0, time=NOW, period=1.0, **fields)
    found = bad(check_metrics(facts(sources={"p": source}, held=held)))
    assert found == ({} if severity is None else {"metrics.sources": severity})


def test_a_source_says_how_many_more_metrics_it_lacks() -> None:
    metrics = {name: SourceMetric(missing="404") for name in "abcd"}
    state = SourceState(
        kind="prometheus",
        holder="h",
        since=0.0,
        time=NOW,
        period=1.0,
        polls=1,
        metrics=metrics,
        metrics_left_out=9,
        missing_left_out=8,
    )
    texts = [each.what for each in check_metrics(facts(sources={"p": state}, held=("p",)))]
    assert "p is partial (a, b, c and 9 more): 404" in texts
    # A record of another program may have any numbers.
    odd = msgspec.structs.replace(state, metrics={"a": SourceMetric(nodes=1)})
    assert bad(check_metrics(facts(sources={"p": odd}, held=("p",)))) == {"metrics.sources": Severity.WARNING}


@pytest.mark.parametrize("age", [1.0, 700.0])
@pytest.mark.parametrize("how", ["value", "jump", "blank"])
def test_values_that_were_lately_refused_or_suspect_are_found(how: str, age: float) -> None:
    example = RefusedValues(count=2, example="m of a: value = -9223372036854775.808: no value", time=NOW - age)
    fields: dict[str, Any] = (
        {"refused": {RefusalReason.VALUE: example}} if how == "value" else {"suspect": {SuspectReason(how): example}}
    )
    metrics = {"health_metric": SourceMetric(nodes=1)}
    state = SourceState(kind="k", holder="h", since=0.0, time=NOW, period=1.0, polls=1, metrics=metrics, **fields)
    found = [*check_metrics(facts(sources={"p": state}, held=("p",)))]
    assert bad(found) == ({"metrics.values": Severity.WARNING} if age < 600 else {})
    if age < 600:
        assert "-9223372036854775.808" in one(found, "metrics.values").what


def test_a_small_blank_that_another_program_has_written_is_found() -> None:
    scrape = Scrape(
        source="agent", measured=NOW, arrived=NOW, sequence=1, metrics={"health_metric": parse_quantity("2147483632")}
    )
    found = [*check_metrics(facts(stored={"a": (scrape,)}))]
    assert bad(found) == {"metrics.values": Severity.WARNING}
    assert "health_metric of a by agent: 2147483632" in one(found, "metrics.values").what


@pytest.mark.parametrize(
    ("reason", "age", "is_found"),
    [("value", 599, True), ("capacity", 599, True), ("value", 601, False), ("time", 1, False)],
)
def test_a_value_that_materialize_refuses_of_a_program_is_a_finding_for_ten_minutes(
    reason: str, age: float, is_found: bool
) -> None:
    refused = RefusedSamples("agent", reason, 7, "sample a/agent: metrics.m = 'NaN'", facts().now - age)
    found = list(check_metrics(msgspec.structs.replace(facts(), refused=[refused])))
    assert bad(found) == ({"metrics.values": Severity.WARNING} if is_found else {})
    if is_found:
        what = "agent: 7 refused when they came, as sample a/agent: metrics.m = 'NaN'"
        assert one(found, "metrics.values").what == what
        assert ("than there is room for" in one(found, "metrics.values").mend) is (reason == "capacity")


def test_sources_that_contradict_each_other_are_found_by_the_smallest_tolerance() -> None:
    def of(source: str, value: str) -> Scrape:
        metrics = {"health_metric": parse_quantity(value)}
        return Scrape(source=source, measured=NOW, arrived=NOW, sequence=1, metrics=metrics)

    far = [*check_metrics(facts(stored={"a": (of("x", "1"), of("y", "9"))}))]
    assert bad(far) == {"metrics.agree": Severity.WARNING}
    assert "health_metric of a: 1 by x, and 9 by y" in one(far, "metrics.agree").what
    named = [*check_metrics(facts(source="x", stored={"a": (of("x", "1"), of("y", "9"))}))]
    assert one(named, "metrics.agree").what == "each rule names its source"
    near: dict[str, NodeSamples] = {"a": (of("x", "8"), of("y", "9"))}
    assert bad(check_metrics(facts(stored=near))) == {}
    metrics = {"health_metric": SourceMetric(nodes=1, tolerance=0.05)}
    state = SourceState(kind="k", holder="h", since=0.0, time=NOW, period=1.0, polls=1, metrics=metrics)
    strict = facts(stored=near, sources={"x": state}, held=("x",))
    assert bad(check_metrics(strict)) == {"metrics.agree": Severity.WARNING}


@pytest.mark.parametrize(
    ("metric", "names", "other"),
    [
        ("node_load1", ["load1"], "load1"),
        ("load1", ["node_load1", "load15"], "node_load1"),
        ("health-metric", ["health_metric"], "health_metric"),
        ("Health_Metric", ["health_metric"], "health_metric"),
        ("node_health-metric", ["health_metric"], "health_metric"),
        ("helth_metric", ["health_metric"], "health_metric"),
        ("load1", ["memory_used", "power"], None),
        ("load1", [], None),
        ("load1", ["load1"], None),
    ],
)
def test_a_name_that_is_alike_is_suggested(metric: str, names: list[str], other: str | None) -> None:
    assert other_name(metric, names) == other


def test_without_facts_nothing_is_ok() -> None:
    assert set(severities(check_metrics(Missing("no bus"))).values()) == {Severity.UNKNOWN}
