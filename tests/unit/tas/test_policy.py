"""Policies as values."""

import msgspec
import pytest

from tas.policy import ON_STALE, OnStale, Operator, PolicyKey, Rule, Strategy, StrategyType
from tas.quantity import parse_quantity

RULE = Rule(metric="m", operator=Operator.GREATER_THAN, target=parse_quantity("1500m"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "m GreaterThan 1.5"),
        ({"target": parse_quantity("2Gi")}, "m GreaterThan 2147483648"),
        ({"source": "machine"}, "m of machine GreaterThan 1.5"),
        ({"labels": (("a", "b"),), "weight": 3}, "m GreaterThan 1.5"),
        ({"metric": "", "operator": None, "target": None}, "? ? ?"),
    ],
)
def test_a_rule_reads_as_a_person_says_it(changes: dict[str, object], text: str) -> None:
    assert str(msgspec.structs.replace(RULE, **changes)) == text


@pytest.mark.parametrize("changes", [{"metric": ""}, {"operator": None}, {"target": None}])
def test_a_strategy_can_be_read_if_all_its_rules_can(changes: dict[str, object]) -> None:
    unreadable = msgspec.structs.replace(RULE, **changes)
    assert RULE.readable
    assert not unreadable.readable
    strategy = Strategy(type=StrategyType.DESCHEDULE, rules=(RULE, RULE), on_stale=OnStale.HOLD)
    assert strategy.readable
    assert not msgspec.structs.replace(strategy, rules=(RULE, unreadable)).readable


def test_unknown_is_harmless_by_default() -> None:
    assert {kind.value: words[0].value for kind, words in ON_STALE.items()} == {
        "dontschedule": "pass",
        "scheduleonmetric": "lowest",
        "deschedule": "hold",
        "labeling": "hold",
    }


def test_a_key_reads_as_namespace_and_name() -> None:
    assert str(PolicyKey("default", "demo")) == "default/demo"
    assert PolicyKey("a", "z") < PolicyKey("b", "a")


@pytest.mark.parametrize(
    ("weights", "counts"),
    [((), ()), ((None,), (True,)), ((None, None), (True, False)), ((None, 2, 3), (False, True, True))],
)
def test_d5_of_rules_that_order_nodes_the_first_counts_or_those_with_a_weight(
    weights: tuple[int | None, ...], counts: tuple[bool, ...]
) -> None:
    rules = tuple(msgspec.structs.replace(RULE, weight=weight) for weight in weights)
    strategy = Strategy(type=StrategyType.SCHEDULEONMETRIC, rules=rules, on_stale=OnStale.LOWEST)
    assert strategy.rule_counts == counts
    assert [not text.endswith(" (ignored)") for text in strategy.rule_texts] == list(counts)
    other = msgspec.structs.replace(strategy, type=StrategyType.DESCHEDULE)
    assert all(other.rule_counts)
