"""Makes an agent an extension: from the columns of candidates to rejected nodes with reasons, and scores from 0 to 10.

Only here scores become integers, and only here it is decided what happens to a node of which the agent has no opinion.
What an agent returns is checked: an array of another length, NaN, infinity or a score out of range is refused in its
name, and the request gets an error.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import fsum, isfinite

import numpy as np

from tas.agents.agent import Agent, BoolArray, FloatArray, Missing, Passes, Rounding, Scores
from tas.agents.answers import checked_passes, checked_scores
from tas.agents.columns import Known, NodeColumns, RequestCandidates
from tas.agents.demand import demand_of
from tas.agents.file import AgentVerb, verbs_of
from tas.agents.kept import KeptColumns
from tas.extender.decision import FilterDecision, Pod, RejectingValue, ScoreDecision
from tas.extension import Hooks, NodeView
from tas.scoring.score import MAX_SCORE
from tas.values.quantity import NANO

MAX_EXPLAINED = 3
"""Of how many nodes the record of an answer has the terms of the formula, and of how many what is unknown."""

NO_OPINION = "no opinion"
"""Instead of a term of the formula, of a node of which the agent has no opinion; the value says what is unknown."""

MAX_MISSING = 6
"""How many of the unknown values are named."""


class AgentHooks:
    """The hooks of an agent under a name.

    Args:
        name: The name of the agent in reasons, which several agents may give for one pod.
        agent: The agent.
        nodes: The view; the metrics of the agent are followed from now on.
        missing: What happens to a node of which the agent has no opinion; None: what the agent prefers.
        compat: Whether scores are rounded as by the original of the agent.
    """

    def __init__(
        self, name: str, agent: Agent, nodes: NodeView, *, missing: Missing | None = None, compat: bool = False
    ) -> None:
        self._name = name
        self._agent = agent
        self._nodes = nodes
        self._needs = agent.needs
        self._missing = agent.missing if missing is None else missing
        self._rounding = agent.original_rounding if compat else Rounding.NEAREST
        max_age = self._needs.max_age
        self._metrics = {metric: nodes.metric(metric, stale_after=max_age) for metric in self._needs.metrics}
        kept = nodes.shared(KeptColumns)
        if self._needs.allocations:
            nodes.allocations()  # this agent reads them, too
            kept.follow_allocations(nodes)
        self._known = Known(
            kept=kept,
            metrics={metric: kept.follow_metric(nodes, metric, max_age) for metric in self._needs.metrics},
            allocations=self._needs.allocations,
        )

    def hooks(self) -> Hooks:
        """The hooks, for the methods that the agent overrides."""
        verbs = verbs_of(type(self._agent))
        return Hooks(
            filter=self.filter if AgentVerb.FILTER in verbs else None,
            score=self.score if AgentVerb.PRIORITIZE in verbs else None,
        )

    def filter(self, pod: Pod, candidates: Collection[str], now: float) -> FilterDecision:
        """The rejected candidates, each with a reason."""
        names = tuple(candidates)
        nodes = self._candidates(names, now)
        passes = self._passes(pod, nodes)
        failed = passes.known & ~passes.passed
        rejected = dict.fromkeys(_chosen(names, failed), f"{self._name}: {passes.reason}")
        unknown = int(np.count_nonzero(~passes.known))
        rejects = self._missing is Missing.REJECT
        if rejects and unknown:
            rejected |= dict.fromkeys(
                _chosen(names, ~passes.known), f"{self._name}: nothing fresh is known of the node"
            )
        return FilterDecision(
            rejected=rejected,
            unresolvable=not passes.resolvable,
            count_unknown=lambda: 0 if rejects else unknown,
            unknown_rejected=unknown if rejects else 0,
            list_values=lambda: (
                *self._missing_values(names, passes.known),
                *self._values(_first(failed, ~passes.known & rejects), nodes, passes.terms),
            ),
        )

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        """The score of each candidate."""
        names = tuple(candidates)
        nodes = self._candidates(names, now)
        scores = self._scores(pod, nodes)
        points = to_points(scores, self._missing, self._rounding)
        unknown = int(np.count_nonzero(~scores.known))
        return ScoreDecision(
            scores=dict(zip(names, points, strict=True)),
            unknown=unknown,
            list_values=lambda: (
                *self._missing_values(names, scores.known),
                *self._values(_best(points, scores.known), nodes, scores.terms),
            ),
        )

    def _passes(self, pod: Pod, nodes: RequestCandidates) -> Passes:
        """What the agent returns for the filter, checked. Raises InvalidHookResultError."""
        return checked_passes(self._agent.filter(demand_of(pod, amounts=self._needs.pod), nodes), nodes.names)

    def _scores(self, pod: Pod, nodes: RequestCandidates) -> Scores:
        """What the agent returns for prioritize, checked. Raises InvalidHookResultError."""
        return checked_scores(self._agent.score(demand_of(pod, amounts=self._needs.pod), nodes), nodes.names)

    def _values(
        self, chosen: Sequence[int], nodes: RequestCandidates, terms: Mapping[str, FloatArray]
    ) -> Iterator[RejectingValue]:
        """The terms of the formula for some nodes, and what is behind them: amounts, and metrics with their ages.

        `chosen` are their places. An answer waits for what is made here of the answer before, so it is little.
        """
        shape = (len(nodes.names),)
        columns = [(term, np.asarray(column)[chosen]) for term, column in terms.items() if np.shape(column) == shape]
        columns += nodes.amounts(chosen)
        for number, node in enumerate(nodes.names[at] for at in chosen):
            for term, column in columns:
                if isfinite(column[number]):
                    yield RejectingValue(node=node, rule=term, value=f"{column[number]:.6g}")
            for metric, values in self._metrics.items():
                if (value := values.get(node)) is not None:
                    measured_at = self._nodes.measured_at(node, metric)
                    age = None if measured_at is None else max(nodes.now - measured_at, 0.0)
                    yield RejectingValue(node=node, rule=metric, value=f"{value / NANO:.6g}", age_seconds=age)

    def _missing_values(self, names: Sequence[str], known: BoolArray) -> Iterator[RejectingValue]:
        """What is unknown of some of the nodes of which the agent has no opinion."""
        for node in (names[at] for at in _first(~known)):
            missing = ["allocation"] if self._needs.allocations and node not in self._nodes.allocations() else []
            missing += [metric for metric, values in self._metrics.items() if node not in values]
            more = [f"{len(missing) - MAX_MISSING} more"] if len(missing) > MAX_MISSING else []
            text = f"unknown: {', '.join((*missing[:MAX_MISSING], *more))}" if missing else None
            yield RejectingValue(node=node, rule=NO_OPINION, value=text)

    def _candidates(self, names: Sequence[str], now: float) -> RequestCandidates:
        return RequestCandidates(names, self._known, now=now, cluster=self._cluster)

    def _cluster(self) -> NodeColumns:
        if not self._needs.whole_cluster:
            raise ValueError("the agent reads the whole cluster, which its needs do not say")
        names, rows = self._known.kept.cluster(self._nodes)
        return NodeColumns(names, self._known, rows)


def to_points(scores: Scores, missing: Missing, rounding: Rounding = Rounding.NEAREST) -> list[int]:
    """Scores of an agent as integers from 0 to 10."""
    known, values = scores.known, scores.values
    if not known.all():
        neutral = missing is Missing.NEUTRAL and known.any()
        # Summed exactly: so the order of the nodes does not matter.
        mean = fsum(values[known].tolist()) / np.count_nonzero(known) if neutral else 0.0
        values = np.where(known, values, mean)
    match rounding:
        case Rounding.NEAREST:
            points = np.floor(MAX_SCORE * values + 0.5)
        case Rounding.DOWN:
            points = np.floor(MAX_SCORE * values)
        case Rounding.DOWN_OF_TEXT:
            # Of 0.7 as of its text: 0.7 rounded, times 10, is 7.
            points = np.floor(np.round(MAX_SCORE * np.round(values, 6), 5))
        case Rounding.UP:
            points = np.ceil(MAX_SCORE * values)
    listed: list[int] = points.astype(np.int64).tolist()
    return listed


def _best(points: Sequence[int], known: BoolArray) -> list[int]:
    """The places of the nodes with the best scores of those of which the agent has an opinion."""
    scores = np.where(known, points, -1)
    best: list[int] = np.argsort(-scores, kind="stable")[:MAX_EXPLAINED].tolist()
    return [at for at in best if known[at]]


def _first(*masks: BoolArray) -> list[int]:
    """The first places that are in one of the masks: those of the first mask, then of the next."""
    found = [at for mask in masks for at in np.flatnonzero(mask)[:MAX_EXPLAINED].tolist()]
    return found[:MAX_EXPLAINED]


def _chosen(names: Sequence[str], mask: BoolArray) -> list[str]:
    return [names[at] for at in np.flatnonzero(mask).tolist()]
