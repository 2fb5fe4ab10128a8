"""Prints the explanations of `tas explain` as tables."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from cli.output import echo, echo_line
from cli.queries.query import age_text, value_text
from cli.queries.tables import new_table, print_table
from tas.explain.explain import (
    NodeExplanation,
    PolicyExplanation,
    PolicyNodes,
    RuleExplanation,
    StrategyExplanation,
)
from tas.explain.pods import PodExplanation
from tas.extender.verbs import Answer
from tas.policy.policy import StrategyType
from tas.policy.rules import State
from tas.values.duration import format_duration
from tas.values.nouns import counted
from workers.settings import flag

SHOWN = 30
"""How many nodes or answers a table has; JSON has all of them."""

SHOWN_RULES = 100
"""How many rules the table of a node has."""

_WORST_FIRST = (State.VIOLATED, State.UNKNOWN, State.MET)

_STYLE = {State.VIOLATED: "bold red", State.MET: "green", State.UNKNOWN: "yellow"}
_RULE_COLUMNS = ("STRATEGY", "RULE", "VALUE", "AGE", "SOURCE", "STATE", "VERDICT")


def print_node(explanation: NodeExplanation) -> None:
    """Prints every rule of every policy for one node."""
    if not explanation.policies:
        echo("no policies")
        return
    rules = [
        _NodeRule(policy, strategy, number)
        for policy in explanation.policies
        for strategy in policy.strategies
        for number in range(max(1, len(strategy.rules)))
    ]
    hidden = len(rules) - SHOWN_RULES
    if hidden > 0:
        rules = sorted(rules, key=_NodeRule.rank)[:SHOWN_RULES]
    table = new_table("POLICY", *_RULE_COLUMNS)
    shown: dict[str, PolicyExplanation] = {}
    with_verdict: set[tuple[str, StrategyType]] = set()
    for policy, strategy, number in rules:
        first = (policy.policy, strategy.type) not in with_verdict
        table.add_row(policy.policy + _notes(policy), *_rule_row(strategy, number, first=first))
        with_verdict.add((policy.policy, strategy.type))
        shown[policy.policy] = policy
    print_table(table)
    if hidden > 0:
        echo(f"{counted(hidden, 'more rule')}, none of them worse than these: --json has them all")
    _print_limits(shown.values())


class _NodeRule(NamedTuple):
    """A row: a rule of a strategy, or a strategy without rules."""

    policy: PolicyExplanation
    strategy: StrategyExplanation
    number: int

    def rank(self) -> tuple[int, int]:
        """The sort key: violated rules first, then unknown ones; of equal rules those of violated strategies first."""
        strategy = _state_rank(self.strategy.state)
        return (_state_rank(self.strategy.rules[self.number].state) if self.strategy.rules else strategy, strategy)


def _state_rank(state: State | None) -> int:
    return len(_WORST_FIRST) if state is None else _WORST_FIRST.index(state)


def print_policy(explanation: PolicyNodes) -> None:
    """Prints how many nodes have which state, and the rules of the nodes, violated first."""
    first = next(iter(explanation.nodes.values()), None)
    if first is None:
        echo(f"policy {explanation.policy}: no node is on the bus yet")
        return
    states = Counter(
        (strategy.type, strategy.state)
        for each in explanation.nodes.values()
        for strategy in each.strategies
        if strategy.state is not None
    )
    echo(f"policy {explanation.policy}{_notes(first, of_nodes=False)}, {counted(explanation.total, 'node')}")
    for strategy in first.strategies:
        if strategy.state is not None:
            counts = ", ".join(f"{states[strategy.type, state]} {state.value}" for state in State)
            echo(f"  {strategy.type}: {counts}")
    table = new_table("NODE", *_RULE_COLUMNS)
    worst_first = sorted(explanation.nodes.items(), key=lambda item: (_rank(item[1]), item[0]))
    for name, each in worst_first[:SHOWN]:
        _add_rules(table, name + _notes(each, of_policy=False), each)
    print_table(table)
    if explanation.total > SHOWN:
        echo(f"{counted(explanation.total - SHOWN, 'more node')}: --json has them all")
    _print_limits([first])


def _rank(explanation: PolicyExplanation) -> int:
    """The sort key of a node: violated first, then unknown, then met."""
    return min((_state_rank(each.state) for each in explanation.strategies if each.state is not None), default=0)


def print_pod(explanation: PodExplanation, now: float) -> None:
    """Prints the answer for a pod now, best node first."""
    echo_line(f"pod {explanation.namespace}/{explanation.pod}, policy {explanation.policy}: {explanation.outcome}")
    if explanation.error:
        echo_line(f"filter would answer the error: {explanation.error}")
    table = new_table("NODE", "FILTER", "SCORE", *_RULE_COLUMNS[:-1])
    best_first = sorted(explanation.candidates, key=lambda each: (not each.passes, -(each.score or 0), each.node))
    relevant = (StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC)
    for each in best_first[:SHOWN]:
        verdict = Text("passes", style="green") if each.passes else Text(each.reason, style="bold red")
        lead: tuple[str | Text, ...] = (each.node, verdict, "-" if each.score is None else str(each.score))
        strategies = () if each.policy is None else each.policy.strategies
        rows = [row for strategy in strategies if strategy.type in relevant for row in _rule_rows(strategy)]
        for row in rows or [("-",) * 6]:
            table.add_row(*lead, *row[:6])
            lead = ("", "", "")
    print_table(table)
    if len(best_first) > SHOWN:
        echo(f"{counted(len(best_first) - SHOWN, 'more node')}: --json has them all")


def print_answers(answered: Sequence[Answer], now: float) -> None:
    """Prints the last answers for a pod, newest first."""
    if not answered:
        echo("the extender's last answers contain none for this pod")
        return
    echo("last answers:")
    table = new_table(
        "AGE", "PATH", "VERB", "STATUS", "OUTCOME", "CANDIDATES", "PASSED", "UNKNOWN", "REASONS OR BEST SCORES"
    )
    for answer in answered[:SHOWN]:
        reasons = [f"{count} × {reason}" for reason, count in answer.reasons.items()]
        best = [f"{name}={score}" for name, score in answer.best]
        table.add_row(
            age_text(now - answer.time),
            answer.path or "-",
            answer.verb,
            str(answer.status),
            "-" if answer.outcome is None else answer.outcome.value,
            str(answer.candidates),
            str(answer.passed),
            str(answer.unknown + answer.unknown_rejected),
            Text(answer.error or "; ".join(reasons) or " ".join(best) or "-"),
        )
    print_table(table)
    _print_values(answered[:SHOWN], now)


def _print_values(answered: Sequence[Answer], now: float) -> None:
    """Prints the values for which nodes were rejected, and what the scores of agents were made of, as they were."""
    table = new_table(
        "AGE", "PATH", "VERB", "NODE", "SCORE", "RULE, METRIC OR TERM", "VALUE THEN", "AGE THEN", "SOURCE"
    )
    rows = [(answer, each) for answer in answered for each in answer.values]
    for answer, each in rows[:SHOWN]:
        age = "-" if each.age_seconds is None else age_text(each.age_seconds) + (" (kept)" if each.kept else "")
        lead = (age_text(now - answer.time), answer.path or "-", answer.verb, each.node, _score(answer, each.node))
        table.add_row(*lead, each.rule, each.value or "-", age, each.source or "-")
    if rows:
        echo("values at the time of these answers:")
        print_table(table)


def _score(answer: Answer, node: str) -> str:
    """The score that the answer has for a node, as far as it is known."""
    return next((str(score) for name, score in answer.best if name == node), "-")


def _add_rules(table: Table, lead: str, explanation: PolicyExplanation) -> None:
    for strategy in explanation.strategies:
        for row in _rule_rows(strategy):
            table.add_row(lead, *row)


def _rule_rows(strategy: StrategyExplanation) -> list[tuple[str | Text, ...]]:
    return [_rule_row(strategy, number, first=number == 0) for number in range(max(1, len(strategy.rules)))]


def _rule_row(strategy: StrategyExplanation, number: int, *, first: bool) -> tuple[str | Text, ...]:
    """The cells of a rule, those of the strategy's `first` row with the verdict; or of a strategy without rules."""
    verdict = _verdict(strategy) if first else ""
    if not strategy.rules:
        return (strategy.type.value, "-", "-", "-", "-", "-", verdict)
    rule = strategy.rules[number]
    age = "-" if rule.age_seconds is None else age_text(rule.age_seconds)
    return (
        strategy.type.value,
        rule.rule,
        value_text(rule.value) + _pods_text(rule),
        age if rule.fresh or rule.age_seconds is None else f"{age} ({_stale_text(rule)})",
        rule.source or "-",
        Text("-") if rule.state is None else Text(rule.state.value, style=_STYLE[rule.state]),
        verdict,
    )


def _stale_text(rule: RuleExplanation) -> str:
    return "stale" if rule.kept_seconds is None else f"stale, kept for {age_text(rule.kept_seconds)}"


def _pods_text(rule: RuleExplanation) -> str:
    """The value that counts with the costs of pods that the sample does not show: ` (5 with 3 pods)`."""
    if rule.value_with_pods is None:
        return ""
    return f" ({value_text(rule.value_with_pods)} with {counted(rule.pods, 'new pod')})"


def _notes(explanation: PolicyExplanation, *, of_policy: bool = True, of_nodes: bool = True) -> str:
    notes = [note for note, holds in (("suspended", explanation.suspended), ("dry run", explanation.dry_run)) if holds]
    if not of_policy:
        notes = []
    if of_nodes and explanation.selected is not True:
        notes.append("not selected" if explanation.selected is False else "selector: labels unknown")
    return f" ({', '.join(notes)})" if notes else ""


def _print_limits(policies: Iterable[PolicyExplanation]) -> None:
    limits = {each.policy: format_duration(each.stale_after_seconds) for each in policies}
    limits_text = ", ".join(f"{limit} ({name})" for name, limit in limits.items())
    default = f"a policy without staleAfter has the limit of {flag('stale_after')}: give that of the extender"
    echo(f"a sample is stale after {limits_text}; {default}")


def _verdict(strategy: StrategyExplanation) -> Text:
    if strategy.state is None:
        return Text("compared with other nodes")
    text = strategy.state.value
    if strategy.state is State.UNKNOWN:
        text += f" (onStale: {strategy.on_stale}{', rejected' if strategy.rejects_by_kept else ''})"
    return Text(text, style=_STYLE[strategy.state])
