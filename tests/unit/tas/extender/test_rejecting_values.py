"""The record of an answer has the values for which nodes were rejected, as they were at the time of the answer."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tas.extender.decision import MAX_REJECTED, RejectingValue
from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import MAX_VALUES, Record, answer_filter, answer_preempt
from tas.policy.manifest import parse_policy
from tas.policy.policy import POD_LABEL, PolicyKey
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tas.view.view import View
from tests.unit.tas.extender.generators import body

KEY = PolicyKey("default", "p")
NOW = 1000.0
RULES = [{"metricname": name, "operator": "GreaterThan", "target": 40} for name in ("m", "k")]


def view_of(rules: list[dict[str, Any]], **strategy: Any) -> View:
    policy, problems = parse_policy(KEY, {"strategies": {"dontschedule": {"rules": rules, **strategy}}})
    assert not problems
    view = View(default_stale_after=10)
    view.set_policy(policy, NOW)
    return view


def publish(view: View, node: str, metrics: Mapping[str, str], *, ago: float = 0.0, source: str = "agent") -> None:
    values = {name: parse_quantity(text) for name, text in metrics.items()}
    at = NOW - ago
    view.add_samples(node, [Scrape(source=source, measured=at, arrived=at, sequence=1, metrics=values)], NOW)


def answered(view: View, *nodes: str) -> Record:
    pod = {"metadata": {"name": "web", "namespace": "default", "labels": {POD_LABEL: "p"}}}
    _, record = answer_filter(TelemetryDecider(view), body(Pod=pod, Nodes=None, NodeNames=nodes), NOW)
    return record


def test_the_violated_rules_of_each_rejected_node_are_recorded() -> None:
    view = view_of(RULES)
    publish(view, "a", {"m": "50", "k": "1"}, ago=3)
    publish(view, "b", {"m": "1", "k": "1500m"}, ago=2)
    publish(view, "c", {"m": "41", "k": "42500m"}, ago=1)

    assert answered(view, "a", "b", "c", "d")().values == (
        RejectingValue(node="a", rule="m GreaterThan 40", value="50", age_seconds=3.0, source="agent"),
        RejectingValue(node="c", rule="m GreaterThan 40", value="41", age_seconds=1.0, source="agent"),
        RejectingValue(node="c", rule="k GreaterThan 40", value="42.5", age_seconds=1.0, source="agent"),
    )


def test_a_node_rejected_for_want_of_a_fresh_value_has_its_last_one() -> None:
    view = view_of(RULES[:1], onStale="fail")
    publish(view, "a", {"m": "1"}, ago=12)

    assert answered(view, "a", "b")().values == (
        RejectingValue(node="a", rule="m GreaterThan 40", value="1", age_seconds=12.0, source="agent"),
        RejectingValue(node="b", rule="m GreaterThan 40"),
    )


def test_a_node_rejected_by_its_last_known_value_has_its_age_in_the_record_and_not_in_the_reason() -> None:
    view = view_of(RULES)
    publish(view, "a", {"m": "50", "k": "1"}, ago=12)

    found = answered(view, "a", "b")()
    assert (found.reasons, found.kept_rejected) == ({"Node violates p: m GreaterThan 40 (last known)": 1}, 1)
    assert (found.unknown, found.unknown_rejected) == (1, 0)
    assert found.values == (
        RejectingValue(node="a", rule="m GreaterThan 40", value="50", age_seconds=12.0, source="agent", kept=True),
    )


def test_preempt_offers_no_node_that_is_rejected_by_its_last_known_value() -> None:
    view = view_of(RULES[:1])
    publish(view, "a", {"m": "50"}, ago=12)
    pod = {"metadata": {"name": "web", "namespace": "default", "labels": {POD_LABEL: "p"}}}
    victims = {node: {"Pods": [{"UID": "u"}], "NumPDBViolations": 0} for node in ("a", "b")}
    request = body(Pod=pod, NodeNameToVictims=None, NodeNameToMetaVictims=victims)
    answer, _ = answer_preempt(TelemetryDecider(view), request, NOW)
    assert set(json.loads(answer)["NodeNameToMetaVictims"]) == {"b"}


def test_samples_that_arrive_after_the_answer_are_not_recorded() -> None:
    view = view_of(RULES[:1], onStale="fail")
    publish(view, "a", {"m": "50"}, ago=3)
    record = answered(view, "a", "b")

    publish(view, "a", {"m": "1"}, source="other")
    publish(view, "b", {"m": "60"})
    view.drop_policy(KEY)

    assert record().values == (
        RejectingValue(node="a", rule="m GreaterThan 40", value="50", age_seconds=3.0, source="agent"),
        RejectingValue(node="b", rule="m GreaterThan 40"),
    )


@pytest.mark.parametrize(("rules", "most"), [(1, MAX_REJECTED), (5, MAX_VALUES)])
def test_a_record_has_a_limited_number_of_values(rules: int, most: int) -> None:
    metrics = [f"m{number}" for number in range(rules)]
    view = view_of([{"metricname": name, "operator": "GreaterThan", "target": 40} for name in metrics])
    nodes = [f"n{number:03}" for number in range(100)]
    for node in nodes:
        publish(view, node, dict.fromkeys(metrics, "50"))

    answer = answered(view, *nodes)()

    assert len(answer.values) == most
    assert {each.node for each in answer.values} <= set(answer.rejected)
