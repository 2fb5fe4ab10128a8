"""Rules in three values.

For one node a rule is *violated*, *met* or *unknown*. Unknown is no kind of healthy: what it does is the policy's
choice, and nothing is ever removed because of it.
"""

from collections.abc import Iterable
from enum import Enum

from tas.policy import LogicalOperator, OnStale, Operator, Policy, Rule, StrategyType
from tas.quantity import Quantity


class State(Enum):
    """What is known of a rule, or of a strategy, for one node."""

    VIOLATED = "violated"
    MET = "met"
    UNKNOWN = "unknown"


def rejecting_states(policy: Policy) -> frozenset[State]:
    """The states of its `dontschedule` in which `policy` rejects a node: filter answers by this, and waking goes by it.

    Violated, and unknown where `onStale` is `fail`; none without rules, and none while it is suspended or dry-run.
    """
    strategy = policy.strategies.get(StrategyType.DONTSCHEDULE)
    if strategy is None or not strategy.rules or policy.suspend or policy.dry_run:
        return frozenset()
    return frozenset({State.VIOLATED, State.UNKNOWN} if strategy.on_stale is OnStale.FAIL else {State.VIOLATED})


def rule_state(rule: Rule, value: Quantity | None) -> State:
    """The state of `rule` for a node whose fresh value is `value`, or None if there is none.

    Comparisons are strict and exact (tas.md section 2). A rule that cannot be read is unknown whatever the value.
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


def combined(operator: LogicalOperator, states: Iterable[State]) -> State:
    """The state of a strategy from those of its rules; without rules it is met: never violated.

    anyOf: violated if any rule is, else unknown if any is unknown, else met.
    allOf: met if any rule is met, else unknown if any is unknown, else violated.
    """
    # A state that decides alone, and what stands if nothing does.
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
