"""Makes an agent an extension: from the columns of candidates to rejected nodes with reasons, and scores from 0 to 10.

Only here scores become integers, and only here it is decided what happens to a node of which the agent has no opinion.
What an agent returns is checked: an array of another length, NaN, infinity or a score out of range is refused in its
name, and the request gets an error.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import nlargest
from math import fsum
from operator import itemgetter
from typing import Any

import numpy as np

from tas.agents.agent import Agent, BoolArray, Candidates, FloatArray, Missing, Passes, Rounding, Scores
from tas.agents.columns import Known, NodeColumns, RequestCandidates
from tas.agents.demand import demand_of
from tas.agents.file import AgentVerb, verbs_of
from tas.errors import shortened
from tas.extender.decision import FilterDecision, Pod, RejectingValue, ScoreDecision
from tas.extender.hooks import InvalidHookResultError
from tas.extension import Hooks, NodeView
from tas.scoring.score import MAX_SCORE
from tas.values.quantity import NANO

MAX_EXPLAINED = 3
"""Of how many nodes the record of an answer has the terms of the formula."""


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
        self._known = Known(
            metrics={metric: nodes.metric(metric, stale_after=self._needs.max_age) for metric in self._needs.metrics},
            allocations=nodes.allocations() if self._needs.allocations else {},
            measured_at=nodes.measured_at,
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
        passes = self.passes(pod, names, now)
        rejected = dict.fromkeys(_chosen(names, passes.known & ~passes.passed), f"{self._name}: {passes.reason}")
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
            list_values=lambda: self._values(tuple(rejected), names, passes.terms, now),
        )

    def score(self, pod: Pod, candidates: Collection[str], now: float) -> ScoreDecision:
        """The score of each candidate."""
        names = tuple(candidates)
        scores = self.scores(pod, names, now)
        points = to_points(scores, self._missing, self._rounding)
        unknown = int(np.count_nonzero(~scores.known))
        return ScoreDecision(
            scores=dict(zip(names, points, strict=True)),
            unknown=unknown,
            list_values=lambda: self._values(_best(names, points), names, scores.terms, now),
        )

    def passes(self, pod: Pod, names: Sequence[str], now: float) -> Passes:
        """What the agent returns for the filter, checked. Raises InvalidHookResultError."""
        found: object = self._agent.filter(demand_of(pod, amounts=self._needs.pod), self._candidates(names, now))
        if not isinstance(found, Passes):
            raise InvalidHookResultError(f"{shortened(found)}: filter must return Passes")
        _check_mask("known", found.known, names)
        _check_mask("passed", found.passed, names)
        if not isinstance(found.reason, str) or not found.reason:
            raise InvalidHookResultError(f"reason = {shortened(found.reason)}: a rejected node has a reason")
        return found

    def scores(self, pod: Pod, names: Sequence[str], now: float) -> Scores:
        """What the agent returns for prioritize, checked. Raises InvalidHookResultError."""
        found: object = self._agent.score(demand_of(pod, amounts=self._needs.pod), self._candidates(names, now))
        if not isinstance(found, Scores):
            raise InvalidHookResultError(f"{shortened(found)}: score must return Scores")
        _check_mask("known", found.known, names)
        _check_array("values", found.values, names, np.float64)
        wrong = found.known & ~((found.values >= 0) & (found.values <= 1))  # NaN is neither
        if wrong.any():
            at = int(wrong.argmax())
            raise InvalidHookResultError(f"{names[at]} = {found.values[at]}: a score is a number from 0 to 1")
        return found

    def _values(
        self, chosen: Sequence[str], names: Sequence[str], terms: Mapping[str, FloatArray], now: float
    ) -> Iterator[RejectingValue]:
        """The terms of the formula for some nodes, and the metrics behind them with their ages."""
        for node in chosen[:MAX_EXPLAINED]:
            at = names.index(node)
            for term, column in terms.items():
                if np.shape(column) == (len(names),) and np.isfinite(column[at]):
                    yield RejectingValue(node=node, rule=term, value=f"{column[at]:.6g}")
            for metric, values in self._known.metrics.items():
                if (value := values.get(node)) is not None:
                    measured_at = self._known.measured_at(node, metric)
                    age = None if measured_at is None else max(now - measured_at, 0.0)
                    yield RejectingValue(node=node, rule=metric, value=f"{value / NANO:.6g}", age_seconds=age)

    def _candidates(self, names: Sequence[str], now: float) -> Candidates:
        return RequestCandidates(names, self._known, now=now, cluster=self._cluster)

    def _cluster(self) -> NodeColumns:
        if not self._needs.whole_cluster:
            raise ValueError("the agent reads the whole cluster, which its needs do not say")
        names = {*self._nodes.names, *self._known.allocations}
        return NodeColumns(tuple(names), self._known)


def to_points(scores: Scores, missing: Missing, rounding: Rounding = Rounding.NEAREST) -> list[int]:
    """Scores of an agent as integers from 0 to 10."""
    known, values = scores.known, scores.values
    if not known.all():
        neutral = missing is Missing.NEUTRAL and known.any()
        # Summed exactly: so the order of the nodes does not matter.
        mean = fsum(values[known].tolist()) / np.count_nonzero(known) if neutral else 0.0
        values = np.where(known, values, mean)
    points = MAX_SCORE * values
    if rounding is Rounding.NEAREST:
        points = points + 0.5
    listed: list[int] = np.floor(points).astype(np.int64).tolist()
    return listed


def _best(names: Sequence[str], points: Sequence[int]) -> list[str]:
    """The nodes with the best scores."""
    return [name for _, name in nlargest(MAX_EXPLAINED, zip(points, names, strict=True), key=itemgetter(0))]


def _chosen(names: Sequence[str], mask: BoolArray) -> list[str]:
    return [names[at] for at in np.flatnonzero(mask).tolist()]


def _check_mask(field: str, value: object, names: Sequence[str]) -> None:
    _check_array(field, value, names, np.bool_)


def _check_array(field: str, value: object, names: Sequence[str], kind: type[Any]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != kind or value.shape != (len(names),):
        raise InvalidHookResultError(f"{field} = {shortened(value)}: must be {len(names)} values of {kind.__name__}")
