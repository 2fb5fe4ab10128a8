"""A simulation counts every pod once, is the same for a seed, and shows whether an algorithm helps."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lab.simulate.model.algorithms import AgentExtender, Agents, Algorithm, DefaultScores, TelemetryPolicy
from lab.simulate.model.cluster import Cluster, simulated_demand
from lab.simulate.model.load import Load, LoadPod
from lab.simulate.model.simulation import Result, simulate
from lab.simulate.model.synthetic import Shape, synthetic_load
from tas.agents.agent import Agent, Candidates, Missing, Needs, Passes, PodDemand, Scores
from tas.agents.builtin import BUILTIN
from tas.agents.file import verbs_of
from tas.agents.foo import Foo
from tas.agents.safe import SafeBalance, SafeOptions, SafeOverload
from tas.errors import InvalidInputError
from tas.outcomes.outcome import Placed
from tas.policy.manifest import parse_policy
from tas.policy.policy import Policy, PolicyKey
from tests.unit.lab.simulate.model.loads import GIB, load, node, pod

NODES = [node("a"), node("b")]

SPREAD = {
    "dontschedule": {"rules": [{"metricname": "cpu_ratio", "operator": "GreaterThan", "target": "800m"}]},
    "scheduleonmetric": {"rules": [{"metricname": "cpu_ratio", "operator": "LessThan"}]},
}


def policy(strategies: object) -> Policy:
    found, problems = parse_policy(PolicyKey("default", "spread"), {"strategies": strategies})
    assert not problems
    return found


def agents(*used: Agent, weight: int = 10) -> Agents:
    return Agents([AgentExtender(agent=each, verbs=verbs_of(type(each)), weight=weight) for each in used])


ALGORITHMS: dict[str, Callable[[Load], Algorithm]] = {
    "default": lambda _: DefaultScores(),
    "policy": lambda of: TelemetryPolicy(
        policy(
            {**SPREAD, "deschedule": {"rules": [{"metricname": "cpu_ratio", "operator": "GreaterThan", "target": 1}]}}
        ),
        [each.name for each in of.nodes],
        weight=1,
        period=of.period,
    ),
    "safe": lambda _: agents(SafeOverload(SafeOptions()), SafeBalance(SafeOptions())),
    "foo": lambda _: agents(Foo()),
}


def run(of: Load, name: str, *, seed: int = 1) -> Result:
    return simulate(of, ALGORITHMS[name](of), seed=seed)


def small(shape: Shape = Shape.MIXED, *, seed: int = 1, pods: int = 60, nodes: int = 5) -> Load:
    return synthetic_load(shape, seed=seed, nodes=nodes, pods=pods, hours=2)


def hidden_hog() -> Load:
    """A pod requests little and uses nearly a node; the next ones are honest, and arrive when this was measured."""
    honest = [pod(f"honest-{number}", arrives=600.0 + number * 120) for number in range(4)]
    return load(NODES, [pod("hog", cpu=100, uses=3500), *honest])


@pytest.mark.parametrize("name", ["policy", "safe"])
def test_who_sees_the_real_use_keeps_pods_from_a_busy_node(name: str) -> None:
    assert run(hidden_hog(), "default").overload > 30
    helped = run(hidden_hog(), name)
    assert (helped.overload, helped.placed) == (0.0, 5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_honest_requests_and_room_no_algorithm_matters(name: str) -> None:
    honest = load(NODES, [pod(f"p{number}", arrives=number * 60.0) for number in range(8)])
    result = run(honest, name)
    assert (result.placed, result.overload, result.moves, result.unserved) == (8, 0.0, 0, 0.0)


def test_overload_is_counted_for_each_node_and_resource() -> None:
    busy = [pod("cpu", cpu=4000, memory=1, uses=3700), pod("both", cpu=4000, uses=5000, memory=15 * GIB)]
    result = run(load(NODES, busy, minutes=10), "default")
    assert result.overload == 18.0  # not measured before they arrive: nine minutes, two nodes
    assert result.overload_of == {"cpu": 18.0, "memory": 9.0, "network": 0.0}
    assert result.unserved == pytest.approx(1.0 * 9 / 60)


def test_exactly_nine_tenths_is_no_overload() -> None:
    assert run(load(NODES, [pod("p", cpu=3600)]), "default").overload == 0.0
    assert run(load(NODES, [pod("p", cpu=3601)]), "default").overload > 0.0


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("seed", range(3))
def test_each_pod_is_placed_refused_or_waiting(name: str, seed: int) -> None:
    crowded = small(seed=seed, pods=60, nodes=2)
    fuller = replace(crowded, nodes=crowded.nodes[:1])
    result = run(fuller, name, seed=seed)
    assert result.placed + result.refused + result.waiting == result.arrived == 60
    assert result.refused > 0
    assert result.placed > 0


def test_a_pod_waits_for_room_and_is_refused_when_it_ends_first() -> None:
    first = pod("first", cpu=4000, leaves=600.0)
    late = pod("late", cpu=4000, arrives=60.0)
    short = pod("short", cpu=4000, arrives=30.0, leaves=330.0)
    never = pod("never", cpu=4001)
    result = run(load(NODES[:1], [first, late, short, never]), "default")
    assert (result.placed, result.refused, result.waiting) == (2, 1, 1)
    assert result.waited == (600 - 60) / 60 + (330 - 30) / 60 + 60


def test_no_more_pods_than_a_node_may_have() -> None:
    of = load([replace(NODES[0], pods=2)], [pod(f"p{number}", cpu=1) for number in range(3)])
    assert (run(of, "default").placed, run(of, "default").waiting) == (2, 1)


def test_deschedule_moves_one_pod_at_a_time_and_loses_none() -> None:
    strategies = {
        **SPREAD,
        "deschedule": {"rules": [{"metricname": "cpu_ratio", "operator": "GreaterThan", "target": 1}]},
    }
    greedy = [pod(f"p{number}", cpu=100, uses=1500, leaves=7200.0) for number in range(6)]
    crowded = load([node("a")], greedy, minutes=60)
    empty_later = replace(crowded, nodes=(node("a"), node("b", cpu=12000)))
    moved = simulate(empty_later, TelemetryPolicy(policy(strategies), ["a", "b"], weight=1, period=60.0), seed=1)
    stays = simulate(empty_later, TelemetryPolicy(policy(SPREAD), ["a", "b"], weight=1, period=60.0), seed=1)
    assert stays.moves == 0
    assert (moved.placed, moved.refused, moved.waiting) == (6, 0, 0)
    assert 0 < moved.moves <= 3
    assert moved.overload < stays.overload


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_seed_gives_the_same_result_in_any_order_of_the_nodes(name: str) -> None:
    of = small()
    turned = replace(of, nodes=of.nodes[::-1], pods=of.pods[::-1])
    assert run(of, name) == run(of, name) == run(turned, name)


def test_the_seed_decides_among_equal_nodes() -> None:
    same = load([node(f"n{number}") for number in range(8)], [pod("hog", uses=5000), pod("hog-2", cpu=400, uses=5000)])
    chosen = set()
    for seed in range(20):
        seen = Seen()
        simulate(same, agents(seen), seed=seed)
        chosen.add(tuple(seen.nodes))
    assert len(chosen) > 10


class Seen(Agent):
    """Notes what it is told."""

    needs = Needs(metrics=["cpu"], allocations=True, whole_cluster=True)

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.columns: list[dict[str, list[float]]] = []

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        count = len(nodes.names)
        order = np.argsort(nodes.names)
        self.columns.append(
            {
                "cpu": nodes.metric("cpu")[order].tolist(),
                "requested": nodes.requested("cpu")[order].tolist(),
                "limited": nodes.limited("cpu")[order].tolist(),
                "pods": nodes.requested("pods")[order].tolist(),
                "placed": nodes.placed("cpu", "cpu")[order].tolist(),
                "capacity": nodes.cluster.capacity("memory").tolist(),
                "gpu": nodes.allocatable("gpu").tolist(),
            }
        )
        return Scores(values=np.zeros(count), known=np.ones(count, dtype=np.bool_))

    def observe(self, event: object) -> None:
        assert isinstance(event, Placed)
        self.nodes.append(event.node)


def test_an_agent_sees_what_is_measured_requested_and_too_new_to_be_measured() -> None:
    seen = Seen()
    limited = replace(pod("p0", cpu=1000, uses=250), cpu_limit=1600)
    pods = [limited, replace(pod("p1", arrives=30.0), cpu_limit=400), pod("p2", arrives=400.0)]
    simulate(load(NODES[:1], pods), agents(seen), seed=1)
    assert seen.nodes == ["a", "a", "a"]
    first, second, third = seen.columns
    assert first == {
        "cpu": [0.0], "requested": [0.0], "limited": [0.0], "pods": [0.0], "placed": [0.0],
        "capacity": [16 * GIB], "gpu": [0.0],
    }  # fmt: skip
    assert (second["cpu"], second["requested"], second["pods"], second["placed"]) == ([0.0], [1000.0], [1.0], [1000.0])
    assert (second["limited"], third["limited"]) == ([1600.0], [2100.0])  # a limit below the request is the request
    assert simulated_demand(limited).limits == {"cpu": 1600.0}
    assert (third["cpu"], third["requested"], third["pods"], third["placed"]) == ([0.75], [1500.0], [2.0], [0.0])


class Picky(Agent):
    """Knows only node `b`, and rejects it if told so."""

    def __init__(self, *, passes: bool) -> None:
        self._passes = passes

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        known = np.array([name == "b" for name in nodes.names])
        return Passes(passed=known & self._passes, known=known, reason="picky")

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        known = np.array([name == "b" for name in nodes.names])
        return Scores(values=np.where(known, 0.5, np.nan), known=known)


@pytest.mark.parametrize(
    ("missing", "passes", "placed"),
    [
        (Missing.NEUTRAL, True, 16),
        (Missing.NEUTRAL, False, 8),
        (Missing.WORST, True, 16),
        (Missing.REJECT, True, 8),
        (Missing.REJECT, False, 0),
    ],
)
def test_a_node_without_an_opinion_is_treated_as_the_agent_says(missing: Missing, passes: bool, placed: int) -> None:
    extender = AgentExtender(agent=Picky(passes=passes), verbs=verbs_of(Picky), missing=missing)
    of = load(NODES, [pod(f"p{number:02}") for number in range(20)])
    assert simulate(of, Agents([extender]), seed=1).placed == placed


class Wrong(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        count = len(nodes.names)
        return Scores(values=np.full(count, np.nan), known=np.ones(count, dtype=np.bool_))


class Short(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        return Scores(values=np.zeros(1), known=np.ones(1, dtype=np.bool_))


class Listed(Agent):
    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        return [True] * len(nodes.names)  # type: ignore[return-value] # as an author who knows no types may


class Raising(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        raise RuntimeError("no such table")


class Undeclared(Agent):
    """Reads what its needs do not name, so it would be refused or know nothing where the product runs it."""

    def __init__(self, what: str = "metric") -> None:
        self._what = what

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        assert not pod.requests
        assert not pod.containers
        values = {
            "metric": lambda: nodes.metric("cpu"),
            "allocatable": lambda: nodes.allocatable("cpu"),
            "requested": lambda: nodes.requested("cpu"),
            "limited": lambda: nodes.limited("cpu"),
            "placed": lambda: nodes.placed("cpu", "cpu"),
            "cluster": lambda: nodes.cluster.allocatable("cpu"),
        }[self._what]()
        return Scores(values=np.zeros(len(values)), known=np.ones(len(values), dtype=np.bool_))


@pytest.mark.parametrize("what", ["metric", "allocatable", "requested", "limited", "placed", "cluster"])
def test_an_agent_that_reads_what_it_does_not_need_is_named(what: str) -> None:
    with pytest.raises(InvalidInputError, match=r"agent Undeclared: .* which its needs do not name"):
        simulate(load(NODES, [pod("p")]), agents(Undeclared(what)), seed=1)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Wrong, "agent Wrong: answer = 'wrong': a = nan: a score is a number from 0 to 1"),
        (Short, "agent Short: answer = 'wrong': known = .*: must be 2 values of bool"),
        (Listed, "agent Listed: answer = 'wrong': .*: filter must return Passes"),
        (Raising, "agent Raising: answer = 'none': it has raised RuntimeError.'no such table'."),
    ],
)
def test_an_agent_with_a_wrong_answer_is_named(agent: type[Agent], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        simulate(load(NODES, [pod("p")]), agents(agent()), seed=1)


def test_a_pod_that_has_ended_is_not_too_new_to_be_measured() -> None:
    cluster = Cluster(load(NODES, []))
    for number in range(2):
        cluster.place(pod(f"p{number}", cpu=500), 0, 0.0)
    cluster.remove(pod("p0", cpu=500), 0)
    assert cluster.placed("cpu").tolist() == [500.0, 0.0]
    cluster.remove(pod("p1", cpu=500), 0)
    assert cluster.placed("cpu").tolist() == [0.0, 0.0]


def test_one_point_of_an_extender_of_weight_one_counts_ten() -> None:
    """`a` has 6 points less than `b` by default; one point of an agent outweighs them, with weight 1."""

    class OnePoint(Agent):
        def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
            values = np.array([0.1 if name == "a" else 0.0 for name in nodes.names])
            return Scores(values=values, known=np.ones(len(values), dtype=np.bool_))

    def second_goes_to(first: str, of: Agent) -> str:
        seen = Seen()
        nodes = [node("a", cpu=8000), node("b", cpu=8000)]
        pods = [pod(first, cpu=500, memory=GIB), pod("second", cpu=500, memory=GIB, arrives=120.0)]
        simulate(load(nodes, pods), agents(of, seen, weight=1), seed=1)
        return seen.nodes[1]

    assert second_goes_to("first", OnePoint()) == "a"


@pytest.mark.parametrize("shape", Shape)
def test_a_synthetic_load_is_the_same_for_a_seed_and_fits_the_cluster(shape: Shape) -> None:
    of, again, other = (synthetic_load(shape, seed=seed, nodes=8, pods=200, hours=6) for seed in (1, 1, 2))
    assert [each.name for each in of.pods] == [each.name for each in again.pods]
    assert all(np.array_equal(one.use, two.use) for one, two in zip(of.pods, again.pods, strict=True))
    assert {each.cpu for each in of.pods} != {each.cpu for each in other.pods}
    assert all((each.use >= 0).all() and np.isfinite(each.use).all() for each in of.pods)
    assert 0.2 < sum(each.cpu_limit > 0 for each in of.pods) / len(of.pods) < 0.8
    assert all(each.use[0].max() <= each.cpu_limit for each in of.pods if each.cpu_limit)
    assert all(each.use[1].max() <= each.memory_limit for each in of.pods if each.memory_limit)
    assert all(0 <= each.arrives < each.leaves <= 6 * 3600 for each in of.pods)
    result = simulate(of, DefaultScores(), seed=1)
    assert result.placed == result.arrived
    ratios = np.array([each.use[0].mean() / each.cpu for each in of.pods])
    assert (ratios < 0.8).any()
    assert (ratios > 1.5).any()


@pytest.mark.parametrize("name", BUILTIN)
def test_each_agent_of_the_product_can_take_part(name: str) -> None:
    kind, of = BUILTIN[name], small(pods=40)
    made = kind() if kind.Options is None else kind(kind.Options())  # type: ignore[call-arg] # see `Agent`
    result = simulate(of, agents(made), seed=1)
    assert result.placed + result.refused + result.waiting == 40
    assert result.placed > 30


class Steer(Agent):
    """Sends a pod to the node that begins its name, and prefers none for other pods."""

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        values = np.array([float(pod.name.startswith(f"{name}-")) for name in nodes.names])
        return Scores(values=values, known=np.ones(len(values), dtype=np.bool_))


@pytest.mark.parametrize("seed", range(5))
def test_both_default_scores_count(seed: int) -> None:
    """Both nodes have the same free part after the pod, and the pod makes only the use of `a` more even."""
    seen = Seen()
    pods = [
        pod("a-1", cpu=2000, memory=1),
        pod("b-1", cpu=1000, memory=4 * GIB),
        pod("free", cpu=1, memory=4 * GIB, arrives=60.0),
    ]
    simulate(load(NODES, pods), agents(Steer(), seen), seed=seed)
    assert seen.nodes == ["a", "b", "a"]


class Noting(TelemetryPolicy):
    """Notes which pods are placed."""

    def observe_placed(self, pod: LoadPod, node: str, now: float) -> None:
        super().observe_placed(pod, node, now)
        self.placements = [*getattr(self, "placements", []), (pod.name, node)]


def test_the_newest_pod_of_a_violating_node_moves() -> None:
    """All three are on `a` when `b` is full; then `b` is empty, and `a` uses more than it has."""
    hot = {"deschedule": {"rules": [{"metricname": "cpu_ratio", "operator": "GreaterThan", "target": 1}]}}
    full = pod("z-full", cpu=4000, memory=1, leaves=200.0)
    pods = [full, *(pod(f"p{at}", cpu=1000, memory=1, uses=1500, arrives=10.0 + at) for at in range(3))]
    algorithm = Noting(policy(hot), ["a", "b"], weight=1, period=60.0)
    result = simulate(load(NODES, pods, minutes=10), algorithm, seed=1)
    (other,) = {"a", "b"} - {algorithm.placements[1][1]}
    assert algorithm.placements[4:] == [("p2", other)]
    assert result.moves == 1


def test_a_pod_that_comes_back_to_its_node_did_not_move() -> None:
    hot = {"deschedule": {"rules": [{"metricname": "cpu_ratio", "operator": "GreaterThan", "target": 1}]}}
    algorithm = Noting(policy(hot), ["a"], weight=1, period=60.0)
    result = simulate(load(NODES[:1], [pod("p", uses=5000)], minutes=11), algorithm, seed=1)
    assert algorithm.placements == [("p", "a")] * 3
    assert result.moves == 0
