"""Why a value of a node is unknown, as far as the states of sources say it: for people."""

from collections.abc import Collection, Mapping

from tas.samples.freshness import is_fresh
from tas.samples.sample import newest
from tas.sources.state import Health, SourceState, health
from tas.values.window import near_window, window_of
from tas.verdict.status import MetricUse, metrics_of
from tas.view.view import View
from tas.windows.series import COVERED


def why_unknown(
    view: View, node: str, sources: Mapping[str, SourceState], held: Collection[str], now: float
) -> dict[str, tuple[str, ...]]:
    """The metrics that rules of policies read and of which the node has no fresh sample, each with what sources say.

    `held` has the sources that a replica of collect holds. A metric of which no source says anything has no entry.
    """
    samples = view.samples(node)
    unknown: set[MetricUse] = set()
    for index in view.policies.values():
        if index.policy.selects(view.labels(node)) is False:
            continue
        stale_after = view.stale_after(index.policy)
        for use in metrics_of(index.policy) - unknown:
            scrape = newest(samples, use.metric, use.source or None)
            if scrape is None or not is_fresh(scrape, stale_after, now):
                unknown.add(use)
    asked = {name: state for name, state in sorted(sources.items()) if _is_asked(name, state, held, now)}
    found = {str(use): _reasons(use, asked) for use in sorted(unknown)}
    return {use: reasons for use, reasons in found.items() if reasons}


def _is_asked(name: str, state: SourceState, held: Collection[str], now: float) -> bool:
    """Whether what a source says is about now."""
    return health(state, is_held=name in held, now=now) is not Health.UNATTENDED


def _reasons(use: MetricUse, sources: Mapping[str, SourceState]) -> tuple[str, ...]:
    reasons: list[str] = []
    window = window_of(use.metric)
    is_wanted = False
    for name, state in sources.items():
        if use.source and use.source != name:
            continue
        known = state.metrics.get(use.metric)
        is_wanted = is_wanted or known is not None or state.metrics_left_out > 0
        if known is None:
            if state.metrics_left_out:
                count = f"{len(state.metrics)} of its {state.metric_count} metrics"
                reasons.append(f"{name}: its state has room for {count}, and not for {use.metric}")
            continue
        if texts := [text for text in (state.problem, known.missing) if text]:
            reasons.append(f"{name}: {'; '.join(texts)}")
        elif known.nodes:
            reason = f"{name} has it of other nodes: {known.nodes}"
            if window is not None:
                needed = f"{COVERED * window.seconds:.0f} s"
                reason += f"; the values of {window.metric} of a node must span half of the window, {needed}"
            reasons.append(reason)
    if window is not None and not is_wanted:
        reasons.append("no source has this statistic: does windows run?")
    if (near := near_window(use.metric)) is not None:
        reasons.append(f"it is the name of an ordinary metric, not of a statistic: {near}")
    return tuple(reasons)
