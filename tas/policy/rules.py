"""Whether a node violates a rule or a strategy: violated, met or unknown; and which states reject a node.

Unknown does not mean healthy. The policy chooses the effect of unknown (`onStale`); by default no label is removed
because of it.
"""

from collections.abc import Iterable
from enum import Enum

from tas.policy.policy import LogicalOperator, OnStale, Operator, Policy, Rule, Strategy, StrategyType
from tas.values.quantity import Quantity


class State(Enum):
    """The state of a rule, or of a strategy, for one node."""

    VIOLATED = "violated"
    MET = "met"
    UNKNOWN = "unknown"


def rejecting_states(policy: Policy) -> frozenset[State]:
    """The states of `dontschedule` in which `policy` rejects a node, for filter and for wakes.

    Violated, and with `onStale: fail` also unknown; none without rules, and none if the policy is suspended or dry-run.
    With `onStale: keep`, an unknown node is also rejected if it is violated by kept values (`kept_state`).
    """
    strategy = policy.strategies.get(StrategyType.DONTSCHEDULE)
    if strategy is None or not strategy.rules or policy.suspend or policy.dry_run:
        return frozenset()
    return frozenset({State.VIOLATED, State.UNKNOWN} if strategy.on_stale is OnStale.FAIL else {State.VIOLATED})


def rejection_prefix(policy: str) -> str:
    """The beginning of the reason for which the policy of this name rejects a node, up to the rule.

    The colon ends the name: the reasons of `gold` are not those of `gold-2`.
    """
    return f"Node violates {policy}: "


LAST_KNOWN = " (last known)"
"""The end of the reason of a rejection by kept values. It has no age: the scheduler groups equal reasons."""


def rule_state(rule: Rule, value: Quantity | None) -> State:
    """The state of `rule` for a node with the fresh value `value`, None if there is none.

    Comparisons are strict and exact, and a value keeps its fraction (facts.md F4, Q5). An unreadable rule is unknown
    for any value.
    """
    operator, target = rule.operator, rule.target
    if value is None or operator is None or target is None:
        return State.UNKNOWN
    if operator is Operator.GREATER_THAN:
        violated = value > target
    elif operator is Operator.LESS_THAN:
        violated = value < target
    else:
        violated = value == target
    return State.VIOLATED if violated else State.MET


def kept_state(strategy: Strategy, values: Iterable[Quantity | None], *, selected: bool | None) -> State:
    """The state of a strategy by each rule's fresh value, or its kept value if there is no fresh one.

    It rejects a node if the strategy keeps values and its state by the fresh ones is unknown. Labels, scores and times
    never follow from it.
    """
    states = (rule_state(rule, value) for rule, value in zip(strategy.rules, values, strict=True))
    return strategy_state(strategy, states, selected=selected)


def strategy_state(strategy: Strategy, states: Iterable[State], *, selected: bool | None) -> State:
    """The state of a strategy on a node where its rules have `states`; `selected` is the result of `Policy.selects`.

    A node that the policy does not select meets every strategy. If `selected` is None, the state is unknown.
    """
    if selected or not strategy.rules:
        return combined(strategy.logical_operator, states)
    return State.UNKNOWN if selected is None else State.MET


def combined(operator: LogicalOperator, states: Iterable[State]) -> State:
    """The state of a strategy from the states of its rules; without rules it is met.

    anyOf: violated if any rule is, else unknown if any is unknown, else met.
    allOf: met if any rule is met, else unknown if any is unknown, else violated.
    """
    # The state that decides alone, and the state if all rules have the opposite one.
    decisive, otherwise = (
        (State.VIOLATED, State.MET) if operator is LogicalOperator.ANY_OF else (State.MET, State.VIOLATED)
    )
    found: State | None = None
    for state in states:
        if state is decisive:
            return decisive
        if found is not State.UNKNOWN:
            found = state
    if found is None:
        return State.MET
    return State.UNKNOWN if found is State.UNKNOWN else otherwise
