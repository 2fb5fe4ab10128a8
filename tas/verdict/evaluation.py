"""Evaluation: the states of a policy's strategies for a node by its samples, and the desired labels.

All rules of an evaluation are here, as functions of values, so that `evaluate`, `labels` and `tas trace` have the same
result. A desired label is *set*, *absent* or *hold* (leave unchanged). A label becomes absent only because of a fresh
sample that meets the rule, or because the policy says so explicitly; missing data never removes a label.

An evaluation takes the previous verdict, the current data and the time. It returns the next verdict, and the time at
which the verdict must be evaluated again without new data. The verdict has all that `for` and `clearFor` need, so any
replica can continue from it.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from tas.policy.policy import LogicalOperator, OnStale, Operator, Policy, PolicyKey, Rule, Strategy, StrategyType
from tas.policy.rules import State, kept_state, rejecting_states, rule_state, strategy_state
from tas.samples.freshness import is_fresh, kept_until, stale_at
from tas.samples.sample import NodeSamples, newest
from tas.values.names import is_label_key, is_label_value
from tas.values.quantity import Quantity, format_quantity
from tas.verdict.verdict import (
    ABSENT,
    HOLD,
    VERDICT_STRATEGIES,
    VIOLATING,
    DesiredKind,
    DesiredLabel,
    LabelVerdict,
    PolicyVerdict,
    StrategyVerdict,
    deschedule_label,
    labeling_prefix,
)
from tas.verdict.watched import ALWAYS_WATCHED, Watched


def evaluate_policy(
    policy: Policy,
    *,
    uid: str,
    generation: int,
    samples: NodeSamples,
    labels: Mapping[str, str] | None,
    default_stale_after: float,
    before: PolicyVerdict | None,
    now: float,
    kept_from: float = inf,
    stale_deadlines: bool = True,
    watched: Watched = ALWAYS_WATCHED,
) -> tuple[PolicyVerdict, float | None]:
    """The verdict of `policy` on a node, and when it may change by time alone (None: never).

    Args:
        policy: As stored in POLICIES.
        uid: Of the policy; a verdict before with another uid was another policy's.
        generation: Of the policy.
        samples: What is known of the node's metrics.
        labels: The node's labels as the API server gave them; None if they are not known.
        default_stale_after: Seconds after which a sample is stale for a policy without `staleAfter`.
        before: The stored verdict, if any.
        now: Seconds since 1970.
        kept_from: Since when values of the node are kept (`tas.samples.freshness.kept_from`).
        stale_deadlines: Whether samples that become stale, or are kept no more, count for that; False for a caller
            whose view reports them.
        watched: What the replica has observed: nothing else counts for `clearFor`.
    """
    earlier = before if before is not None and before.uid == uid else None
    context = _Context(policy.selects(labels), samples, policy.stale_after_or(default_stale_after), now, watched)
    silent = policy.suspend or policy.dry_run
    strategies: dict[StrategyType, StrategyVerdict] = {}
    deadlines: list[float] = []
    for kind in VERDICT_STRATEGIES:
        strategy = policy.strategies.get(kind)
        if strategy is None or not strategy.rules:
            continue
        acts = strategy.readable and not silent
        previous = None if earlier is None else earlier.strategies.get(kind)
        strategies[kind], results, due = _evaluate_strategy(policy.key, strategy, previous, context, acts=acts)
        deadlines += due
        if kind is StrategyType.DONTSCHEDULE and (rejecting := rejecting_states(policy)):
            kept_since: float | None = None
            ends: Sequence[float] = ()
            if strategies[kind].state is State.UNKNOWN and strategy.keeps:
                kept_since, ends = _kept(strategy, context, kept_from)
            if strategies[kind].state in rejecting or kept_since is not None:
                strategies[kind] = msgspec.structs.replace(strategies[kind], rejects=True, kept_since=kept_since)
            deadlines += ends if stale_deadlines else ()
        if stale_deadlines and context.selected:
            deadlines += (result.fresh_until for result in results if result.fresh_until is not None)
    verdict = PolicyVerdict(uid=uid, generation=generation, strategies=strategies, holds_prefix=holds_prefix(policy))
    return verdict, min(deadlines, default=None)


def met_labels(
    policy: Policy,
    *,
    uid: str,
    samples: NodeSamples,
    labels: Mapping[str, str] | None,
    default_stale_after: float,
    before: PolicyVerdict | None,
    now: float,
) -> dict[str, bool]:
    """Whether the rules of each label count as met, of strategies with `clearFor`. Arguments as `evaluate_policy`."""
    context = _Context(policy.selects(labels), samples, policy.stale_after_or(default_stale_after), now)
    found: dict[str, bool] = {}
    for strategy in policy.strategies.values():
        if strategy.type in VERDICT_STRATEGIES and strategy.rules and strategy.clear_for:
            stored = None if before is None or before.uid != uid else before.strategies.get(strategy.type)
            results = _rule_results(strategy, context, sampled=() if stored is None else stored.sampled)
            for each in _labels(policy.key, strategy, results, context):
                found[each.label] = each.counts_as is State.MET
    return found


def needs_past(policy: Policy) -> bool:
    """Whether `met_labels` of the policy depends on `before`."""
    return any(strategy.clear_for and strategy.on_stale is OnStale.CLEAR for strategy in policy.strategies.values())


def label_state(
    policy: Policy,
    label: str,
    *,
    samples: NodeSamples,
    labels: Mapping[str, str] | None,
    default_stale_after: float,
    now: float,
) -> State | None:
    """The current state of the rules of `label`, with `onStale` applied to unknown.

    None if no valid strategy of the policy names the label.
    """
    context = _Context(policy.selects(labels), samples, policy.stale_after_or(default_stale_after), now)
    for strategy in policy.strategies.values():
        if strategy.readable:
            for each in _labels(policy.key, strategy, _rule_results(strategy, context, sampled=()), context):
                if each.label == label:
                    return each.counts_as
    return None


def strategy_labels(key: PolicyKey, strategy: Strategy) -> frozenset[str]:
    """All labels of a strategy in verdicts."""
    context = _Context(selected=True, samples=(), stale_after=0.0, now=0.0)
    return frozenset(
        each.label for each in _labels(key, strategy, _rule_results(strategy, context, sampled=()), context)
    )


def labels_with_clear_for(policy: Policy) -> frozenset[str]:
    """The labels that are removed only after `clearFor`."""
    return frozenset().union(
        *(
            strategy_labels(policy.key, strategy)
            for strategy in policy.strategies.values()
            if strategy.type in VERDICT_STRATEGIES and strategy.clear_for
        )
    )


def may_have_been_unmet(policy: Policy, metrics: Collection[str]) -> bool:
    """Whether rules of a label with `clearFor` may have been unmet by unseen values of these metrics."""
    return any(
        rule.metric in metrics
        for strategy in policy.strategies.values()
        if strategy.type in VERDICT_STRATEGIES and strategy.clear_for
        for rule in strategy.rules
    )


def holds_prefix(policy: Policy) -> bool:
    """Whether the policy holds every label under its prefix: it is suspended, dry-run, or its `labeling` is invalid."""
    labeling = policy.strategies.get(StrategyType.LABELING)
    unreadable = labeling is not None and bool(labeling.rules) and not labeling.readable
    return policy.suspend or policy.dry_run or unreadable


class _Context(NamedTuple):
    """The data of a node at a time. `selected` is None if it depends on unknown labels."""

    selected: bool | None
    samples: NodeSamples
    stale_after: float
    now: float
    watched: Watched = ALWAYS_WATCHED


class _RuleResult(NamedTuple):
    """One rule for one node.

    `counts_as` is `state` with `onStale` applied. `value` is the fresh value, until `fresh_until`.
    """

    rule: Rule
    state: State
    counts_as: State
    value: Quantity | None
    fresh_until: float | None
    sampled: bool


class _Label(NamedTuple):
    """One label with its rules, their state by samples, and that state with `onStale` applied."""

    label: str
    results: Sequence[_RuleResult]
    state: State
    counts_as: State


def _series(rule: Rule) -> str:
    return rule.metric if rule.source is None else f"{rule.metric}@{rule.source}"


def _rule_results(strategy: Strategy, context: _Context, *, sampled: Collection[str]) -> list[_RuleResult]:
    results = []
    for rule in strategy.rules:
        scrape = newest(context.samples, rule.metric, rule.source)
        value = fresh_until = None
        if scrape is not None and is_fresh(scrape, context.stale_after, context.now):
            value, fresh_until = scrape.metrics[rule.metric], stale_at(scrape, context.stale_after)
        state = rule_state(rule, value)
        was_sampled = scrape is not None or _series(rule) in sampled
        counts_as = _counted(state, strategy.on_stale, sampled=was_sampled)
        results.append(_RuleResult(rule, state, counts_as, value, fresh_until, was_sampled))
    return results


def _kept(strategy: Strategy, context: _Context, kept_from: float) -> tuple[float | None, list[float]]:
    """When the oldest kept value was measured that counts, if filter rejects the node by kept values.

    Also when the values are kept no more.
    """
    values: list[Quantity | None] = []
    times: list[float] = []
    for rule in strategy.rules:
        scrape = newest(context.samples, rule.metric, rule.source)
        value = None if scrape is None else scrape.metrics[rule.metric]
        if scrape is not None and not is_fresh(scrape, context.stale_after, context.now):
            if kept_until(scrape.time, strategy.keep_for, kept_from) <= context.now:
                value = None
            elif rule_state(rule, value) is State.VIOLATED:
                times.append(scrape.time)
        values.append(value)
    if kept_state(strategy, values, selected=context.selected) is not State.VIOLATED:
        return None, []
    return min(times), [time + strategy.keep_for for time in times]


def _counted(state: State, on_stale: OnStale, *, sampled: bool) -> State:
    """A rule's state with `onStale` applied. `clear` applies only to series that had a sample."""
    if state is State.UNKNOWN and on_stale is OnStale.VIOLATE:
        return State.VIOLATED
    if state is State.UNKNOWN and on_stale is OnStale.CLEAR and sampled:
        return State.MET
    return state


def _evaluate_strategy(
    key: PolicyKey, strategy: Strategy, previous: StrategyVerdict | None, context: _Context, *, acts: bool
) -> tuple[StrategyVerdict, Sequence[_RuleResult], list[float]]:
    """The strategy's verdict after the previous one, its rules' results, and when desired labels change by time alone.

    If the strategy does not act, every label is held.
    """
    results = _rule_results(strategy, context, sampled=() if previous is None else previous.sampled)
    deadlines: list[float] = []
    labels: dict[str, LabelVerdict] = {}
    for each in _labels(key, strategy, results, context):
        earlier = None if previous is None else previous.labels.get(each.label)
        labels[each.label], due = _evaluate_label(each, earlier, strategy, context)
        if not acts:
            labels[each.label] = msgspec.structs.replace(labels[each.label], desired=HOLD)
        elif due is not None:
            deadlines.append(due)
    state = strategy_state(strategy, [result.state for result in results], selected=context.selected)
    changed, value = context.now, results[0].value
    value_text = "" if value is None else format_quantity(value)
    before = None if previous is None else previous.state
    if previous is not None and previous.state is state:
        changed, value_text, before = min(previous.changed, context.now), previous.value, previous.before
    sampled: tuple[str, ...] = ()
    if strategy.type is not StrategyType.DONTSCHEDULE:
        sampled = tuple(sorted({_series(result.rule) for result in results if result.sampled}))
    verdict = StrategyVerdict(
        state=state, changed=changed, value=value_text, labels=labels, sampled=sampled, before=before
    )
    return verdict, results, deadlines


def _labels(key: PolicyKey, strategy: Strategy, results: Sequence[_RuleResult], context: _Context) -> list[_Label]:
    """The valid labels of a strategy, in the order of its rules."""
    results_by_label: dict[str, Sequence[_RuleResult]] = {}
    if strategy.type is StrategyType.DESCHEDULE:
        if results and (label := deschedule_label(key)) is not None:
            results_by_label[label] = results
    elif strategy.type is StrategyType.LABELING:
        prefix = labeling_prefix(key)
        for result in results:
            for name, value in result.rule.labels:
                if is_label_key(prefix + name) and is_label_value(value):
                    results_by_label[prefix + name] = (*results_by_label.get(prefix + name, ()), result)
    labels: list[_Label] = []
    for label, carrying in results_by_label.items():
        counting = carrying if strategy.logical_operator is LogicalOperator.ANY_OF else results
        state = strategy_state(strategy, [result.state for result in counting], selected=context.selected)
        counts_as = strategy_state(strategy, [result.counts_as for result in counting], selected=context.selected)
        labels.append(_Label(label, carrying, state, counts_as))
    return labels


def _evaluate_label(
    label: _Label, earlier: LabelVerdict | None, strategy: Strategy, context: _Context
) -> tuple[LabelVerdict, float | None]:
    """The label's verdict after `earlier`, and when the end of `for` or `clearFor` changes it."""
    violated_since = None if earlier is None else _past(earlier.violated_since, context.now)
    met_since = None if earlier is None else _past(earlier.met_since, context.now)
    desired, due = HOLD, None
    if label.counts_as is State.VIOLATED:
        met_since = None
        violated_since = context.now if violated_since is None else violated_since
        if context.now >= violated_since + strategy.for_:
            desired = _desired_set(label, strategy)
        else:
            due = violated_since + strategy.for_
    elif label.counts_as is State.MET:
        violated_since = None
        met_since = context.now if met_since is None else met_since
        if not context.selected:
            # `nodeSelector` applies at once, and `clearFor` is about samples of selected nodes: its time has not begun.
            # What the replica knows of the node's labels may be old, so the rules may be violated meanwhile.
            met_since = None if strategy.clear_for else met_since
            return LabelVerdict(state=label.state, desired=ABSENT, met_since=met_since), None
        # While the node was not watched, an interruption is possible.
        watched_met_since = context.watched.met_since(label.label) if strategy.clear_for else 0.0
        # The writer of the stored verdict saw the whole `clearFor`, and since then this replica has watched. The time
        # counts all the same: an edit of the policy may have made `clearFor` longer.
        was_cleared = earlier is not None and earlier.desired == ABSENT
        is_proven = was_cleared and watched_met_since <= context.watched.stored_until
        proven_since = met_since if is_proven else max(met_since, watched_met_since + context.watched.ahead)
        cleared = proven_since + strategy.clear_for
        if context.now >= cleared:
            desired = ABSENT
        elif cleared < inf:
            due = cleared
    else:
        met_since = None
    return LabelVerdict(state=label.state, desired=desired, violated_since=violated_since, met_since=met_since), due


def _past(since: float | None, now: float) -> float | None:
    """A time in a verdict, at most now: a later time comes from a wrong clock."""
    return None if since is None else min(since, now)


def _desired_set(label: _Label, strategy: Strategy) -> DesiredLabel:
    """The desired label for violated rules, with the value of the worst rule (facts.md G3, G4, G5)."""
    if strategy.type is StrategyType.DESCHEDULE:
        return DesiredLabel(DesiredKind.SET, VIOLATING)
    name = label.label.rpartition("/")[2]
    violated = [result for result in label.results if result.counts_as is State.VIOLATED]
    winner = violated[0]
    for result in violated[1:]:
        if _is_worse(result, winner):
            winner = result
    value = dict(winner.rule.labels)[name]
    # An unknown rule could be worse than the winner, unless it counts as violated with the same value.
    is_uncertain = any(each.state is State.UNKNOWN and each.counts_as is not State.MET for each in label.results)
    if strategy.on_stale is OnStale.VIOLATE and all(dict(each.rule.labels)[name] == value for each in violated):
        is_uncertain = False
    return DesiredLabel(DesiredKind.SET_IF_ABSENT if is_uncertain else DesiredKind.SET, value)


def _is_worse(one: _RuleResult, other: _RuleResult) -> bool:
    """Whether `one` wins over the earlier `other`. A rule without a value never wins."""
    if one.value is None or other.value is None:
        return one.value is not None
    if one.rule.operator is not other.rule.operator:
        return False  # rules with different operators cannot be compared (facts.md D52)
    if one.rule.operator is Operator.GREATER_THAN:
        return one.value > other.value
    return one.rule.operator is Operator.LESS_THAN and one.value < other.value
