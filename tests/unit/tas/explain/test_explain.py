"""The order and the fields of explanations; `test_view` compares the states with the view."""

from typing import Any

import pytest

from tas.enforcing.pod import PodKey
from tas.explain.explain import PolicyNodes, explain_node, explain_policy
from tas.explain.pods import explain_pod
from tas.extender.decision import Outcome, Pod
from tas.extender.telemetry import TelemetryDecider
from tas.policy.manifest import parse_policy
from tas.policy.policy import POD_LABEL, PolicyKey
from tas.policy.rules import State
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.view.view import View

KEY = PolicyKey("default", "p")
NOW = 1000.0
RULE = {"metricname": "m", "operator": "GreaterThan", "target": 40}


def explained(*, limit: int | None = None, **extra: Any) -> PolicyNodes:
    """A policy for four nodes: `a` and `d` meet it, `b` is unknown, `c` violates it."""
    policy, problems = parse_policy(KEY, {"strategies": {"dontschedule": {"rules": [RULE], **extra}}})
    assert not problems
    view = View()
    view.set_policy(policy, NOW)
    view.set_labels("b", {})
    for node, value in {"a": "1", "c": "50", "d": "2"}.items():
        metrics = {"m": parse_quantity(value)}
        view.add_samples(node, [Scrape(source="s", measured=NOW, arrived=NOW, sequence=1, metrics=metrics)], NOW)
    return explain_policy(view, KEY, NOW, limit=limit)


@pytest.mark.parametrize(("on_stale", "nodes"), [("pass", "cabd"), ("fail", "cbad")])
def test_rejected_nodes_come_first(on_stale: str, nodes: str) -> None:
    assert list(explained(onStale=on_stale).nodes) == list(nodes)


def test_a_node_that_is_rejected_by_a_last_known_value_comes_with_those_that_violate() -> None:
    policy, _ = parse_policy(KEY, {"strategies": {"dontschedule": {"rules": [RULE]}}})
    view = View(default_stale_after=10)
    view.set_policy(policy, NOW)
    for node, value, measured in (("a", "1", NOW), ("b", "50", NOW - 60)):
        metrics = {"m": parse_quantity(value)}
        scrape = Scrape(source="s", measured=measured, arrived=measured, sequence=1, metrics=metrics)
        view.add_samples(node, [scrape], NOW)
    assert list(explain_policy(view, KEY, NOW).nodes) == ["b", "a"]


def test_the_first_of_many_nodes_are_listed_and_all_counted() -> None:
    found = explained(limit=1)
    assert (list(found.nodes), found.total, found.known) == (["c"], 4, True)


def test_a_policy_that_does_not_exist_is_not_known() -> None:
    assert explain_policy(View(), KEY, NOW) == PolicyNodes(policy="default/p", known=False, total=0, nodes={})


@pytest.mark.parametrize(
    ("ago", "age", "fresh"), [(-1.0, 0.0, True), (0.0, 0.0, True), (9.0, 9.0, True), (10.0, 10.0, False)]
)
def test_the_age_of_a_value_and_whether_it_counts(ago: float, age: float, fresh: bool) -> None:
    """A clock may be ahead: no age is below zero. As old as `staleAfter` is stale."""
    policy, _ = parse_policy(KEY, {"strategies": {"dontschedule": {"rules": [RULE]}}})
    view = View(default_stale_after=10)
    view.set_policy(policy, NOW)
    measured = NOW - ago
    sample = Scrape(source="s", measured=measured, arrived=measured, sequence=1, metrics={"m": parse_quantity("50")})
    view.add_samples("a", [sample], NOW)
    (explained_policy,) = explain_node(view, "a", NOW).policies
    (rule,) = explained_policy.strategies[0].rules
    assert (rule.value, rule.age_seconds, rule.fresh) == ("50", age, fresh)
    assert explained_policy.strategies[0].state is (State.VIOLATED if fresh else State.UNKNOWN)


def test_the_age_counts_from_the_measurement_not_from_the_arrival() -> None:
    view = View(default_stale_after=10)
    view.set_policy(parse_policy(KEY, {"strategies": {"dontschedule": {"rules": [RULE]}}})[0], NOW)
    late = Scrape(source="s", measured=NOW - 12, arrived=NOW - 1, sequence=1, metrics={"m": parse_quantity("50")})
    view.add_samples("a", [late], NOW)
    (rule,) = explain_node(view, "a", NOW).policies[0].strategies[0].rules
    assert (rule.age_seconds, rule.fresh) == (12.0, False)


def test_of_a_pod_s_candidates_only_those_that_pass_are_scored() -> None:
    """As the scheduler asks: `c` is rejected, so the best of the others gets 10."""
    rules = {"rules": [RULE]}
    view = View()
    view.set_policy(parse_policy(KEY, {"strategies": {"dontschedule": rules, "scheduleonmetric": rules}})[0], NOW)
    for node, value in {"a": "1", "c": "50", "d": "2"}.items():
        metrics = {"m": parse_quantity(value)}
        view.add_samples(node, [Scrape(source="s", measured=NOW, arrived=NOW, sequence=1, metrics=metrics)], NOW)
    pod = Pod(namespace="default", name="web", uid="u", labels={POD_LABEL: "p"})
    found = explain_pod(view, TelemetryDecider(view), pod, ["a", "c", "d", "a"], NOW)
    assert (found.policy, found.outcome, found.error) == ("default/p", Outcome.DECIDED, "")
    assert [(each.node, each.passes, each.reason, each.score) for each in found.candidates] == [
        ("a", True, "", 9),
        ("c", False, "Node violates p: m GreaterThan 40", None),
        ("d", True, "", 10),
    ]


def test_a_value_counts_with_the_pods_that_no_sample_shows() -> None:
    rule = {"metricname": "m", "operator": "LessThan", "podCost": "1500m"}
    view = View()
    view.set_policy(parse_policy(KEY, {"strategies": {"scheduleonmetric": {"rules": [rule]}}})[0], NOW)
    metrics = {"m": parse_quantity("2")}
    for node in ("a", "b"):
        view.add_samples(node, [Scrape(source="s", measured=NOW, arrived=NOW, sequence=1, metrics=metrics)], NOW)
    for name, placed in (("old", NOW - 1), ("new", NOW), ("newer", NOW + 1)):
        view.place_pod(PodKey("default", name), KEY, "a", placed, NOW + 1)
    nodes = explain_policy(view, KEY, NOW).nodes
    rules = {node: found.strategies[0].rules[0] for node, found in nodes.items()}
    assert (rules["a"].rule, rules["a"].value) == ("low m first (each pod costs 1.5)", "2")
    assert (rules["a"].pods, rules["a"].value_with_pods) == (2, "5")
    assert (rules["b"].pods, rules["b"].value_with_pods) == (0, None)
    (values,) = view.policies[KEY].score_values(["a", "b"])
    assert values["a"] == parse_quantity("5")


def test_a_node_with_labels_only_is_known() -> None:
    view = View()
    view.set_labels("a", {})
    assert [explain_node(view, node, NOW).known for node in "ab"] == [True, False]


@pytest.mark.parametrize(
    ("rules", "labels", "state"),
    [
        ([RULE], None, State.UNKNOWN),
        ([RULE], {}, State.MET),
        ([RULE], {"pool": "x"}, State.UNKNOWN),
        ([], None, State.MET),
    ],
)
def test_a_strategy_without_rules_is_met_also_if_the_selection_is_unknown(
    rules: list[dict[str, Any]], labels: dict[str, str] | None, state: State
) -> None:
    spec = {"strategies": {"dontschedule": {"rules": rules}}, "nodeSelector": {"matchLabels": {"pool": "x"}}}
    view = View()
    view.set_policy(parse_policy(KEY, spec)[0], NOW)
    if labels is not None:
        view.set_labels("a", labels)
    assert explain_node(view, "a", NOW).policies[0].strategies[0].state is state
