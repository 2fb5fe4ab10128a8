"""Indices of a view: the fresh values of each metric, and what strategies and policies have decided from them.

An index that a strategy with `onStale: keep` uses also has the kept values of nodes without a fresh one. While all
values are fresh, it has none, and they cost nothing.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from tas.policy.policy import LogicalOperator, Operator, Policy, PolicyKey, Rule, Strategy, StrategyType
from tas.policy.rules import LAST_KNOWN, State, kept_state, rejection_prefix, rule_state, strategy_state
from tas.samples.freshness import kept_until
from tas.samples.table import TableKey
from tas.values.quantity import Quantity
from tas.verdict.verdict import VERDICT_STRATEGIES

OLDEST_OF = 20
"""Of so many nodes the oldest kept value is looked for: they are looked at whenever metrics are asked for."""


class MetricKey(NamedTuple):
    """The key of an index: one metric, from one source or any, and the seconds for which a sample is fresh."""

    metric: str
    source: str | None
    stale_after: float


MetricFollower = Callable[[str, Quantity | None, float | None], None]
"""Called after each sample with a node, its fresh value of a metric, and the time of the newest value, fresh or not."""


class Kept(NamedTuple):
    """A value that is not fresh, when it was measured, and when the next strategy keeps it no more.

    In seconds since 1970.
    """

    value: Quantity
    time: float
    until: float


class MetricIndex:
    """The fresh values of one metric by node, the kept ones of the others, and the strategies that depend on them."""

    __slots__ = (
        "dependents",
        "followers",
        "keep_counts",
        "kept",
        "key",
        "target_counts",
        "targets",
        "users",
        "values",
        "watches",
    )

    def __init__(self, key: MetricKey) -> None:
        self.key = key
        self.values: dict[str, Quantity] = {}
        self.kept: dict[str, Kept] = {}
        self.keep_counts: Counter[float] = Counter()  # how many dependents keep values for so many seconds
        self.dependents: dict[StrategyIndex, None] = {}
        self.watches: dict[PolicyKey, list[RuleWatch]] = {}
        self.targets: list[Quantity] = []  # of the dependents' rules and the watches, sorted, each once
        self.target_counts: Counter[Quantity] = Counter()
        self.users = 0
        self.followers: list[MetricFollower] = []

    def add_dependent(self, strategy: "StrategyIndex") -> None:
        """Adds a strategy that is evaluated again when a value crosses one of its targets."""
        self.dependents[strategy] = None
        if strategy.strategy.keeps:
            self.keep_counts[strategy.strategy.keep_for] += 1
        for target in self._targets_of(strategy):
            self._add_target(target)

    def remove_dependent(self, strategy: "StrategyIndex") -> None:
        """Removes a strategy added before."""
        del self.dependents[strategy]
        if strategy.strategy.keeps:
            self.keep_counts -= Counter({strategy.strategy.keep_for: 1})
            if not self.keep_counts:
                self.kept.clear()
        for target in self._targets_of(strategy):
            self._remove_target(target)

    def add_watch(self, watch: "RuleWatch") -> None:
        """Adds a rule on which a verdict depends."""
        self.watches.setdefault(watch.policy, []).append(watch)
        if watch.rule.target is not None:
            self._add_target(watch.rule.target)

    def remove_watches(self, policy: PolicyKey) -> None:
        """Removes the rules of a policy; without effect if there are none."""
        for watch in self.watches.pop(policy, ()):
            if watch.rule.target is not None:
                self._remove_target(watch.rule.target)

    def _add_target(self, target: Quantity) -> None:
        self.target_counts[target] += 1
        if self.target_counts[target] == 1:
            insort(self.targets, target)

    def _remove_target(self, target: Quantity) -> None:
        self.target_counts[target] -= 1
        if not self.target_counts[target]:
            del self.target_counts[target]
            del self.targets[bisect_left(self.targets, target)]

    def _targets_of(self, strategy: "StrategyIndex") -> Iterator[Quantity]:
        """The targets of a strategy's rules for this metric."""
        for rule, index in zip(strategy.strategy.rules, strategy.indices, strict=True):
            if index is self and rule.target is not None:
                yield rule.target

    def keep(self, value: Quantity, time: float, kept_from: float, now: float) -> Kept | None:
        """A value that is not fresh, as long as a strategy keeps it; None: none does. Arguments as `kept_until`."""
        until = self.kept_until(time, kept_from, now)
        return None if until is None else Kept(value, time, until)

    def kept_until(self, time: float, kept_from: float, now: float) -> float | None:
        """When the next strategy keeps a value of `time` no more; None: none keeps it at `now`."""
        ends = (kept_until(time, keep_for, kept_from) for keep_for in self.keep_counts)
        return min((end for end in ends if end > now), default=None)

    def set_kept(self, node: str, kept: Kept | None) -> bool:
        """Sets the kept value of a node, None: it has none; whether that is a change."""
        if self.kept.get(node) == kept:
            return False
        if kept is None:
            del self.kept[node]
        else:
            self.kept[node] = kept
        return True

    def concerns(self, key: TableKey) -> bool:
        """Whether values of this table's source count."""
        return self.key.source is None or self.key.source == key.source

    @property
    def competes(self) -> bool:
        """Whether the verdict of a policy may change with any change of a value."""
        return any(watch.competes for watches in self.watches.values() for watch in watches)

    def crosses_target(self, before: Quantity | None, after: Quantity | None) -> bool:
        """Whether a target lies between two values, or at one of them: only then a rule can change its state."""
        if before is None or after is None:
            return True
        low, high = (before, after) if before < after else (after, before)
        index = bisect_left(self.targets, low)
        return index < len(self.targets) and self.targets[index] <= high


class RuleWatch(NamedTuple):
    """A rule whose state matters to the verdict of a policy; with `competes` its value matters too."""

    policy: PolicyKey
    rule: Rule
    competes: bool

    def is_touched(self, before: Quantity | None, after: Quantity | None) -> bool:
        """Whether the policy's verdict may change with this change of the fresh value."""
        state = rule_state(self.rule, after)
        return state is not rule_state(self.rule, before) or (self.competes and state is State.VIOLATED)


class StrategyIndex:
    """One strategy of a policy: the nodes that violate it, with the reason, and the nodes that meet it.

    `kept` has the nodes that violate it only by kept values, with the reason. Their state is unknown.
    """

    __slots__ = (
        "_rules",
        "indices",
        "kept",
        "met",
        "policy",
        "rule_texts",
        "strategy",
        "unknown_reason",
        "violated",
        "violated_reasons",
    )

    def __init__(self, policy: Policy, strategy: Strategy, indices: tuple[MetricIndex, ...]) -> None:
        self.policy = policy
        self.strategy = strategy
        self.indices = indices
        self._rules = [(rule, index.values) for rule, index in zip(strategy.rules, indices, strict=True)]
        self.violated: dict[str, str] = {}
        self.kept: dict[str, str] = {}
        self.met: set[str] = set()
        self.rule_texts = strategy.rule_texts
        self.violated_reasons = _violated_reasons(policy, strategy)
        self.unknown_reason = (
            rejection_prefix(policy.key.name)
            + "no fresh sample of "
            + " or ".join(dict.fromkeys(rule.metric for rule in strategy.rules))
        )

    def refresh(self, node: str, labels: Mapping[str, str] | None, now: float) -> None:
        """Evaluates one node again, at `now` in seconds since 1970."""
        state = self._state(node, labels)
        self.violated.pop(node, None)
        self.kept.pop(node, None)
        self.met.discard(node)
        if state is State.VIOLATED:
            self.violated[node] = self._reason(node)
        elif state is State.MET:
            self.met.add(node)
        else:
            self._keep(node, labels, now)

    def fill(self, labels: Mapping[str, Mapping[str, str] | None], now: float) -> None:
        """Evaluates all nodes at once, as sets: 15,000 nodes take milliseconds."""
        rule_sets = [_rule_sets(rule, values) for rule, values in self._rules]
        violated, self.met = _combined_sets(self.strategy.logical_operator, rule_sets)
        if self.policy.node_selector is not None:
            selects = {node: self.policy.selects(known) for node, known in labels.items()}
            selected = {node for node, is_selected in selects.items() if is_selected}
            outside = {node for node, is_selected in selects.items() if is_selected is False}
            violated, self.met = violated & selected, (self.met & selected) | outside
        self.violated = {node: self._reason(node) for node in violated}
        for node in frozenset[str]().union(*(index.kept for index in self.indices)) - self.met - violated:
            self._keep(node, labels.get(node), now)

    def kept_values(self, node: str, now: float) -> list[Quantity | None]:
        """For each rule the fresh value of a node, or the kept one; None without either."""
        return [index.values.get(node, self._kept_value(index, node, now)) for index in self.indices]

    def oldest_kept(self, now: float) -> float | None:
        """When the oldest value was measured that is kept of a node which only kept values reject; None without any.

        Of `OLDEST_OF` nodes: those that have been rejected so for longest, but for edits.
        """
        since = now - self.strategy.keep_for
        nodes = [*islice(self.kept, OLDEST_OF)]
        found = (kept.time for index in self.indices for node in nodes if (kept := index.kept.get(node)))
        return min((time for time in found if time > since), default=None)

    def _kept_value(self, index: MetricIndex, node: str, now: float) -> Quantity | None:
        kept = index.kept.get(node)
        return None if kept is None or kept.time + self.strategy.keep_for <= now else kept.value

    def _keep(self, node: str, labels: Mapping[str, str] | None, now: float) -> None:
        """Notes an unknown node that violates the strategy by kept values."""
        if not self.strategy.keeps or not any(node in index.kept for index in self.indices):
            return
        values = self.kept_values(node, now)
        if kept_state(self.strategy, values, selected=self.policy.selects(labels)) is State.VIOLATED:
            self.kept[node] = self._reason_by(values) + LAST_KNOWN

    def _state(self, node: str, labels: Mapping[str, str] | None) -> State:
        states = [rule_state(rule, values.get(node)) for rule, values in self._rules]
        return strategy_state(self.strategy, states, selected=self.policy.selects(labels))

    def _reason(self, node: str) -> str:
        """anyOf: the first violated rule; allOf: all rules. The scheduler groups equal reasons, so they are few."""
        if len(self.violated_reasons) == 1:
            return self.violated_reasons[0]
        return self._reason_by([values.get(node) for _, values in self._rules])

    def _reason_by(self, values: Sequence[Quantity | None]) -> str:
        if len(self.violated_reasons) == 1:
            return self.violated_reasons[0]
        for (rule, _), value, reason in zip(self._rules, values, self.violated_reasons, strict=True):
            if rule_state(rule, value) is State.VIOLATED:
                return reason
        raise AssertionError(f"no rule of {self.policy.key} is violated")


class PolicyIndex:
    """A policy with the indices of its strategies.

    `costed` has for each rule of `scheduleonmetric` the values with the costs of pods that no sample shows yet, by
    node. It is empty if no rule that counts has a `podCost`.
    """

    __slots__ = ("costed", "dontschedule", "policy", "score_indices")

    def __init__(
        self, policy: Policy, dontschedule: StrategyIndex | None, score_indices: tuple[MetricIndex, ...] | None
    ) -> None:
        self.policy = policy
        self.dontschedule = dontschedule
        self.score_indices = score_indices
        self.costed: tuple[dict[str, Quantity], ...] = ()
        strategy = policy.strategies.get(StrategyType.SCHEDULEONMETRIC)
        if strategy is not None and any(cost is not None for cost in strategy.pod_costs):
            self.costed = tuple({} for _ in strategy.rules)

    def score_values(self, candidates: Collection[str]) -> list[Mapping[str, Quantity]]:
        """For each rule of `scheduleonmetric` node to fresh value, with the costs of pods; of other nodes, too."""
        indices = self.score_indices or ()
        if not any(self.costed):
            return [index.values for index in indices]
        return [
            _with_costs(index.values, costed, candidates) if costed else index.values
            for index, costed in zip(indices, self.costed, strict=True)
        ]

    def costed_of(self, candidates: Collection[str]) -> int:
        """The number of candidates whose value has costs of pods, by any rule."""
        if not any(self.costed):
            return 0
        return len(set().union(*(costed.keys() & candidates for costed in self.costed)))


def _with_costs(
    values: Mapping[str, Quantity], costed: Mapping[str, Quantity], candidates: Collection[str]
) -> dict[str, Quantity]:
    """The value of each candidate that has one, with costs where there are any. All loops are in C."""
    known = list(filter(values.__contains__, candidates))
    found = dict(zip(known, map(values.__getitem__, known), strict=True))
    hot = list(costed.keys() & candidates)
    found.update(zip(hot, map(costed.__getitem__, hot), strict=True))
    return found


def watches_of(policy: Policy) -> Iterator[RuleWatch]:
    """The rules on which the verdict of a policy depends; rules that set the same label compete by their values."""
    for kind in VERDICT_STRATEGIES:
        strategy = policy.strategies.get(kind)
        if strategy is None:
            continue
        carried = Counter(name for rule in strategy.rules for name, _ in rule.labels)
        for rule in strategy.rules:
            yield RuleWatch(policy.key, rule, any(carried[name] > 1 for name, _ in rule.labels))


def _rule_sets(rule: Rule, values: Mapping[str, Quantity]) -> tuple[set[str], set[str]]:
    """The nodes that violate a rule, and the nodes that meet it."""
    target = rule.target
    if target is None or rule.operator is None:
        return set(), set()
    if rule.operator is Operator.GREATER_THAN:
        violated = {node for node, value in values.items() if value > target}
    elif rule.operator is Operator.LESS_THAN:
        violated = {node for node, value in values.items() if value < target}
    else:
        violated = {node for node, value in values.items() if value == target}
    return violated, values.keys() - violated


def _combined_sets(operator: LogicalOperator, rules: list[tuple[set[str], set[str]]]) -> tuple[set[str], set[str]]:
    """`tas.policy.rules.combined` for sets of nodes, of at least one rule."""
    all_violated, all_met = [violated for violated, _ in rules], [met for _, met in rules]
    if operator is LogicalOperator.ANY_OF:
        return set.union(*all_violated), set.intersection(*all_met)
    return set.intersection(*all_violated), set.union(*all_met)


def _violated_reasons(policy: Policy, strategy: Strategy) -> tuple[str, ...]:
    prefix = rejection_prefix(policy.key.name)
    if strategy.logical_operator is LogicalOperator.ALL_OF:
        return (prefix + " and ".join(str(rule) for rule in strategy.rules),)
    return tuple(prefix + str(rule) for rule in strategy.rules)
