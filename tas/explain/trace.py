"""The trace of one value through the stages source, sample, view, verdict and label: where it stops, and since when.

Each stage is checked with other data of the bus than the stage before. So a worker that does not run, or is behind,
shows as the first stage without the value.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tas.enforcing.labels import is_in_our_form
from tas.policy.policy import Policy, PolicyKey, Rule, StrategyType, preference
from tas.policy.rules import State, rule_state
from tas.samples.freshness import is_fresh, stale_at
from tas.samples.sample import NodeSamples, Scrape, newest
from tas.samples.table import combined_samples
from tas.samples.unknown_node import is_unknown_node
from tas.sources.annotations import SOURCE as ANNOTATIONS
from tas.sources.state import Health, SourceState, health
from tas.values.nouns import counted
from tas.values.quantity import short_text
from tas.values.window import near_window
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.refused import RefusedLabel
from tas.verdict.verdict import DesiredKind, DesiredLabel, NodeVerdict, PolicyVerdict, StrategyVerdict


class Stage(StrEnum):
    """The stages of a value, in order."""

    SOURCE = "source"
    SAMPLE = "sample"
    VIEW = "view"
    VERDICT = "verdict"
    LABEL = "label"


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the value has passed a stage, since when (seconds since 1970), and the details of the check.

    If the value has not passed, the last detail is a reason.
    """

    stage: Stage
    passed: bool
    since: float | None
    details: tuple[str, ...]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The results up to the first stage that the value did not pass. `stopped_at` is None if it passed all stages."""

    metric: str
    node: str
    stages: Sequence[StageResult]
    stopped_at: Stage | None


class PolicyVersion(NamedTuple):
    """A policy with the fields that identify its version in verdicts."""

    policy: Policy
    uid: str
    generation: int


class TraceEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The data on the bus about one node.

    Attributes:
        published: The last scrape of each source that is still on SAMPLES.
        tables: What the last tables on TABLES have of the node, by source: of each source with tables for such a node.
        known: The samples that materialize has stored.
        created: When the node was created, in seconds since 1970; what was measured before does not count.
        labels: The node's labels, as the API server reported them; None if they are not stored.
        are_labels_complete: Whether `labels` are all labels of the node.
        cluster: Whether nodes come from an API server; None if no complete list of nodes is stored.
        policies: All policies.
        verdict: The verdict that evaluate has stored; None if there is none.
        refused: The labels that the API server refuses, by name of their policies.
        sources: The states of the sources, as stored by collect, by name.
        held_sources: The names of the sources that a replica of collect holds.
        default_stale_after: Seconds after which a sample is stale for a policy without `staleAfter`.
    """

    published: Mapping[str, Scrape]
    known: NodeSamples
    labels: Mapping[str, str] | None
    cluster: bool | None
    policies: Sequence[PolicyVersion]
    verdict: NodeVerdict | None
    refused: Mapping[str, tuple[RefusedLabel, ...]]
    sources: Mapping[str, SourceState]
    held_sources: Collection[str]
    default_stale_after: float
    are_labels_complete: bool = True
    tables: Mapping[str, NodeSamples] = {}
    created: float | None = None


def trace(metric: str, node: str, evidence: TraceEvidence, now: float) -> Trace:
    """The trace of the newest value of `metric` of `node` at `now`."""
    stages: list[StageResult] = []
    for check in (_source, _sample, _view, _verdict, _label):
        result = check(metric, node, evidence, now)
        stages.append(result)
        if not result.passed:
            return Trace(metric=metric, node=node, stages=stages, stopped_at=result.stage)
    return Trace(metric=metric, node=node, stages=stages, stopped_at=None)


def _source(metric: str, node: str, evidence: TraceEvidence, now: float) -> StageResult:
    details: list[str] = []
    has_values = False
    since: float | None = None
    for name, state in sorted(evidence.sources.items()):
        known = state.metrics.get(metric)
        problems = [text for text in (state.problem, "" if known is None else known.missing) if text]
        if health(state, is_held=name in evidence.held_sources, now=now) is Health.UNATTENDED:
            verb = "listens for" if state.period is None else "polls"
            reader = "no replica of inventory reads" if state.kind == ANNOTATIONS else f"no replica of collect {verb}"
            details.append(f"{name}: {reader} it: is one running?")
            since = state.time if since is None else since
        elif problems:
            details.append(f"{name} ({state.holder}): {'; '.join(problems)}")
            since = state.last_success if since is None else since
        elif known is None and state.metrics_left_out:
            count = f"{len(state.metrics)} of its {counted(state.metric_count, 'metric')}"
            details.append(f"{name} ({state.holder}): its state has room for {count}, and not for {metric}")
            has_values = has_values or newest(_published(name, evidence), metric) is not None
        elif known is None:
            details.append(f"{name} ({state.holder}): {_unasked(metric, state)}")
        else:
            details.append(
                f"{name} ({state.holder}): a value for {counted(known.nodes, 'node')}"
                + (f", {known.ended} of them ended by a stale marker" if known.ended else "")
            )
            has_values = has_values or known.nodes > 0
            since = state.last_success
    pushed_scrapes = sorted(_pushed(metric, evidence).items())
    for name, scrape in pushed_scrapes:
        is_in_newest = newest(_published(name, evidence), metric) is not None
        other = "" if is_in_newest else f"; its newest message has no {metric}"
        details.append(f"{name}: publishes by itself{other}")
        since = scrape.arrived
    if not details:
        others = ", ".join(_publishers(evidence))
        details.append(
            "no replica of collect has a source, and no program publishes it"
            + (f": only other metrics come from {others}" if others else "")
        )
    passed = has_values or bool(pushed_scrapes)
    details += () if passed else refused_on(node, evidence.sources).get(metric, ())
    if not passed and is_unknown_node(listed=evidence.labels is not None, cluster=evidence.cluster):
        details.append(f"Kubernetes has no node {node}")
    return StageResult(stage=Stage.SOURCE, passed=passed, since=since, details=tuple(details))


def _unasked(metric: str, state: SourceState) -> str:
    """Why a source that works has nothing about a metric."""
    if (reason := near_window(metric)) is not None:
        return f"{metric} is the name of an ordinary metric, not of a statistic: {reason}"
    verb = "asked" if state.period is None else "polled"
    return f"not {verb} for {metric}: no policy uses it"


def refused_on(node: str, sources: Mapping[str, SourceState]) -> dict[str, tuple[str, ...]]:
    """What sources refuse of a node at present, with the source, by metric."""
    found: dict[str, tuple[str, ...]] = {}
    for name, state in sorted(sources.items()):
        for metric, why in sorted(state.refused_now.get(node, {}).items()):
            found[metric] = (*found.get(metric, ()), f"{name} refuses its value: {why}")
    return found


def _sample(metric: str, node: str, evidence: TraceEvidence, now: float) -> StageResult:
    last = _last(metric, evidence)
    refused = refused_on(node, evidence.sources).get(metric, ())
    if last is None:
        others = _publishers(evidence)
        nothing = "SAMPLES and TABLES have no" if evidence.tables else "SAMPLES has no"
        detail = f"{nothing} {metric} of {node}" + (f", only of {', '.join(others)}" if others else "")
        stored = newest(evidence.known, metric)
        since = None if stored is None else stored.arrived
        return StageResult(stage=Stage.SAMPLE, passed=False, since=since, details=(detail, *refused))
    text = (
        f"{short_text(last.metrics[metric])} from {last.source}, sequence {last.sequence} of {_stream(last, evidence)}"
    )
    limit = _longest_limit(metric, evidence)
    ended = last.ends is not None and last.ends <= stale_at(last, limit)
    if not is_fresh(last, limit, now):
        detail = "stale: its series has ended, by a stale marker" if ended else f"stale: older than {limit:g} s"
        return StageResult(
            stage=Stage.SAMPLE, passed=False, since=stale_at(last, limit), details=(text, detail, *refused)
        )
    if last.ends is not None:
        text += f"; its series has ended, by a stale marker: stale in {stale_at(last, limit) - now:.0f} s"
    return StageResult(stage=Stage.SAMPLE, passed=True, since=last.time, details=(text,))


def _view(metric: str, node: str, evidence: TraceEvidence, now: float) -> StageResult:
    last = _last(metric, evidence)
    stored = newest(evidence.known, metric)
    if stored is not None and (last is None or _is_as_new(stored, last, evidence)):
        text = f"{short_text(stored.metrics[metric])} from {stored.source}"
        return StageResult(stage=Stage.VIEW, passed=True, since=stored.time, details=(text,))
    since = None if last is None else last.arrived
    if is_unknown_node(listed=evidence.labels is not None, cluster=evidence.cluster):
        detail = f"Kubernetes has no node {node}: its samples are refused"
    elif last is not None and _is_of_earlier_node(last, evidence):
        detail = f"it was measured before {node} was created: another node had the name"
    elif stored is None:
        detail = f"materialize has stored no {metric} of {node}: is it running? has it refused the value?"
    else:
        detail = f"materialize is behind: it has sequence {stored.sequence}"
    return StageResult(stage=Stage.VIEW, passed=False, since=since, details=(detail,))


def _verdict(metric: str, _node: str, evidence: TraceEvidence, now: float) -> StageResult:
    using = [each for each in evidence.policies if any(True for _ in _rules(each.policy, metric))]
    if not using:
        return StageResult(stage=Stage.VERDICT, passed=False, since=None, details=(f"no policy uses {metric}",))
    details: list[str] = []
    behind: list[str] = []
    since: list[float] = []
    stored_policies = {} if evidence.verdict is None else evidence.verdict.policies
    for named in using:
        before = stored_policies.get(named.policy.key)
        expected = _expected(named, evidence, before, now)
        for kind, rule in _rules(named.policy, metric):
            lead = f"{named.policy.key} {kind}: {rule}"
            if kind is StrategyType.SCHEDULEONMETRIC:
                details.append(f"{named.policy.key} {kind}: {preference(rule)}: compared with other nodes")
                continue
            state = _rule_state(rule, named.policy, evidence, now)
            stored_strategy = None if before is None else before.strategies.get(kind)
            if state is State.UNKNOWN:
                behind.append(f"{lead} is unknown: {_unknown_reason(rule, named.policy, evidence)}")
                if stored_strategy is not None and stored_strategy.kept_since is not None:
                    behind[-1] += "; filter rejects the node by its last known value"
                continue
            up_to_date = stored_strategy is not None and stored_strategy.state is expected.strategies[kind].state
            since += [] if stored_strategy is None else [stored_strategy.changed]
            if up_to_date:
                details.append(f"{lead} is {state.value}, the strategy {expected.strategies[kind].state.value}")
            else:
                stored_state = "nothing" if stored_strategy is None else stored_strategy.state.value
                behind.append(f"{lead} is {state.value}, and evaluate has stored {stored_state}: is it running?")
    details += behind
    return StageResult(stage=Stage.VERDICT, passed=not behind, since=max(since, default=None), details=tuple(details))


def _label(metric: str, _node: str, evidence: TraceEvidence, now: float) -> StageResult:
    details: list[str] = []
    behind: list[str] = []
    since: list[float] = []
    for key, strategy in _labelling(metric, evidence):
        refused = {(each.label, each.value): each for each in evidence.refused.get(key.name, ())}
        for label, verdict in strategy.labels.items():
            is_desired, text = _desired_text(label, verdict.desired, evidence.labels)
            is_behind = evidence.labels is not None and not is_desired
            value = None if verdict.desired.kind is DesiredKind.ABSENT else verdict.desired.value
            if is_behind and (label, value) in refused:
                text += f"; {refused[label, value]}"
            (behind if is_behind else details).append(f"{key}: {text}")
            if is_behind:
                started = verdict.met_since if verdict.desired.kind is DesiredKind.ABSENT else verdict.violated_since
                since += [] if started is None else [started]
    details += behind
    if not details:
        details.append("no policy that uses it has a label")
    elif evidence.labels is None:
        details.append("without a cluster no label is written")
    return StageResult(stage=Stage.LABEL, passed=not behind, since=max(since, default=None), details=tuple(details))


def _desired_text(label: str, desired: DesiredLabel, labels: Mapping[str, str] | None) -> tuple[bool, str]:
    """Whether the label has its desired value, and the text of both. Other policies of the same name do not matter."""
    current = None if labels is None else labels.get(label)
    found = "the node does not have it" if current is None else f"the node has {current!r}"
    match desired.kind:
        case DesiredKind.SET:
            return current == desired.value, f"{label}={desired.value} is desired; {found}"
        case DesiredKind.SET_IF_ABSENT:
            return (
                current is not None,
                f"{label}={desired.value} is desired, unless the label has another value; {found}",
            )
        case DesiredKind.ABSENT if current is not None and not is_in_our_form(label, current):
            return True, f"{label} is desired absent; {found}, which TAS does not remove"
        case DesiredKind.ABSENT:
            return current is None, f"{label} is desired absent; {found}"
        case DesiredKind.HOLD:
            return True, f"{label} stays unchanged; {found}"


def _labelling(metric: str, evidence: TraceEvidence) -> Iterator[tuple[PolicyKey, StrategyVerdict]]:
    if evidence.verdict is None:
        return
    for named in evidence.policies:
        verdict = evidence.verdict.policies.get(named.policy.key)
        for kind in dict.fromkeys(kind for kind, _ in _rules(named.policy, metric)):
            if verdict is not None and kind in verdict.strategies:
                yield named.policy.key, verdict.strategies[kind]


def _expected(named: PolicyVersion, evidence: TraceEvidence, before: PolicyVerdict | None, now: float) -> PolicyVerdict:
    verdict, _ = evaluate_policy(
        named.policy,
        uid=named.uid,
        generation=named.generation,
        samples=evidence.known,
        labels=evidence.labels if evidence.are_labels_complete else None,
        default_stale_after=evidence.default_stale_after,
        before=before,
        now=now,
    )
    return verdict


def _rule_state(rule: Rule, policy: Policy, evidence: TraceEvidence, now: float) -> State:
    scrape = newest(evidence.known, rule.metric, rule.source)
    fresh = scrape is not None and is_fresh(scrape, _limit(policy, evidence), now)
    return rule_state(rule, scrape.metrics[rule.metric] if scrape is not None and fresh else None)


def _unknown_reason(rule: Rule, policy: Policy, evidence: TraceEvidence) -> str:
    if not rule.readable:
        return "the rule cannot be read"
    if newest(evidence.known, rule.metric, rule.source) is None:
        return f"no sample of {rule.source}"
    return f"the sample is older than {_limit(policy, evidence):g} s"


def _limit(policy: Policy, evidence: TraceEvidence) -> float:
    return policy.stale_after_or(evidence.default_stale_after)


def _longest_limit(metric: str, evidence: TraceEvidence) -> float:
    using = [each.policy for each in evidence.policies if any(True for _ in _rules(each.policy, metric))]
    return max((_limit(policy, evidence) for policy in using), default=evidence.default_stale_after)


def _rules(policy: Policy, metric: str) -> Iterator[tuple[StrategyType, Rule]]:
    for kind, strategy in sorted(policy.strategies.items()):
        for rule in strategy.rules:
            if rule.metric == metric:
                yield kind, rule


def _published(source: str, evidence: TraceEvidence) -> NodeSamples:
    """What the last messages of a source have of the node."""
    single = evidence.published.get(source)
    return combined_samples(() if single is None else (single,), [evidence.tables.get(source, ())])


def _publishers(evidence: TraceEvidence) -> list[str]:
    """The sources whose last messages have anything of the node."""
    return sorted({*evidence.published, *(source for source, samples in evidence.tables.items() if samples)})


def _last(metric: str, evidence: TraceEvidence) -> Scrape | None:
    """The newest scrape with the metric that SAMPLES or TABLES is known to have received."""
    sources = sorted({*evidence.published, *evidence.tables})
    lasts = (_last_of(source, metric, evidence) for source in sources)
    return newest(tuple(last for last in lasts if last is not None), metric)


def _last_of(source: str, metric: str, evidence: TraceEvidence) -> Scrape | None:
    """The last scrape of a source with the metric.

    A source that publishes by itself need not send all its metrics in each message, and a source may divide what it
    measured at one time among several tables: materialize keeps what the newest one leaves out.
    """
    last = newest(_published(source, evidence), metric)
    if last is None and (source not in evidence.sources or source in evidence.tables):
        return newest(evidence.known, metric, source)
    return last


def _pushed(metric: str, evidence: TraceEvidence) -> dict[str, Scrape]:
    """The last scrape with the metric of each source that publishes by itself."""
    sources = {*evidence.published, *evidence.tables} - evidence.sources.keys()
    lasts = {source: _last_of(source, metric, evidence) for source in sources}
    return {source: last for source, last in lasts.items() if last is not None}


def _stream(scrape: Scrape, evidence: TraceEvidence) -> str:
    """The stream of the message with this scrape, as far as the last messages of its source tell."""
    single = evidence.published.get(scrape.source)
    is_single = single is not None and (single.arrived, single.sequence) == (scrape.arrived, scrape.sequence)
    return "SAMPLES" if is_single or scrape.source not in evidence.tables else "TABLES"


def _is_as_new(stored: Scrape, last: Scrape, evidence: TraceEvidence) -> bool:
    """Whether `stored` is at least as new as `last`: sequences of two streams cannot be compared."""
    if _stream(stored, evidence) != _stream(last, evidence):
        return stored.time >= last.time
    return stored.order >= last.order


def _is_of_earlier_node(scrape: Scrape, evidence: TraceEvidence) -> bool:
    return evidence.created is not None and scrape.time < evidence.created
