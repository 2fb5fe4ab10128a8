"""The decisions of telemetry: `dontschedule` filters and `scheduleonmetric` scores, from the view only."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import filterfalse, islice
from typing import NamedTuple

from tas.extender.decision import MAX_REJECTED, FilterDecision, Outcome, Pod, RejectingValue, ScoreDecision
from tas.policy.policy import POD_LABEL, PolicyKey, Rule, Strategy, StrategyType
from tas.policy.rules import State, rejecting_states, rule_state
from tas.samples.freshness import is_fresh, kept_until
from tas.samples.sample import NodeSamples, Scrape, newest
from tas.scoring.score import Ranking, strategy_scores
from tas.values.quantity import Quantity, format_quantity
from tas.view.indices import PolicyIndex, StrategyIndex
from tas.view.view import View


class TelemetryDecider:
    """Decides for pods that name a TASPolicy of their own namespace.

    Args:
        view: The state of nodes and policies; moved to `now` before each decision.
        unknown_policy_fails: Whether a policy that does not exist gives an `Error`; else all candidates pass.
        unresolvable: Whether rejected nodes are reported as not resolvable by evictions (facts.md c19).
    """

    def __init__(self, view: View, *, unknown_policy_fails: bool = False, unresolvable: bool = True) -> None:
        self._view = view
        self._unknown_policy_fails = unknown_policy_fails
        self._unresolvable = unresolvable

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        """The candidates that the policy's `dontschedule` rejects (`tas.policy.rules.rejecting_states`).

        With `onStale: keep` also unknown ones that violate the rules by kept values.
        """
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
        # `filter` loops in C, since a pod has thousands of candidates. Most of them are only looked up in `violated`,
        # the smaller table: a look-up in `met` takes twice as long.
        rejected = {node: strategy.violated[node] for node in filter(strategy.violated.__contains__, candidates)}
        kept_rejected = 0
        if strategy.kept:
            kept = {node: strategy.kept[node] for node in filter(strategy.kept.__contains__, candidates)}
            rejected |= kept
            kept_rejected = len(kept)
        count_unknown: Callable[[], int] = partial(_count_unknown, strategy, candidates, len(rejected))
        unknown_rejected = 0
        if State.UNKNOWN in rejecting_states(found.policy):
            known = strategy.met
            violating = len(rejected)
            rejected |= {
                node: strategy.unknown_reason for node in candidates if node not in known and node not in rejected
            }
            unknown_rejected = len(rejected) - violating
            count_unknown = int
        return FilterDecision(
            outcome=Outcome.DECIDED,
            policy=policy,
            rejected=rejected,
            count_unknown=count_unknown,
            unknown_rejected=unknown_rejected,
            kept_rejected=kept_rejected,
            list_values=partial(
                _rejecting_values,
                strategy,
                [
                    _Rejected(node, self._view.samples(node), self._view.kept_from(node), node in strategy.kept)
                    for node in islice(rejected, MAX_REJECTED)
                ],
                self._view.stale_after(found.policy),
                now,
            ),
            unresolvable=self._unresolvable,
        )

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        """The scores of the candidates by the policy's `scheduleonmetric`; none if no candidate has a fresh value."""
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
        values = found.score_values(candidates)
        outside: frozenset[str] = frozenset()
        if found.policy.node_selector is not None:
            selected = {node: found.policy.selects(self._view.labels(node)) for node in candidates}
            outside = frozenset(node for node, is_selected in selected.items() if is_selected is False)
            known_nodes = [node for node, is_selected in selected.items() if is_selected is not None]
            values = [{node: of[node] for node in known_nodes if node in of} for of in values]
        inside = [node for node in candidates if node not in outside] if outside else candidates
        scores = strategy_scores(strategy, values, inside)
        unknown = 0 if isinstance(scores, Ranking) else _count_without_value(strategy, values, inside)
        if unknown == len(inside):
            return ScoreDecision(outcome=Outcome.DECIDED, policy=policy, unknown=unknown)
        if outside:  # a node that the policy does not select gets the score 0
            scores = dict(scores) | dict.fromkeys(outside, 0)
        return ScoreDecision(
            outcome=Outcome.DECIDED,
            policy=policy,
            scores=scores,
            unknown=unknown,
            costed=found.costed_of(candidates) - found.costed_of(outside),
        )

    def _policy(self, pod: Pod) -> PolicyIndex | FilterDecision:
        """The pod's policy, or the decision if there is none."""
        name = pod.labels.get(POD_LABEL)
        if name is None:
            return FilterDecision(outcome=Outcome.NO_POLICY)
        key = PolicyKey(pod.namespace, name)
        policy = self._view.policies.get(key)
        if policy is not None:
            return policy
        error = f"policy {key} not found" if self._unknown_policy_fails else ""
        return FilterDecision(outcome=Outcome.POLICY_NOT_FOUND, policy=str(key), error=error)


class _Rejected(NamedTuple):
    """A rejected node, with its samples, since when its values are kept, and whether it is rejected by kept ones."""

    node: str
    samples: NodeSamples
    kept_from: float
    by_kept: bool


def _rejecting_values(
    strategy: StrategyIndex, nodes: Iterable[_Rejected], stale_after: float, now: float
) -> Iterator[RejectingValue]:
    """The values of the violated rules of each node; without a violated rule, those of the unknown rules.

    `nodes` are the rejected nodes as they were at the time `now`.
    """
    rules = list(zip(strategy.strategy.rules, strategy.rule_texts, strict=True))
    for each in nodes:
        violated: list[tuple[str, Rule, Scrape | None, bool]] = []
        unknown: list[tuple[str, Rule, Scrape | None, bool]] = []
        for rule, text in rules:
            scrape = newest(each.samples, rule.metric, rule.source)
            fresh = scrape is not None and is_fresh(scrape, stale_after, now)
            kept = (
                scrape is not None
                and not fresh
                and each.by_kept
                and kept_until(scrape.time, strategy.strategy.keep_for, each.kept_from) > now
            )
            value = scrape.metrics[rule.metric] if scrape is not None and (fresh or kept) else None
            state = rule_state(rule, value)
            if state is State.VIOLATED:
                violated.append((text, rule, scrape, kept))
            elif state is State.UNKNOWN:
                unknown.append((text, rule, scrape, False))
        for text, rule, scrape, kept in violated or unknown:
            yield RejectingValue(
                node=each.node,
                rule=text,
                value=None if scrape is None else format_quantity(scrape.metrics[rule.metric]),
                age_seconds=None if scrape is None else max(0.0, now - scrape.time),
                source=None if scrape is None else scrape.source,
                kept=kept,
            )


def _count_unknown(strategy: StrategyIndex, candidates: Collection[str], violating: int) -> int:
    return max(0, sum(1 for _ in filterfalse(strategy.met.__contains__, candidates)) - violating)


def _count_without_value(strategy: Strategy, values: Sequence[Mapping[str, Quantity]], nodes: Collection[str]) -> int:
    """The number of nodes without a fresh value for any rule that counts; `values` holds the values of each rule."""
    first, *others = (of for of, counts in zip(values, strategy.rule_counts, strict=True) if counts)
    if not others:
        return len(nodes) - sum(map(first.__contains__, nodes))
    return sum(not any(node in of for of in (first, *others)) for node in nodes)


def _idle(policy: PolicyIndex) -> Outcome | None:
    """Why an existing policy has no effect: if suspended or dry-run, all candidates pass and none is scored."""
    if policy.policy.suspend:
        return Outcome.SUSPENDED
    return Outcome.DRY_RUN if policy.policy.dry_run else None
