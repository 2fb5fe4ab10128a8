"""Why a value of a node is unknown, as far as the states of sources say it: for people."""

from collections.abc import Collection, Mapping

from tas.samples.freshness import is_fresh
from tas.samples.sample import newest
from tas.sources.state import Health, SourceState, health
from tas.values.nouns import counted
from tas.values.window import near_window, window_of
from tas.verdict.status import MetricUse, metrics_of
from tas.view.view import View
from tas.windows.key import COVERED


def why_unknown(
    view: View, node: str, sources: Mapping[str, SourceState], held: Collection[str], now: float
) -> dict[str, tuple[str, ...]]:
    """The metrics that rules of policies read and of which the node has no fresh sample, each with what sources say.

    `held` has the sources that a replica of collect holds. A metric of which no source says anything has no entry.
    """
    samples = view.samples(node)
    unknown: dict[MetricUse, bool] = {}  # and whether the node has a sample that is too old
    for index in view.policies.values():
        if index.policy.selects(view.labels(node)) is False:
            continue
        stale_after = view.stale_after(index.policy)
        for use in metrics_of(index.policy) - unknown.keys():
            scrape = newest(samples, use.metric, use.source or None)
            if scrape is None or not is_fresh(scrape, stale_after, now):
                unknown[use] = scrape is not None
    asked = {name: state for name, state in sorted(sources.items()) if _is_asked(name, state, held, now)}
    found = {str(use): _reasons(use, asked, has_sample=has_sample) for use, has_sample in sorted(unknown.items())}
    return {use: reasons for use, reasons in found.items() if reasons}


def _is_asked(name: str, state: SourceState, held: Collection[str], now: float) -> bool:
    """Whether what a source says is about now."""
    return health(state, is_held=name in held, now=now) is not Health.UNATTENDED


def _reasons(use: MetricUse, sources: Mapping[str, SourceState], *, has_sample: bool) -> tuple[str, ...]:
    reasons: list[str] = []
    asked = {name: state for name, state in sources.items() if use.source in ("", name)}
    for name, state in asked.items():
        known = state.metrics.get(use.metric)
        if known is None:
            if state.metrics_left_out:
                count = f"{len(state.metrics)} of its {counted(state.metric_count, 'metric')}"
                reasons.append(f"{name}: its state has room for {count}, and not for {use.metric}")
        elif texts := [text for text in (state.problem, known.missing) if text]:
            reasons.append(f"{name}: {'; '.join(texts)}")
        elif known.nodes:
            nodes = counted(known.nodes, "node")
            reasons.append(f"{name} has fresh values of {nodes}{_difference(use, has_sample=has_sample)}")
    is_wanted = any(use.metric in state.metrics or state.metrics_left_out for state in asked.values())
    if window_of(use.metric) is not None and not is_wanted:
        reasons.append("no source has this statistic: does windows run?")
    if (near := near_window(use.metric)) is not None:
        reasons.append(f"it is the name of an ordinary metric, not of a statistic: {near}")
    return tuple(reasons)


def _difference(use: MetricUse, *, has_sample: bool) -> str:
    """Why a node may have no fresh value although others have."""
    if has_sample:
        return ", by the longest staleAfter of all policies; that of this node is too old for a policy"
    if (window := window_of(use.metric)) is None:
        return ""
    needed = f"{COVERED * window.seconds:.0f} s"
    return f"; the values of {window.metric} of a node must span half of the window, {needed}"
