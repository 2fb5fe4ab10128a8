"""The view: what is known of nodes and policies, kept so that an answer is set algebra over the candidates.

Facts come in one at a time (samples, labels, policies) with the time they are judged at. Each change touches only
what depends on it: the *indices* of the metrics that policies use (node to fresh value), and from these, for each
strategy that has a state, which nodes violate it and which meet it. Policies that use the same metric share its index.
Who is in neither set is unknown.

Staleness is a deadline a node, so the view is exact at any time once `advance` was called for it.

Who keeps a verdict of every policy for every node is told which of them a change touches, instead of judging all.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from tas.deadlines import Deadlines
from tas.policy import LogicalOperator, Operator, Policy, PolicyKey, Rule, Strategy, StrategyType
from tas.quantity import Quantity
from tas.rules import State, combined, rule_state
from tas.sample import MAX_SAMPLE_AGE, NodeSamples, Scrape, merge, newest
from tas.verdict import VERDICT_STRATEGIES

DEFAULT_STALE_AFTER = 120.0
"""Seconds after which a sample is too old, where the policy says nothing."""


class MetricKey(NamedTuple):
    """What an index is for: one metric, from one source or any, fresh for so many seconds."""

    metric: str
    source: str | None
    stale_after: float


class MetricIndex:
    """The fresh values of one metric, by node, and the strategies whose state depends on them."""

    __slots__ = ("dependents", "key", "targets", "users", "values", "watches")

    def __init__(self, key: MetricKey) -> None:
        self.key = key
        self.values: dict[str, Quantity] = {}
        self.dependents: list[StrategyIndex] = []
        self.watches: list[RuleWatch] = []
        self.targets: list[Quantity] = []  # of the dependents' rules, sorted
        self.users = 0

    def add_dependent(self, strategy: "StrategyIndex") -> None:
        """From now on `strategy` is judged again when a value passes one of its targets."""
        self.dependents.append(strategy)
        self._note_targets()

    def remove_dependent(self, strategy: "StrategyIndex") -> None:
        """`strategy` is gone."""
        self.dependents.remove(strategy)
        self._note_targets()

    def _note_targets(self) -> None:
        self.targets = sorted(
            {
                rule.target
                for strategy in self.dependents
                for rule, index in zip(strategy.strategy.rules, strategy.indices, strict=True)
                if index is self and rule.target is not None
            }
        )

    def passed(self, before: Quantity | None, after: Quantity | None) -> bool:
        """Whether the way from one value to another touches a target: only then a rule can change its state."""
        if before is None or after is None:
            return True
        low, high = (before, after) if before < after else (after, before)
        place = bisect_left(self.targets, low)
        return place < len(self.targets) and self.targets[place] <= high


class RuleWatch(NamedTuple):
    """A rule whose state matters to the verdict of a policy; `competes` if its value does too."""

    policy: PolicyKey
    rule: Rule
    competes: bool

    def is_touched(self, before: Quantity | None, after: Quantity | None) -> bool:
        """Whether the policy's verdict may be another one after this change of the fresh value."""
        state = rule_state(self.rule, after)
        return state is not rule_state(self.rule, before) or (self.competes and state is State.VIOLATED)


class JudgedNodes(NamedTuple):
    """Which nodes violate a strategy, and which meet it."""

    violated: set[str]
    met: set[str]

    def state(self, node: str) -> State:
        """That of one node: who is in neither set is unknown."""
        if node in self.met:
            return State.MET
        return State.VIOLATED if node in self.violated else State.UNKNOWN


class StrategyIndex:
    """One strategy of a policy: which nodes violate it, with the reason, and which meet it."""

    __slots__ = ("_rules", "indices", "met", "policy", "strategy", "unknown_reason", "violated", "violated_reasons")

    def __init__(self, policy: Policy, strategy: Strategy, indices: tuple[MetricIndex, ...]) -> None:
        self.policy = policy
        self.strategy = strategy
        self.indices = indices
        self._rules = [(rule, index.values) for rule, index in zip(strategy.rules, indices, strict=True)]
        self.violated: dict[str, str] = {}
        self.met: set[str] = set()
        self.violated_reasons = _violated_reasons(policy, strategy)
        self.unknown_reason = f"Node violates {policy.key.name}: no fresh sample of " + " or ".join(
            dict.fromkeys(rule.metric for rule in strategy.rules)
        )

    def refresh(self, node: str, labels: Mapping[str, str] | None) -> None:
        """Judges one node again."""
        state = self._state(node, labels)
        if state is State.VIOLATED:
            self.violated[node] = self._reason(node)
            self.met.discard(node)
        else:
            self.violated.pop(node, None)
            if state is State.MET:
                self.met.add(node)
            else:
                self.met.discard(node)

    def fill(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        """Judges every node that has a fresh value at once, by sets: 15,000 nodes take milliseconds."""
        violated, self.met = _judged_nodes(self.policy, self.strategy, self.indices, labels)
        self.violated = {node: self._reason(node) for node in violated}

    def _state(self, node: str, labels: Mapping[str, str] | None) -> State:
        if (selector := self.policy.node_selector) is not None:
            if labels is None:
                return State.UNKNOWN
            if not selector.matches(labels):
                return State.MET
        return combined(
            self.strategy.logical_operator,
            [rule_state(rule, values.get(node)) for rule, values in self._rules],
        )

    def _reason(self, node: str) -> str:
        """anyOf: the first violated rule; allOf: all of them. Few texts per policy, so the scheduler can group them."""
        if len(self.violated_reasons) == 1:
            return self.violated_reasons[0]
        for (rule, values), reason in zip(self._rules, self.violated_reasons, strict=True):
            if rule_state(rule, values.get(node)) is State.VIOLATED:
                return reason
        raise AssertionError(f"{node} violates no rule of {self.policy.key}")


class PolicyIndex:
    """A policy with the indices of its strategies."""

    __slots__ = ("dontschedule", "policy", "score_indices")

    def __init__(
        self, policy: Policy, dontschedule: StrategyIndex | None, score_indices: tuple[MetricIndex, ...] | None
    ) -> None:
        self.policy = policy
        self.dontschedule = dontschedule
        self.score_indices = score_indices


class View:
    """What is known. Not thread-safe: one event loop owns it."""

    def __init__(self, *, default_stale_after: float = DEFAULT_STALE_AFTER, verdicts: bool = False) -> None:
        """With `verdicts`, `touched` is kept: which policies may mean another thing for which node than before."""
        self.default_stale_after = default_stale_after
        self.touched: dict[str, set[PolicyKey]] = {}
        self._verdicts = verdicts
        self._indexed = INDEXED | frozenset(VERDICT_STRATEGIES) if verdicts else INDEXED
        self._samples: dict[str, NodeSamples] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._policies: dict[PolicyKey, PolicyIndex] = {}
        self._indices: dict[MetricKey, MetricIndex] = {}
        self._deadlines: Deadlines[str] = Deadlines()

    # What is known

    @property
    def nodes(self) -> Collection[str]:
        """Every node with samples or labels."""
        return self._samples.keys() | self._labels.keys()

    @property
    def sampled_nodes(self) -> Collection[str]:
        """Every node with samples, fresh or not."""
        return self._samples.keys()

    @property
    def labelled_nodes(self) -> Collection[str]:
        """Every node whose labels are known."""
        return self._labels.keys()

    @property
    def policies(self) -> Mapping[PolicyKey, PolicyIndex]:
        """Every policy, with its indices."""
        return self._policies

    def states(self, key: PolicyKey) -> Mapping[StrategyType, JudgedNodes]:
        """Who violates and who meets each strategy of a policy that has a state. For a view with `verdicts`."""
        policy = self._policies[key].policy
        return {
            kind: _judged_nodes(
                policy,
                strategy,
                [self._indices[self._metric_key(policy, rule)] for rule in strategy.rules],
                self._labels,
            )
            for kind in VERDICT_STRATEGIES
            if (strategy := policy.strategies.get(kind)) is not None and strategy.rules
        }

    def samples(self, node: str) -> NodeSamples:
        """What is known of a node's metrics, stale or not; empty for a node never heard of."""
        return self._samples.get(node, ())

    def labels(self, node: str) -> Mapping[str, str] | None:
        """A node's labels as the API server gave them, or None if it is not known to have any."""
        return self._labels.get(node)

    def metric(self, key: MetricKey, now: float) -> Mapping[str, Quantity]:
        """Each node's fresh value, kept up to date from now on: read it, and do not change it."""
        return MappingProxyType(self._use(key, now).values)

    def stale_after(self, policy: Policy) -> float:
        """Seconds after which `policy` takes a sample for too old."""
        return self.default_stale_after if policy.stale_after is None else policy.stale_after

    # What happens

    def add_samples(self, node: str, samples: Iterable[Scrape], now: float) -> None:
        """Takes in what is newer than what is known. Nothing known is ever replaced by something older."""
        known = self._samples.get(node, ())
        merged = merge(known, samples)
        if merged is not known:
            self._samples[node] = merged
            self._refresh(node, now)
            if self._verdicts and not _have_same_series(known, merged):  # of a new one there never was a sample
                self._touch(node, self._policies)

    def drop_samples(self, node: str) -> None:
        """The node is gone: what it reported counts no more."""
        if self._samples.pop(node, None) is None:
            return
        self._deadlines.discard(node)
        for index in self._indices.values():
            self._note(node, index, index.values.pop(node, None), None)
        self._refresh_strategies(node, self._strategies())

    def set_labels(self, node: str, labels: Mapping[str, str]) -> None:
        """The node's labels, as the API server gave them."""
        known = self._labels.get(node)
        if known != labels:
            self._labels[node] = labels
            self._refresh_strategies(node, self._selecting())
            self._touch(node, self._policies if known is None else self._selecting_policies())

    def drop_labels(self, node: str) -> None:
        """The node is gone from the API server."""
        if self._labels.pop(node, None) is not None:
            self._refresh_strategies(node, self._selecting())
            self._touch(node, self._policies)

    def set_policies(self, policies: Collection[Policy], now: float) -> None:
        """As `set_policy` for each. Of many metrics the values are looked up in one pass over the nodes."""
        self._index(
            [
                self._metric_key(policy, rule)
                for policy in policies
                for kind, strategy in policy.strategies.items()
                if kind in self._indexed
                for rule in strategy.rules
            ],
            now,
        )
        for policy in policies:
            self.set_policy(policy, now)

    def set_policy(self, policy: Policy, now: float) -> None:
        """A new policy, or a new version of one."""
        known = self._policies.get(policy.key)
        if known is not None and known.policy == policy:
            return
        indices = {
            kind: tuple(self._use(self._metric_key(policy, rule), now) for rule in strategy.rules)
            for kind, strategy in policy.strategies.items()
            if kind in self._indexed
        }
        if known is not None:  # only now, so that an index both versions use is not built anew
            self._release(known)
        dontschedule = None
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None and strategy.rules:
            dontschedule = StrategyIndex(policy, strategy, indices[StrategyType.DONTSCHEDULE])
            dontschedule.fill(self._labels)
            for index in dict.fromkeys(dontschedule.indices):
                index.add_dependent(dontschedule)
        self._policies[policy.key] = PolicyIndex(policy, dontschedule, indices.get(StrategyType.SCHEDULEONMETRIC))
        if self._verdicts:
            for watch in _watches(policy):
                self._indices[self._metric_key(policy, watch.rule)].watches.append(watch)
            self.touch_policy(policy.key)

    def drop_policy(self, key: PolicyKey) -> None:
        """The policy is gone; unknown ones are fine."""
        known = self._policies.pop(key, None)
        if known is not None:
            self._release(known)
            self.touch_policy(key)

    def touch_policy(self, key: PolicyKey) -> None:
        """Every node is to be judged again by this policy, which may be gone."""
        if self._verdicts:
            for node in self.nodes:
                self.touched.setdefault(node, set()).add(key)

    def touch_node(self, node: str) -> None:
        """The node is to be judged again by every policy: it is another one of its name."""
        self._touch(node, self._policies)

    def advance(self, now: float) -> None:
        """Lets time pass: what has become stale by `now` is unknown afterwards."""
        for node in self._deadlines.pop_due(now):
            self._refresh(node, now)

    def next_deadline(self) -> float | None:
        """When `advance` will next have something to do, or None."""
        return self._deadlines.next()

    # How it is kept

    def _metric_key(self, policy: Policy, rule: Rule) -> MetricKey:
        return MetricKey(rule.metric, rule.source, self.stale_after(policy))

    def _use(self, key: MetricKey, now: float) -> MetricIndex:
        self._index([key], now)
        index = self._indices[key]
        index.users += 1
        return index

    def _index(self, keys: Iterable[MetricKey], now: float) -> None:
        """Makes the indices that are not there yet."""
        missing = {key: MetricIndex(key) for key in keys if key not in self._indices}
        if not missing:
            return
        self._indices |= missing
        for node, samples in self._samples.items():
            soonest = inf
            for (metric, source, stale_after), index in missing.items():
                scrape = newest(samples, metric, source)
                if scrape is not None and (stale_at := scrape.time + stale_after) > now:
                    index.values[node] = scrape.metrics[metric]
                    soonest = min(soonest, stale_at)
            if soonest < inf:
                self._due_by(node, soonest)

    def _release(self, policy: PolicyIndex) -> None:
        if policy.dontschedule is not None:
            for index in dict.fromkeys(policy.dontschedule.indices):
                index.remove_dependent(policy.dontschedule)
        if self._verdicts:
            for watch in _watches(policy.policy):
                self._indices[self._metric_key(policy.policy, watch.rule)].watches.remove(watch)
        for kind, strategy in policy.policy.strategies.items():
            if kind in self._indexed:
                for rule in strategy.rules:
                    key = self._metric_key(policy.policy, rule)
                    index = self._indices[key]
                    index.users -= 1
                    if index.users == 0:
                        del self._indices[key]

    def _refresh(self, node: str, now: float) -> None:
        """Brings the indices of one node up to `now`, then the strategies that saw a change."""
        samples = self._samples[node]
        latest = max(scrape.time for scrape in samples)
        if latest + MAX_SAMPLE_AGE <= now:  # no policy can use it any more
            self.drop_samples(node)
            return
        due = latest + MAX_SAMPLE_AGE
        touched: dict[StrategyIndex, None] = {}
        for (metric, source, stale_after), index in self._indices.items():
            scrape = newest(samples, metric, source)
            if scrape is not None and (stale_at := scrape.time + stale_after) > now:
                value: Quantity | None = scrape.metrics[metric]
                due = min(due, stale_at)
            else:
                value = None
            if (before := index.values.get(node)) != value:
                if index.watches:
                    self._note(node, index, before, value)
                if value is None:
                    del index.values[node]
                else:
                    index.values[node] = value
                if index.passed(before, value):
                    touched.update(dict.fromkeys(index.dependents))
        self._deadlines.set(node, due)
        self._refresh_strategies(node, touched)

    def _note(self, node: str, index: MetricIndex, before: Quantity | None, after: Quantity | None) -> None:
        """A fresh value has changed, come or gone: notes which policies that touches."""
        for watch in index.watches:
            if watch.is_touched(before, after):
                self.touched.setdefault(node, set()).add(watch.policy)

    def _touch(self, node: str, policies: Iterable[PolicyKey]) -> None:
        if self._verdicts:
            self.touched.setdefault(node, set()).update(policies)

    def _due_by(self, node: str, when: float) -> None:
        known = self._deadlines.when(node)
        if known is None or when < known:
            self._deadlines.set(node, when)

    def _refresh_strategies(self, node: str, strategies: Iterable[StrategyIndex]) -> None:
        labels = self._labels.get(node)
        for strategy in strategies:
            strategy.refresh(node, labels)

    def _strategies(self) -> Iterator[StrategyIndex]:
        return (entry.dontschedule for entry in self._policies.values() if entry.dontschedule is not None)

    def _selecting_policies(self) -> Iterator[PolicyKey]:
        return (key for key, entry in self._policies.items() if entry.policy.node_selector is not None)

    def _selecting(self) -> Iterator[StrategyIndex]:
        return (strategy for strategy in self._strategies() if strategy.policy.node_selector is not None)


INDEXED = frozenset({StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC})
"""The strategies an extender answers from."""


def _have_same_series(one: NodeSamples, other: NodeSamples) -> bool:
    """Whether two accounts of a node tell of the same metrics from the same sources."""
    if [(each.source, each.metrics.keys()) for each in one] == [(each.source, each.metrics.keys()) for each in other]:
        return True  # as nearly always
    return _series(one) == _series(other)


def _series(samples: NodeSamples) -> set[tuple[str, str]]:
    return {(scrape.source, metric) for scrape in samples for metric in scrape.metrics}


def _watches(policy: Policy) -> Iterator[RuleWatch]:
    """What the verdict of a policy hangs on, each once; the values themselves where rules compete for a label."""
    for kind in VERDICT_STRATEGIES:
        strategy = policy.strategies.get(kind)
        if strategy is None:
            continue
        carried = Counter(name for rule in strategy.rules for name, _ in rule.labels)
        for rule in strategy.rules:
            yield RuleWatch(policy.key, rule, any(carried[name] > 1 for name, _ in rule.labels))


def _rule_sets(rule: Rule, values: Mapping[str, Quantity]) -> tuple[set[str], set[str]]:
    """Which nodes violate a rule, and which meet it."""
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


def _judged_nodes(
    policy: Policy, strategy: Strategy, indices: Iterable[MetricIndex], labels: Mapping[str, Mapping[str, str]]
) -> JudgedNodes:
    """Every node that has a fresh value, or that the policy does not concern."""
    per_rule = [_rule_sets(rule, index.values) for rule, index in zip(strategy.rules, indices, strict=True)]
    violated, met = _combined_sets(strategy.logical_operator, per_rule)
    if (selector := policy.node_selector) is not None:
        outside = {node for node, known in labels.items() if not selector.matches(known)}
        violated = {node for node in violated if node in labels and node not in outside}
        met = {node for node in met if node in labels} | outside
    return JudgedNodes(violated, met)


def _combined_sets(operator: LogicalOperator, rules: list[tuple[set[str], set[str]]]) -> tuple[set[str], set[str]]:
    """`tas.rules.combined` over sets; at least one rule."""
    all_violated, all_met = [violated for violated, _ in rules], [met for _, met in rules]
    if operator is LogicalOperator.ANY_OF:
        return set.union(*all_violated), set.intersection(*all_met)
    return set.intersection(*all_violated), set.union(*all_met)


def _violated_reasons(policy: Policy, strategy: Strategy) -> tuple[str, ...]:
    prefix = f"Node violates {policy.key.name}: "
    if strategy.logical_operator is LogicalOperator.ALL_OF:
        return (prefix + " and ".join(str(rule) for rule in strategy.rules),)
    return tuple(prefix + str(rule) for rule in strategy.rules)
