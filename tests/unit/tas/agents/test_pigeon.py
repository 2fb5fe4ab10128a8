"""The agent `pigeon-holing`, by the vectors of its objectives."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tas.agent import FloatArray, Placed
from tas.agents.pigeon import (
    MAX_DEMANDS,
    MAX_HISTORY,
    MAX_UIDS,
    MEBI,
    RESOURCES,
    History,
    Objective,
    Pigeon,
    PigeonOptions,
    binpack,
    consolidation,
    sorted_use,
    sums_of,
    variation,
    variation_of_demand,
)
from tas.agents.pigeon_cfg import read_pigeon_cfg
from tas.errors import InvalidInputError
from tests.unit.tas.agents.interrupting import is_interrupted
from tests.unit.tas.agents.nodes import Nodes, pod

inf, nan = math.inf, math.nan
N3 = [((4000, 8192), (1000, 2048)), ((4000, 8192), (2000, 4096)), ((4000, 8192), (3000, 6144))]
CPU3 = [((4000,), (1000,)), ((4000,), (2000,)), ((4000,), (3000,))]
EMPTY3 = [((4000, 8192), (0, 0))] * 3
NEAR = [((4000, 8192), (1000, 2048)), ((4000, 8192), (1001, 2048))]
MIXED = [((16000, 65536), (4000, 16384)), ((8000, 32768), (1000, 28000)), ((2000, 4096), (1500, 1024))]
X4 = [
    ((8000, 16384, 110, 4), (2000, 4096, 10, 1)),
    ((8000, 16384, 110, 4), (4000, 8192, 20, 3)),
    ((8000, 16384, 110, 0), (1000, 2048, 5, 0)),
]
BALANCE, CONSOLIDATE, BINPACK = Objective.LOAD_BALANCE, Objective.CONSOLIDATE, Objective.BINPACK

VECTORS: list[tuple[Any, ...]] = [
    # name, objective, prime resource, nodes, demand, earlier demands; objective after each placement, scores
    ("G1", BALANCE, 0, N3, (500, 512), [], [0.155902, 0.212459, 0.256851], [10, 5, 1]),
    ("G2", BALANCE, 1, N3, (500, 512), [], [0.179215, 0.206239, 0.230112], [10, 5, 1]),
    ("G3", CONSOLIDATE, 0, N3, (500, 512), [], [0.679998, 0.579837, 0.475664], [1, 5, 10]),
    ("G4", BALANCE, 0, N3, (1500, 512), [], [0.102062, 0.270031, nan], [10, 1, 0]),
    ("G5", BALANCE, 0, N3, (9999, 1), [], [nan, nan, nan], [0, 0, 0]),
    ("G6", BALANCE, 0, EMPTY3, (500, 512), [], [0.058926] * 3, [10, 10, 10]),
    ("G7", BINPACK, 0, N3, (1000, 2048), [(1000, 2048)] * 5, [0.202031, 0.404061, 0.534522], [10, 5, 1]),
    (
        "G8",
        BINPACK,
        0,
        N3,
        (500, 512),
        [(100, 128), (2000, 4096), (100, 128), (2000, 4096)],
        [0.673506, 0.594803, 0.529416],
        [1, 6, 10],
    ),
    ("G9", BINPACK, 0, CPU3, (500,), [(250,), (1000,)], [0.246703, 0.142290, 0.060337], [1, 6, 10]),
    ("G10", BALANCE, 0, MIXED, (250, 1024), [], [0.267710, 0.260625, 0.328084], [9, 10, 1]),
    ("G11", BINPACK, 0, X4, (1000, 2048, 1, 1), [(500, 1024, 1, 0)], [0.057589, 0.152376, nan], [10, 1, 0]),
    ("G12", BALANCE, 0, NEAR, (500, 512), [], [0.062375, 0.062625], [10, 1]),
    ("G13", CONSOLIDATE, 0, [((4000,), (4000,)), ((4000,), (3000,))], (1000,), [], [nan, 0.0], [0, 10]),
]


def in_bytes(amounts: Sequence[float]) -> list[float]:
    return [amount * (MEBI if number == 1 else 1.0) for number, amount in enumerate(amounts)]


def requests(amounts: Sequence[float]) -> dict[str, float]:
    return dict(zip(RESOURCES, in_bytes(amounts), strict=False))


def nodes_of(nodes: Sequence[tuple[Sequence[float], Sequence[float]]], cluster: Nodes | None = None) -> Nodes:
    count = len(nodes[0][0])
    rows = [[in_bytes(each[kind]) for each in nodes] for kind in (0, 1)]
    capacity, used = ({name: [row[at] for row in kind] for at, name in enumerate(RESOURCES[:count])} for kind in rows)
    return Nodes(len(nodes), allocatable=capacity, requested={"pods": [0.0] * len(nodes)} | used, cluster=cluster)


def points(values: FloatArray) -> list[int]:
    return [math.floor(10 * value + 0.5) for value in values]


def original(objective: Objective, prime: int, resources: int, **changes: Any) -> Pigeon:
    changes = {"candidates_only": True} | changes
    return Pigeon(PigeonOptions(objective=objective, prime=prime, resources=RESOURCES[:resources], **changes))


@pytest.mark.parametrize("vector", VECTORS, ids=itemgetter(0))
def test_vector(vector: Any) -> None:
    """The objective after each placement, and the scores."""
    _, objective, prime, nodes, demand, earlier, expected, scores = vector
    agent = original(objective, prime, len(demand))
    for each in earlier:
        agent.score(pod(**requests(each)), nodes_of(nodes))
    found = agent.score(pod(**requests(demand)), nodes_of(nodes))
    assert found.terms["objective"].tolist() == pytest.approx(expected, abs=1e-5, nan_ok=True)
    assert points(found.values) == scores
    assert found.known.all()


@pytest.mark.parametrize("vector", VECTORS, ids=itemgetter(0))
def test_vector_by_the_definition(vector: Any) -> None:
    """Each trial evaluated over all nodes, as the original does, gives what the changed sums give."""
    _, objective, prime, nodes, demand, _, _, _ = vector
    agent = original(objective, prime, len(demand))
    found = agent.score(pod(**requests(demand)), nodes_of(nodes)).terms["objective"]

    def after(placed: int, node: int, used: Sequence[float]) -> list[float]:
        return [u + d for u, d in zip(used, demand, strict=True)] if node == placed else list(used)

    for number in range(len(nodes)):
        use = np.array(
            [
                [
                    (1.0 if at == prime and objective is not BINPACK else float(u > 0)) if c == 0 else u / c
                    for at, (c, u) in enumerate(
                        zip(capacity, np.add(used, demand) if node == number else used, strict=True)
                    )
                ]
                for node, (capacity, used) in enumerate(nodes)
            ]
        )
        if np.isnan(found[number]):
            continue
        if objective is BALANCE:
            expected = float(np.std(use[:, prime]))
        elif objective is CONSOLIDATE:
            expected = _consolidation(use[:, prime])
        else:
            use = np.clip(use, 0, 1)
            expected = abs(variation(use.mean(axis=0), np.cov(use.T, bias=True).reshape(len(demand), -1)))
        assert float(found[number]) == pytest.approx(expected, abs=1e-9)


def _consolidation(use: FloatArray) -> float:
    a = float(use.mean())
    if not 0 < a < 1:
        return 0.0
    d = [(a - x) / a if x < a else (x - a) / (1 - a) for x in use.tolist()]
    return 1 - math.sqrt(sum(each * each for each in d) / len(d))


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=12), st.data())
def test_consolidation_by_the_definition(use: list[float], data: st.DataObject) -> None:
    """With any node changed to any use."""
    number = data.draw(st.integers(0, len(use) - 1))
    new = data.draw(st.floats(use[number], 1.2))
    changed = [*use[:number], new, *use[number + 1 :]]
    found = consolidation(np.array([use[number]]), np.array([new]), sorted_use(np.array(use)))
    expected = _consolidation(np.array(changed))
    if 1e-6 < np.mean(changed) < 1 - 1e-6:
        assert float(found[0]) == pytest.approx(expected, abs=1e-5)


def test_the_demand_history_is_an_average_and_then_exponential() -> None:
    history = History(np.zeros((0, 1)))
    assert [each.tolist() for each in history.moments(np.array([inf]))] == [[0.0], [[0.0]]]
    for value in [1.0] * 100 + [101.0]:
        history.add(np.array([value]))
    assert [each.item() for each in history.moments(np.array([inf]))] == pytest.approx([2, 103])


@given(st.lists(st.floats(0.0, 100.0), min_size=101, max_size=150))
@settings(max_examples=20)
def test_the_demand_history_is_that_of_one_pod_after_the_other(demands: list[float]) -> None:
    m = square = 0.0
    for number, demand in enumerate(demands, 1):
        part = 1.0 / min(number, MAX_HISTORY)
        m, square = (1 - part) * m + part * demand, (1 - part) * square + part * demand**2
    found = History(np.array(demands).reshape(-1, 1)).moments(np.array([inf]))
    assert [each.item() for each in found] == pytest.approx([m, square])


def test_the_demand_history_keeps_so_many_pods_that_the_others_do_not_count() -> None:
    history = History(np.full((MAX_DEMANDS, 1), 7.0))
    for _ in range(MAX_DEMANDS - 1):
        history.add(np.array([1.0]))
    assert len(history.demands) == MAX_DEMANDS == 1000
    assert history.moments(np.array([inf]))[0].item() == pytest.approx(1, abs=1e-3)


def test_many_pods_of_one_namespace_count_as_those_of_any_other() -> None:
    """An average of namespaces, each by its own last pods: those of others cannot be made to count less."""
    history = History(np.zeros((0, 1)))
    for number in range(500):
        history.add(np.array([1.0 + number]), f"n{number % 5}")
    before = history.moments(np.array([inf]))
    for number in range(300):
        history.add(np.array([0.0]), "hostile")
        share = min(number + 1, MAX_HISTORY) / (5 * 100 + min(number + 1, MAX_HISTORY))
        if number in (0, 99, 100, 299):
            found = history.moments(np.array([inf]))
            assert [each.item() for each in found] == pytest.approx([(1 - share) * each.item() for each in before])
    assert len(history.demands) == 800


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 100.0)), min_size=120, max_size=250))
@settings(max_examples=20)
def test_the_demand_history_is_that_of_each_namespace(pods: list[tuple[str, float]]) -> None:
    history = History(np.zeros((0, 1)))
    alone = {namespace: History(np.zeros((0, 1))) for namespace, _ in pods}
    for namespace, demand in pods:
        for each in (history, alone[namespace]):
            each.add(np.array([demand]), namespace)
    parts = [min(len(each.demands), MAX_HISTORY) for each in alone.values()]
    expected = [
        sum(part * own.moments(np.array([inf]))[index].item() for part, own in zip(parts, alone.values(), strict=True))
        for index in range(2)
    ]
    found = [each.item() for each in history.moments(np.array([inf]))]
    assert found == pytest.approx([each / sum(parts) for each in expected])


def test_what_a_few_pods_of_the_size_of_a_node_make_of_the_variation() -> None:
    """The figures of docs/background/learning.md: the objective is that of the largest pods, whoever has them."""
    nodes = np.array([[32000.0] * 10, [128 * 1024.0] * 10])
    history = History(np.zeros((0, 2)))
    for number in range(1000):
        history.add(np.array([500.0, 1024.0]), f"n{number % 5}")
    assert variation_of_demand(history, nodes, any_size=False) == pytest.approx(0.0, abs=1e-6)
    for number in range(20):
        history.add(nodes[:, 0] if number == 0 else np.array([10.0, 16.0]), "hostile")
    assert variation_of_demand(history, nodes, any_size=False) == pytest.approx(3.0, abs=0.1)


def test_a_name_of_a_namespace_that_no_namespace_can_have_is_not_kept() -> None:
    """Of requests, which anybody may send to a port that demands no certificate."""
    agent = Pigeon(PigeonOptions(candidates_only=True))
    for number in range(3):
        agent.score(replace(pod(cpu=1.0), namespace=f"{number}" + "x" * 100_000), Nodes(1))
    assert agent.snapshot()["demands"][2][0] == "2" + "x" * 62


@pytest.mark.parametrize("pods", [2, MAX_DEMANDS])
def test_a_history_to_which_a_pod_is_added_can_be_read_wherever_the_call_is_interrupted(pods: int) -> None:
    """As the time limit of an agent does it; here before each line."""
    for line in itertools.count():
        history = History(np.ones((pods, 1)), ["a"] * pods)
        interrupted = is_interrupted(line, partial(history.add, (2.0,), "b"), within=History)
        history.add((3.0,), "b")
        history.add((3.0,), "c")
        assert len(history.demands) == len(history.namespaces) == min(pods + 2 + (not interrupted), MAX_DEMANDS), line
        mean, _ = history.moments(np.array([inf]))
        assert 1.0 < mean.item() < 3.0
        if not interrupted:
            break
    assert line > 5


def test_replicas_drop_the_same_demands_of_namespaces_with_equally_many() -> None:
    running, started = Pigeon(PigeonOptions()), Pigeon(PigeonOptions())

    def observe(agent: Pigeon, number: int, namespace: str) -> None:
        agent.observe(Placed(namespace=namespace, uid=f"u{number}", node="n", at=0.0, requests={"cpu": 1.0 + number}))

    # The pod of `b` that came before all others is dropped, so a replica that starts sees `a` first.
    for number, namespace in enumerate("b" + "ab" * (MAX_DEMANDS // 2)):
        observe(running, number, namespace)
    started.restore(msgspec.json.decode(msgspec.json.encode(running.snapshot())))
    for agent in (running, started):
        observe(agent, 2 * MAX_DEMANDS, "c")
    kept = [namespace for namespace, _ in running.snapshot()["demands"]]
    assert (kept.count("a"), kept.count("b"), kept.count("c")) == (500, 499, 1)
    assert started.snapshot() == running.snapshot()


def test_what_was_summed_of_other_nodes_or_demands_does_not_count() -> None:
    """The sums of the last request are kept: each answer must be that of a new agent."""
    clusters = [N3, [((4000, 8192), (100, 100)), *N3[1:]], [((8000, 8192), (1000, 2048)), *N3[1:]], N3[:2], MIXED, N3]
    asked = Pigeon(PigeonOptions())
    history: list[Placed] = []
    for number, nodes in enumerate(clusters * 2):
        for repeat in range(2):
            new = Pigeon(PigeonOptions())
            for event in history:
                new.observe(event)
            expected, found = (
                agent.score(pod(cpu=500.0, memory=512 * MEBI), nodes_of(nodes)) for agent in (new, asked)
            )
            assert found.terms["objective"].tolist() == expected.terms["objective"].tolist(), (number, repeat)
        history.append(Placed(uid=f"u{number}", node="n", at=0.0, requests={"cpu": 100.0 * 2**number}))
        asked.observe(history[-1])


def test_a_pod_of_the_size_of_the_largest_node_is_a_demand_and_a_larger_one_is_none() -> None:
    nodes = np.array([(1000.0, 4000.0), (512.0, 2048.0)])
    for size, counts in ((4000.0, True), (4000.5, False), (2500.0, True)):
        history = History(np.array([[100.0, 100.0], [size, 100.0]]))
        alone = History(np.array([[100.0, 100.0]]))
        same = variation_of_demand(history, nodes, any_size=False) == variation_of_demand(alone, nodes, any_size=False)
        assert same is not counts
        assert variation_of_demand(history, nodes, any_size=True) > 0


def test_a_pod_that_no_node_can_hold_is_no_demand() -> None:
    """Whoever writes the node into a pod places it there without a scheduler, whatever it requests."""
    plain, attacked, empty = (Pigeon(PigeonOptions()) for _ in range(3))
    for number, cpu in enumerate((100.0, 2000.0)):
        for agent in (plain, attacked):
            agent.observe(Placed(uid=f"{number}", node="n", at=0.0, requests={"cpu": cpu, "memory": 1024 * MEBI}))
        attacked.observe(Placed(uid=f"a{number}", node="n", at=0.0, requests={"cpu": 1e15, "memory": 1024 * MEBI}))
        attacked.observe(Placed(uid=f"b{number}", node="n", at=0.0, requests={"cpu": 1.0, "memory": 2.0**60}))
    expected, found, other = (
        agent.score(pod(cpu=500.0, memory=512 * MEBI), nodes_of(N3)).terms["objective"].tolist()
        for agent in (plain, attacked, empty)
    )
    assert found == expected != other
    # Nor do many of them displace the others.
    for number in range(2 * MAX_DEMANDS):
        requests = {"cpu": 1e15, "memory": 1024 * MEBI}
        attacked.observe(Placed(namespace="hostile", uid=f"c{number}", node="n", at=0.0, requests=requests))
    assert len(attacked.snapshot()["demands"]) == MAX_DEMANDS
    again = attacked.score(pod(cpu=500.0, memory=512 * MEBI), nodes_of(N3)).terms["objective"].tolist()
    assert again == expected


PUBLISHED = [
    ([0.271, 0.198, 0.500], [[0.032, 0.021, 0.073], [0.021, 0.016, 0.047], [0.073, 0.047, 0.167]], 0.760545),
    ([0.300, 0.218, 0.566], [[0.033, 0.022, 0.073], [0.022, 0.017, 0.049], [0.073, 0.049, 0.166]], 0.679205),
]


@pytest.mark.parametrize(("mean", "covariance", "expected"), PUBLISHED)
def test_the_published_variation(mean: list[float], covariance: list[list[float]], expected: float) -> None:
    assert variation(np.array(mean), np.array(covariance)) == pytest.approx(expected, abs=1e-6)


@given(st.floats(0.01, 100.0))
def test_the_variation_does_not_depend_on_a_common_scale(scale: float) -> None:
    """If all resources are scaled alike, mean and covariance are as well; the coefficient is of order 0."""
    mean, covariance = np.array(PUBLISHED[0][0]), np.array(PUBLISHED[0][1])
    assert variation(mean * scale, covariance * scale**2) == pytest.approx(variation(mean, covariance))


VARIATIONS = [
    # name, nodes, demand, earlier demands; variation of the demand, and of the use after each placement
    ("G7", N3, (1000, 2048), [(1000, 2048)] * 5, 0.0, [0.202031, 0.404061, 0.534522]),
    ("G8", N3, (500, 512), [(100, 128), (2000, 4096)] * 2, 0.987903, [0.314397, 0.393100, 0.458487]),
    ("G9", CPU3, (500,), [(250,), (1000,)], 0.534522, [0.534522 - 0.246703, 0.534522 - 0.142290, 0.534522 - 0.060337]),
    ("G11", X4, (1000, 2048, 1, 1), [(500, 1024, 1, 0)], 0.645452, [0.645452 - 0.057589, 0.645452 + 0.152376]),
]


@pytest.mark.parametrize("vector", VARIATIONS, ids=itemgetter(0))
def test_the_variations_of_a_vector(vector: tuple[str, Any, Any, Any, float, list[float]]) -> None:
    """What `A_BINPACK` compares: those of the demand, which has the present pod too, and of the use."""
    _, nodes, demand, earlier, of_demand, of_use = vector
    capacity, used = (np.array([each[part] for each in nodes], dtype=np.float64) for part in (0, 1))
    history = History(np.array([*earlier, demand], dtype=np.float64))
    assert variation_of_demand(history, capacity.T, any_size=True) == pytest.approx(of_demand, abs=6e-7)
    with np.errstate(invalid="ignore", divide="ignore"):
        use, after = (np.where(capacity > 0, each / capacity, 0.0) for each in (used, used + np.array(demand)))
    count = len(of_use)
    found = binpack(use[:count].T, after[:count].T, sums_of(use.T), wanted=0.0)
    assert found.tolist() == pytest.approx(of_use, abs=2e-6)


def test_a_pod_without_requests_counts_as_a_small_one() -> None:
    """As kube-scheduler's own scores and the original do it: such pods must not all go to one node."""
    agent = Pigeon(PigeonOptions())
    for number, requests in enumerate(({}, {"cpu": 0.0, "memory": MEBI - 1}, {"cpu": 1.0, "memory": MEBI})):
        agent.observe(Placed(uid=f"{number}", node="n", at=0.0, requests=requests))
    assert agent.snapshot()["demands"] == [("", [10.0, 16.0]), ("", [10.0, 16.0]), ("", [1.0, 1.0])]


def test_defects_p1_p2_resources_have_names_and_one_unit() -> None:
    """A card of a vendor counts by its name, and storage in GiB on both sides."""
    agent = Pigeon(PigeonOptions(objective=BALANCE, resources=("example.com/gpu", "ephemeral-storage"), prime=0))
    allocatable = {"example.com/gpu": [4.0, 4.0], "ephemeral-storage": [2.0**40, 2.0**40]}
    used = {"example.com/gpu": [3.0, 4.0], "ephemeral-storage": [0.0, 0.0], "pods": [0.0, 0.0]}
    demand = pod(**{"example.com/gpu": 1.0, "ephemeral-storage": 2.0**39})
    found = agent.score(demand, Nodes(2, allocatable=allocatable, requested=used))
    assert np.isfinite(found.terms["objective"]).tolist() == [True, False]


def test_defect_p3_an_unknown_node_is_not_an_empty_one() -> None:
    """Neither as a candidate, nor among the nodes of the objective."""
    known = nodes_of(N3)
    lost = Nodes(
        4,
        allocatable={"cpu": [4000.0] * 3 + [nan], "memory": [8192 * MEBI] * 3 + [nan]},
        requested={
            "cpu": [1000.0, 2000.0, 3000.0, nan],
            "memory": [2048 * MEBI, 4096 * MEBI, 6144 * MEBI, nan],
            "pods": [0.0, 0.0, 0.0, nan],
        },
    )
    agent = Pigeon(PigeonOptions(objective=BALANCE))
    expected, found = (agent.score(pod(cpu=500.0), nodes) for nodes in (known, lost))
    assert found.known.tolist() == [True, True, True, False]
    assert found.values[:3].tolist() == expected.values.tolist()


@pytest.mark.parametrize("lost", ["allocatable", "requested"])
def test_a_node_of_which_only_one_side_is_known_is_not_known(lost: str) -> None:
    """What is requested of a node is not known while one of its pods cannot be read: it would seem empty."""
    capacity, used = (
        {"cpu": [4000.0] * 4, "memory": [8192 * MEBI] * 4},
        {"cpu": [1000.0, 2000.0, 3000.0, 0.0], "memory": [MEBI] * 4, "pods": [0.0] * 4},
    )
    for column in (capacity if lost == "allocatable" else used).values():
        column[3] = nan
    agent = Pigeon(PigeonOptions(objective=BALANCE))
    expected, found = (
        agent.score(pod(cpu=500.0), nodes) for nodes in (nodes_of(N3), Nodes(4, allocatable=capacity, requested=used))
    )
    assert found.known.tolist() == [True, True, True, False]
    assert found.values[:3].tolist() == expected.values.tolist()


def test_a_resource_that_no_pod_of_a_node_requests_is_free_there() -> None:
    """Only `pods` says whether the pods of a node can be read."""
    capacity = {"cpu": [1000.0] * 2, "gpu": [2.0] * 2}
    used = {"cpu": [0.0] * 2, "gpu": [nan, 2.0], "pods": [1.0] * 2}
    agent = Pigeon(PigeonOptions(objective=BALANCE, resources=("cpu", "gpu")))
    found = agent.score(pod(gpu=1.0), Nodes(2, allocatable=capacity, requested=used))
    assert found.known.tolist() == [True, True]
    assert [each > 0 for each in found.values] == [True, False]


def test_defect_p4_the_history_is_of_the_objective_in_force() -> None:
    """The original has a history only if the file selects `A_BINPACK`, whatever the environment says."""
    agent = Pigeon(PigeonOptions())
    for cpu in (100.0, 2000.0):
        agent.observe(Placed(uid=f"{cpu}", node="n", at=0.0, requests={"cpu": cpu, "memory": 1024 * MEBI}))
    values = agent.score(pod(cpu=500.0, memory=512 * MEBI), nodes_of(N3)).values
    assert len(set(values.tolist())) == 3


def test_defect_p5_a_small_difference_is_a_small_difference() -> None:
    """1 millicore is 10 versus 1 for the original (G12)."""
    found = Pigeon(PigeonOptions(objective=BALANCE)).score(pod(cpu=500.0, memory=512 * MEBI), nodes_of(NEAR))
    assert points(found.values) == [10, 10]
    assert found.values[0] > found.values[1]


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("count", [2, 500])
def test_nodes_of_a_large_cluster_differ_as_those_of_a_small_one(objective: Objective, count: int) -> None:
    """One pod changes the objective of 500 nodes by a 250th of what it changes that of two."""
    used = [((4000, 8192), (400, 800)), ((4000, 8192), (3200, 6400))] * (count // 2)
    scores = Pigeon(PigeonOptions(objective=objective)).score(pod(cpu=500.0, memory=512 * MEBI), nodes_of(used))
    assert scores.known.all()
    assert sorted(set(points(scores.values))) == [1, 10]


def test_defect_p6_the_objective_is_of_all_nodes_and_a_pod_counts_once() -> None:
    """The scheduler may ask for some nodes only, and again for the same pod."""
    agent = Pigeon(PigeonOptions(objective=BALANCE))
    whole = nodes_of(N3)
    some = nodes_of(N3[:2], cluster=whole)
    demand = pod(cpu=500.0, memory=512 * MEBI)
    assert (
        agent.score(demand, some).terms["objective"].tolist()
        == agent.score(demand, whole).terms["objective"].tolist()[:2]
    )
    state = agent.snapshot()
    assert state["demands"] == []
    for _ in range(3):
        agent.observe(Placed(uid="u", node="n0", at=0.0, requests={"cpu": 500.0}))
    assert len(agent.snapshot()["demands"]) == 1
    by_request = original(Objective.BINPACK, 0, 2)  # as the original: each request counts, so a placement does not
    by_request.score(demand, whole)
    by_request.observe(Placed(uid="u", node="n0", at=0.0, requests={"cpu": 500.0}))
    # Of the namespace of the pod: without it all would count as one, and the oldest of anybody would be dropped.
    assert by_request.snapshot()["demands"] == [("default", [500.0, 512.0])]


def test_defect_p7_a_score_changes_nothing_and_follows_the_order_of_the_candidates() -> None:
    agent = Pigeon(PigeonOptions())
    for number, cpu in enumerate((100.0, 2000.0)):
        agent.observe(Placed(uid=f"u{number}", node="n", at=0.0, requests={"cpu": cpu, "memory": 1024 * MEBI}))
    before, demand = agent.snapshot(), pod(cpu=500.0, memory=512 * MEBI)
    first, turned, again = (agent.score(demand, nodes_of(nodes)).values.tolist() for nodes in (N3, N3[::-1], N3))
    assert len(set(first)) == 3
    assert turned == pytest.approx(first[::-1])
    assert again == first
    assert agent.snapshot() == before


def test_defect_p8_nodes_that_differ_by_little_keep_their_digits() -> None:
    """And a resource that no node has does not count."""
    nodes = [((1e9, 8192, 0, 0), (999_999_000 + number, 4096, 0, 0)) for number in range(3)]
    agent = original(BALANCE, 0, 2)
    found = agent.score(pod(cpu=1.0), nodes_of([(c[:2], u[:2]) for c, u in nodes])).terms["objective"]
    assert 0 < found[2] - found[1] < 1e-8
    agent = Pigeon(PigeonOptions(resources=("cpu", "memory", "gpu")))
    without = nodes_of([((*c, 0, 0), (*u, 0, 0)) for c, u in N3])
    assert np.isfinite(agent.score(pod(cpu=1.0), without).values).all()


def test_defect_p9_the_limits_of_consolidation() -> None:
    """All empty before, or all full after: no division by 0."""
    agent = original(CONSOLIDATE, 0, 1)
    empty, full = [((1000,), (0,))] * 2, [((1000,), (1000,)), ((1000,), (990,))]
    for nodes in (empty, full):
        found = agent.score(pod(cpu=10.0), nodes_of(nodes))
        assert np.isfinite(found.values).all()


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("# comment\n policyObjective =  LOAD_BALANCE  \n", {"objective": "LOAD_BALANCE"}, ""),
        ("policyObjective=CONSOLIDATE # x\npolicyResourceIndex=1", {"objective": "CONSOLIDATE", "prime": 1}, ""),
        ("policyObjective = LOAD", {}, "pigeon.cfg, line 1: 'LOAD' must be one of A_BINPACK, "),
        ("\n\npolicyResourceIndex = -1", {}, "pigeon.cfg, line 3: '-1' must be a number from 0 to 4"),
        ("policyResourceIndex = 5", {}, "pigeon.cfg, line 1: '5' must be a number from 0 to 4"),
        ("x = 1", {}, "pigeon.cfg, line 1: 'x' is not known"),
        ("just text", {}, "pigeon.cfg, line 1: 'just text' must be KEY = VALUE"),
        ("policyObjective = " + "x" * 10000, {}, "pigeon.cfg, line 1: 'xxx"),
    ],
)
def test_defect_p10_the_file_of_the_original(text: str, options: dict[str, Any], problem: str) -> None:
    """A blank at the end has no effect, and what is wrong is named."""
    found, problems = read_pigeon_cfg(text)
    assert found == options
    assert [each.startswith(problem) for each in problems] == ([True] if problem else [])
    assert all(len(each) < 300 for each in problems)
    PigeonOptions(**found)


def test_what_was_learned_is_restored() -> None:
    first, second = (Pigeon(PigeonOptions()) for _ in range(2))
    for number in range(MAX_UIDS + 5):
        first.observe(Placed(uid=str(number), node="n", at=0.0, requests={"cpu": float(number), "memory": 2 * MEBI}))
    state = first.snapshot()
    assert state["uids"] == [str(number) for number in range(5, MAX_UIDS + 5)], "the oldest are forgotten first"
    second.restore(state)
    for agent in (first, second):
        agent.observe(Placed(uid="7000", node="n", at=0.0, requests={"cpu": 5.0}))  # is counted already
        agent.observe(Placed(uid="new", node="n", at=0.0, requests={"cpu": 5.0}))
    assert first.snapshot() == second.snapshot()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"resources": ["cpu"]},
        {"demands": [["n", [1.0]]]},
        {"demands": [["n", [1.0, nan]]]},
        {"demands": [["n", [1.0, -1.0]]]},
        {"demands": [["n", [1.0, 1.0]]] * (MAX_DEMANDS + 1)},
        {"demands": [[1.0, 1.0]]},
        {"demands": "x"},
        {"uids": [1]},
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    agent = Pigeon(PigeonOptions())
    agent.observe(Placed(uid="u", node="n", at=0.0, requests={"cpu": 500.0}))
    before = agent.snapshot()
    with pytest.raises(InvalidInputError, match="pigeon-holing"):
        agent.restore({**before, **change})
    assert agent.snapshot() == before
