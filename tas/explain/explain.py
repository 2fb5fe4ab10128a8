"""Explanations of a node or a policy: the state of every rule, with the value, its age and its source.

The states are evaluated from the samples, not read from the indices of the view, so that both can be compared.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from tas.policy.policy import LogicalOperator, OnStale, Policy, PolicyKey, Strategy, StrategyType
from tas.policy.rules import State, kept_state, rule_state, strategy_state
from tas.samples.freshness import is_fresh, kept_until
from tas.samples.sample import Scrape, newest, newest_of_series
from tas.values.quantity import Quantity, format_quantity
from tas.view.indices import StrategyIndex
from tas.view.placements import pods_not_shown, with_cost
from tas.view.view import View


class RuleExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One rule for one node; `value`, `age_seconds` and `source` are those of the newest sample, fresh or not.

    `state` is None in `scheduleonmetric`, which compares nodes with each other. There a fresh value counts with the
    costs of `pods`, the pods of the policy that the sample cannot show yet, as `value_with_pods`; None without pods.
    `kept`: the value is not fresh and counts for filter all the same, `kept_seconds` from now on (`onStale: keep`).
    """

    rule: str
    state: State | None
    value: str | None
    age_seconds: float | None
    source: str | None
    fresh: bool
    kept: bool = False
    kept_seconds: float | None = None
    pods: int = 0
    value_with_pods: str | None = None


class StrategyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy for one node; `state` is None for `scheduleonmetric`.

    `rejects_by_kept`: its state is unknown, and filter rejects the node by kept values (`onStale: keep`).
    """

    type: StrategyType
    logical_operator: LogicalOperator
    state: State | None
    on_stale: str
    rules: Sequence[RuleExplanation]
    rejects_by_kept: bool = False


class PolicyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One policy for one node. `selected` is None where the node's labels are not known."""

    policy: str
    stale_after_seconds: float
    suspended: bool
    dry_run: bool
    selected: bool | None
    strategies: Sequence[StrategyExplanation]


class NodeExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Every policy for one node. `known` is false for a node without samples and labels."""

    node: str
    known: bool
    policies: Sequence[PolicyExplanation]


def explain_node(view: View, node: str, now: float) -> NodeExplanation:
    """The state of every policy for `node` at `now`, policies by name."""
    policies = [view.policies[key].policy for key in sorted(view.policies)]
    # All rules may be many, and so may be the sources of the node.
    series = newest_of_series(view.samples(node))
    return NodeExplanation(
        node=node,
        known=bool(view.samples(node)) or node in view.labelled_nodes,
        policies=[
            _explain_policy(view, policy, node, now, lambda metric, source: series.get((metric, source)))
            for policy in policies
        ],
    )


class PolicyNodes(msgspec.Struct, frozen=True, kw_only=True):
    """One policy for its nodes, rejected nodes first. `known` is false if there is no such policy.

    `total` is the number of all nodes; `nodes` may have only the first of them.
    """

    policy: str
    known: bool
    total: int
    nodes: Mapping[str, PolicyExplanation]


def explain_policy(view: View, key: PolicyKey, now: float, *, limit: int | None = None) -> PolicyNodes:
    """The states of a policy for all nodes at `now`, first those that its dontschedule rejects, at most `limit` nodes.

    The caller has moved the view to `now`.
    """
    index = view.policies.get(key)
    if index is None:
        return PolicyNodes(policy=str(key), known=False, total=len(view.nodes), nodes={})
    nodes = sorted(view.nodes, key=lambda node: (_rank(index.dontschedule, node), node))
    return PolicyNodes(
        policy=str(key),
        known=True,
        total=len(nodes),
        nodes={node: explain_on_node(view, index.policy, node, now) for node in nodes[:limit]},
    )


def _rank(strategy: StrategyIndex | None, node: str) -> int:
    """The rank of a node: violating nodes first, then rejected unknown ones, then all others."""
    if strategy is None or node in strategy.met:
        return 2
    if node in strategy.violated or node in strategy.kept:
        return 0
    return 1 if strategy.strategy.on_stale is OnStale.FAIL else 2


_Newest = Callable[[str, str | None], Scrape | None]
"""The scrape of a node whose value counts, by metric and source (None: any)."""


def explain_on_node(view: View, policy: Policy, node: str, now: float) -> PolicyExplanation:
    """The state of one policy for `node` at `now`."""
    return _explain_policy(view, policy, node, now, partial(newest, view.samples(node)))


def _explain_policy(view: View, policy: Policy, node: str, now: float, newest_of: _Newest) -> PolicyExplanation:
    labels = view.labels(node)
    selected = policy.selects(labels)
    return PolicyExplanation(
        policy=str(policy.key),
        stale_after_seconds=view.stale_after(policy),
        suspended=policy.suspend,
        dry_run=policy.dry_run,
        selected=selected,
        strategies=[
            _explain_strategy(
                view,
                policy,
                strategy,
                now,
                newest_of,
                selected=selected,
                placed=view.placed(policy.key, node),
                since=view.kept_from(node),
            )
            for _, strategy in sorted(policy.strategies.items())
        ],
    )


def _explain_strategy(
    view: View,
    policy: Policy,
    strategy: Strategy,
    now: float,
    newest_of: _Newest,
    *,
    selected: bool | None,
    placed: Sequence[float],
    since: float,
) -> StrategyExplanation:
    rules: list[RuleExplanation] = []
    states: list[State] = []
    judged: list[Quantity | None] = []
    stale_after = view.stale_after(policy)
    compares = strategy.type is StrategyType.SCHEDULEONMETRIC
    for rule, text, cost in zip(strategy.rules, strategy.rule_texts, strategy.pod_costs, strict=True):
        scrape = newest_of(rule.metric, rule.source)
        value = None if scrape is None else scrape.metrics[rule.metric]
        fresh = scrape is not None and is_fresh(scrape, stale_after, now)
        pods = 0
        if compares and cost is not None and scrape is not None and fresh:
            pods = pods_not_shown(placed, scrape.time)
        states.append(rule_state(rule, value if fresh else None))
        kept_seconds = None
        if strategy.keeps and scrape is not None and not fresh:
            left = kept_until(scrape.time, strategy.keep_for, since) - now
            kept_seconds = left if left > 0 else None
        judged.append(value if fresh or kept_seconds is not None else None)
        rules.append(
            RuleExplanation(
                rule=text,
                state=None if compares else states[-1],
                value=None if value is None else format_quantity(value),
                age_seconds=None if scrape is None else max(0.0, now - scrape.time),
                source=None if scrape is None else scrape.source,
                fresh=fresh,
                kept=kept_seconds is not None,
                kept_seconds=kept_seconds,
                pods=pods,
                value_with_pods=format_quantity(with_cost(rule, value, pods)) if pods and value is not None else None,
            )
        )
    state = None if compares else strategy_state(strategy, states, selected=selected)
    return StrategyExplanation(
        type=strategy.type,
        logical_operator=strategy.logical_operator,
        state=state,
        on_stale=strategy.on_stale.value,
        rules=rules,
        rejects_by_kept=strategy.keeps
        and not (policy.suspend or policy.dry_run)
        and state is State.UNKNOWN
        and kept_state(strategy, judged, selected=selected) is State.VIOLATED,
    )
