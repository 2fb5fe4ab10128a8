"""Policies as values."""

from typing import Any

import msgspec
import pytest

from tas.policy.policy import ON_STALE, OnStale, Operator, Policy, PolicyKey, Rule, Strategy, StrategyType
from tas.policy.selector import parse_selector
from tas.values.quantity import parse_quantity

RULE = Rule(metric="m", operator=Operator.GREATER_THAN, target=parse_quantity("1500m"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "m GreaterThan 1.5"),
        ({"target": parse_quantity("2Gi")}, "m GreaterThan 2Gi"),
        ({"source": "machine"}, "m of machine GreaterThan 1.5"),
        ({"labels": (("a", "b"),), "weight": 3}, "m GreaterThan 1.5"),
        ({"metric": "", "operator": None, "target": None}, "? ? ?"),
    ],
)
def test_the_text_of_a_rule(changes: dict[str, object], text: str) -> None:
    assert str(msgspec.structs.replace(RULE, **changes)) == text


@pytest.mark.parametrize("changes", [{"metric": ""}, {"operator": None}, {"target": None}])
def test_a_strategy_is_readable_if_all_its_rules_are(changes: dict[str, object]) -> None:
    unreadable = msgspec.structs.replace(RULE, **changes)
    assert RULE.readable
    assert not unreadable.readable
    strategy = Strategy(type=StrategyType.DESCHEDULE, rules=(RULE, RULE), on_stale=OnStale.HOLD)
    assert strategy.readable
    assert not msgspec.structs.replace(strategy, rules=(RULE, unreadable)).readable


def test_unknown_changes_nothing_by_default() -> None:
    assert {kind.value: words[0].value for kind, words in ON_STALE.items()} == {
        "dontschedule": "keep",
        "scheduleonmetric": "lowest",
        "deschedule": "hold",
        "labeling": "hold",
    }


def test_the_text_of_a_key() -> None:
    assert str(PolicyKey("default", "demo")) == "default/demo"
    assert PolicyKey("a", "z") < PolicyKey("b", "a")


@pytest.mark.parametrize(
    ("weights", "counts"),
    [((), ()), ((None,), (True,)), ((None, None), (True, False)), ((None, 2, 3), (False, True, True))],
)
def test_facts_D5_of_rules_that_order_nodes_the_first_counts_or_those_with_a_weight(
    weights: tuple[int | None, ...], counts: tuple[bool, ...]
) -> None:
    cost = parse_quantity("2Gi")
    rules = tuple(msgspec.structs.replace(RULE, weight=weight, pod_cost=cost) for weight in weights)
    strategy = Strategy(type=StrategyType.SCHEDULEONMETRIC, rules=rules, on_stale=OnStale.LOWEST)
    assert strategy.rule_counts == counts
    assert [not text.endswith(" (ignored)") for text in strategy.rule_texts] == list(counts)
    other = msgspec.structs.replace(strategy, type=StrategyType.DESCHEDULE)
    assert all(other.rule_counts)


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        pytest.param(None, None, True, id="no selector, node unknown"),
        pytest.param(None, {}, True, id="no selector"),
        pytest.param({"matchLabels": {"zone": "a"}}, {"zone": "a"}, True, id="selected"),
        pytest.param({"matchLabels": {"zone": "a"}}, {}, False, id="label absent"),
        pytest.param({"matchLabels": {"zone": "a"}}, {"zone": "b"}, False, id="other value"),
        pytest.param({"matchLabels": {"zone": "a"}}, None, None, id="node unknown"),
        pytest.param({}, {}, True, id="empty selector"),
        pytest.param({}, None, None, id="empty selector, node unknown"),
    ],
)
def test_which_nodes_a_policy_concerns(
    selector: dict[str, Any] | None, labels: dict[str, str] | None, selected: bool | None
) -> None:
    found = None if selector is None else parse_selector(selector)
    assert Policy(key=PolicyKey("default", "p"), strategies={}, node_selector=found).selects(labels) is selected


@pytest.mark.parametrize(("own", "used"), [(None, 120.0), (30.0, 30.0)])
def test_the_default_of_stale_after_counts_only_without_the_policys_own(own: float | None, used: float) -> None:
    assert Policy(key=PolicyKey("default", "p"), strategies={}, stale_after=own).stale_after_or(120.0) == used
