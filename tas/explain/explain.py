"""Explanations of a node, a policy or a pod: the state of every rule, with the value, its age and its source.

The states are evaluated from the samples, not read from the indices of the view, so that both can be compared. The
answers for a pod come from the decider itself.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from tas.extender.decision import Outcome, Pod
from tas.extender.telemetry import TelemetryDecider
from tas.policy.policy import POD_LABEL, LogicalOperator, OnStale, Policy, PolicyKey, Strategy, StrategyType
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


class CandidateExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for a pod and one node, with the rules; `score` is None if prioritize gives no scores."""

    node: str
    passes: bool
    reason: str
    score: int | None
    policy: PolicyExplanation | None


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The current answers for a pod. `error` is the `Error` of filter: with it, the scheduler gets no nodes."""

    namespace: str
    pod: str
    policy: str
    outcome: Outcome
    error: str
    candidates: Sequence[CandidateExplanation]


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
        nodes={node: _explain_policy(view, index.policy, node, now, _newest(view, node)) for node in nodes[:limit]},
    )


def _rank(strategy: StrategyIndex | None, node: str) -> int:
    """The rank of a node: violating nodes first, then rejected unknown ones, then all others."""
    if strategy is None or node in strategy.met:
        return 2
    if node in strategy.violated or node in strategy.kept:
        return 0
    return 1 if strategy.strategy.on_stale is OnStale.FAIL else 2


def explain_pod(
    view: View, decider: TelemetryDecider, pod: Pod, candidates: Sequence[str], now: float
) -> PodExplanation:
    """The answers of `decider` for `pod` and `candidates` (distinct names) at `now`, with the rules."""
    names = dict.fromkeys(candidates).keys()
    filtered = decider.filter(pod, names, now)
    passing = [node for node in names if node not in filtered.rejected]
    scores = decider.score(pod, dict.fromkeys(passing).keys(), now).scores or {}
    index = view.policies.get(PolicyKey(pod.namespace, pod.labels.get(POD_LABEL, "")))
    return PodExplanation(
        namespace=pod.namespace,
        pod=pod.name,
        policy=filtered.policy,
        outcome=filtered.outcome,
        error=filtered.error,
        candidates=[
            CandidateExplanation(
                node=node,
                passes=node not in filtered.rejected,
                reason=filtered.rejected.get(node, ""),
                score=scores.get(node),
                policy=None if index is None else _explain_policy(view, index.policy, node, now, _newest(view, node)),
            )
            for node in names
        ],
    )


_Newest = Callable[[str, str | None], Scrape | None]
"""The scrape of a node whose value counts, by metric and source (None: any)."""


def _newest(view: View, node: str) -> _Newest:
    return partial(newest, view.samples(node))


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
