"""What is compared: the default scores alone, or with a policy or agents beside them, as extenders."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from typing import Protocol

import numpy as np

from lab.simulate.model.cluster import Cluster, ClusterColumns, simulated_demand
from lab.simulate.model.default_scores import MAX_NODE_SCORE, BoolArray, IntArray
from lab.simulate.model.load import LoadPod
from tas.agents.agent import Agent, Missing, Rounding
from tas.agents.answers import checked_passes, checked_scores
from tas.agents.file import AgentVerb
from tas.agents.hooks import to_points
from tas.enforcing.pod import PodKey
from tas.errors import InvalidInputError
from tas.extender.decision import Pod
from tas.extender.hooks import InvalidHookResultError
from tas.extender.telemetry import TelemetryDecider
from tas.outcomes.outcome import Placed
from tas.policy.policy import POD_LABEL, Policy, StrategyType
from tas.policy.rules import State
from tas.samples.freshness import DEFAULT_STALE_AFTER
from tas.samples.sample import Scrape
from tas.scoring.score import MAX_SCORE
from tas.values.quantity import NANO, Quantity
from tas.verdict.evaluation import label_state
from tas.verdict.verdict import deschedule_label
from tas.view.view import View

STEP = MAX_NODE_SCORE // MAX_SCORE
"""What one point of an extender of weight 1 adds to a node (facts.md c24)."""


class Algorithm(Protocol):
    """An algorithm that places pods, beside the default filter and scores. It serves one simulation."""

    def passes(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> BoolArray:
        """Which of the nodes at `chosen` pass."""
        ...

    def points(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> IntArray:
        """What it adds to the score of each node at `chosen`, with its weight."""
        ...

    def observe_placed(self, pod: LoadPod, node: str, now: float) -> None:
        """A pod was placed."""
        ...

    def violating(self, cluster: Cluster) -> IntArray:
        """The nodes from which pods are to leave."""
        ...


class DefaultScores:
    """Nothing beside the default scores."""

    def passes(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> BoolArray:
        """All."""
        return np.ones(len(chosen), dtype=np.bool_)

    def points(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> IntArray:
        """None."""
        return np.zeros(len(chosen), dtype=np.int64)

    def observe_placed(self, pod: LoadPod, node: str, now: float) -> None:
        """Nothing is learned."""

    def violating(self, cluster: Cluster) -> IntArray:
        """None."""
        return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentExtender:
    """An agent as an extender: what it is asked, and how much its scores count."""

    agent: Agent
    verbs: frozenset[AgentVerb]
    weight: int = 1
    missing: Missing | None = None
    compat: bool = False


class Agents(DefaultScores):
    """Agents, each an extender of its own: one filters what the one before has left."""

    def __init__(self, extenders: Sequence[AgentExtender]) -> None:
        self._extenders = extenders

    def passes(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> BoolArray:
        """The nodes that pass every filter."""
        passed = np.ones(len(chosen), dtype=np.bool_)
        for each in self._extenders:
            if AgentVerb.FILTER not in each.verbs or not passed.any():
                continue
            columns = ClusterColumns(cluster, chosen[passed], now, each.agent.needs)
            with _named(each.agent):
                found = checked_passes(
                    each.agent.filter(simulated_demand(pod, amounts=each.agent.needs.pod), columns), columns.names
                )
            unknown_passes = _missing(each) is not Missing.REJECT
            passed[passed] = np.where(found.known, found.passed, unknown_passes)
        return passed

    def points(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> IntArray:
        """The sum of the scores with their weights."""
        total = np.zeros(len(chosen), dtype=np.int64)
        for each in self._extenders:
            if AgentVerb.PRIORITIZE not in each.verbs:
                continue
            columns = ClusterColumns(cluster, chosen, now, each.agent.needs)
            with _named(each.agent):
                found = checked_scores(
                    each.agent.score(simulated_demand(pod, amounts=each.agent.needs.pod), columns), columns.names
                )
            points = to_points(found, _missing(each), each.agent.original_rounding if each.compat else Rounding.NEAREST)
            total += np.array(points, dtype=np.int64) * each.weight * STEP
        return total

    def observe_placed(self, pod: LoadPod, node: str, now: float) -> None:
        """Tells every agent."""
        event = Placed(uid=pod.name, node=node, at=now, requests=simulated_demand(pod).requests)
        for each in self._extenders:
            each.agent.observe(event)


class TelemetryPolicy(DefaultScores):
    """A TASPolicy that all pods name, decided by the product's own view."""

    def __init__(self, policy: Policy, nodes: Iterable[str], *, weight: int, period: float) -> None:
        self._policy = policy
        self._weight = weight
        self._view = View(default_stale_after=max(DEFAULT_STALE_AFTER, 3 * period))
        self._decider = TelemetryDecider(self._view)
        self._metrics = tuple(
            dict.fromkeys(rule.metric for each in policy.strategies.values() for rule in each.rules if rule.readable)
        )
        self._measured: float | None = None
        for node in nodes:
            self._view.set_labels(node, {})
        self._view.set_policies([policy], 0.0)

    def passes(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> BoolArray:
        """The nodes that `dontschedule` does not reject."""
        self._follow(cluster, now)
        names = _names(cluster, chosen)
        rejected = self._decider.filter(self._pod(pod), names, now).rejected
        return np.array([name not in rejected for name in names], dtype=np.bool_)

    def points(self, pod: LoadPod, cluster: Cluster, chosen: IntArray, now: float) -> IntArray:
        """The scores of `scheduleonmetric`."""
        self._follow(cluster, now)
        names = _names(cluster, chosen)
        scores = self._decider.score(self._pod(pod), names, now).scores
        if scores is None:
            return np.zeros(len(chosen), dtype=np.int64)
        return np.array([scores.get(name, 0) for name in names], dtype=np.int64) * self._weight * STEP

    def observe_placed(self, pod: LoadPod, node: str, now: float) -> None:
        """For rules with a `podCost`."""
        self._view.place_pod(PodKey("default", pod.name), self._policy.key, node, now, now)

    def violating(self, cluster: Cluster) -> IntArray:
        """The nodes that violate `deschedule`."""
        measured = cluster.series.measured
        label = deschedule_label(self._policy.key)
        if measured is None or label is None or StrategyType.DESCHEDULE not in self._policy.strategies:
            return np.zeros(0, dtype=np.int64)
        self._follow(cluster, measured)
        violating = [
            at
            for at, node in enumerate(cluster.names)
            if label_state(
                self._policy,
                label,
                samples=self._view.samples(node),
                labels=self._view.labels(node),
                default_stale_after=self._view.default_stale_after,
                now=measured,
            )
            is State.VIOLATED
        ]
        return np.array(violating, dtype=np.int64)

    def _follow(self, cluster: Cluster, now: float) -> None:
        """Brings the newest measurement into the view."""
        measured = cluster.series.measured
        if measured is None or measured == self._measured:
            return
        self._measured = measured
        columns = {metric: cluster.series.column(metric).tolist() for metric in self._metrics}
        for at, node in enumerate(cluster.names):
            found = {metric: _quantity(values[at]) for metric, values in columns.items()}
            metrics = {metric: value for metric, value in found.items() if value is not None}
            scrape = Scrape(source="simulation", measured=measured, arrived=measured, sequence=0, metrics=metrics)
            self._view.add_samples(node, [scrape], now)

    def _pod(self, pod: LoadPod) -> Pod:
        key = self._policy.key
        return Pod(namespace=key.namespace, name=pod.name, uid=pod.name, labels={POD_LABEL: key.name})


@contextmanager
def _named(agent: Agent) -> Iterator[None]:
    """A wrong answer of an agent, or its error, is one of the agent's input: the simulation ends with its name."""
    name = type(agent).__name__
    try:
        yield
    except InvalidHookResultError as error:
        raise InvalidInputError(f"agent {name}", "answer", "wrong", str(error)) from error
    except Exception as error:
        raise InvalidInputError(f"agent {name}", "answer", "none", f"it has raised {error!r}") from error


def _names(cluster: Cluster, chosen: IntArray) -> list[str]:
    return [cluster.names[at] for at in chosen.tolist()]


def _missing(extender: AgentExtender) -> Missing:
    return extender.agent.missing if extender.missing is None else extender.missing


def _quantity(value: float) -> Quantity | None:
    return None if isnan(value) else Quantity(round(value * NANO))
