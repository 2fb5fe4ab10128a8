"""One value on its way through the product: source, sample, view, verdict, label; where it stops, and since when.

Every hop is judged from what stands on the bus, each by another witness than the one before: a worker that does not
run, or lags, shows as the first hop that did not pass on what the hop before it has.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tas.labels import is_foreign
from tas.policy import Policy, PolicyKey, Rule, StrategyType, preference
from tas.quantity import format_quantity
from tas.rules import State, rule_state
from tas.sample import NodeSamples, Scrape, newest
from tas.sources.state import SourceState
from tas.verdict import NodeVerdict, PolicyVerdict, StrategyVerdict, Wish, WishKind, evaluate_policy


class Stage(StrEnum):
    """The stations of a value, in order."""

    SOURCE = "source"
    SAMPLE = "sample"
    VIEW = "view"
    VERDICT = "verdict"
    LABEL = "label"


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One station: whether the value has passed it, since when it is as it is (seconds since 1970), what was found."""

    stage: Stage
    passed: bool
    since: float | None
    told: tuple[str, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All stations up to the first that the value did not pass. `stops_at` is None if it passed all."""

    metric: str
    node: str
    hops: Sequence[Hop]
    stops_at: Stage | None


class NamedPolicy(NamedTuple):
    """A policy with what its verdicts carry of it."""

    policy: Policy
    uid: str
    generation: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What stands on the bus about one node.

    Attributes:
        published: The last scrape of each source that is still on SAMPLES.
        known: What materialize has made of them.
        labels: The node's, as the API server gave them; None without facts.
        cluster: Whether nodes come from an API server; None if no complete list of them stands.
        policies: All.
        verdict: What evaluate has written; None if nothing.
        sources: What collect says of its sources, by name.
        attended: Those of them that a replica of collect has.
        stale_after: Seconds after which a sample is too old, where a policy says nothing.
    """

    published: Mapping[str, Scrape]
    known: NodeSamples
    labels: Mapping[str, str] | None
    cluster: bool | None
    policies: Sequence[NamedPolicy]
    verdict: NodeVerdict | None
    sources: Mapping[str, SourceState]
    attended: Collection[str]
    stale_after: float


def trace(metric: str, node: str, evidence: Evidence, now: float) -> Trace:
    """Follows the newest value of `metric` of `node` as far as it has come."""
    hops: list[Hop] = []
    for judge in (_source, _sample, _view, _verdict, _label):
        hop = judge(metric, node, evidence, now)
        hops.append(hop)
        if not hop.passed:
            return Trace(metric=metric, node=node, hops=hops, stops_at=hop.stage)
    return Trace(metric=metric, node=node, hops=hops, stops_at=None)


def _source(metric: str, _node: str, evidence: Evidence, now: float) -> Hop:
    told: list[str] = []
    gives = False
    since: float | None = None
    for name, state in sorted(evidence.sources.items()):
        known = state.metrics.get(metric)
        if state.period is not None and name not in evidence.attended:
            told.append(f"{name}: nobody asks it: every replica of collect is gone")
            since = state.time if since is None else since
        elif state.problem:
            told.append(f"{name} ({state.holder}): {state.problem}")
            since = state.last_success if since is None else since
        elif known is None:
            told.append(f"{name} ({state.holder}): not asked for {metric}: no policy uses it")
        elif known.missing:
            told.append(f"{name} ({state.holder}): {known.missing}")
            since = state.last_success if since is None else since
        else:
            told.append(f"{name} ({state.holder}): a value for {known.nodes} nodes")
            gives = gives or known.nodes > 0
            since = state.last_success
    pushes = sorted(_pushed(metric, evidence).items())
    for name, scrape in pushes:
        other = "" if metric in evidence.published[name].metrics else f"; its newest message holds no {metric}"
        told.append(f"{name}: publishes by itself{other}")
        since = scrape.arrived
    if not told:
        others = ", ".join(sorted(evidence.published))
        told.append(
            "no source is attached, and nobody publishes it"
            + (f": only other metrics come from {others}" if others else "")
        )
    return Hop(stage=Stage.SOURCE, passed=gives or bool(pushes), since=since, told=tuple(told))


def _sample(metric: str, node: str, evidence: Evidence, now: float) -> Hop:
    last = _last(metric, evidence)
    if last is None:
        others = sorted(evidence.published)
        told = f"SAMPLES holds no {metric} of {node}" + (f", only of {', '.join(others)}" if others else "")
        stored = newest(evidence.known, metric)
        since = None if stored is None else stored.arrived
        return Hop(stage=Stage.SAMPLE, passed=False, since=since, told=(told,))
    text = f"{format_quantity(last.metrics[metric])} from {last.source}, sequence {last.sequence} of SAMPLES"
    limit = _longest_limit(metric, evidence)
    stale = last.time + limit
    if stale <= now:
        return Hop(stage=Stage.SAMPLE, passed=False, since=stale, told=(text, f"stale: older than {limit:g} s"))
    return Hop(stage=Stage.SAMPLE, passed=True, since=last.time, told=(text,))


def _view(metric: str, node: str, evidence: Evidence, now: float) -> Hop:
    last = _last(metric, evidence)
    stored = newest(evidence.known, metric)
    if stored is not None and (last is None or stored.order >= last.order):
        text = f"{format_quantity(stored.metrics[metric])} from {stored.source}"
        return Hop(stage=Stage.VIEW, passed=True, since=stored.time, told=(text,))
    since = None if last is None else last.arrived
    if evidence.cluster and evidence.labels is None:
        told = f"Kubernetes has no node {node}: what is published of it is refused"
    elif evidence.cluster is None:
        told = "no complete list of nodes stands: materialize waits for watch (or policies)"
    elif stored is None:
        told = f"materialize has stored no {metric} of {node}: is it running? has it refused the value?"
    else:
        told = f"materialize is behind: it has sequence {stored.sequence}"
    return Hop(stage=Stage.VIEW, passed=False, since=since, told=(told,))


def _verdict(metric: str, _node: str, evidence: Evidence, now: float) -> Hop:
    using = [each for each in evidence.policies if any(True for _ in _rules(each.policy, metric))]
    if not using:
        return Hop(stage=Stage.VERDICT, passed=False, since=None, told=(f"no policy uses {metric}",))
    told: list[str] = []
    since: list[float] = []
    behind = False
    stands = {} if evidence.verdict is None else evidence.verdict.policies
    for named in using:
        before = stands.get(named.policy.key)
        expected = _expected(named, evidence, before, now)
        for kind, rule in _rules(named.policy, metric):
            lead = f"{named.policy.key} {kind}: {rule}"
            if kind is StrategyType.SCHEDULEONMETRIC:
                told.append(f"{named.policy.key} {kind}: {preference(rule)}: compared with other nodes")
                continue
            state = _rule_state(rule, named.policy, evidence, now)
            standing = None if before is None else before.strategies.get(kind)
            right = standing is not None and standing.state is expected.strategies[kind].state
            behind = behind or not right
            since += [] if standing is None else [standing.changed]
            if right:
                told.append(f"{lead} is {state.value}, the strategy {expected.strategies[kind].state.value}")
            else:
                stood = "nothing" if standing is None else standing.state.value
                told.append(f"{lead} is {state.value}, and evaluate has {stood}: is it running?")
    return Hop(stage=Stage.VERDICT, passed=not behind, since=max(since, default=None), told=tuple(told))


def _label(metric: str, _node: str, evidence: Evidence, now: float) -> Hop:
    told: list[str] = []
    since: list[float] = []
    behind = False
    for key, strategy in _labelling(metric, evidence):
        for label, verdict in strategy.labels.items():
            agrees, text = _told_wish(label, verdict.wish, evidence.labels)
            told.append(f"{key}: {text}")
            if evidence.labels is not None and not agrees:
                behind = True
                started = verdict.met_since if verdict.wish.kind is WishKind.ABSENT else verdict.violated_since
                since += [] if started is None else [started]
    if not told:
        told.append("no policy that uses it speaks of a label")
    elif evidence.labels is None:
        told.append("without a cluster no label is written")
    return Hop(stage=Stage.LABEL, passed=not behind, since=max(since, default=None), told=tuple(told))


def _told_wish(label: str, wish: Wish, labels: Mapping[str, str] | None) -> tuple[bool, str]:
    """Whether the node is as wished, and both in words. Of several policies of one name only this one is looked at."""
    stands = None if labels is None else labels.get(label)
    found = "not there" if stands is None else f"there as {stands!r}"
    match wish.kind:
        case WishKind.SET:
            return stands == wish.value, f"{label}={wish.value} is wished; {found}"
        case WishKind.SET_UNLESS_ANY:
            return stands is not None, f"{label}={wish.value} is wished, if no other value stands; {found}"
        case WishKind.ABSENT if stands is not None and is_foreign(label, stands):
            return True, f"{label} is to be absent; {found}, which is a user's own and stays"
        case WishKind.ABSENT:
            return stands is None, f"{label} is to be absent; {found}"
        case WishKind.HOLD:
            return True, f"{label} stays as it is; {found}"


def _labelling(metric: str, evidence: Evidence) -> Iterator[tuple[PolicyKey, StrategyVerdict]]:
    if evidence.verdict is None:
        return
    for named in evidence.policies:
        verdict = evidence.verdict.policies.get(named.policy.key)
        for kind in dict.fromkeys(kind for kind, _ in _rules(named.policy, metric)):
            if verdict is not None and kind in verdict.strategies:
                yield named.policy.key, verdict.strategies[kind]


def _expected(named: NamedPolicy, evidence: Evidence, before: PolicyVerdict | None, now: float) -> PolicyVerdict:
    verdict, _ = evaluate_policy(
        named.policy,
        uid=named.uid,
        generation=named.generation,
        samples=evidence.known,
        labels=evidence.labels,
        stale_after=evidence.stale_after,
        before=before,
        now=now,
    )
    return verdict


def _rule_state(rule: Rule, policy: Policy, evidence: Evidence, now: float) -> State:
    scrape = newest(evidence.known, rule.metric, rule.source)
    fresh = scrape is not None and scrape.time + _limit(policy, evidence) > now
    return rule_state(rule, scrape.metrics[rule.metric] if scrape is not None and fresh else None)


def _limit(policy: Policy, evidence: Evidence) -> float:
    return evidence.stale_after if policy.stale_after is None else policy.stale_after


def _longest_limit(metric: str, evidence: Evidence) -> float:
    """Seconds after which the metric is too old for every policy that uses it; the default where none does."""
    using = [each.policy for each in evidence.policies if any(True for _ in _rules(each.policy, metric))]
    return max((_limit(policy, evidence) for policy in using), default=evidence.stale_after)


def _rules(policy: Policy, metric: str) -> Iterator[tuple[StrategyType, Rule]]:
    for kind, strategy in sorted(policy.strategies.items()):
        for rule in strategy.rules:
            if rule.metric == metric:
                yield kind, rule


def _last(metric: str, evidence: Evidence) -> Scrape | None:
    """The newest scrape that SAMPLES is known to have had of the metric."""
    return newest(_in_order({**evidence.published, **_pushed(metric, evidence)}), metric)


def _pushed(metric: str, evidence: Evidence) -> dict[str, Scrape]:
    """The last scrape with the metric of each source that publishes by itself.

    Such a source need not say all it knows in each message: what its newest one leaves out, materialize keeps.
    """
    found: dict[str, Scrape] = {}
    for name, scrape in evidence.published.items():
        if name not in evidence.sources:
            last = scrape if metric in scrape.metrics else newest(evidence.known, metric, name)
            if last is not None:
                found[name] = last
    return found


def _in_order(published: Mapping[str, Scrape]) -> NodeSamples:
    return tuple(scrape for _, scrape in sorted(published.items()))
