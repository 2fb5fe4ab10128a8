"""A value's way: the first station that did not pass it on is the one that is named."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tas.manifest import parse_policy
from tas.policy import PolicyKey
from tas.quantity import parse_quantity
from tas.sample import Scrape
from tas.sources.state import SourceMetric, SourceState
from tas.trace import Evidence, NamedPolicy, Stage, Trace, trace
from tas.verdict import NodeVerdict, evaluate_policy

NOW = 1_000_000.0
RULE = {"metricname": "load", "operator": "GreaterThan", "target": 5}
DESCHEDULE = {"deschedule": {"rules": [RULE]}}


def scrape(
    value: str = "7", *, ago: float = 1.0, sequence: int = 10, source: str = "push", metric: str = "load"
) -> Scrape:
    time = NOW - ago
    metrics = {metric: parse_quantity(value)}
    return Scrape(source=source, measured=time, arrived=time, sequence=sequence, metrics=metrics)


def named(strategies: Mapping[str, Any] = DESCHEDULE, **spec: Any) -> NamedPolicy:
    policy, problems = parse_policy(PolicyKey("default", "p"), {"strategies": strategies} | spec)
    assert not problems
    return NamedPolicy(policy, "uid", 1)


def whole(policy: NamedPolicy | None = None, **changes: Any) -> Evidence:
    """Everything as it is where nothing is wrong, but for what is given."""
    policy = policy or named()
    known = changes.get("known", (scrape(),))
    verdict, _ = evaluate_policy(
        policy.policy, uid="uid", generation=1, samples=known, labels={}, stale_after=60, before=None, now=NOW - 1
    )
    evidence = Evidence(
        published={"push": scrape()},
        known=known,
        labels={"p": "violating"},
        cluster=True,
        policies=[policy],
        verdict=NodeVerdict(node_uid="n", nodes_revision=1, policies_revision=1, policies={policy.policy.key: verdict}),
        sources={},
        attended={"prometheus"},
        stale_after=60.0,
    )
    return msgspec.structs.replace(evidence, **changes)


def traced(evidence: Evidence) -> Trace:
    return trace("load", "node-1", evidence, NOW)


def state(**changes: Any) -> SourceState:
    metrics = {"load": SourceMetric(nodes=3)}
    given: dict[str, Any] = {"kind": "prometheus", "holder": "h", "since": 0.0, "time": NOW, "period": 1.0}
    return SourceState(**given | {"metrics": metrics} | changes)


def test_where_nothing_is_wrong_it_passes_all_stations() -> None:
    found = traced(whole())
    assert found.stops_at is None
    assert [hop.stage for hop in found.hops] == list(Stage)
    assert [hop.told[-1] for hop in found.hops] == [
        "push: publishes by itself",
        "7 from push, sequence 10 of SAMPLES",
        "7 from push",
        "default/p deschedule: load GreaterThan 5 is violated, the strategy violated",
        "default/p: p=violating is wished; there as 'violating'",
    ]


@pytest.mark.parametrize(
    ("changes", "stage", "told"),
    [
        ({"published": {}, "known": ()}, Stage.SOURCE, "no source is attached, and nobody publishes it"),
        (
            {"published": {"push": scrape(metric="other")}, "sources": {"prometheus": state()}, "known": ()},
            Stage.SAMPLE,
            "SAMPLES holds no load of node-1, only of push",
        ),
        (
            {"sources": {"prometheus": state(problem="refused")}, "published": {}, "known": ()},
            Stage.SOURCE,
            "prometheus (h): refused",
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
            "prometheus (h): not asked for load: no policy uses it",
        ),
        (
            {"sources": {"prometheus": state()}, "attended": (), "published": {}, "known": ()},
            Stage.SOURCE,
            "prometheus: nobody asks it: every replica of collect is gone",
        ),
        ({"published": {"push": scrape(ago=61)}}, Stage.SAMPLE, "stale: older than 60 s"),
        (
            {"known": (), "labels": None},
            Stage.VIEW,
            "Kubernetes has no node node-1: what is published of it is refused",
        ),
        (
            {"known": (), "cluster": None},
            Stage.VIEW,
            "no complete list of nodes stands: materialize waits for watch (or policies)",
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
            "default/p deschedule: load GreaterThan 5 is violated, and evaluate has nothing: is it running?",
        ),
        ({"labels": {}}, Stage.LABEL, "default/p: p=violating is wished; not there"),
        ({"labels": {"p": "mine"}}, Stage.LABEL, "default/p: p=violating is wished; there as 'mine'"),
    ],
)
def test_it_stops_where_it_was_not_passed_on(changes: Mapping[str, Any], stage: Stage, told: str) -> None:
    found = traced(whole(**changes))
    assert (found.stops_at, found.hops[-1].told[-1]) == (stage, told)
    assert found.hops[-1].passed is False
    assert all(hop.passed for hop in found.hops[:-1])


def test_a_verdict_of_another_value_is_behind() -> None:
    evidence = whole()
    healthy = whole(known=(scrape("1"),))
    found = traced(msgspec.structs.replace(evidence, verdict=healthy.verdict))
    assert found.stops_at is Stage.VERDICT
    assert found.hops[-1].told == (
        "default/p deschedule: load GreaterThan 5 is violated, and evaluate has met: is it running?",
    )
    assert found.hops[-1].since == NOW - 1


def test_a_label_that_should_be_gone_stops_it() -> None:
    healthy: dict[str, Any] = {"known": (scrape("1"),), "published": {"push": scrape("1")}}
    assert traced(whole(labels={}, **healthy)).stops_at is None
    found = traced(whole(labels={"p": "violating"}, **healthy))
    assert found.stops_at is Stage.LABEL
    assert found.hops[-1].told == ("default/p: p is to be absent; there as 'violating'",)
    assert found.hops[-1].since == NOW - 1


def test_a_value_of_a_users_own_stops_nothing_where_the_label_is_to_be_absent() -> None:
    healthy: dict[str, Any] = {"known": (scrape("1"),), "published": {"push": scrape("1")}}
    found = traced(whole(labels={"p": "mine"}, **healthy))
    assert found.stops_at is None
    assert found.hops[-1].told == ("default/p: p is to be absent; there as 'mine', which is a user's own and stays",)


def test_without_a_cluster_it_ends_with_the_verdict() -> None:
    found = traced(whole(labels=None, cluster=False))
    assert found.stops_at is None
    assert found.hops[-1].told[-1] == "without a cluster no label is written"


def test_a_policy_that_only_scores_is_no_reason_to_stop() -> None:
    policy = named({"scheduleonmetric": {"rules": [{"metricname": "load", "operator": "LessThan"}]}})
    found = traced(whole(policy))
    assert found.stops_at is None
    assert found.hops[-2].told == ("default/p scheduleonmetric: low load first: compared with other nodes",)


def test_a_held_label_is_as_wished_whatever_stands() -> None:
    policy = named({"deschedule": {"rules": [RULE], "for": "1h"}})
    for labels in ({}, {"p": "violating"}):
        assert traced(whole(policy, labels=labels)).stops_at is None


def test_since_is_when_it_began_to_be_so() -> None:
    found = traced(whole(published={"push": scrape(ago=100)}))
    assert found.hops[-1].since == NOW - 100 + 60


@pytest.mark.parametrize(("stale_after", "ago", "stops_at"), [("10s", 20, Stage.SAMPLE), ("5m", 200, None)])
def test_stale_is_what_the_policy_calls_so(stale_after: str, ago: float, stops_at: Stage | None) -> None:
    old = scrape(ago=ago)
    assert traced(whole(named(staleAfter=stale_after), published={"push": old}, known=(old,))).stops_at is stops_at


def test_what_is_stale_for_one_policy_goes_on_for_another() -> None:
    old = scrape(ago=20)
    strict, patient = named(staleAfter="10s"), named(staleAfter="30s")
    found = traced(whole(patient, published={"push": old}, known=(old,), policies=[strict, patient]))
    assert found.hops[1].passed


def test_a_source_that_is_written_to_is_held_by_nobody() -> None:
    found = traced(whole(sources={"written": state(period=None)}, attended=()))
    assert found.hops[0].told == ("written (h): a value for 3 nodes", "push: publishes by itself")


def test_a_source_that_publishes_by_itself_need_not_say_all_in_each_message() -> None:
    newer = scrape(ago=0.5, sequence=11, metric="other")
    found = traced(whole(published={"push": newer}))
    assert found.stops_at is None
    assert found.hops[0].told == ("push: publishes by itself; its newest message holds no load",)
    assert found.hops[0].since == NOW - 1.0
    assert found.hops[1].told == ("7 from push, sequence 10 of SAMPLES",)
    old = scrape(ago=70)
    assert traced(whole(published={"push": newer}, known=(old,))).stops_at is Stage.SAMPLE
    found = traced(whole(published={"push": newer}, known=()))
    assert found.hops[0].told == ("no source is attached, and nobody publishes it: only other metrics come from push",)
