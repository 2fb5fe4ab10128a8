"""The states of rules, single and combined."""

from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.policy.manifest import parse_policy
from tas.policy.policy import LogicalOperator, OnStale, Operator, PolicyKey, Rule, Strategy, StrategyType
from tas.policy.rules import State, combined, rejecting_states, rule_state, strategy_state
from tas.values.quantity import NANO, Quantity, parse_quantity

VIOLATED, MET, UNKNOWN = State.VIOLATED, State.MET, State.UNKNOWN
ANY_OF, ALL_OF = LogicalOperator.ANY_OF, LogicalOperator.ALL_OF

quantities = st.integers(-5, 5).map(lambda number: Quantity(number * NANO // 2)) | st.integers().map(Quantity)


def rule(operator: Operator | None, target: str | None, metric: str = "m") -> Rule:
    return Rule(metric=metric, operator=operator, target=None if target is None else parse_quantity(target))


@pytest.mark.parametrize(
    ("value", "operator", "target", "state"),
    [
        pytest.param("100", Operator.LESS_THAN, "1000", VIOLATED, id="facts_Q1"),
        pytest.param("1", Operator.EQUALS, "1", VIOLATED, id="facts_Q2"),
        pytest.param("10000", Operator.LESS_THAN, "10", MET, id="facts_Q3"),
        pytest.param("100", None, "1000", UNKNOWN, id="facts_Q4"),
        pytest.param("1500m", Operator.GREATER_THAN, "1", VIOLATED, id="facts_Q5"),
        pytest.param("1500m", Operator.EQUALS, "1", MET, id="facts_Q6"),
        pytest.param("1Ki", Operator.EQUALS, "1024", VIOLATED, id="facts_Q7"),
        pytest.param("-10", Operator.GREATER_THAN, "-12", VIOLATED, id="facts_Q8"),
        pytest.param("0", Operator.EQUALS, "0", VIOLATED, id="facts_Q9"),
        pytest.param("9223372036854775808", Operator.GREATER_THAN, "9223372036854775807", VIOLATED, id="facts_Q10"),
        pytest.param("2000m", Operator.EQUALS, "2", VIOLATED, id="milli-equals"),
        pytest.param("40", Operator.GREATER_THAN, "40", MET, id="facts_F4-strict-greater"),
        pytest.param("40", Operator.LESS_THAN, "40", MET, id="facts_F4-strict-less"),
        pytest.param("40.000000001", Operator.GREATER_THAN, "40", VIOLATED, id="one-nano-greater"),
        pytest.param("1", Operator.GREATER_THAN, None, UNKNOWN, id="no-target"),
    ],
)
def test_rule_state(value: str, operator: Operator | None, target: str | None, state: State) -> None:
    assert rule_state(rule(operator, target), parse_quantity(value)) is state


@pytest.mark.parametrize("operator", [*Operator, None])
@pytest.mark.parametrize("target", ["0", None])
def test_a_rule_without_a_value_is_unknown(operator: Operator | None, target: str | None) -> None:
    assert rule_state(rule(operator, target), None) is UNKNOWN


@given(quantities, quantities)
def test_exactly_one_operator_is_violated_by_a_value(value: Quantity, target: Quantity) -> None:
    states = [rule_state(Rule(metric="m", operator=operator, target=target), value) for operator in Operator]
    assert sorted(state.value for state in states) == ["met", "met", "violated"]


@given(quantities, quantities)
def test_greater_and_less_mirror_each_other(value: Quantity, target: Quantity) -> None:
    greater = Rule(metric="m", operator=Operator.GREATER_THAN, target=target)
    less = Rule(metric="m", operator=Operator.LESS_THAN, target=Quantity(-target))
    assert rule_state(greater, value) is rule_state(less, Quantity(-value))


VALUES = {"memory": Quantity(10 * NANO), "cpu": Quantity(200 * NANO)}


class Combination(NamedTuple):
    id: str
    rules: tuple[tuple[str, int], ...]
    any_of: State
    all_of: State


# The vectors say yes or no; no is met where every value is there, and unknown where one that could decide is absent.
COMBINATIONS = [
    Combination("facts_L1", (("memory", 9),), VIOLATED, VIOLATED),
    Combination("facts_L2", (("memory", 11),), MET, MET),
    Combination("facts_L3", (("absent", 9),), UNKNOWN, UNKNOWN),
    Combination("facts_L4", (("memory", 9), ("cpu", 900)), VIOLATED, MET),
    Combination("facts_L5", (("memory", 9), ("cpu", 90)), VIOLATED, VIOLATED),
    Combination("facts_L6", (("memory", 9), ("absent", 90)), VIOLATED, UNKNOWN),
    Combination("facts_L6-met", (("memory", 11), ("absent", 90)), UNKNOWN, MET),
]


@pytest.mark.parametrize("case", COMBINATIONS, ids=lambda case: case.id)
def test_combined(case: Combination) -> None:
    rules = [rule(Operator.GREATER_THAN, str(target), metric) for metric, target in case.rules]
    states = [rule_state(each, VALUES.get(each.metric)) for each in rules]
    assert combined(ANY_OF, states) is case.any_of
    assert combined(ALL_OF, states) is case.all_of


@pytest.mark.parametrize("operator", [*LogicalOperator])
def test_no_rules_are_never_violated(operator: LogicalOperator) -> None:
    assert combined(operator, []) is MET


TWO = {
    # first, second: anyOf, allOf
    (VIOLATED, VIOLATED): (VIOLATED, VIOLATED),
    (VIOLATED, MET): (VIOLATED, MET),
    (VIOLATED, UNKNOWN): (VIOLATED, UNKNOWN),
    (MET, MET): (MET, MET),
    (MET, UNKNOWN): (UNKNOWN, MET),
    (UNKNOWN, UNKNOWN): (UNKNOWN, UNKNOWN),
}


@pytest.mark.parametrize(("first", "second"), [*product(State, repeat=2)])
def test_table_of_two_rules(first: State, second: State) -> None:
    any_of, all_of = TWO.get((first, second)) or TWO[second, first]
    assert combined(ANY_OF, [first, second]) is any_of
    assert combined(ALL_OF, [first, second]) is all_of


@given(st.lists(st.sampled_from(State), min_size=1))
def test_unknown_means_violated_or_met(states: list[State]) -> None:
    """The combined state is unknown exactly if it depends on the states of the unknown rules."""
    for operator, decide in ((ANY_OF, any), (ALL_OF, all)):
        outcomes = {
            decide(VIOLATED is (guess if state is UNKNOWN else state) for state in states) for guess in (VIOLATED, MET)
        }
        expected = UNKNOWN if len(outcomes) == 2 else VIOLATED if outcomes.pop() else MET
        assert combined(operator, iter(states)) is expected


@pytest.mark.parametrize(
    ("strategy", "spec", "states"),
    [
        pytest.param({}, {}, {VIOLATED}, id="violated"),
        pytest.param({"onStale": "pass"}, {}, {VIOLATED}, id="pass"),
        pytest.param({"onStale": "fail"}, {}, {VIOLATED, UNKNOWN}, id="fail"),
        pytest.param({"onStale": "fail"}, {"suspend": True}, set(), id="suspend"),
        pytest.param({"onStale": "fail"}, {"dryRun": True}, set(), id="dryRun"),
        pytest.param({"onStale": "fail", "rules": []}, {}, set(), id="no-rules"),
        pytest.param(None, {}, set(), id="no-dontschedule"),
    ],
)
def test_rejecting_states(strategy: dict[str, Any] | None, spec: dict[str, Any], states: set[State]) -> None:
    rules = [{"metricname": "m", "operator": "Equals", "target": 1}]
    strategies = {"deschedule": {"rules": rules}}
    if strategy is not None:
        strategies["dontschedule"] = {"rules": rules} | strategy
    policy, _ = parse_policy(PolicyKey("default", "p"), {"strategies": strategies, **spec})
    assert rejecting_states(policy) == states


@pytest.mark.parametrize("operator", LogicalOperator)
@pytest.mark.parametrize(("selected", "state"), [(True, VIOLATED), (False, MET), (None, UNKNOWN)])
def test_a_node_that_is_not_selected_meets_every_strategy(
    selected: bool | None, state: State, operator: LogicalOperator
) -> None:
    strategy = Strategy(
        type=StrategyType.DESCHEDULE,
        rules=(rule(Operator.EQUALS, "1"),),
        logical_operator=operator,
        on_stale=OnStale.HOLD,
    )
    assert strategy_state(strategy, [VIOLATED], selected=selected) is state


@pytest.mark.parametrize("selected", [True, False, None])
def test_a_strategy_without_rules_is_met_on_every_node(selected: bool | None) -> None:
    strategy = Strategy(type=StrategyType.DESCHEDULE, rules=(), on_stale=OnStale.HOLD)
    assert strategy_state(strategy, [], selected=selected) is MET
