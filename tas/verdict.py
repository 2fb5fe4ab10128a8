"""What a node's samples mean for its labels: verdicts, and what each wishes.

A label has three wishes: *set*, *absent* and *hold*. Hold is silence: the label stays as it is. A removal follows only
from a fresh sample that meets the rule, or from a word of the policy; the absence of anything never removes.

Evaluating is a step: the verdict before, what is known now, and the time give the verdict after, and when to look again
if nothing happens. So `for` and `clearFor` are in the verdict itself, and any copy of a worker can go on from there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from tas.names import is_label_key, is_label_name, is_label_value
from tas.policy import LABEL_PREFIX, LogicalOperator, OnStale, Operator, Policy, PolicyKey, Rule, Strategy, StrategyType
from tas.quantity import Quantity, format_quantity
from tas.rules import State, combined, rejecting_states, rule_state
from tas.sample import NodeSamples, newest

VIOLATING = "violating"
"""The value of a `deschedule` label; of a bare key the only one that is ever removed."""

VERDICT_STRATEGIES = (StrategyType.DONTSCHEDULE, StrategyType.DESCHEDULE, StrategyType.LABELING)
"""The strategies that have a state."""


class WishKind(StrEnum):
    """What a strategy wishes of a label, strongest first: set beats hold beats absent."""

    SET = "set"
    SET_UNLESS_ANY = "setUnlessAny"
    """Set, unless the node has some value there already: the winner may be another one, if only we knew."""
    HOLD = "hold"
    ABSENT = "absent"


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """The wish for one label; `value` is what to set."""

    kind: WishKind
    value: str = ""


HOLD = Wish(WishKind.HOLD)
ABSENT = Wish(WishKind.ABSENT)


class LabelVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one label's rules, and what follows. Times are in seconds since 1970.

    `state` is what samples say. The times count unknown as `onStale` says: `violated_since` outlives unknown, and ends
    with met; `met_since` ends with anything else.
    """

    state: State
    wish: Wish
    violated_since: float | None = None
    met_since: float | None = None


class StrategyVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy of one policy for one node.

    `labels` maps each label key, as it stands on a node, to its verdict; none for `dontschedule`. `value` is that of
    the first rule at `changed`, when the state last changed, as quantity text; "" if there was none. `sampled` are the
    series of its rules (`metric`, or `metric@source`) of which there once was a sample, sorted: `onStale: clear` asks.
    `rejects`: of `dontschedule`, whether filter rejects the node for pods of the policy.
    """

    state: State
    changed: float
    value: str = ""
    labels: Mapping[str, LabelVerdict] = {}
    sampled: tuple[str, ...] = ()
    rejects: bool = False


class PolicyVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One policy for one node.

    `holds_prefix`: something of its `labeling` cannot be read, or the policy is suspended or dry-run, so labels under
    its prefix that nobody wishes are held.
    """

    uid: str
    generation: int
    strategies: Mapping[StrategyType, StrategyVerdict]
    holds_prefix: bool = False


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Every policy for one node, as it stands in VERDICTS.

    `node_uid` is that of the facts ("" without a cluster): a verdict of another uid is void. The revisions are those of
    the node's entries in NODES (the last) and of POLICIES that it was computed from, at `time` (since 1970).
    """

    node_uid: str
    nodes_revision: int
    policies_revision: int
    time: float = 0.0
    policies: Mapping[PolicyKey, PolicyVerdict]


def deschedule_label(policy: PolicyKey) -> str | None:
    """The label of a `deschedule` strategy: the policy's bare name; None if no label can be called so (D45)."""
    return policy.name if is_label_name(policy.name) else None


def labeling_prefix(policy: PolicyKey) -> str:
    """What the label keys of a `labeling` strategy begin with."""
    return f"{LABEL_PREFIX}{policy.name}/"


def strategy_labels(key: PolicyKey, strategy: Strategy) -> frozenset[str]:
    """Each label that a strategy of a policy has a verdict of."""
    where = _Where(selected=True, samples=(), stale_after=0.0, now=0.0)
    return frozenset(each.label for each in _labels(key, strategy, _readings(strategy, where, sampled=()), where))


def strategy_series(strategy: Strategy) -> tuple[str, ...]:
    """What a strategy reads, as `StrategyVerdict.sampled` names it."""
    return tuple(sorted({_series(rule) for rule in strategy.rules}))


def evaluate_policy(
    policy: Policy,
    *,
    uid: str,
    generation: int,
    samples: NodeSamples,
    labels: Mapping[str, str] | None,
    stale_after: float,
    before: PolicyVerdict | None,
    now: float,
    stale_deadlines: bool = True,
    watched_since: float = 0.0,
    unmet: Mapping[str, float] = MappingProxyType({}),
) -> tuple[PolicyVerdict, float | None]:
    """The verdict of `policy` on a node, and when it may change by time alone (None: never).

    Args:
        policy: As it stands in POLICIES.
        uid: Of the policy; a verdict before with another uid was another policy's.
        generation: Of the policy.
        samples: What is known of the node's metrics.
        labels: The node's labels as the API server gave them; None if they are not known.
        stale_after: Seconds, where the policy does not say.
        before: The verdict that stands, if any.
        now: Seconds since 1970.
        stale_deadlines: Whether samples that become stale count for that; False for who follows them by `tas.view`.
        watched_since: Since when whoever judges has missed nothing: `clearFor` is kept by nobody before.
        unmet: When whoever judges last saw the rules of a label not met, by label, if only for a moment.
    """
    earlier = before if before is not None and before.uid == uid else None
    where = _Where(_selected(policy, labels), samples, _stale_after(policy, stale_after), now, watched_since, unmet)
    silent = policy.suspend or policy.dry_run
    holds_prefix = silent
    strategies: dict[StrategyType, StrategyVerdict] = {}
    deadlines: list[float] = []
    for kind in VERDICT_STRATEGIES:
        strategy = policy.strategies.get(kind)
        if strategy is None or not strategy.rules:
            continue
        acts = strategy.readable and not silent
        if kind is StrategyType.LABELING and not acts:
            holds_prefix = True
        stood = None if earlier is None else earlier.strategies.get(kind)
        strategies[kind], readings, due = _evaluate_strategy(policy.key, strategy, stood, where, acts=acts)
        deadlines += due
        if kind is StrategyType.DONTSCHEDULE and strategies[kind].state in rejecting_states(policy):
            strategies[kind] = msgspec.structs.replace(strategies[kind], rejects=True)
        if stale_deadlines and where.selected:
            deadlines += (reading.fresh_until for reading in readings if reading.fresh_until is not None)
    verdict = PolicyVerdict(uid=uid, generation=generation, strategies=strategies, holds_prefix=holds_prefix)
    return verdict, min(deadlines, default=None)


def same_meaning(one: PolicyVerdict, other: PolicyVerdict) -> bool:
    """Whether nothing that anybody acts on differs: a verdict that is merely confirmed is not written."""
    return (
        (one.uid, one.generation, one.holds_prefix) == (other.uid, other.generation, other.holds_prefix)
        and one.strategies.keys() == other.strategies.keys()
        and all(_same_strategy(each, other.strategies[kind]) for kind, each in one.strategies.items())
    )


def _same_strategy(one: StrategyVerdict, other: StrategyVerdict) -> bool:
    return (one.state, one.rejects, one.labels, one.sampled) == (
        other.state,
        other.rejects,
        other.labels,
        other.sampled,
    )


def confirms_removal(
    policy: Policy,
    label: str,
    *,
    samples: NodeSamples,
    labels: Mapping[str, str] | None,
    stale_after: float,
    now: float,
) -> bool:
    """Whether, from what was read just now, this policy itself justifies removing `label` from the node.

    True if fresh samples meet the rules of the label, if the policy's `nodeSelector` has left the node by labels that
    the API server gave, or if the policy says `onStale: clear` and its samples, of which there once was one, are stale.
    False for a policy that is suspended or dry-run, and for a label that it does not name: that is for the API server
    to say. For how long its rules have been met is not asked: that is what the verdict's wish says.
    """
    if policy.suspend or policy.dry_run:
        return False
    where = _Where(_selected(policy, labels), samples, _stale_after(policy, stale_after), now)
    for strategy in policy.strategies.values():
        if strategy.type not in VERDICT_STRATEGIES or not strategy.readable:
            continue
        for each in _labels(policy.key, strategy, _readings(strategy, where, sampled=()), where):
            if each.label == label:
                return each.counts_as is State.MET
    return False


def has_word(policy: Policy, label: str) -> bool:
    """Whether the verdict of `policy` speaks of `label`, or holds all that stands under its prefix."""
    verdict, _ = evaluate_policy(
        policy, uid="", generation=0, samples=(), labels=None, stale_after=0.0, before=None, now=0.0
    )
    spoken = {each for strategy in verdict.strategies.values() for each in strategy.labels}
    return label in spoken or (verdict.holds_prefix and label.startswith(labeling_prefix(policy.key)))


class _Where(NamedTuple):
    """What is known of the node, and when. `selected` is None where its labels are not known, but matter."""

    selected: bool | None
    samples: NodeSamples
    stale_after: float
    now: float
    watched_since: float = 0.0
    unmet: Mapping[str, float] = MappingProxyType({})


class _Reading(NamedTuple):
    """One rule for one node.

    `counts_as` is what `onStale` makes of `state`. `value` is the fresh one; it is so until `fresh_until`.
    """

    rule: Rule
    state: State
    counts_as: State
    value: Quantity | None
    fresh_until: float | None
    sampled: bool


class _Label(NamedTuple):
    """One label, with the rules that carry it and what they come to: as samples say, and as `onStale` counts it."""

    label: str
    readings: Sequence[_Reading]
    state: State
    counts_as: State


def _selected(policy: Policy, labels: Mapping[str, str] | None) -> bool | None:
    if policy.node_selector is None:
        return True
    return None if labels is None else policy.node_selector.matches(labels)


def _stale_after(policy: Policy, default: float) -> float:
    return default if policy.stale_after is None else policy.stale_after


def _series(rule: Rule) -> str:
    return rule.metric if rule.source is None else f"{rule.metric}@{rule.source}"


def _readings(strategy: Strategy, where: _Where, *, sampled: Collection[str]) -> list[_Reading]:
    readings = []
    for rule in strategy.rules:
        scrape = newest(where.samples, rule.metric, rule.source)
        value = fresh_until = None
        if scrape is not None and scrape.time + where.stale_after > where.now:
            value, fresh_until = scrape.metrics[rule.metric], scrape.time + where.stale_after
        state = rule_state(rule, value)
        was_sampled = scrape is not None or _series(rule) in sampled
        counts_as = _counted(state, strategy.on_stale, sampled=was_sampled)
        readings.append(_Reading(rule, state, counts_as, value, fresh_until, was_sampled))
    return readings


def _counted(state: State, on_stale: OnStale, *, sampled: bool) -> State:
    """What a rule's state counts as. Only what has become stale is cleared: of the rest nothing is known at all."""
    if state is State.UNKNOWN and on_stale is OnStale.VIOLATE:
        return State.VIOLATED
    if state is State.UNKNOWN and on_stale is OnStale.CLEAR and sampled:
        return State.MET
    return state


def _evaluate_strategy(
    key: PolicyKey, strategy: Strategy, stood: StrategyVerdict | None, where: _Where, *, acts: bool
) -> tuple[StrategyVerdict, Sequence[_Reading], list[float]]:
    """The strategy's verdict after `stood`, what it was read from, and when its wishes change by waiting alone.

    If it does not act, every wish is to hold.
    """
    readings = _readings(strategy, where, sampled=() if stood is None else stood.sampled)
    deadlines: list[float] = []
    labels: dict[str, LabelVerdict] = {}
    for each in _labels(key, strategy, readings, where):
        earlier = None if stood is None else stood.labels.get(each.label)
        labels[each.label], due = _evaluate_label(each, earlier, strategy, where)
        if not acts:
            labels[each.label] = msgspec.structs.replace(labels[each.label], wish=HOLD)
        elif due is not None:
            deadlines.append(due)
    state = _state(strategy, [reading.state for reading in readings], where)
    changed, value = where.now, readings[0].value
    told = "" if value is None else format_quantity(value)
    if stood is not None and stood.state is state:
        changed, told = min(stood.changed, where.now), stood.value
    sampled: tuple[str, ...] = ()
    if strategy.type is not StrategyType.DONTSCHEDULE:
        sampled = tuple(sorted({_series(reading.rule) for reading in readings if reading.sampled}))
    verdict = StrategyVerdict(state=state, changed=changed, value=told, labels=labels, sampled=sampled)
    return verdict, readings, deadlines


def _labels(key: PolicyKey, strategy: Strategy, readings: Sequence[_Reading], where: _Where) -> list[_Label]:
    """Each label of a strategy, in the order of its rules; none that no label can be."""
    carriers: dict[str, Sequence[_Reading]] = {}
    if strategy.type is StrategyType.DESCHEDULE:
        if readings and (label := deschedule_label(key)) is not None:
            carriers[label] = readings
    elif strategy.type is StrategyType.LABELING:
        prefix = labeling_prefix(key)
        for reading in readings:
            for name, value in reading.rule.labels:
                if is_label_key(prefix + name) and is_label_value(value):
                    carriers[prefix + name] = (*carriers.get(prefix + name, ()), reading)
    labels: list[_Label] = []
    for label, carrying in carriers.items():
        counting = carrying if strategy.logical_operator is LogicalOperator.ANY_OF else readings
        state = _state(strategy, [reading.state for reading in counting], where)
        counts_as = _state(strategy, [reading.counts_as for reading in counting], where)
        labels.append(_Label(label, carrying, state, counts_as))
    return labels


def _state(strategy: Strategy, states: Iterable[State], where: _Where) -> State:
    """What the states of rules come to, on a node that the policy may not concern."""
    if where.selected:
        return combined(strategy.logical_operator, states)
    return State.UNKNOWN if where.selected is None else State.MET


def _evaluate_label(
    label: _Label, earlier: LabelVerdict | None, strategy: Strategy, where: _Where
) -> tuple[LabelVerdict, float | None]:
    """The label's verdict after `earlier`, and when its wish changes by `for` or `clearFor` alone."""
    violated_since = None if earlier is None else _past(earlier.violated_since, where.now)
    met_since = None if earlier is None else _past(earlier.met_since, where.now)
    wish, due = HOLD, None
    if label.counts_as is State.VIOLATED:
        met_since = None
        violated_since = where.now if violated_since is None else violated_since
        if where.now >= violated_since + strategy.for_:
            wish = _set_wish(label, strategy)
        else:
            due = violated_since + strategy.for_
    elif label.counts_as is State.MET:
        violated_since = None
        met_since = where.now if met_since is None else met_since
        # Nobody knows of a break while nobody watched; a wish that was already waited for stays.
        watched_since = max(where.watched_since, where.unmet.get(label.label, 0.0))
        if earlier is not None and earlier.wish == ABSENT:
            watched_since = 0.0
        cleared = max(met_since, watched_since) + strategy.clear_for
        # What the policy says of the node's own labels holds at once: `clearFor` is about samples.
        if not where.selected or where.now >= cleared:
            wish = ABSENT
        else:
            due = cleared
    else:
        met_since = None
    return LabelVerdict(state=label.state, wish=wish, violated_since=violated_since, met_since=met_since), due


def _past(since: float | None, now: float) -> float | None:
    """A time that stands in a verdict; one that is yet to come is a clock's that was wrong."""
    return None if since is None else min(since, now)


def _set_wish(label: _Label, strategy: Strategy) -> Wish:
    """The wish for a label that is to be set, with the value of the worst rule (tas.md section 6)."""
    if strategy.type is StrategyType.DESCHEDULE:
        return Wish(WishKind.SET, VIOLATING)
    name = label.label.rpartition("/")[2]
    violated = [reading for reading in label.readings if reading.counts_as is State.VIOLATED]
    winner = violated[0]
    for reading in violated[1:]:
        if _is_worse(reading, winner):
            winner = reading
    value = dict(winner.rule.labels)[name]
    # Another rule may be worse than the winner, if only we knew: unless it counts all the same, and wishes the same.
    guessed = any(each.state is State.UNKNOWN and each.counts_as is not State.MET for each in label.readings)
    if strategy.on_stale is OnStale.VIOLATE and all(dict(each.rule.labels)[name] == value for each in violated):
        guessed = False
    return Wish(WishKind.SET_UNLESS_ANY if guessed else WishKind.SET, value)


def _is_worse(one: _Reading, other: _Reading) -> bool:
    """Whether `one` wins over `other`, which stands before it. What has no value wins over nothing."""
    if one.value is None or other.value is None:
        return one.value is not None
    if one.rule.operator is not other.rule.operator:
        return False  # of rules with different operators nobody can say (tas.md D52)
    if one.rule.operator is Operator.GREATER_THAN:
        return one.value > other.value
    return one.rule.operator is Operator.LESS_THAN and one.value < other.value
