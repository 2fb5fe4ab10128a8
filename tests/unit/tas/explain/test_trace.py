"""The trace of a value: it stops at the first stage without the value."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tas.explain.trace import PolicyVersion, Stage, Trace, TraceEvidence, trace
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape
from tas.sources.state import SourceMetric, SourceState
from tas.values.quantity import parse_quantity
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.refused import RefusedLabel
from tas.verdict.verdict import NodeVerdict

NOW = 1_000_000.0
RULE = {"metricname": "load", "operator": "GreaterThan", "target": 5}
DESCHEDULE = {"deschedule": {"rules": [RULE]}}


def scrape(
    value: str = "7",
    *,
    ago: float = 1.0,
    sequence: int = 10,
    source: str = "push",
    metric: str = "load",
    ends_in: float | None = None,
) -> Scrape:
    time = NOW - ago
    ends = None if ends_in is None else NOW + ends_in
    metrics = {metric: parse_quantity(value)}
    return Scrape(source=source, measured=time, arrived=time, sequence=sequence, metrics=metrics, ends=ends)


def named(strategies: Mapping[str, Any] = DESCHEDULE, **spec: Any) -> PolicyVersion:
    policy, problems = parse_policy(PolicyKey("default", "p"), {"strategies": strategies} | spec)
    assert not problems
    return PolicyVersion(policy, "uid", 1)


def whole(policy: PolicyVersion | None = None, **changes: Any) -> TraceEvidence:
    """The evidence if all workers run, with some changes."""
    policy = policy or named()
    known = changes.get("known", (scrape(),))
    verdict, _ = evaluate_policy(
        policy.policy,
        uid="uid",
        generation=1,
        samples=known,
        labels={},
        default_stale_after=60,
        before=None,
        now=NOW - 1,
    )
    evidence = TraceEvidence(
        published={"push": scrape()},
        known=known,
        labels={"p": "violating"},
        cluster=True,
        policies=[policy],
        verdict=NodeVerdict(node_uid="n", nodes_revision=1, policies_revision=1, policies={policy.policy.key: verdict}),
        refused={},
        sources={},
        held_sources={"prometheus"},
        default_stale_after=60.0,
    )
    return msgspec.structs.replace(evidence, **changes)


def traced(evidence: TraceEvidence) -> Trace:
    return trace("load", "node-1", evidence, NOW)


def state(**changes: Any) -> SourceState:
    metrics = {"load": SourceMetric(nodes=3)}
    given: dict[str, Any] = {"kind": "prometheus", "holder": "h", "since": 0.0, "time": NOW, "period": 1.0}
    return SourceState(**given | {"metrics": metrics} | changes)


OTHER = {"other": SourceMetric(missing="404")}


def gone() -> SourceState:
    return state(kind="annotations", period=None, time=NOW - 1000)


REFUSES = state(
    kind="annotations",
    period=None,
    metrics={"load": SourceMetric(missing="none")},
    refused_now={"node-1": {"load": "no number", "other": "x"}, "node-2": {"load": "y"}},
)


def test_a_value_passes_all_stages_if_all_workers_run() -> None:
    found = traced(whole())
    assert found.stopped_at is None
    assert [result.stage for result in found.stages] == list(Stage)
    assert [result.details[-1] for result in found.stages] == [
        "push: publishes by itself",
        "7 from push, sequence 10 of SAMPLES",
        "7 from push",
        "default/p deschedule: load GreaterThan 5 is violated, the strategy violated",
        "default/p: p=violating is desired; the node has 'violating'",
    ]


@pytest.mark.parametrize(
    ("changes", "stage", "detail"),
    [
        (
            {"published": {}, "known": ()},
            Stage.SOURCE,
            "no replica of collect has a source, and no program publishes it",
        ),
        (
            {"published": {"push": scrape(metric="other")}, "sources": {"prometheus": state()}, "known": ()},
            Stage.SAMPLE,
            "SAMPLES has no load of node-1, only of push",
        ),
        (
            {"sources": {"prometheus": state(problem="refused")}, "published": {}, "known": ()},
            Stage.SOURCE,
            "prometheus (h): refused",
        ),
        (
            {"sources": {"prometheus": state(metrics=OTHER, metrics_left_out=2)}, "published": {}, "known": ()},
            Stage.SOURCE,
            "prometheus (h): its state has room for 1 of its 3 metrics, and not for load",
        ),
        (
            {
                "sources": {"prometheus": state(metrics=OTHER, metrics_left_out=2)},
                "published": {"prometheus": scrape(source="prometheus")},
                "known": (),
            },
            Stage.VIEW,
            "materialize has stored no load of node-1: is it running? has it refused the value?",
        ),
        (
            {
                "sources": {"prometheus": state(metrics={"load": SourceMetric(missing="404")})},
                "published": {},
                "known": (),
            },
            Stage.SOURCE,
            "prometheus (h): 404",
        ),
        (
            {"sources": {"prometheus": state(metrics={})}, "published": {}, "known": ()},
            Stage.SOURCE,
            "prometheus (h): not polled for load: no policy uses it",
        ),
        (
            {
                "sources": {"windows": state(metrics={}, period=None)},
                "held_sources": {"windows"},
                "published": {},
                "known": (),
            },
            Stage.SOURCE,
            "windows (h): not asked for load: no policy uses it",
        ),
        (
            {"sources": {"prometheus": state()}, "held_sources": (), "published": {}, "known": ()},
            Stage.SOURCE,
            "prometheus: no replica of collect polls it: is one running?",
        ),
        (
            {"published": {}, "known": (), "labels": None},
            Stage.SOURCE,
            "Kubernetes has no node node-1",
        ),
        (
            {"sources": {"annotations": REFUSES}, "published": {}, "known": ()},
            Stage.SOURCE,
            "annotations refuses its value: no number",
        ),
        (
            {"sources": {"annotations": REFUSES}, "published": {"push": scrape(metric="other")}, "known": ()},
            Stage.SOURCE,
            "annotations refuses its value: no number",
        ),
        (
            {"sources": {"annotations": REFUSES, "prometheus": state()}, "published": {}, "known": ()},
            Stage.SAMPLE,
            "annotations refuses its value: no number",
        ),
        (
            {"sources": {"annotations": REFUSES}, "published": {"push": scrape(ago=61)}},
            Stage.SAMPLE,
            "annotations refuses its value: no number",
        ),
        (
            {"sources": {"annotations": gone()}, "published": {}, "known": ()},
            Stage.SOURCE,
            "annotations: no replica of inventory reads it: is one running?",
        ),
        ({"published": {"push": scrape(ago=61)}}, Stage.SAMPLE, "stale: older than 60 s"),
        (
            {"published": {"push": scrape(ago=20, ends_in=-1)}},
            Stage.SAMPLE,
            "stale: its series has ended, by a stale marker",
        ),
        (
            {"known": (), "labels": None},
            Stage.VIEW,
            "Kubernetes has no node node-1: its samples are refused",
        ),
        (
            {"known": (), "labels": None, "cluster": None},
            Stage.VIEW,
            "materialize has stored no load of node-1: is it running? has it refused the value?",
        ),
        ({"known": (scrape(ago=3, sequence=9),)}, Stage.VIEW, "materialize is behind: it has sequence 9"),
        (
            {"known": ()},
            Stage.VIEW,
            "materialize has stored no load of node-1: is it running? has it refused the value?",
        ),
        ({"policies": []}, Stage.VERDICT, "no policy uses load"),
        (
            {"verdict": None},
            Stage.VERDICT,
            "default/p deschedule: load GreaterThan 5 is violated, and evaluate has stored nothing: is it running?",
        ),
        ({"labels": {}}, Stage.LABEL, "default/p: p=violating is desired; the node does not have it"),
        ({"labels": {"p": "mine"}}, Stage.LABEL, "default/p: p=violating is desired; the node has 'mine'"),
    ],
)
def test_a_value_stops_at_the_first_stage_without_it(changes: Mapping[str, Any], stage: Stage, detail: str) -> None:
    found = traced(whole(**changes))
    assert (found.stopped_at, found.stages[-1].details[-1]) == (stage, detail)
    assert found.stages[-1].passed is False
    assert all(result.passed for result in found.stages[:-1])


def test_a_stale_marker_is_visible_while_the_value_still_counts() -> None:
    ended = scrape(ago=20, ends_in=10)
    states = {"push": state(metrics={"load": SourceMetric(nodes=2, ended=1)})}
    found = traced(whole(published={"push": ended}, known=(ended,), sources=states, held_sources=("push",)))
    assert found.stopped_at is None
    assert "2 nodes, 1 of them ended by a stale marker" in found.stages[0].details[0]
    assert found.stages[1].details[0].endswith("; its series has ended, by a stale marker: stale in 10 s")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"source": "other"}, "no sample of other"), ({"operator": "Like"}, "the rule cannot be read")],
    ids=["another-source", "unreadable"],
)
def test_a_value_that_a_rule_does_not_count_stops_at_the_verdict(changes: Mapping[str, Any], reason: str) -> None:
    policy, _ = parse_policy(
        PolicyKey("default", "p"), {"strategies": {"deschedule": {"rules": [{**RULE, **changes}]}}}
    )
    found = traced(whole(PolicyVersion(policy, "uid", 1)))
    assert found.stopped_at is Stage.VERDICT
    assert found.stages[-1].details[-1].endswith(f" is unknown: {reason}")


def test_a_value_that_is_stale_for_one_of_the_policies_stops_at_the_verdict() -> None:
    strict, _ = parse_policy(PolicyKey("default", "strict"), {"strategies": DESCHEDULE, "staleAfter": "500ms"})
    found = traced(whole(policies=[named(), PolicyVersion(strict, "uid", 1)]))
    assert found.stopped_at is Stage.VERDICT
    assert found.stages[-1].details == (
        "default/p deschedule: load GreaterThan 5 is violated, the strategy violated",
        "default/strict deschedule: load GreaterThan 5 is unknown: the sample is older than 0.5 s",
    )


def test_a_verdict_of_another_value_is_behind() -> None:
    evidence = whole()
    healthy = whole(known=(scrape("1"),))
    found = traced(msgspec.structs.replace(evidence, verdict=healthy.verdict))
    assert found.stopped_at is Stage.VERDICT
    assert found.stages[-1].details == (
        "default/p deschedule: load GreaterThan 5 is violated, and evaluate has stored met: is it running?",
    )
    assert found.stages[-1].since == NOW - 1


def test_a_label_that_should_be_absent_stops_the_value() -> None:
    healthy: dict[str, Any] = {"known": (scrape("1"),), "published": {"push": scrape("1")}}
    assert traced(whole(labels={}, **healthy)).stopped_at is None
    found = traced(whole(labels={"p": "violating"}, **healthy))
    assert found.stopped_at is Stage.LABEL
    assert found.stages[-1].details == ("default/p: p is desired absent; the node has 'violating'",)
    assert found.stages[-1].since == NOW - 1


@pytest.mark.parametrize(("value", "named"), [("violating", True), (None, False)])
def test_the_reason_of_a_refused_label_is_named(value: str | None, named: bool) -> None:
    refused = RefusedLabel(label="p", value=value, reason="why", count=1, nodes=("n",))
    found = traced(whole(labels={}, refused={"p": (refused,)}))
    assert found.stopped_at is Stage.LABEL
    assert ("the API server refuses the label on 1 node (n): why" in found.stages[-1].details[-1]) is named


def test_a_foreign_label_does_not_stop_the_value() -> None:
    healthy: dict[str, Any] = {"known": (scrape("1"),), "published": {"push": scrape("1")}}
    found = traced(whole(labels={"p": "mine"}, **healthy))
    assert found.stopped_at is None
    assert found.stages[-1].details == (
        "default/p: p is desired absent; the node has 'mine', which TAS does not remove",
    )


def test_without_a_cluster_the_trace_ends_with_the_verdict() -> None:
    found = traced(whole(labels=None, cluster=False))
    assert found.stopped_at is None
    assert found.stages[-1].details[-1] == "without a cluster no label is written"


def test_a_policy_that_only_scores_does_not_stop_the_value() -> None:
    policy = named({"scheduleonmetric": {"rules": [{"metricname": "load", "operator": "LessThan"}]}})
    found = traced(whole(policy))
    assert found.stopped_at is None
    assert found.stages[-2].details == ("default/p scheduleonmetric: low load first: compared with other nodes",)


def test_a_held_label_agrees_with_any_current_value() -> None:
    policy = named({"deschedule": {"rules": [RULE], "for": "1h"}})
    for labels in ({}, {"p": "violating"}):
        assert traced(whole(policy, labels=labels)).stopped_at is None


def test_since_is_the_time_of_the_last_change() -> None:
    found = traced(whole(published={"push": scrape(ago=100)}))
    assert found.stages[-1].since == NOW - 100 + 60


@pytest.mark.parametrize(("stale_after", "ago", "stopped_at"), [("10s", 20, Stage.SAMPLE), ("5m", 200, None)])
def test_a_sample_is_stale_by_the_stale_after_of_the_policy(
    stale_after: str, ago: float, stopped_at: Stage | None
) -> None:
    old = scrape(ago=ago)
    assert traced(whole(named(staleAfter=stale_after), published={"push": old}, known=(old,))).stopped_at is stopped_at


def test_a_sample_stale_for_one_policy_passes_for_another() -> None:
    old = scrape(ago=20)
    strict, patient = named(staleAfter="10s"), named(staleAfter="30s")
    found = traced(whole(patient, published={"push": old}, known=(old,), policies=[strict, patient]))
    assert found.stages[1].passed


def test_a_value_as_old_as_the_limit_is_stale() -> None:
    old = scrape(ago=60)
    assert traced(whole(published={"push": old}, known=(old,))).stopped_at is Stage.SAMPLE


def test_without_a_cluster_no_node_is_missing() -> None:
    found = traced(whole(known=(), labels=None, cluster=False))
    assert found.stages[-1].details == (
        "materialize has stored no load of node-1: is it running? has it refused the value?",
    )


def test_one_source_that_has_the_value_is_enough() -> None:
    sources = {"a": state(), "b": state(metrics={"load": SourceMetric(nodes=0)})}
    found = traced(whole(sources=sources, held_sources={"a", "b"}, published={}))
    assert found.stages[0].passed


def test_one_verdict_that_is_behind_stops_the_value() -> None:
    both = named({"deschedule": {"rules": [RULE]}, "dontschedule": {"rules": [RULE]}})
    evidence = whole(both)
    assert evidence.verdict is not None
    (verdict,) = evidence.verdict.policies.values()
    assert traced(evidence).stopped_at is None
    for behind in verdict.strategies:
        strategies = {kind: each for kind, each in verdict.strategies.items() if kind is not behind}
        partial = msgspec.structs.replace(verdict, strategies=strategies)
        written = msgspec.structs.replace(evidence.verdict, policies={both.policy.key: partial})
        assert traced(msgspec.structs.replace(evidence, verdict=written)).stopped_at is Stage.VERDICT


@pytest.mark.parametrize(("labels", "stopped_at"), [({"x": "2"}, None), ({"x": "1"}, None), ({}, Stage.LABEL)])
def test_set_if_absent_agrees_with_any_current_value(labels: Mapping[str, str], stopped_at: Stage | None) -> None:
    of = [RULE | {"labels": ["x=1"]}, RULE | {"metricname": "silent", "labels": ["x=2"]}]
    prefixed = {f"telemetry.aware.scheduling.p/{name}": value for name, value in labels.items()}
    assert traced(whole(named({"labeling": {"rules": of}}), labels=prefixed)).stopped_at is stopped_at


@pytest.mark.parametrize("missing", ["x", "y"])
def test_the_last_detail_is_the_reason_for_which_a_value_stops(missing: str) -> None:
    """`tas trace` repeats it at its end."""
    prefix = "telemetry.aware.scheduling.p/"
    both = named({"labeling": {"rules": [RULE | {"labels": ["x=1", "y=1"]}]}})
    present = {f"{prefix}{label}": "1" for label in ("x", "y") if label != missing}
    found = traced(whole(both, labels=present))
    assert found.stopped_at is Stage.LABEL
    assert found.stages[-1].details[-1].endswith(f"{prefix}{missing}=1 is desired; the node does not have it")


def test_a_source_that_writes_to_us_needs_no_holder() -> None:
    found = traced(whole(sources={"written": state(period=None)}, held_sources=()))
    assert found.stages[0].details == ("written (h): a value for 3 nodes", "push: publishes by itself")


def test_a_source_that_publishes_by_itself_need_not_send_all_metrics_in_each_message() -> None:
    newer = scrape(ago=0.5, sequence=11, metric="other")
    found = traced(whole(published={"push": newer}))
    assert found.stopped_at is None
    assert found.stages[0].details == ("push: publishes by itself; its newest message has no load",)
    assert found.stages[0].since == NOW - 1.0
    assert found.stages[1].details == ("7 from push, sequence 10 of SAMPLES",)
    old = scrape(ago=70)
    assert traced(whole(published={"push": newer}, known=(old,))).stopped_at is Stage.SAMPLE
    found = traced(whole(published={"push": newer}, known=()))
    assert found.stages[0].details == (
        "no replica of collect has a source, and no program publishes it: only other metrics come from push",
    )


def test_a_metric_that_is_almost_a_statistic_is_no_metric_that_nobody_uses() -> None:
    evidence = whole(
        sources={"windows": state(metrics={}, period=None)}, held_sources={"windows"}, published={}, known=()
    )
    found = trace("cpu:mean:30s", "node-1", evidence, NOW)
    assert found.stages[-1].details[0] == (
        "windows (h): cpu:mean:30s is the name of an ordinary metric, not of a statistic: 30s is no duration from 1m "
        "to 24h (units: s, m, h, d)"
    )


def test_a_value_of_a_table_passes_all_stages() -> None:
    found = traced(whole(published={}, tables={"push": (scrape(),)}))
    assert found.stopped_at is None
    assert found.stages[1].details == ("7 from push, sequence 10 of TABLES",)


def test_of_a_scrape_and_a_table_the_newest_value_counts() -> None:
    newer = scrape("9", ago=0.5, sequence=3)
    found = traced(whole(tables={"push": (newer,)}, known=(newer,)))
    assert found.stages[1].details == ("9 from push, sequence 3 of TABLES",)
    found = traced(whole(published={"push": newer}, tables={"push": (scrape(sequence=10),)}, known=(newer,)))
    assert found.stages[1].details == ("9 from push, sequence 3 of SAMPLES",)


@pytest.mark.parametrize(("ago", "passes"), [(1.0, True), (1.5, False)])
def test_sequences_of_two_streams_are_not_compared(ago: float, passes: bool) -> None:
    """The last table is of the same time as the stored scrape, or newer."""
    known = (scrape(ago=ago, sequence=3),)
    found = traced(
        whole(published={"push": known[0]}, tables={"other": (scrape(source="other", sequence=90),)}, known=known)
    )
    assert (found.stopped_at is not Stage.VIEW) is passes


def test_a_table_that_lacks_the_metric_may_be_one_of_several_of_a_poll() -> None:
    polled: dict[str, Any] = {"sources": {"prometheus": state()}, "known": (scrape(source="prometheus"),)}
    found = traced(whole(published={}, tables={"prometheus": ()}, **polled))
    assert found.stopped_at is None
    assert found.stages[1].details == ("7 from prometheus, sequence 10 of TABLES",)
    found = traced(whole(published={"prometheus": scrape(metric="other", source="prometheus")}, **polled))
    assert found.stopped_at is Stage.SAMPLE


def test_without_the_metric_in_tables_the_others_with_values_of_the_node_are_named() -> None:
    states = {"prometheus": state()}
    tables = {"prometheus": (), "push": (scrape(metric="other"),)}
    found = traced(whole(published={}, tables=tables, known=(), sources=states))
    assert found.stages[-1].stage is Stage.SAMPLE
    assert found.stages[-1].details == ("SAMPLES and TABLES have no load of node-1, only of push",)


@pytest.mark.parametrize(
    "published",
    [{"published": {"push": scrape()}}, {"published": {}, "tables": {"push": (scrape(),)}}],
    ids=["node", "table"],
)
def test_a_value_of_an_earlier_node_of_this_name_stops_before_the_view(published: dict[str, Any]) -> None:
    found = traced(whole(**published, known=(), created=NOW))
    assert found.stages[-1].details == ("it was measured before node-1 was created: another node had the name",)
    assert found.stopped_at is Stage.VIEW
