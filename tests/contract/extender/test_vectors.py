"""The cases F and P of docs/background/facts.md, and preempt: requests and answers as bytes, with a view of samples."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tas.errors import InvalidInputError
from tas.extender.decision import Outcome
from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import Answer, answer_filter, answer_preempt, answer_prioritize
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.view.view import View
from tests.contract.extender.scheduler import ExtenderError, Feasible, read_filter_result, read_host_priorities

NOW = 1_800_000_000.0
DONTSCHEDULE = {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 40}]}
POD = {"metadata": {"name": "p", "namespace": "default", "labels": {"telemetry-policy": "test-policy"}}}
REASON = "Node violates test-policy: m GreaterThan 40"
FORMS = pytest.mark.parametrize("names_only", [True, False], ids=["names", "nodes"])


def scoring(*rules: tuple[str, str, int], **more: Any) -> dict[str, Any]:
    return {"rules": [{"metricname": m, "operator": op, "target": target} for m, op, target in rules], **more}


def decider(
    samples: Mapping[str, Mapping[str, str]],
    strategies: Mapping[str, Any] | None = None,
    *,
    namespace: str = "default",
    unknown_policy_fails: bool = False,
) -> TelemetryDecider:
    """`samples` maps metrics to the values of nodes, all measured now."""
    view = View()
    if strategies is None:
        strategies = {"dontschedule": DONTSCHEDULE, "scheduleonmetric": scoring(("m", "GreaterThan", 0))}
    policy, problems = parse_policy(PolicyKey(namespace, "test-policy"), {"strategies": strategies})
    assert not [problem for problem in problems if problem.refused]
    view.set_policy(policy, NOW)
    for metric, values in samples.items():
        for node, value in values.items():
            metrics = {metric: parse_quantity(value)}
            scrape = Scrape(source="s", measured=NOW, arrived=NOW, sequence=1, metrics=metrics)
            view.add_samples(node, [scrape], NOW)
    return TelemetryDecider(view, unknown_policy_fails=unknown_policy_fails)


def request(nodes: list[str], *, names_only: bool, pod: Mapping[str, Any] = POD) -> bytes:
    items = {"metadata": {}, "items": [{"metadata": {"name": name}, "spec": {}, "status": {}} for name in nodes]}
    return json.dumps(
        {"Pod": pod, "Nodes": None if names_only else items, "NodeNames": nodes if names_only else None},
        separators=(",", ":"),
    ).encode()


def filter_nodes(
    decide: TelemetryDecider, nodes: list[str], *, names_only: bool, pod: Mapping[str, Any] = POD
) -> tuple[Feasible, Answer]:
    body, record = answer_filter(decide, request(nodes, names_only=names_only, pod=pod), NOW)
    answer = record()
    return read_filter_result(body, nodes, node_cache_capable=names_only), answer


def prioritize_nodes(
    decide: TelemetryDecider, nodes: list[str], *, names_only: bool, pod: Mapping[str, Any] = POD
) -> tuple[dict[str, int], Answer]:
    body, record = answer_prioritize(decide, request(nodes, names_only=names_only, pod=pod), NOW)
    answer = record()
    return read_host_priorities(body, nodes), answer


@dataclass(frozen=True)
class FilterCase:
    """By default with the candidates a and b."""

    samples: Mapping[str, str]
    passed: list[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    outcome: Outcome = Outcome.DECIDED
    strategies: Mapping[str, Any] | None = None
    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=lambda: {"telemetry-policy": "test-policy"})
    candidates: tuple[str, ...] = ("a", "b")


FILTER = {
    "facts_F1": FilterCase({"a": "10", "b": "30"}, passed=["a", "b"]),
    "facts_F2": FilterCase({"a": "50", "b": "30"}, passed=["b"], failed={"a": REASON}),
    "facts_F3": FilterCase({"a": "50", "b": "60"}, passed=[], failed={"a": REASON, "b": REASON}),
    "facts_F4": FilterCase({"a": "40", "b": "40"}, passed=["a", "b"]),
    "facts_F5": FilterCase({"a": "50"}, passed=["b"], failed={"a": REASON}),
    "F5_fails": FilterCase(
        {"a": "50"},
        passed=[],
        failed={"a": REASON, "b": "Node violates test-policy: no fresh sample of m"},
        strategies={"dontschedule": {**DONTSCHEDULE, "onStale": "fail"}},
    ),
    "facts_F6": FilterCase(
        {"a": "50"},
        passed=["a", "b"],
        outcome=Outcome.NO_RULES,
        strategies={"scheduleonmetric": scoring(("m", "GreaterThan", 0))},
    ),
    "facts_F7": FilterCase({"a": "50"}, passed=["a", "b"], outcome=Outcome.NO_POLICY, labels={}),
    "F8_missing": FilterCase(
        {"a": "50"}, passed=["a", "b"], outcome=Outcome.POLICY_NOT_FOUND, labels={"telemetry-policy": "another"}
    ),
    "F8_namespace": FilterCase({"a": "50"}, passed=["a", "b"], outcome=Outcome.POLICY_NOT_FOUND, namespace="elsewhere"),
    "facts_F9": FilterCase({"a": "50"}, passed=[], candidates=()),
    "facts_c28_one_node": FilterCase({"a": "50", "b": "60"}, passed=[], failed={"b": REASON}, candidates=("b",)),
}


@FORMS
@pytest.mark.parametrize("case", FILTER.values(), ids=FILTER.keys())
def test_tas_filter(case: FilterCase, *, names_only: bool) -> None:
    decide = decider({"m": case.samples}, case.strategies, namespace=case.namespace)
    pod = {"metadata": {"name": "p", "namespace": "default", "labels": case.labels}}

    feasible, answer = filter_nodes(decide, list(case.candidates), names_only=names_only, pod=pod)

    assert feasible == Feasible(case.passed, {}, dict(case.failed))
    assert answer.outcome is case.outcome


@FORMS
def test_facts_F8_a_setting_makes_a_missing_policy_an_error(*, names_only: bool) -> None:
    decide = decider({}, namespace="elsewhere", unknown_policy_fails=True)

    with pytest.raises(ExtenderError, match="policy default/test-policy not found"):
        filter_nodes(decide, ["a"], names_only=names_only)


def test_a_pod_without_a_namespace_has_no_policy() -> None:
    pod = {"metadata": {"labels": {"telemetry-policy": "test-policy"}}}

    feasible, answer = filter_nodes(decider({"m": {"a": "50"}}), ["a"], names_only=True, pod=pod)

    assert (feasible.nodes, answer.outcome) == (["a"], Outcome.POLICY_NOT_FOUND)


def test_facts_F10_names_alone_are_enough() -> None:
    body, _ = answer_filter(decider({"m": {"a": "50", "b": "30"}}), request(["a", "b"], names_only=True), NOW)

    assert json.loads(body)["NodeNames"] == ["b"]
    assert json.loads(body)["Nodes"] is None


@pytest.mark.parametrize("body", [b"{", b'{"Pod":null,"NodeNames":["a"]}'], ids=["facts_F11", "facts_F13"])
def test_tas_filter_refuses(body: bytes) -> None:
    with pytest.raises(InvalidInputError):
        answer_filter(decider({}), body, NOW)


@FORMS
def test_facts_F12_lower_case_keys(*, names_only: bool) -> None:
    body = request(["a", "b"], names_only=names_only)
    for key in (b"Pod", b"NodeNames", b"Nodes"):
        body = body.replace(b'"%b":' % key, b'"%b":' % key.lower())

    answer, _ = answer_filter(decider({"m": {"a": "50", "b": "30"}}), body, NOW)

    assert read_filter_result(answer, ["a", "b"], node_cache_capable=names_only) == Feasible(["b"], {}, {"a": REASON})


def test_facts_c20_reasons_are_few_and_have_no_values() -> None:
    nodes = [f"n{number}" for number in range(100)]
    decide = decider({"m": {node: str(41 + number) for number, node in enumerate(nodes)}})

    feasible, _ = filter_nodes(decide, nodes, names_only=True)

    assert set(feasible.unresolvable.values()) == {REASON}


def test_facts_c13_c21_the_answer_is_about_the_nodes_that_were_asked_and_no_others() -> None:
    decide = decider({"m": {f"n{number}": "50" for number in range(200)}})

    feasible, _ = filter_nodes(decide, ["n7", "x"], names_only=True)

    assert feasible == Feasible(["x"], {}, {"n7": REASON})


def test_facts_c28_the_same_call_twice_gives_the_same_answer() -> None:
    decide = decider({"m": {"a": "50", "b": "30"}})

    assert [filter_nodes(decide, ["a", "b"], names_only=True)[0] for _ in range(2)] == [
        Feasible(["b"], {}, {"a": REASON})
    ] * 2


@FORMS
def test_facts_c22_each_verb_answers_alone_and_leaves_nothing_behind_for_another(*, names_only: bool) -> None:
    samples = {"m": {"a": "50", "b": "30", "c": "20"}}
    together, apart = decider(samples), decider(samples)
    victims = victims_request({"a": ["u1"], "b": ["u2"]}, names_only=names_only)

    filtered, _ = filter_nodes(together, ["a", "b", "c"], names_only=names_only)
    first, _ = answer_preempt(together, victims, NOW)
    scored, _ = prioritize_nodes(together, filtered.nodes, names_only=names_only)

    assert prioritize_nodes(apart, filtered.nodes, names_only=names_only)[0] == scored == {"b": 10, "c": 9}
    assert answer_preempt(apart, victims, NOW)[0] == first
    assert filter_nodes(apart, ["a", "b", "c"], names_only=names_only)[0] == filtered


@dataclass(frozen=True)
class ScoreCase:
    rules: Mapping[str, Any]
    samples: Mapping[str, Mapping[str, str]]
    scores: Mapping[str, int]
    candidates: tuple[str, ...] = ("a", "b")
    labels: Mapping[str, str] = field(default_factory=lambda: {"telemetry-policy": "test-policy"})


MORE_IS_BETTER = scoring(("m", "GreaterThan", 0))

PRIORITIZE = {
    "facts_P1": ScoreCase(MORE_IS_BETTER, {"m": {"a": "100", "b": "90"}}, {"a": 10, "b": 9}),
    "facts_P2": ScoreCase(
        scoring(("m", "LessThan", 0)),
        {"m": {"a": "100", "b": "200", "c": "10"}},
        {"c": 10, "a": 9, "b": 8},
        candidates=("a", "b", "c"),
    ),
    "facts_P3": ScoreCase(
        MORE_IS_BETTER,
        {"m": {"a": "2", "b": "1", "d": "9"}},
        {"a": 10, "b": 9, "c": 0},
        candidates=("a", "b", "c"),
    ),
    "facts_P5": ScoreCase(MORE_IS_BETTER, {"m": {"a": "5", "b": "5"}}, {"a": 10, "b": 10}),
    "facts_P6": ScoreCase(scoring(("m", "Equals", 5)), {"m": {"a": "5", "b": "6"}}, {"a": 10, "b": 0}),
    "P7_no_rules": ScoreCase({"rules": []}, {"m": {"a": "5"}}, {}),
    "P7_unknown_metric": ScoreCase(MORE_IS_BETTER, {"other": {"a": "5"}}, {}),
    "P7_first_rule_without_a_value": ScoreCase(
        scoring(("other", "GreaterThan", 0), ("m", "GreaterThan", 0)), {"m": {"a": "5", "b": "6"}}, {}
    ),
    "facts_P8": ScoreCase(MORE_IS_BETTER, {"m": {"a": "5"}}, {}, labels={}),
    "facts_P9": ScoreCase(MORE_IS_BETTER, {"m": {"a": "5"}}, {}, candidates=()),
    "facts_P10": ScoreCase(
        scoring(("m", "GreaterThan", 0), ("k", "LessThan", 0)),
        {"m": {"a": "2", "b": "1"}, "k": {"a": "2", "b": "1"}},
        {"a": 10, "b": 9},
    ),
    "facts_c28_one_node": ScoreCase(MORE_IS_BETTER, {"m": {"a": "5", "b": "6"}}, {"a": 10}, candidates=("a",)),
}


@FORMS
@pytest.mark.parametrize("case", PRIORITIZE.values(), ids=PRIORITIZE.keys())
def test_tas_prioritize(case: ScoreCase, *, names_only: bool) -> None:
    decide = decider(case.samples, {"scheduleonmetric": case.rules})
    pod = {"metadata": {"name": "p", "namespace": "default", "labels": case.labels}}

    scores, _ = prioritize_nodes(decide, list(case.candidates), names_only=names_only, pod=pod)

    assert scores == case.scores


@FORMS
def test_facts_P4_c25_twelve_values_stay_within_bounds_and_in_order(*, names_only: bool) -> None:
    nodes = [f"n{number:02d}" for number in range(12)]
    decide = decider({"m": {node: str(100 - place) for place, node in enumerate(nodes)}})

    scores, _ = prioritize_nodes(decide, nodes, names_only=names_only)

    ordered = [scores[node] for node in nodes]
    assert ordered == sorted(ordered, reverse=True)
    assert set(ordered) == set(range(11))


def test_a_node_without_a_fresh_value_of_any_counting_rule_is_unknown() -> None:
    rules = scoring(("m", "GreaterThan", 0), ("k", "GreaterThan", 0), ("j", "GreaterThan", 0))
    for rule in rules["rules"][1:]:
        rule["weight"] = 1
    decide = decider({"m": {"a": "1"}, "k": {"b": "1"}, "j": {"b": "1", "c": "1"}}, {"scheduleonmetric": rules})

    scores, answer = prioritize_nodes(decide, ["a", "b", "c"], names_only=True)

    assert scores == {"a": 0, "b": 10, "c": 5}
    assert answer.unknown == 1


def victims_request(nodes: Mapping[str, list[str]], *, names_only: bool) -> bytes:
    """Each node's victims by uid."""
    pods = {
        node: [{"UID": uid} if names_only else {"metadata": {"name": uid, "uid": uid}, "spec": {}} for uid in uids]
        for node, uids in nodes.items()
    }
    victims = {node: {"Pods": each, "NumPDBViolations": len(each)} for node, each in pods.items()}
    return json.dumps(
        {
            "Pod": POD,
            "NodeNameToVictims": None if names_only else victims,
            "NodeNameToMetaVictims": victims if names_only else None,
        }
    ).encode()


def offered(uids: list[str]) -> dict[str, Any]:
    return {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": len(uids)}


@FORMS
def test_facts_c31_victims_on_a_rejected_node_are_not_offered(*, names_only: bool) -> None:
    decide = decider({"m": {"violates": "50", "meets": "30"}})
    nodes = {"violates": ["u1"], "meets": ["u2", "u3"], "unknown": ["u4"], "no-victims": []}

    body, record = answer_preempt(decide, victims_request(nodes, names_only=names_only), NOW)
    answer = record()

    assert json.loads(body) == {
        "NodeNameToMetaVictims": {node: offered(nodes[node]) for node in ("meets", "unknown", "no-victims")}
    }
    assert (answer.candidates, answer.passed, answer.unknown, answer.rejected) == (4, 3, 2, ("violates",))


@FORMS
def test_facts_c31_an_unknown_node_is_not_offered_if_filter_rejects_it(*, names_only: bool) -> None:
    decide = decider({"m": {"meets": "30"}}, {"dontschedule": {**DONTSCHEDULE, "onStale": "fail"}})

    body, _ = answer_preempt(decide, victims_request({"meets": ["u1"], "unknown": ["u2"]}, names_only=names_only), NOW)

    assert json.loads(body) == {"NodeNameToMetaVictims": {"meets": offered(["u1"])}}


@FORMS
def test_facts_c31_without_a_policy_the_setting_decides(*, names_only: bool) -> None:
    victims = victims_request({"a": ["u1"]}, names_only=names_only)

    passed, _ = answer_preempt(decider({}, namespace="elsewhere"), victims, NOW)
    stopped, _ = answer_preempt(decider({}, namespace="elsewhere", unknown_policy_fails=True), victims, NOW)

    assert json.loads(passed) == {"NodeNameToMetaVictims": {"a": offered(["u1"])}}
    assert json.loads(stopped) == {"NodeNameToMetaVictims": {}}
