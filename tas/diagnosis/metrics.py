"""Are the metrics of the policies there? If not: under another name?"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, none_checked, ok, or_ok, some
from tas.policy.policy import Policy
from tas.processes.process import RefusedSamples
from tas.samples.contradictions import contradictions
from tas.samples.freshness import is_fresh
from tas.samples.pace import LateMetric
from tas.samples.sample import NodeSamples, newest
from tas.sources.result import RefusalReason, SuspectReason
from tas.sources.state import Health, SourceState, health, tolerances_of
from tas.values.blanks import SMALL_BLANKS
from tas.values.nouns import counted
from tas.values.quantity import format_quantity
from tas.verdict.status import MetricUse, any_source_limits, metrics_of

EXPORTER_PREFIX = "node_"
"""node_exporter gives this prefix to its metrics; the usual rule of prometheus-adapter removes the prefix.

https://github.com/intel/platform-aware-scheduling/issues/145
"""

ALIKE = 0.85
"""The similarity from which a name is suggested: one letter of seven may differ."""

LATELY = 600.0
"""Seconds: what was refused or suspect before is history."""
PROMETHEUS = "prometheus"
LATE_POLLS = 3
LATE_SECONDS = 15.0
"""The newest value of a source that is polled is late when it is older than so many polls, and than this."""

LATE_MEND = (
    "does the source answer, and do materialize and collect keep up? docs/background/performance.md, "
    "When there is too much to do"
)

METRIC_LATE_MEND = "does its exporter run, and does its program still publish it? tas trace says where its values stop"

SILENT_MEND = "does the program that publishes it run, and does it reach the bus? tas trace says where its values stop"

TRACE_MEND = "this names the stage where the value stops; docs/how-to/status.md says what to do there"


class SourceTimes(NamedTuple):
    """When the newest values of a source were measured and stored on the bus, in seconds since 1970."""

    measured: float
    arrived: float
    scrapes: int


class MetricFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the bus has of metrics, and what the custom metrics API offers.

    Attributes:
        samples: By node.
        nodes: The nodes that should have samples, with their labels; None: the labels are not known.
        sources: The states of the sources of `collect`.
        held: The sources that a replica of `collect` has.
        offered: The names of metrics of nodes in the custom metrics API.
        now: In seconds since 1970.
        stale_after: For policies without `staleAfter`, in seconds.
        in_files: Whether the policies come from a directory.
        refused: What `materialize` has refused of samples.
        late: The metrics that come late to `evaluate`.
    """

    policies: Collection[Policy]
    samples: Mapping[str, NodeSamples]
    nodes: Mapping[str, Mapping[str, str] | None] = {}
    sources: Mapping[str, SourceState] = {}
    held: Collection[str] = ()
    offered: Collection[str] | Missing = ()
    now: float
    stale_after: float
    in_files: bool = False
    refused: Collection[RefusedSamples] = ()
    late: Sequence[LateMetric] = ()


def check_metrics(facts: MetricFacts | Missing) -> Iterator[Finding]:
    """The findings about metrics: at least one of each check."""
    if isinstance(facts, Missing):
        yield from none_checked("metrics", facts)
        return
    used: dict[MetricUse, list[Policy]] = {}
    for policy in sorted(facts.policies, key=lambda each: each.key):
        for use in metrics_of(policy):
            used.setdefault(use, []).append(policy)
    found = [each for use in sorted(used) for each in _metric(use, used[use], facts)]
    findings = [each for each in found if isinstance(each, Finding)]
    findings += _nodes([each for each in found if isinstance(each, _Lacking)])
    oks = {
        "metrics.present": f"each of {counted(len(used), 'metric')} of policies has a sample",
        "metrics.fresh": "samples of the metrics of policies are fresh",
        "metrics.nodes": "each node has the metrics of policies",
    }
    yield from or_ok(findings, oks)
    yield from _values(used, facts)
    yield from _agree(facts)
    yield from _sources(facts)
    yield from _late(facts)


def newest_times(samples: Mapping[str, NodeSamples]) -> dict[str, SourceTimes]:
    """When the newest values of each source were measured and stored, by name of the source."""
    found: dict[str, SourceTimes] = {}
    for of_node in samples.values():
        for scrape in of_node:
            before = found.get(scrape.source)
            if before is None:
                found[scrape.source] = SourceTimes(scrape.time, scrape.arrived, 1)
            else:
                measured, arrived = max(before.measured, scrape.time), max(before.arrived, scrape.arrived)
                found[scrape.source] = SourceTimes(measured, arrived, before.scrapes + 1)
    return found


def other_name(metric: str, names: Collection[str]) -> str | None:
    """The name under which a metric probably exists; None if no name is alike."""
    exporters = [metric.removeprefix(EXPORTER_PREFIX), f"{EXPORTER_PREFIX}{metric}"]
    for name in exporters:
        if name != metric and name in names:
            return name
    plain = {_plain(name): name for name in sorted(names, reverse=True) if name != metric}
    for name in (metric, *exporters):
        if found := plain.get(_plain(name)):
            return found
    close = get_close_matches(metric, sorted(set(names) - {metric}), n=1, cutoff=ALIKE)
    return close[0] if close else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


class _Lacking(NamedTuple):
    """Nodes without a fresh sample, of so many that the policies select."""

    use: MetricUse
    policies: Collection[Policy]
    nodes: frozenset[str]
    selected: int


def _metric(use: MetricUse, policies: Collection[Policy], facts: MetricFacts) -> Iterator[Finding | _Lacking]:
    found = {node: newest(samples, use.metric, use.source or None) for node, samples in facts.samples.items()}
    newest_of = {node: scrape for node, scrape in found.items() if scrape is not None}
    if not newest_of:
        yield _absent(use, policies, facts)
        return
    # Policies may have different `staleAfter`: those for which the same nodes are fresh are one finding.
    alike: dict[frozenset[str], list[Policy]] = {}
    for policy in policies:
        limit = policy.stale_after_or(facts.stale_after)
        fresh = frozenset(node for node, scrape in newest_of.items() if is_fresh(scrape, limit, facts.now))
        alike.setdefault(fresh, []).append(policy)
    for fresh, those in alike.items():
        if not fresh:
            age = facts.now - max(scrape.time for scrape in newest_of.values())
            limit = max(policy.stale_after_or(facts.stale_after) for policy in those)
            what = f"{use} of {_owners(those)}: the newest sample is {age:.0f} s old, and stale after {limit:g} s"
            yield finding("metrics.fresh", Severity.ERROR, what, TRACE_MEND, run=_trace(use, min(newest_of)))
            continue
        selected = {
            node for node, labels in facts.nodes.items() if any(policy.selects(labels) is not False for policy in those)
        }
        if lacking := frozenset(selected - fresh):
            yield _Lacking(use, those, lacking, len(selected))


def _nodes(lacking: Sequence[_Lacking]) -> Iterator[Finding]:
    """One finding for all metrics that the same nodes lack: their source has usually stopped."""
    together: dict[tuple[frozenset[str], int], list[_Lacking]] = {}
    for each in lacking:
        together.setdefault((each.nodes, each.selected), []).append(each)
    for (nodes, selected), those in together.items():
        uses = some(str(each.use) for each in those)
        owners = _owners([policy for each in those for policy in each.policies])
        all_of = f"of {counted(selected, 'node')}"
        many = counted(len(nodes), f"{all_of} has", f"{all_of} have")
        what = f"{uses} of {owners}: {many} no fresh sample: {some(nodes)}"
        run = _trace(min(each.use for each in those), min(nodes))
        yield finding("metrics.nodes", Severity.WARNING, what, TRACE_MEND, run=run)


def _owners(policies: Collection[Policy]) -> str:
    return some(str(policy.key) for policy in policies)


def _trace(use: MetricUse, node: str) -> str:
    return command("tas", "trace", use.metric, node)


def _absent(use: MetricUse, policies: Collection[Policy], facts: MetricFacts) -> Finding:
    what = f"{use} of {_owners(policies)}: no node has a sample"
    by_source = {
        scrape.source for samples in facts.samples.values() for scrape in samples if use.metric in scrape.metrics
    }
    if by_source:  # then the rule names another source
        what += f" of this source, but of {some(by_source)}"
        return _to_edit(what, f"set source: {min(by_source)}", policies, facts)
    offered = () if isinstance(facts.offered, Missing) else facts.offered
    if use.metric in offered:
        what += ", but the custom metrics API has the metric"
        mend = "run tas run collect with --source custom-metrics, if this lists no such source"
        return finding("metrics.present", Severity.ERROR, what, mend, run="tas get sources")
    stored = {name for samples in facts.samples.values() for scrape in samples for name in scrape.metrics}
    if (other := other_name(use.metric, stored | set(offered))) is not None:
        return _to_edit(f"{what}, but there is {other}", f"set metricname: {other}", policies, facts)
    if isinstance(facts.offered, Missing):
        what += f"; which metrics the custom metrics API has is not known: {facts.offered.reason}"
    node = min(facts.nodes, default="NODE")
    return finding("metrics.present", Severity.ERROR, what, TRACE_MEND, run=_trace(use, node))


def _to_edit(what: str, mend: str, policies: Collection[Policy], facts: MetricFacts) -> Finding:
    key = min(policy.key for policy in policies)
    if facts.in_files:
        mend = f"{mend} in the file of {key}, which this shows"
        return finding("metrics.present", Severity.ERROR, what, mend, run="tas get policies")
    run = command("kubectl", "edit", "taspolicy", "--namespace", key.namespace, key.name)
    return finding("metrics.present", Severity.ERROR, what, mend, run=run)


def _values(used: Collection[MetricUse], facts: MetricFacts) -> Iterator[Finding]:
    """What a source has refused lately as no value, or found suspect; blanks also of those that write to the bus."""
    lately = [
        (name, "refused" if why is RefusalReason.VALUE else f"suspect ({why.value})", values)
        for name, state in sorted(facts.sources.items())
        for why, values in (*state.refused.items(), *state.suspect.items())
        if (why is RefusalReason.VALUE or why in set(SuspectReason)) and facts.now - values.time <= LATELY
    ]
    metrics = {use.metric for use in used}
    blanks = [
        f"{metric} of {node} by {scrape.source}: {format_quantity(scrape.metrics[metric])}"
        for node, samples in sorted(facts.samples.items())
        for scrape in samples
        for metric in sorted(metrics & scrape.metrics.keys())
        if scrape.metrics[metric] in SMALL_BLANKS and facts.now - scrape.time <= LATELY
    ]
    mend = "docs/reference/source-states.md, Values that may be none, says what each of them means; this shows them"
    for name, how, values in lately:
        what = f"{name}: {values.count} {how}, as {values.example}"
        yield finding("metrics.values", Severity.WARNING, what, mend, run="tas get sources")
    mends = {
        "value": mend,
        "capacity": "this source, or the one that is named, publishes more than there is room for: see what",
    }
    refused = [each for each in facts.refused if each.reason in mends and facts.now - each.time <= LATELY]
    for each in refused:
        what = f"{each.source}: {each.count} refused when they came, as {each.example}"
        yield finding("metrics.values", Severity.WARNING, what, mends[each.reason], run="tas get sources")
    if blanks:
        what = f"each is a number of bytes, or a blank of GPU exporters (DCGM): {some(blanks)}"
        yield finding("metrics.values", Severity.WARNING, what, mend, run="tas get sources")
    if not lately and not refused and not blanks:
        yield ok("metrics.values", f"no value was refused or suspect in the last {LATELY / 60:g} minutes")


def _agree(facts: MetricFacts) -> Iterator[Finding]:
    limits = any_source_limits(facts.policies, facts.stale_after)
    found = contradictions(facts.samples, limits, now=facts.now, bounds=tolerances_of(facts.sources.values()))
    for metric in sorted({each.metric for each in found}):
        nodes = [each for each in found if each.metric == metric]
        what = f"on {counted(len(nodes), 'node')} sources contradict each other about {metric}, as {nodes[0]}"
        mend = f"set source in each rule with {metric}, or remove one of the sources"
        yield finding("metrics.agree", Severity.WARNING, what, mend, run="tas get sources")
    if not found:
        agreed = f"sources agree about {counted(len(limits), 'metric')} of policies"
        yield ok("metrics.agree", agreed if limits else "each rule names its source")


def late_sources(
    sources: Mapping[str, SourceState],
    held: Collection[str],
    samples: Mapping[str, NodeSamples],
    late: Sequence[LateMetric],
    *,
    now: float,
) -> dict[str, str]:
    """By source whose values come late, a sentence.

    Those of all nodes, if it is polled, or of nodes that are lost, or of some metrics.
    """
    times, found = newest_times(samples), _late_metrics(late, now)
    for name, state in sorted(sources.items()):
        if health(state, is_held=name in held, now=now) not in (Health.HEALTHY, Health.PARTIAL):
            found.pop(name, None)  # which is another finding
            continue
        every = "" if state.period is None else f", and the source is polled every {state.period:g} s"
        known = times.get(name)
        if known is not None and state.period is not None:
            # Another program says when it measured, perhaps once a minute. The answer of Prometheus is of the poll.
            newest = known.measured if state.kind == PROMETHEUS else known.arrived
            if now - newest > max(LATE_POLLS * state.period, LATE_SECONDS):
                found[name] = f"the newest value of {name} is {now - newest:.0f} s old{every}"
                continue
        if (lost := state.lost) is not None:
            nodes = f"{lost.count} of {counted(lost.nodes, 'node')} for {now - lost.since:.0f} s"
            names = some(lost.names, more=lost.count - len(lost.names))
            found.setdefault(name, f"{name} gives no new {lost.metric} of {nodes}: {names}{every}")
    return found


def _late_metrics(late: Sequence[LateMetric], now: float) -> dict[str, str]:
    by_source: dict[str, list[LateMetric]] = {}
    for each in late:
        by_source.setdefault(each.source, []).append(each)
    found = {}
    for source, those in by_source.items():
        oldest, *more = those
        every = f", and before there was a new one every {oldest.every:.0f} s" if oldest.every else ""
        others = f"; {some(each.metric for each in more)} {'is' if len(more) == 1 else 'are'} late, too" if more else ""
        age = now - oldest.measured
        found[source] = f"the newest value of {oldest.metric} by {source} is {age:.0f} s old{every}{others}"
    return found


def health_with(late: Collection[str], source: str, found: Health) -> Health:
    """The health of a source whose stored values are known, too."""
    return Health.LATE if found is Health.HEALTHY and source in late else found


def _late(facts: MetricFacts) -> Iterator[Finding]:
    """Whether new values come as often as a source is polled, from the source to what rules read."""
    late = late_sources(facts.sources, facts.held, facts.samples, facts.late, now=facts.now)
    with_others = {each.source for each in facts.late if each.others_come}
    for name, what in late.items():
        if name in with_others:
            yield finding("metrics.late", Severity.WARNING, what, METRIC_LATE_MEND, run="tas runbook TasMetricLate")
        elif name not in facts.sources:
            yield finding("metrics.late", Severity.WARNING, what, SILENT_MEND, run="tas runbook TasSourceSilent")
        else:
            yield finding("metrics.late", Severity.WARNING, what, LATE_MEND, run="tas get sources")
    if not late:
        yield ok("metrics.late", "of each polled source there are new values of all its nodes and metrics")


def _sources(facts: MetricFacts) -> Iterator[Finding]:
    wrong = False
    for name, state in sorted(facts.sources.items()):
        found = health(state, is_held=name in facts.held, now=facts.now)
        if found in (Health.FAILING, Health.PARTIAL, Health.UNATTENDED, Health.BEHIND):
            wrong = True
            missing = {metric: each.missing for metric, each in state.metrics.items() if each.missing}
            nobody = f"no replica of collect {'listens for it' if state.period is None else 'polls it'}"
            reason = nobody if found is Health.UNATTENDED else state.problem or next(iter(missing.values()), "")
            if found is Health.BEHIND:
                reason = f"its newest values come {state.behind:.0f} s later than every {state.period:g} s"
            severity = Severity.WARNING if found in (Health.PARTIAL, Health.BEHIND) else Severity.ERROR
            which = f" ({some(missing, more=state.missing_left_out)})" if missing else ""
            what = f"{name} is {found}{which}: {reason}"
            mend = "docs/reference/source-states.md says what to do when nothing comes; this shows each source"
            yield finding("metrics.sources", severity, what, mend, run="tas get sources")
    if not wrong:
        work = counted(len(facts.sources), "source of collect works", "sources of collect work")
        yield ok("metrics.sources", work if facts.sources else "no source of collect is in use")
