"""The agents after the Trimaran plugins, by the vectors of their formulas."""

import math
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.agent import Agent, ContainerDemand, PodDemand
from tas.agents.hooks import to_points
from tas.agents.trimaran import (
    LowRisk,
    LowRiskOptions,
    Peaks,
    PeaksOptions,
    PowerModel,
    RiskBalance,
    RiskBalanceOptions,
    TargetLoad,
    TargetLoadOptions,
    limit_risk,
    load_risk,
)
from tas.agents.usage import Form, Usage
from tests.unit.tas.agents.nodes import Nodes, pod

nan = math.nan
RATIO = (Usage(mean="mean", std="std", form=Form.RATIO),)


def percent(score: float) -> int:
    return math.floor(100 * score + 0.5)


def one(agent: Agent, nodes: Nodes, asked: PodDemand) -> float:
    scores = agent.score(asked, nodes)
    assert scores.known.all()
    return float(scores.values[0])


TARGET = [
    # name, target, use in percent, capacity, request, limit, not shown yet; predicted, score
    ("T2", 40, 30, 1000, 666.6667, 0, 0, 130.0, 0),
    ("T3", 40, 25, 4000, 400, 0, 0, 40.0, 100),
    ("T4", 40, 25, 4000, 400, 0, 500, 52.5, 32),
    ("T5", 40, 10, 8000, 500, 0, 0, 19.375, 69),
    ("T6", 40, 10, 8000, 500, 2000, 0, 35.0, 93),
    ("T7", 70, 50, 4000, 100, 400, 0, 60.0, 96),
]


@pytest.mark.parametrize("vector", TARGET, ids=itemgetter(0))
def test_target_load_vector(vector: Any) -> None:
    """The predicted use, and the score in percent."""
    _, target, use, capacity, request, limit, placed, predicted, score = vector
    agent = TargetLoad(TargetLoadOptions(target=target, cpu=RATIO))
    nodes = Nodes(1, metrics={"mean": [use / 100]}, capacity={"cpu": [capacity]}, placed={"cpu": [placed / 1.5]})
    asked = PodDemand(
        namespace="n", name="p", uid="u", requests={"cpu": request}, limits={"cpu": limit} if limit else {}
    )
    scores = agent.score(asked, nodes)
    assert float(scores.terms["cpu predicted"][0]) == pytest.approx(predicted, abs=1e-3)
    assert percent(float(scores.values[0])) == score


def test_target_load_vector_t1_an_idle_node_and_a_pod_that_uses_nothing() -> None:
    agent = TargetLoad(TargetLoadOptions(default_request=0.0, cpu=RATIO))
    nodes = Nodes(1, metrics={"mean": [0.0]}, capacity={"cpu": [1000.0]})
    assert percent(one(agent, nodes, pod())) == 40


def test_target_load_of_a_pod_without_request_and_limit_expects_the_default() -> None:
    agent = TargetLoad(TargetLoadOptions(default_request=400.0, cpu=RATIO))
    nodes = Nodes(1, metrics={"mean": [0.0]}, capacity={"cpu": [1000.0]})
    assert percent(one(agent, nodes, pod())) == 100


LIMITED, REQUESTED, NEITHER = (
    ContainerDemand(requests={"cpu": 100.0}, limits={"cpu": 250.0}),
    ContainerDemand(requests={"cpu": 101.0}),
    ContainerDemand(requests={"memory": 1.0}),
)


@pytest.mark.parametrize(
    ("containers", "overhead", "millicores"),
    [
        ((LIMITED, REQUESTED, NEITHER), 0.0, 250 + 152 + 400),
        ((LIMITED, LIMITED), 30.0, 530),
        ((REQUESTED, REQUESTED), 0.0, 304),  # 151.5 is rounded up for each
        ((NEITHER, NEITHER), 0.0, 800),
        ((), 0.0, 303),  # the pod asks as a whole
    ],
)
def test_target_load_expects_of_each_container_its_limit_else_its_request_else_the_default(
    containers: tuple[ContainerDemand, ...], overhead: float, millicores: float
) -> None:
    """By their sums, a pod with one container without a limit would be expected to use too little."""
    agent = TargetLoad(TargetLoadOptions(default_request=400.0, cpu=RATIO))
    nodes = Nodes(1, metrics={"mean": [0.0]}, capacity={"cpu": [1000.0]})
    asked = PodDemand(
        namespace="n",
        name="p",
        uid="u",
        requests={"cpu": 202.0},
        limits={"cpu": 201.0},
        containers=containers,
        overhead={"cpu": overhead},
    )
    assert float(agent.score(asked, nodes).terms["cpu predicted"][0]) == pytest.approx(millicores / 10)


BALANCED = [
    # name, margin, sensitivity, capacity, request, mean, deviation; score in percent with its fraction
    ("L1", 1, 1, 100, 10, 40, 36, 57.0),
    ("L2", 1, 2, 100, 10, -40, 36, 65.0),
    ("L3", 1, 2, 100, 10, 40, 120, 25.0),
    ("L4", 1, 0, 100, 10, 40, 36, 75.0),
    ("L5", 1, 2, 4000, 500, 1600, 400, 57.9386),
    ("L6", 2, 2, 4000, 500, 1600, 400, 42.1272),
]


@pytest.mark.parametrize("vector", BALANCED, ids=itemgetter(0))
def test_risk_balance_vector(vector: Any) -> None:
    """The score in percent."""
    _, margin, sensitivity, capacity, request, mean, deviation, expected = vector
    used = (Usage(mean="mean", std="std"),)
    agent = RiskBalance(RiskBalanceOptions(margin=margin, sensitivity=sensitivity, cpu=used, memory=()))
    nodes = Nodes(1, metrics={"mean": [mean], "std": [deviation]}, capacity={"cpu": [capacity]})
    assert 100 * one(agent, nodes, pod(cpu=request)) == pytest.approx(expected, abs=1e-4)


LOW_RISK = [
    # name, capacity, requests, limits with the pod, requests, limits without it, mean, deviation;
    # risk of limits, of the load, score in percent
    ("O1", 4000, 2000, 3000, 1000, 2000, 0.8, 0.0, 0.0, 1.0, 50),
    ("O2", 4096, 2048, 6144, 0, 0, 0.25, 0.0, 0.5, 0.0, 75),
    ("O3", 4096, 1024, 7168, 512, 6144, 0.25, 0.0, 0.5, 1.0, 25),
    ("O4", 4000, 2000, 3000, 1500, 2000, 0.3, 0.1, 0.0, 0.166721, 92),
    ("O5", 4000, 2000, 6000, 1500, 5000, 0.3, 0.1, 0.5, 0.334995, 58),
    ("O6", 4000, 2000, 3000, 1500, 2000, 0.5, 0.4, 0.0, 0.002562, 100),
]


@pytest.mark.parametrize("vector", LOW_RISK, ids=itemgetter(0))
def test_low_risk_vector(vector: Any) -> None:
    """Both risks, and the score in percent."""
    _, size, requested, limited, before, limited_before, mean, deviation, by_limits, by_load, score = vector
    agent = LowRisk(LowRiskOptions(cpu=RATIO, memory=()))
    nodes = Nodes(
        1,
        metrics={"mean": [mean], "std": [deviation]},
        capacity={"cpu": [size]},
        requested={"cpu": [before]},
        limited={"cpu": [limited_before]},
    )
    asked = PodDemand(
        namespace="n",
        name="p",
        uid="u",
        requests={"cpu": requested - before},
        limits={"cpu": limited - limited_before},
    )
    scores = agent.score(asked, nodes)
    assert float(scores.terms["cpu risk of limits"][0]) == pytest.approx(by_limits, abs=1e-6)
    assert float(scores.terms["cpu risk of load"][0]) == pytest.approx(by_load, abs=1e-6)
    assert percent(float(scores.values[0])) == score


@pytest.mark.parametrize(
    ("before", "request_and_limit", "by_limits"),
    [
        pytest.param((1000, 3500), (1000, 0), 500 / 2500, id="a pod without a limit may use what it requests"),
        pytest.param((1000, 3500), (1000, 999), 500 / 2500, id="a limit below the request is a sum of some containers"),
        pytest.param((3500, 3500), (1000, 1000), 1.0, id="requests beyond the node leave nothing of what limits allow"),
        pytest.param((3000, 3000), (1000, 1000), 0.0, id="the node has all"),
    ],
)
def test_the_limits_of_a_pod_are_at_least_its_requests_and_requests_at_most_the_node(
    before: tuple[float, float], request_and_limit: tuple[float, float], by_limits: float
) -> None:
    agent = LowRisk(LowRiskOptions(cpu=RATIO, memory=()))
    requested, limited = ({"cpu": [each]} for each in before)
    nodes = Nodes(1, metrics={"mean": [0.5]}, capacity={"cpu": [4000.0]}, requested=requested, limited=limited)
    request, limit = request_and_limit
    asked = PodDemand(
        namespace="n", name="p", uid="u", requests={"cpu": request}, limits={"cpu": limit} if limit else {}
    )
    assert float(agent.score(asked, nodes).terms["cpu risk of limits"][0]) == pytest.approx(by_limits)


def test_limits_below_the_requests_do_not_bound_the_load() -> None:
    """Pods without a limit are in the requests alone, and may use more than the limits of the others."""
    mean, sigma, requested = np.array([0.5]), np.array([0.1]), np.array([0.6])
    without, below, bounded = (
        float(load_risk(mean, sigma, requested, np.array([limited]))[0]) for limited in (1.0, 0.3, 0.65)
    )
    assert below == without == pytest.approx(0.164, abs=1e-3)
    assert 0 < bounded < without


def test_defect_t4_a_pod_without_requests_is_scored_by_low_risk() -> None:
    """Upstream gives all nodes 0 for it."""
    agent = LowRisk(LowRiskOptions(cpu=RATIO, memory=()))
    nodes = Nodes(
        2,
        metrics={"mean": [0.2, 0.9]},
        capacity={"cpu": [1000.0, 1000.0]},
        requested={"cpu": [500.0, 500.0]},
        limited={"cpu": [500.0, 500.0]},
    )
    first, second = agent.score(pod(), nodes).values
    assert first > second


@pytest.mark.parametrize(("weight", "known"), [(0.5, [True, False]), (1.0, [True, True])])
def test_a_node_whose_load_is_unknown_is_not_the_best_of_low_risk(weight: float, known: list[bool]) -> None:
    """Upstream counts no risk of the load then. Where only limits count, the load is not needed."""
    agent = LowRisk(LowRiskOptions(cpu=RATIO, memory=(), limit_weights={"cpu": weight}))
    amounts = {"cpu": [1000.0, 1000.0]}
    nodes = Nodes(2, metrics={"mean": [0.5, nan]}, capacity=amounts, requested={"cpu": [200.0] * 2}, limited=amounts)
    scores = agent.score(pod(cpu=100.0), nodes)
    assert scores.known.tolist() == known
    assert np.isnan(scores.terms["cpu risk of load"]).tolist() == [False, True]


MODEL = PowerModel(k1=-91.50493019588365, k2=-0.07186049052516228)


def jumps(use: list[float], request: float, capacity: float = 1000.0, **options: Any) -> Any:
    agent = Peaks(PeaksOptions(cpu=RATIO, **({"default": MODEL} | options)))
    count = len(use)
    nodes = Nodes(count, metrics={"mean": [each / 100 for each in use]}, capacity={"cpu": [capacity] * count})
    return agent.score(pod(cpu=request), nodes)


def test_peaks_vector_pk1_from_idle_to_full() -> None:
    assert float(jumps([0.0], 1000.0).terms["rise"][0]) == pytest.approx(91.435654, abs=1e-6)


def test_peaks_vector_pk2_the_least_rise_is_the_best() -> None:
    scores = jumps([10.0, 50.0, 80.0], 100.0)
    assert scores.terms["rise"].tolist() == pytest.approx([22.861778, 1.290522, 0.149454], abs=1e-6)
    assert [math.ceil(100 * each - 1e-9) for each in scores.values.tolist()] == [0, 95, 100]
    assert to_points(scores, Peaks.missing, Peaks.original_rounding) == [0, 10, 10]  # of 0, 9.498 and 10


def test_defect_t1_and_vector_pk3_a_node_without_room_is_not_the_best() -> None:
    """Upstream gives 100 to a node above 100 %, without metrics, or without model."""
    models = {"n0": MODEL, "n1": PowerModel(k1=-50.0, k2=-0.05), "n2": MODEL, "n3": MODEL}
    scores = jumps([10.0, 50.0, 95.0, nan, 50.0], 100.0, models=models, default=None)
    assert scores.values[:3].tolist() == [0.0, 1.0, 0.0]
    assert scores.known.tolist() == [True, True, True, False, False]


def test_defect_t1_a_huge_rise_is_a_number() -> None:
    """Upstream overflows above 9,223 W."""
    scores = jumps([0.0, 10.0, 20.0], 100.0, default=PowerModel(k1=1e300, k2=0.5))
    assert scores.values.tolist() == pytest.approx([1.0, 1.0, 0.0], abs=0.1)
    assert scores.values[0] > scores.values[1]
    assert not jumps([0.0], 100.0, default=PowerModel(k1=1e300, k2=50.0)).known.any()


def test_defect_t3_metrics_are_compared_to_the_capacity_that_they_measure() -> None:
    """Not to what is allocatable."""
    agent = RiskBalance(RiskBalanceOptions(cpu=RATIO, memory=()))
    nodes = Nodes(1, metrics={"mean": [0.5]}, capacity={"cpu": [1000.0]}, allocatable={"cpu": [500.0]})
    assert one(agent, nodes, pod(cpu=250.0)) == 1 - 0.75 / 2


AMOUNTS = st.floats(0.0, 1e12) | st.just(0.0)


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_the_risk_of_limits_is_a_part(size: float, requested: float, limited: float) -> None:
    found = float(limit_risk(np.array([size]), np.array([min(requested, size)]), np.array([limited]))[0])
    assert 0.0 <= found <= 1.0


@given(*(st.floats(0.0, 1.0) for _ in range(3)), st.floats(0.0, 3.0))
def test_the_risk_of_the_load_is_a_part(mean: float, sigma: float, requested: float, limited: float) -> None:
    found = float(load_risk(*(np.array([each]) for each in (mean, sigma, requested, limited)))[0])
    assert 0.0 <= found <= 1.0


def test_of_two_resources_the_worse_known_one_counts() -> None:
    names: dict[str, Any] = {
        "cpu": (Usage(mean="cpu", std="cpu std", form=Form.RATIO),),
        "memory": (Usage(mean="memory", std="memory std", form=Form.RATIO),),
    }
    four = {"cpu": [1000.0] * 4, "memory": [1000.0] * 4}
    use = {"cpu": [0.2, 0.6, 0.2, nan], "memory": [0.4, 0.4, nan, nan]}
    nodes = Nodes(4, metrics=use, capacity=four, requested=four | {"memory": [400.0] * 4}, limited=four)
    found = RiskBalance(RiskBalanceOptions(**names)).score(pod(memory=100.0), nodes)
    assert found.known.tolist() == [True, True, True, False]
    assert found.values[:3].tolist() == pytest.approx([0.75, 0.7, 0.9])
    busy = Nodes(
        4,
        metrics={"cpu": [0.5, 0.9, 0.5, nan], "memory": [0.5, 0.5, 0.9, nan]},
        capacity=four,
        requested={"cpu": [600.0] * 4, "memory": [600.0] * 4},
        limited={"cpu": [600.0] * 4, "memory": [600.0] * 4},
    )
    risks = LowRisk(LowRiskOptions(**names)).score(pod(), busy)
    assert risks.known.tolist() == [True, True, True, False]
    assert risks.values[:3].tolist() == [1.0, 0.5, 0.5]


def test_without_metrics_no_agent_has_an_opinion() -> None:
    for agent in (
        TargetLoad(TargetLoadOptions(cpu=())),
        RiskBalance(RiskBalanceOptions(cpu=(), memory=())),
        LowRisk(LowRiskOptions(cpu=(), memory=())),
        Peaks(PeaksOptions(cpu=(), default=PowerModel(k1=-1.0, k2=-0.1))),
    ):
        assert agent.score(pod(cpu=1.0), Nodes(3, capacity={"cpu": [1.0] * 3})).known.tolist() == [False] * 3
