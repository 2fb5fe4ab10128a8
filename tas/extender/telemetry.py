"""Telemetry's answers: `dontschedule` filters and `scheduleonmetric` scores, from the view alone."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from tas.extender.decision import FilterDecision, Outcome, Pod, ScoreDecision
from tas.policy import POD_LABEL, PolicyKey, Strategy, StrategyType
from tas.quantity import Quantity
from tas.rules import State, rejecting_states
from tas.score import Ranking, strategy_scores
from tas.view import PolicyIndex, StrategyIndex, View


class TelemetryDecider:
    """Answers for pods that name a TASPolicy of their own namespace.

    Args:
        view: What is known; brought up to `now` before each answer.
        unknown_policy_fails: Whether a policy that does not exist is an `Error` rather than no opinion.
        unresolvable: Whether rejected nodes are told as beyond the help of evictions (protocol c19).
    """

    def __init__(self, view: View, *, unknown_policy_fails: bool = False, unresolvable: bool = True) -> None:
        self._view = view
        self._unknown_policy_fails = unknown_policy_fails
        self._unresolvable = unresolvable

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        """Which candidates the policy's `dontschedule` rejects (`tas.rules.rejecting_states`)."""
        self._view.advance(now)
        found = self._policy(pod)
        if isinstance(found, FilterDecision):
            return found
        policy = str(found.policy.key)
        if (idle := _idle(found)) is not None:
            return FilterDecision(outcome=idle, policy=policy)
        strategy = found.dontschedule
        if strategy is None:
            return FilterDecision(outcome=Outcome.NO_RULES, policy=policy)
        # Loops in C: what is done for each candidate is done for thousands on the way of one pod. Most are not in the
        # smaller of the two tables, which is soon told; to look into the larger one costs twice as much.
        rejected = {node: strategy.violated[node] for node in filter(strategy.violated.__contains__, candidates)}
        count_unknown: Callable[[], int] = partial(_count_unknown, strategy, candidates, len(rejected))
        if State.UNKNOWN in rejecting_states(found.policy):
            known = strategy.met
            rejected |= {
                node: strategy.unknown_reason for node in candidates if node not in known and node not in rejected
            }
            count_unknown = int
        return FilterDecision(
            outcome=Outcome.DECIDED,
            policy=policy,
            rejected=rejected,
            count_unknown=count_unknown,
            unresolvable=self._unresolvable,
        )

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        """How the policy's `scheduleonmetric` ranks the candidates; no opinion where none has a fresh value."""
        self._view.advance(now)
        found = self._policy(pod)
        if isinstance(found, FilterDecision):
            return ScoreDecision(outcome=found.outcome, policy=found.policy)
        policy = str(found.policy.key)
        if (idle := _idle(found)) is not None:
            return ScoreDecision(outcome=idle, policy=policy)
        strategy = found.policy.strategies.get(StrategyType.SCHEDULEONMETRIC)
        if strategy is None or not strategy.rules or not found.score_indices:
            return ScoreDecision(outcome=Outcome.NO_RULES, policy=policy)
        values = [index.values for index in found.score_indices]
        outside: frozenset[str] = frozenset()
        if (selector := found.policy.node_selector) is not None:
            labels = {node: self._view.labels(node) for node in candidates}
            outside = frozenset(n for n, known in labels.items() if known is not None and not selector.matches(known))
            chosen = {n for n, known in labels.items() if known is not None and n not in outside}
            values = [{node: of[node] for node in chosen if node in of} for of in values]
        inside = [node for node in candidates if node not in outside] if outside else candidates
        scores = strategy_scores(strategy, values, inside)
        unknown = 0 if isinstance(scores, Ranking) else _count_without_value(strategy, values, inside)
        if unknown == len(inside):
            return ScoreDecision(outcome=Outcome.DECIDED, policy=policy, unknown=unknown)
        if outside:  # a node that the policy does not concern earns nothing by it
            scores = dict(scores) | dict.fromkeys(outside, 0)
        return ScoreDecision(outcome=Outcome.DECIDED, policy=policy, scores=scores, unknown=unknown)

    def _policy(self, pod: Pod) -> PolicyIndex | FilterDecision:
        """The pod's policy, or the decision where there is none."""
        name = pod.labels.get(POD_LABEL)
        if name is None:
            return FilterDecision(outcome=Outcome.NO_POLICY)
        key = PolicyKey(pod.namespace, name)
        policy = self._view.policies.get(key)
        if policy is not None:
            return policy
        error = f"policy {key} not found" if self._unknown_policy_fails else ""
        return FilterDecision(outcome=Outcome.POLICY_NOT_FOUND, policy=str(key), error=error)


def _count_unknown(strategy: StrategyIndex, candidates: Collection[str], violating: int) -> int:
    return max(0, len(candidates) - violating - sum(map(strategy.met.__contains__, candidates)))


def _count_without_value(strategy: Strategy, values: Sequence[Mapping[str, Quantity]], nodes: Collection[str]) -> int:
    """How many nodes have a fresh value of no rule that counts; `values` are those of each rule."""
    first, *others = (of for of, counts in zip(values, strategy.rule_counts, strict=True) if counts)
    if not others:
        return len(nodes) - sum(map(first.__contains__, nodes))
    return sum(not any(node in of for of in (first, *others)) for node in nodes)


def _idle(policy: PolicyIndex) -> Outcome | None:
    """Why a policy that exists does not act: suspended or dry run passes all and scores none."""
    if policy.policy.suspend:
        return Outcome.SUSPENDED
    return Outcome.DRY_RUN if policy.policy.dry_run else None
