"""Every agent of the product conforms, and each rule of conformance is noticed by an agent that breaks it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import count
from math import nan
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.agent import (
    Agent,
    Candidates,
    Columns,
    ContainerDemand,
    FloatArray,
    Missing,
    Needs,
    Outcome,
    Passes,
    Placed,
    PodDemand,
    Scores,
    faults,
)
from tas.agents.builtin import BUILTIN
from tas.agents.congestion import Link
from tas.agents.file import AgentVerb, verbs_of
from tas.agents.pigeon import RESOURCES, Objective
from tas.agents.safe import Mode
from tas.agents.trimaran import PowerModel
from tas.agents.usage import Base, Form, Usage
from tas.errors import InvalidInputError

LINKS = (Link(traffic="rx", capacity=50.0), Link(traffic="tx", capacity_metric="speed"))
FORECAST = (Usage(mean="m", std="s", forecast="f"),)
RATIO = (Usage(mean="r", std="d", form=Form.RATIO),)
AS_ORIGINAL = {"sigma_floor": 0.0, "cap_sigma": False, "base": Base.ALLOCATABLE}
POWER = {
    "node-0": PowerModel(k1=-91.5, k2=-0.07),
    "node-1": PowerModel(k1=1.0, k2=0.0),
    "n0": PowerModel(k1=9.0, k2=1e3),
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "safe-overload as the original": ("safe-overload", AS_ORIGINAL),
    "safe-overload without accepted risk": ("safe-overload", {"risk": 0.0, "utilization": 1.0}),
    "safe-overload of every risk": ("safe-overload", {"risk": 1.0, "utilization": 0.0}),
    "safe-overload from percentiles": ("safe-overload", {"mode": Mode.EMPIRICAL}),
    "safe-overload with a forecast": ("safe-overload", {"forecast_weight": 1.0, "cpu": FORECAST, "memory": RATIO}),
    "safe-balance with the mode of safe-overload": ("safe-balance", {"mode": Mode.EMPIRICAL}),
    "safe-balance without a root": ("safe-balance", {"sensitivity": 0.0, "margin": 1e9}),
    "safe-balance with a steep root": ("safe-balance", {"sensitivity": 1e-9, "sigma_floor": 0.0}),
    "congestion from traffic": ("congestion", {"links": LINKS, "drops": "drops", "limit": 1e-9}),
    "pigeon-holing by balance": ("pigeon-holing", {"objective": Objective.LOAD_BALANCE}),
    "pigeon-holing by consolidation": ("pigeon-holing", {"objective": Objective.CONSOLIDATE, "prime": 1}),
    "pigeon-holing of five resources": ("pigeon-holing", {"resources": RESOURCES}),
    "rl-priority of new rewards only": ("rl-priority", {"weight": 1.0, "prior": 0.0}),
    "target-load of 99 %": ("target-load", {"target": 99.0, "cpu": RATIO}),
    "risk-balance of the allocatable": ("risk-balance", {"base": Base.ALLOCATABLE, "margin": 1e9, "cpu": RATIO}),
    "low-risk-overcommit of limits only": ("low-risk-overcommit", {"limit_weights": {"cpu": 1.0}, "window": 1000}),
    "peaks with power models": ("peaks", {"models": POWER, "default": PowerModel(k1=2.0, k2=0.01)}),
}
"""Options that lead elsewhere than the defaults, by what they do."""

AGENTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in BUILTIN} | VARIANTS


def made(name: str) -> Agent:
    """A new agent of `AGENTS`."""
    kind, options = AGENTS[name]
    agent = BUILTIN[kind]
    return agent() if agent.Options is None else agent(agent.Options(**options))  # type: ignore[call-arg]


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_of_the_product_conforms(name: str) -> None:
    assert faults(made(name)) == []


METRICS = st.one_of(st.just(nan), st.floats(-1e40, 1e40), st.floats(0.0, 1.0), st.floats(0.0, 1e4))
AMOUNTS = st.one_of(st.just(nan), st.integers(0, 10**19).map(float), st.integers(0, 8000).map(float))
REQUESTS = st.dictionaries(st.sampled_from(["cpu", "memory", "pods"]), st.integers(0, 10**19).map(float))
CONTAINERS = st.lists(st.builds(ContainerDemand, requests=REQUESTS, limits=REQUESTS), max_size=3)
PODS = st.builds(
    PodDemand,
    namespace=st.just("default"),
    name=st.just("p"),
    uid=st.just("u"),
    labels=st.just({"app": "a"}),
    requests=REQUESTS,
    limits=REQUESTS,
    containers=CONTAINERS,
    overhead=REQUESTS,
)


class Drawn:
    """The columns of some nodes from drawn values; `turned` has the nodes in the opposite order."""

    now = 1000.0

    def __init__(self, data: st.DataObject, count: int) -> None:
        self.names: Sequence[str] = tuple(f"n{number}" for number in range(count))
        self._data = data
        self._columns: dict[tuple[str, ...], list[float]] = {}
        self._step = 1

    def turned(self) -> "Drawn":
        other = copy(self)
        other.names, other._step = self.names[::-1], -self._step
        return other

    @property
    def cluster(self) -> Columns:
        return self

    def metric(self, name: str) -> FloatArray:
        return self._column(METRICS, "metric", name)

    def capacity(self, resource: str) -> FloatArray:
        return self._column(AMOUNTS, "capacity", resource)

    def allocatable(self, resource: str) -> FloatArray:
        return self._column(AMOUNTS, "allocatable", resource)

    def requested(self, resource: str) -> FloatArray:
        return self._column(AMOUNTS, "requested", resource)

    def limited(self, resource: str) -> FloatArray:
        return self._column(AMOUNTS, "limited", resource)

    def placed(self, resource: str, metric: str) -> FloatArray:
        return np.nan_to_num(self._column(AMOUNTS, "placed", resource, metric))

    def derived(self, key: Hashable, compute: Callable[["Drawn"], FloatArray]) -> FloatArray:
        hash(key)
        return compute(self)

    def _column(self, values: st.SearchStrategy[float], *key: str) -> FloatArray:
        count = len(self.names)
        if key not in self._columns:
            self._columns[key] = self._data.draw(st.lists(values, min_size=count, max_size=count))
        return np.array(self._columns[key][:: self._step], dtype=np.float64)


@given(st.data(), st.integers(1, 4), PODS)
def test_no_input_gives_a_score_out_of_range(data: st.DataObject, count: int, asked: PodDemand) -> None:
    """Nor does the order of the nodes matter, whatever is known of them. Every agent scores the same drawn nodes."""
    nodes = Drawn(data, count)
    for name in AGENTS:
        agent = made(name)
        scores, turned = agent.score(asked, nodes), agent.score(asked, nodes.turned())
        values = scores.values[scores.known]
        assert ((values >= 0) & (values <= 1)).all(), name
        assert turned.known[::-1].tolist() == scores.known.tolist(), name
        assert turned.values[::-1][scores.known] == pytest.approx(values, abs=1e-9), name


FILTERING = [name for name in AGENTS if AgentVerb.FILTER in verbs_of(type(made(name)))]


def test_there_are_agents_that_reject() -> None:
    assert {AGENTS[name][0] for name in FILTERING} == {"foo", "safe-overload"}


@given(st.data(), st.integers(1, 4), PODS)
def test_no_input_rejects_a_node_of_which_nothing_is_known(data: st.DataObject, count: int, asked: PodDemand) -> None:
    """Each other node passes or not, whatever the order is; a rejected one has a finite term."""
    nodes = Drawn(data, count)
    for name in FILTERING:
        agent = made(name)
        passes, turned = agent.filter(asked, nodes), agent.filter(asked, nodes.turned())
        assert turned.known[::-1].tolist() == passes.known.tolist(), name
        assert turned.passed[::-1][passes.known].tolist() == passes.passed[passes.known].tolist(), name
        rejected = passes.known & ~passes.passed
        for number in np.flatnonzero(rejected):
            assert any(np.isfinite(term[number]) for term in passes.terms.values()), name


class Good(Agent):
    """Scores by one metric; each class below breaks one rule."""

    @property
    def needs(self) -> Needs:
        return Needs(metrics=("load",))

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        load = nodes.metric("load")
        known = np.isfinite(load)
        return Scores(values=1 - np.clip(np.where(known, load, 0.0) / 100, 0, 1), known=known, terms={"load": load})


class Filtering(Good):
    """Rejects by one metric."""

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        load = nodes.metric("load")
        with np.errstate(invalid="ignore"):
            return Passes(passed=load < 50, known=np.isfinite(load), reason="busy")


class Learning(Good):
    """Counts the pods of a node, once each."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        counts = np.array([list(self.pods.values()).count(name) for name in nodes.names], dtype=np.float64)
        return Scores(values=1 / (1 + counts), known=np.isfinite(nodes.metric("load")))

    def observe(self, event: Placed | Outcome) -> None:
        self.pods[event.uid] = event.node

    def snapshot(self) -> Mapping[str, Any] | None:
        return {"version": 1, "pods": dict(self.pods)}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != 1 or not isinstance(state.get("pods"), dict):
            raise InvalidInputError("state of learning", "version", state.get("version"), "must be 1")
        self.pods = dict(state["pods"])


@pytest.mark.parametrize("kind", [Good, Filtering, Learning])
def test_the_examples_of_this_page_conform(kind: type[Agent]) -> None:
    """So that each fault below comes from the one rule that is broken."""
    assert faults(kind()) == []


class Silent(Agent):
    pass


class Unready(Good):
    @property
    def needs(self) -> Needs:
        raise LookupError("no configuration")


class OneName(Good):
    @property
    def needs(self) -> Needs:
        return Needs(metrics="load")


class Restless(Good):
    turns = count()

    @property
    def needs(self) -> Needs:
        return Needs(metrics=("load",), max_age=float(next(self.turns) + 1))


class Ageless(Good):
    @property
    def needs(self) -> Needs:
        return Needs(metrics=("load",), max_age=0.0)


class OpenOptions(Good):
    class Options(msgspec.Struct):
        limit: float = 1.0


class RequiredOptions(Good):
    class Options(msgspec.Struct, frozen=True):
        limit: float


class Raising(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return Scores(values=nodes.metric("load")[:1] / len(nodes.names[0]), known=np.ones(1, dtype=np.bool_))


class OtherMetric(Good):
    @property
    def needs(self) -> Needs:
        return Needs(metrics=("cpu",))


class HiddenAmounts(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        nodes.requested("cpu")
        return super().score(pod, nodes)


class HiddenPod(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        pod.requests.get("cpu", 0.0)
        return super().score(pod, nodes)


class HiddenLimits(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        pod.limits.get("cpu", 0.0)
        return super().score(pod, nodes)


class HiddenOverhead(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        dict(pod.overhead)
        return super().score(pod, nodes)


class HiddenContainers(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        sum(len(each.limits) for each in pod.containers)
        return super().score(pod, nodes)


class FirstContainer(Good):
    """A pod that asks for resources as a whole has none."""

    needs = Needs(metrics=("load",), pod=True)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        pod.containers[0].requests.get("cpu", 0.0)
        return super().score(pod, nodes)


class HiddenCluster(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        nodes.cluster.metric("load")
        return super().score(pod, nodes)


class Writing(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        load = nodes.metric("load")
        load *= 2
        return super().score(pod, nodes)


class NoAnswer(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return None  # type: ignore[return-value]


class PlainList(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return [0.5] * len(nodes.names)  # type: ignore[return-value]


class Short(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return Scores(values=np.full(1, 0.5), known=np.ones(len(nodes.names), dtype=np.bool_))


class WholeNumbers(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        zeros = np.zeros(len(nodes.names), dtype=np.int64)
        return Scores(values=zeros, known=np.isfinite(nodes.metric("load")))  # type: ignore[arg-type]


class OutOfRange(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        load = nodes.metric("load")
        return Scores(values=load / 100, known=np.isfinite(load))


class NoNumber(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        load = nodes.metric("load")
        with np.errstate(all="ignore"):
            return Scores(values=np.clip(load / load, 0, 1), known=np.isfinite(load))


class Infinite(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        scores = super().score(pod, nodes)
        with np.errstate(all="ignore"):
            return Scores(values=scores.values, known=scores.known, terms={"quotient": 1 / nodes.metric("load")})


class Counting(Good):
    def __init__(self) -> None:
        self.calls = 0

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        self.calls += 1
        return Scores(values=np.full(len(nodes.names), 1 / self.calls), known=np.isfinite(nodes.metric("load")))


class FirstIsBest(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return Scores(values=np.linspace(1, 0, len(nodes.names)), known=np.isfinite(nodes.metric("load")))


class FirstIsRejected(Filtering):
    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        passed = np.arange(len(nodes.names)) > 0
        return Passes(passed=passed, known=np.isfinite(nodes.metric("load")), reason="first")


class UnknownIsBest(Good):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        scores = super().score(pod, nodes)
        return Scores(values=scores.values, known=np.ones(len(nodes.names), dtype=np.bool_))


class UnknownIsRejected(Filtering):
    missing: ClassVar[Missing] = Missing.REJECT

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        passes = super().filter(pod, nodes)
        return Passes(passed=passes.passed, known=np.ones(len(nodes.names), dtype=np.bool_), reason="busy")


class NoReason(Filtering):
    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        passes = super().filter(pod, nodes)
        return Passes(passed=passes.passed, known=passes.known, reason="")


class LongReason(Filtering):
    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        passes = super().filter(pod, nodes)
        return Passes(passed=passes.passed, known=passes.known, reason="busy " * 50)


class Repeating(Learning):
    def observe(self, event: Placed | Outcome) -> None:
        self.pods[f"{event.uid} {len(self.pods)}"] = event.node


class Deaf(Learning):
    def observe(self, event: Placed | Outcome) -> None:
        raise OSError("no disk")


class NoVersion(Learning):
    def snapshot(self) -> Mapping[str, Any] | None:
        return {"pods": dict(self.pods)}


class NotPlain(Learning):
    def snapshot(self) -> Mapping[str, Any] | None:
        return {"version": 1, "pods": object()}


class Credulous(Learning):
    def restore(self, state: Mapping[str, Any]) -> None:
        self.pods = state["pods"] if isinstance(state.get("pods"), dict) else {}


class Rough(Learning):
    def restore(self, state: Mapping[str, Any]) -> None:
        assert state["version"] == 1, "another version"
        self.pods = dict(state["pods"])


class Hasty(Learning):
    def restore(self, state: Mapping[str, Any]) -> None:
        self.pods = {}
        super().restore(state)


class Forgetful(Learning):
    def restore(self, state: Mapping[str, Any]) -> None:
        kept = dict(self.pods)
        super().restore(state)
        self.pods = kept


class Secretive(Learning):
    """Its answers depend on more than the snapshot has."""

    seen = 0

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return Scores(values=np.full(len(nodes.names), 1 / (1 + self.seen)), known=np.isfinite(nodes.metric("load")))

    def observe(self, event: Placed | Outcome) -> None:
        self.seen += event.uid not in self.pods
        super().observe(event)


class Deriving(Good):
    """Keeps what depends on more than a node."""

    needs = Needs(metrics=("load",), pod=True)

    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        return nodes.metric("load").reshape(1, -1)

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        (load,) = nodes.derived("rows", partial(self.rows, pod))
        known = np.isfinite(load)
        return Scores(values=1 - np.clip(np.where(known, load, 0.0) / 100, 0, 1), known=known)


class DerivesOfOthers(Deriving):
    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        load = nodes.metric("load").reshape(1, -1)
        return load - float(np.nan_to_num(load).max(initial=0.0))


class DerivesOfPod(Deriving):
    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        return (nodes.metric("load") + pod.requests.get("cpu", 0.0)).reshape(1, -1)


class DerivesSmallOfPod(Deriving):
    """A small number is not the same as one twice as large."""

    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        small = np.clip(nodes.metric("load"), 0, 100) * 1e-12
        return small.reshape(1, -1) * (2 if pod.requests else 1)


class DerivesOfOverhead(Deriving):
    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        return (nodes.metric("load") + pod.overhead.get("cpu", 0.0)).reshape(1, -1)


class DerivesOfContainers(Deriving):
    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        return (nodes.metric("load") * (1 + len(pod.containers) // 2)).reshape(1, -1)


class DerivesOfWhole(Deriving):
    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        return (nodes.metric("load") * (1 if pod.containers else 2)).reshape(1, -1)


BROKEN: dict[type[Agent], str] = {
    Silent: "overrides neither filter nor score",
    Unready: "needs: raises LookupError",
    OneName: "metrics must be names, not 'load'",
    Restless: "needs: differ",
    Ageless: "max_age must be above 0, not 0.0",
    OpenOptions: "Options: must be a frozen",
    RequiredOptions: "Options: raises TypeError",
    Raising: "0 nodes with plausible values and a pod without requests: raises IndexError",
    OtherMetric: "reads the metric load, which its needs do not name",
    HiddenAmounts: "reads requested of nodes, which",
    HiddenPod: "reads requests of the pod, which",
    HiddenLimits: "reads limits of the pod, which",
    HiddenOverhead: "reads overhead of the pod, which",
    HiddenContainers: "reads limits of the pod, which",
    FirstContainer: "a pod that asks as a whole: raises IndexError",
    HiddenCluster: "reads the whole cluster, which",
    Writing: "raises ValueError: 'output array is read-only'",
    NoAnswer: "returns None",
    PlainList: "which is no Scores",
    Short: "values must be an array of float64 with a value for each node",
    WholeNumbers: "values must be an array of float64",
    OutOfRange: "values at the edges and a pod without requests: a score is not from 0 to 1",
    NoNumber: "zeros and a pod without requests: a score is not from 0 to 1",
    Infinite: "a term is infinite",
    Counting: "another answer to the same question",
    FirstIsBest: "score of 2 nodes with plausible values and a pod without requests: the answer depends on the order",
    FirstIsRejected: "filter of 2 nodes with plausible values and a pod without requests: the answer depends on",
    UnknownIsBest: "score of 1 node with all values missing and a pod without requests: has an opinion",
    UnknownIsRejected: "rejects a node of which nothing is known",
    NoReason: "the reason must be a line of text",
    LongReason: "the reason is longer than 200",
    Repeating: "learns from an event that comes a second time",
    Deaf: "observe: raises OSError: 'no disk'",
    NoVersion: "snapshot: must be a mapping with a `version`",
    NotPlain: "snapshot: raises TypeError",
    Credulous: "restore: accepts a state of another version",
    Rough: "restore: raises AssertionError for a state of another version",
    Hasty: "restore: changes the learned state when it refuses",
    Secretive: "another answer after `restore` of the same state",
    Forgetful: "restore: another state than the snapshot",
    DerivesOfOthers: "derives a value of a node from other nodes",
    DerivesOfPod: "derives a value of a node from the pod",
    DerivesSmallOfPod: "derives a value of a node from the pod",
    DerivesOfOverhead: "derives a value of a node from the pod",
    DerivesOfContainers: "derives a value of a node from the pod",
    DerivesOfWhole: "derives a value of a node from the pod",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_rule_is_a_fault(kind: type[Agent]) -> None:
    found = faults(kind())
    assert any(BROKEN[kind] in each for each in found), found


def test_a_fault_is_listed_once() -> None:
    """At the first input that shows it, although most do."""
    assert len(faults(NoAnswer())) == 1


def test_an_agent_that_derives_from_a_node_alone_conforms() -> None:
    assert faults(Deriving()) == []


class Turning(Deriving):
    """Another answer to each question, by a part of the number, or another derivation for each pod."""

    derives = True

    def __init__(self, part: float) -> None:
        self.part, self.turns = part, count()

    def rows(self, pod: PodDemand, nodes: Columns) -> FloatArray:
        return nodes.metric("load").reshape(1, -1) * (1 + (self.part if self.derives and pod.requests else 0.0))

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        scores = super().score(pod, nodes)
        if self.derives:
            return scores
        return Scores(values=scores.values * (1 - next(self.turns) % 2 * self.part), known=scores.known)


class TurningScores(Turning):
    derives = False


@pytest.mark.parametrize("kind", [Turning, TurningScores])
def test_sums_in_another_order_are_the_same_and_any_larger_difference_is_not(kind: type[Turning]) -> None:
    """Sums of floats depend on their order in the last of 16 digits. Who looks at fewer than 8 misses a fault."""
    assert faults(kind(1e-11)) == []
    assert len(faults(kind(1e-8))) > 0
