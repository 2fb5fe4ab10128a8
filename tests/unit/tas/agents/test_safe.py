"""The agents `safe-overload` and `safe-balance`, by the vectors of their formulas."""

from math import floor, nan
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.agents.safe import Mode, SafeBalance, SafeOptions, SafeOverload, beta_shape, exceedance
from tas.agents.usage import Base, Form, Usage
from tests.unit.tas.agents.nodes import Nodes, pod

MI = 2**20

ANNOTATED = tuple(
    (Usage(mean=f"mean-{name}", std=f"std-{name}", forecast=f"forecast-{name}", form=Form.FREE),)
    for name in ("cpu", "memory")
)
RATIO = (Usage(mean="mu", std="sigma", form=Form.RATIO),)
ORIGINAL = {"sigma_floor": 0.0, "cap_sigma": False, "base": Base.ALLOCATABLE}
"""The options with which the agents decide as the original did."""


def options(**changes: object) -> SafeOptions:
    return SafeOptions(**(ORIGINAL | {"cpu": RATIO, "memory": ()} | changes))  # type: ignore[arg-type]


def of_use(mu: float, sigma: float) -> Nodes:
    """A node of capacity 1 with this mean and deviation of its use."""
    return Nodes(1, metrics={"mu": [mu], "sigma": [sigma]}, capacity={"cpu": [1.0]})


def one(agent: SafeOverload | SafeBalance, nodes: Nodes, **requests: float) -> float:
    scores = agent.score(pod(**requests), nodes)
    assert scores.known.all()
    return float(scores.values[0])


def accepts(agent: SafeOverload, nodes: Nodes, **requests: float) -> bool:
    passes = agent.filter(pod(**requests), nodes)
    return bool(passes.passed[0] or not passes.known[0])


def down(score: float) -> int:
    return floor(10 * score)


def nearest(score: float) -> int:
    return floor(10 * score + 0.5)


VECTORS = [
    # name, mu, sigma, utilization, risk accepted; risk, accepted, overload, balance
    ("S1", 0.5, 0.1, 0.9, 0.3, 4.7e-07, True, 9, 6),
    ("S2", 0.5, 0.2, 0.9, 0.3, 0.013266, True, 7, 5),
    ("S3", 0.5, 0.49, 0.9, 0.3, 0.478137, False, 0, 4),
    ("S4", 0.5, 0.5, 0.9, 0.3, 1.0, False, 0, 4),
    ("S5", 0.6, 0.2, 0.9, 0.3, 0.0523, True, 5, 5),
    ("S6", 0.75, 0.12, 0.9, 0.3, 0.089333, True, 4, 5),
    ("S7", 0.8, 0.1, 0.9, 0.3, 0.15836, True, 2, 4),
    ("S8", 0.8, 0.15, 0.9, 0.3, 0.309584, False, 0, 4),
    ("S9", 0.85, 0.1, 0.9, 0.3, 0.371595, False, 0, 4),
    ("S10", 0.9, 0.1, 0.9, 0.3, 0.625508, False, 0, 4),
    ("S11", 0.3, 0.1, 0.9, 0.3, 7.1e-11, True, 9, 7),
    ("S12", 0.1, 0.28, 0.9, 0.3, 0.074712, True, 5, 7),
    ("S13", 0.04, 0.2, 0.9, 0.3, 1.0, False, 0, 8),
    ("S14", 0.01, 0.05, 0.9, 0.3, 0.000013, True, 9, 9),
    ("S15", 0.0, 0.2, 0.9, 0.3, 0.0, True, 10, 8),
    ("S16", 1.0, 0.1, 0.9, 0.3, 1.0, False, 0, 3),
    ("S17", 0.9, 0.0, 0.9, 0.3, 0.0, True, 10, 6),
    ("S18", 0.91, 0.0, 0.9, 0.3, 1.0, False, 0, 5),
    ("S19", 0.5, 0.1, 0.7, 0.1, 0.021448, True, 5, 6),
    ("S20", 0.8, 0.1, 0.95, 0.3, 0.030054, True, 6, 4),
]


@pytest.mark.parametrize("vector", VECTORS, ids=itemgetter(0))
def test_vector(vector: tuple[str, float, float, float, float, float, bool, int, int]) -> None:
    """Mean, deviation, risk, filter and both scores as the original gives them."""
    _, mu, sigma, utilization, accepted, risk, accept, overload, balance = vector
    chosen, nodes = options(utilization=utilization, risk=accepted), of_use(mu, sigma)
    agent = SafeOverload(chosen)
    (found,) = agent.filter(pod(), nodes).terms["cpu risk"]
    # As many digits as the vector has: 6 behind the point, or 2.
    assert found == pytest.approx(risk, abs=6e-7 if risk > 1e-4 else 0.04 * risk)
    assert accepts(agent, nodes) is accept
    assert down(one(agent, nodes)) == overload
    assert nearest(one(SafeBalance(chosen), nodes)) == balance


SHAPES = {
    "S1": (12.0, 12.0),
    "S2": (2.625, 2.625),
    "S3": (0.0206, 0.0206),
    "S5": (3.0, 2.0),
    "S6": (9.0156, 3.0052),
    "S7": (12.0, 3.0),
    "S8": (4.8889, 1.2222),
    "S9": (9.9875, 1.7625),
    "S10": (7.2, 0.8),
    "S11": (6.0, 14.0),
    "S12": (0.0148, 0.1332),
    "S14": (0.0296, 2.9304),
    "S19": (12.0, 12.0),
    "S20": (12.0, 3.0),
    "low 1": (3239.1, 359.9),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_distribution_of_a_vector(name: str) -> None:
    """Its alpha and beta. The other vectors have none: no deviation, or one that is too large."""
    given_ = {each[0]: each[1:3] for each in VECTORS} | {"low 1": (0.9, 0.005)}
    mu, sigma = (np.array([each]) for each in given_[name])
    assert [each.item() for each in beta_shape(mu, sigma * sigma)] == pytest.approx(SHAPES[name], abs=6e-5, rel=1e-5)


def risk(mu: float, sigma: float, limit: float = 0.9) -> float:
    return float(exceedance(np.array([mu]), np.array([sigma]), limit, cap=False)[0])


QUANTILES = [
    (0.8, 0.1, 0.50, 0.813526),
    (0.8, 0.1, 0.70, 0.862737),
    (0.8, 0.1, 0.90, 0.918523),
    (0.8, 0.1, 0.95, 0.938897),
    (0.8, 0.15, 0.70, 0.903067),
]


@pytest.mark.parametrize(("mu", "sigma", "part", "value"), QUANTILES)
def test_the_risk_at_a_published_quantile(mu: float, sigma: float, part: float, value: float) -> None:
    assert risk(mu, sigma, value) == pytest.approx(1 - part, abs=5e-6)


def test_the_risk_need_not_rise_with_the_deviation_nor_with_the_mean() -> None:
    """Above the limit a larger deviation lowers the risk first; on a nearly idle node a larger mean does."""
    deviations = {0.005: 0.9999, 0.05: 0.7110, 0.1: 0.7180, 0.2: 0.8336}
    assert {sigma: risk(0.92, sigma) for sigma in deviations} == pytest.approx(deviations, abs=6e-5)
    means = {0.04: 1.0, 0.045: 0.038491, 0.1: 0.008937, 0.3: 0.001638}
    assert {mu: risk(mu, 0.2) for mu in means} == pytest.approx(means, abs=6e-7)


WHOLE = [
    # cpu: C, F, S, R, f; memory: the same; mu and sigma of cpu, of memory; risks; accepted, overload, balance
    (
        "E1",
        (8000, 2500, 400, 500, 2000),
        (512 * MI, 155597063, 30372823, 200 * MI, 200000000),
        0.2,
        (0.7625, 0.05, 0.000486),
        (1.0, 0.0566, 1.0),
        (False, 0, 4),
    ),
    (
        "E2",
        (4000, 3000, 200, 200, nan),
        (8192 * MI, 5120 * MI, 512 * MI, 200 * MI, nan),
        0.2,
        (0.3, 0.05, 0.0),
        (0.3994, 0.0625, 0.0),
        (True, 9, 7),  # 10 with 1 - CDF, since the risk of 1e-16 is lost there
    ),
    (
        "E3",
        (4000, 2000, 800, 400, nan),
        (16384 * MI, 8192 * MI, 1024 * MI, 1024 * MI, nan),
        0.2,
        (0.6, 0.2, 0.0523),
        (0.5625, 0.0625, 4.0e-12),
        (True, 5, 5),
    ),
    ("E4", (4000, 500, 100, 800, nan), None, 0.2, (1.0, 0.025, 1.0), None, (False, 0, 4)),
    ("E5", (4000, 4300, 100, 0, nan), None, 0.2, (0.0, 0.025, 0.0), None, (True, 10, 9)),
    ("E6", (4000, 800, nan, 300, nan), None, 0.2, (0.875, 0.0, 0.0), None, (True, 10, 6)),
    ("E7", (8000, 2500, 400, 500, 2000), None, 1.0, (0.8125, 0.05, 0.024898), None, (True, 7, 5)),
]

Row = tuple[float, float, float, float, float]
Expected = tuple[float, float, float]


@pytest.mark.parametrize("vector", WHOLE, ids=itemgetter(0))
def test_whole_vector(
    vector: tuple[str, Row, Row | None, float, Expected, Expected | None, tuple[bool, int, int]],
) -> None:
    """From free amounts with a forecast to the filter and both scores."""
    _, cpu, memory, weight, of_cpu, of_memory, decided = vector
    metrics: dict[str, list[float]] = {}
    capacity: dict[str, list[float]] = {}
    requests: dict[str, float] = {}
    for name, row in (("cpu", cpu), ("memory", memory)):
        if row is not None:
            capacity[name], requests[name] = [row[0]], row[3]
            metrics |= {f"mean-{name}": [row[1]], f"std-{name}": [row[2]], f"forecast-{name}": [row[4]]}
    nodes = Nodes(1, metrics=metrics, capacity=capacity)
    chosen = options(cpu=ANNOTATED[0], memory=ANNOTATED[1], forecast_weight=weight)
    agent = SafeOverload(chosen)
    terms = agent.filter(pod(**requests), nodes).terms
    for name, expected in (("cpu", of_cpu), ("memory", of_memory)):
        found = [float(terms[f"{name} {term}"][0]) for term in ("mean", "deviation", "risk")]
        if expected is None:
            assert np.isnan(found).all()
        else:
            assert found[:2] == pytest.approx(expected[:2], abs=5e-5)
            assert found[2] == pytest.approx(expected[2], abs=1e-6)
    accept, overload, balance = decided
    assert accepts(agent, nodes, **requests) is accept
    assert down(one(agent, nodes, **requests)) == overload
    assert nearest(one(SafeBalance(chosen), nodes, **requests)) == balance


@pytest.mark.parametrize(
    ("mu", "sigma", "utilization", "risk"),
    [
        (0.9, 0.005, 0.9, 0.505911),
        (0.895, 0.005, 0.9, 0.158614),
        (0.79, 0.01, 0.8, 0.158678),
        (0.9, 0.00627, 0.9, 0.507414),
    ],
)
def test_defect_s1_a_small_deviation_does_not_underflow(
    mu: float, sigma: float, utilization: float, risk: float
) -> None:
    """The original has 0 or infinity for these."""
    found = exceedance(np.array([mu]), np.array([sigma]), utilization, cap=False)
    assert float(found[0]) == pytest.approx(risk, abs=1e-6)


def test_a_deviation_below_a_ten_thousandth_is_none() -> None:
    """The distribution is then a step at its mean."""
    assert (risk(0.9, 0.99e-4), risk(0.9001, 0.99e-4)) == (0.0, 1.0)
    assert 0.4 < risk(0.9, 1.01e-4) < 0.6


LARGEST = {
    0.9: {0.02: 0.8888, 0.05: 0.8699, 0.1: 0.8352, 0.15: 0.7972, 0.2: 0.7554, 0.3: 0.6554},
    0.8: {0.02: 0.7892, 0.05: 0.7718, 0.1: 0.7400, 0.15: 0.7047, 0.2: 0.6655, 0.3: 0.5704},
}


@pytest.mark.parametrize("utilization", LARGEST)
def test_the_largest_mean_of_an_accepted_node(utilization: float) -> None:
    """The filter changes at the published mean of each deviation."""
    agent = SafeOverload(options(utilization=utilization))
    for sigma, largest in LARGEST[utilization].items():
        assert accepts(agent, of_use(largest - 0.0001, sigma))
        assert not accepts(agent, of_use(largest + 0.0001, sigma))


def test_defect_s3_a_value_that_is_no_number_is_unknown() -> None:
    """The original accepts such a node with the best score."""
    for wrong in (nan, float("inf"), float("-inf")):
        for agent in (SafeOverload(options()), SafeBalance(options())):
            assert not agent.score(pod(), of_use(wrong, 0.1)).known.any()
    assert one(SafeOverload(options()), of_use(0.5, nan)) == one(SafeOverload(options()), of_use(0.5, 0.0))


@pytest.mark.parametrize("capacity", [0.0, -1.0, nan])
def test_defect_s4_a_node_without_capacity_is_unknown(capacity: float) -> None:
    """The original divides by it."""
    nodes = Nodes(1, metrics={"mu": [0.5], "sigma": [0.1]}, capacity={"cpu": [capacity]})
    passes = SafeOverload(options()).filter(pod(cpu=1.0), nodes)
    assert not passes.known.any()


def test_defect_s5_without_accepted_risk_only_no_risk_has_a_score() -> None:
    """The original divides by it."""
    agent = SafeOverload(options(risk=0.0))
    assert one(agent, of_use(0.0, 0.2)) == 1.0
    assert one(agent, of_use(0.5, 0.2)) == 0.0


def test_defect_s6_a_missing_deviation_makes_no_step_at_the_limit() -> None:
    """Of two means beside the limit, the original has a risk of 0 and of 1."""
    ours = SafeOverload(options(sigma_floor=0.02))
    below, above = (float(ours.filter(pod(), of_use(mu, 0.0)).terms["cpu risk"][0]) for mu in (0.899, 0.901))
    assert 0.3 < below < above < 0.7


def test_defect_s6_an_idle_node_with_bursts_is_not_rejected() -> None:
    """Its deviation is larger than any Beta value can have: the original rejects it, but not if its mean is 0."""
    assert not accepts(SafeOverload(options()), of_use(0.04, 0.2))
    assert accepts(SafeOverload(options(cap_sigma=True)), of_use(0.04, 0.2))


def test_defect_s7_use_and_requests_are_compared_to_one_amount() -> None:
    """Half of the node is reserved: a node that is used to 60 % has a use of 60 %, not of 20 %."""
    metrics = {"mean-cpu": [1600.0], "std-cpu": [100.0]}
    nodes = Nodes(1, metrics=metrics, capacity={"cpu": [4000.0]}, allocatable={"cpu": [2000.0]})
    found = {
        base: float(SafeBalance(options(base=base, cpu=ANNOTATED[0])).score(pod(), nodes).terms["cpu mean"][0])
        for base in Base
    }
    assert found == {Base.CAPACITY: pytest.approx(0.6), Base.ALLOCATABLE: pytest.approx(0.2)}


def test_defect_s8_pods_that_no_sample_shows_count() -> None:
    """Else all pods of a burst go to the node that was the best before."""
    seen = Nodes(2, metrics={"mu": [0.5, 0.5], "sigma": [0.1, 0.1]}, capacity={"cpu": [1000.0, 1000.0]},
                 placed={"cpu": [0.0, 300.0]})  # fmt: skip
    agent = SafeOverload(options())
    first, second = agent.score(pod(cpu=50.0), seen).values
    assert second == agent.score(pod(cpu=350.0), seen).values[0] < first


def test_defect_s9_the_score_keeps_its_fraction() -> None:
    """Two nodes between 9 and 10 differ, although the original rounds both to 9."""
    agent = SafeOverload(options())
    assert 0.9 < one(agent, of_use(0.5, 0.1)) < one(agent, of_use(0.3, 0.1)) < 1.0


def test_defect_s10_the_balance_uses_the_root_of_the_deviation() -> None:
    """The documentation of the original says otherwise, its vectors do not."""
    assert one(SafeBalance(options()), of_use(0.5, 0.25)) == 1 - (0.5 + 0.5) / 2
    assert one(SafeBalance(options(sensitivity=1.0)), of_use(0.5, 0.25)) == 1 - (0.5 + 0.25) / 2


def quantiles(**values: float) -> Nodes:
    return Nodes(1, metrics={f"cpu:{name}": [value] for name, value in values.items()}, capacity={"cpu": [1.0]})


def empirical(form: Form = Form.USED) -> SafeOverload:
    return SafeOverload(options(mode=Mode.EMPIRICAL, cpu=(Usage(mean="x", quantiles="cpu:p{}", form=form),)))


def test_the_risk_from_percentiles() -> None:
    """The vector of the percentile mode."""
    agent, nodes = empirical(), quantiles(p50=0.55, p90=0.75, p95=0.82, p99=0.93)
    passes = agent.filter(pod(cpu=0.10), nodes)
    assert float(passes.terms["cpu risk"][0]) == pytest.approx(0.064286, abs=1e-6)
    assert passes.passed.all()
    assert down(one(agent, nodes, cpu=0.10)) == 5


def test_the_risk_from_percentiles_of_what_is_free() -> None:
    """Where metrics count what is free, the 5th percentile is the use that 95 % of the values do not exceed."""
    free = quantiles(p50=0.45, p10=0.25, p5=0.18, p1=0.07)
    agent = empirical(Form.FREE)
    assert "cpu:p5" in agent.needs.metrics
    (risk,) = agent.filter(pod(cpu=0.10), free).terms["cpu risk"]
    assert risk == pytest.approx(0.064286, abs=1e-6)


def test_a_percentile_is_at_least_that_of_a_smaller_part() -> None:
    """Each comes from a sketch with an error of its own."""
    uneven, even = (
        float(empirical().filter(pod(cpu=0.38), quantiles(p50=0.6, p70=p70, p90=0.8)).terms["cpu risk"][0])
        for p70 in (0.4, 0.6)
    )
    assert uneven == even


@pytest.mark.parametrize(
    ("values", "request_", "risk"),
    [
        ({"p50": 0.4, "p99": 0.8}, 0.0, 0.01 * (1 - 0.9) / (1 - 0.8)),  # above the highest, on the line to (1, 1)
        ({"p50": 0.4, "p99": 0.8}, 0.7, 1 - 0.5 * 0.2 / 0.4),  # below the lowest, on the line from (0, 0)
        ({"p50": 0.4, "p99": 0.8}, 1.0, 1.0),  # more than there is
        ({"p50": 1.0, "p99": 1.0}, 0.0, 1 - 0.5 * 0.9),
        ({"p50": 0.0, "p99": 0.0}, 0.0, 0.01 * (1 - 0.9)),
        ({"p95": 0.5}, 0.0, 0.05 * (1 - 0.9) / (1 - 0.5)),  # the others are not known
    ],
)
def test_the_ends_of_the_percentiles(values: dict[str, float], request_: float, risk: float) -> None:
    """What is not between two known percentiles."""
    (found,) = empirical().filter(pod(cpu=request_), quantiles(**values)).terms["cpu risk"]
    assert found == pytest.approx(risk, abs=1e-9)


def test_no_percentile_is_no_opinion() -> None:
    """Nothing is known then, which is not a risk of 0."""
    assert not empirical().filter(pod(), quantiles()).known.any()


def test_of_several_metrics_the_first_known_counts_for_each_node() -> None:
    """One node has statistics of windows, another only annotations."""
    metrics = {"cpu:mean:5m": [2.0, nan], "mean-free-cpu": [4000.0, 1000.0]}
    nodes = Nodes(2, metrics=metrics, capacity={"cpu": [4000.0, 4000.0]})
    terms = SafeBalance(SafeOptions(sigma_floor=0.0)).score(pod(), nodes).terms
    assert terms["cpu mean"].tolist() == [0.5, 0.75]


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans())
def test_the_risk_is_a_probability(mu: float, sigma: float, limit: float, cap: bool) -> None:
    found = float(exceedance(np.array([mu]), np.array([sigma]), limit, cap=cap)[0])
    assert 0.0 <= found <= 1.0


@given(
    st.floats(0.4, 0.85),
    st.floats(0.01, 0.3),
    st.lists(st.floats(0.0, 0.5), min_size=2, max_size=2).map(sorted),
)
def test_a_larger_request_never_lowers_the_risk(mu: float, sigma: float, requests: list[float]) -> None:
    """As long as the mean is between 40 % and the limit, where the formulas promise it."""
    agent = SafeOverload(options())
    few, many = (
        float(agent.filter(pod(cpu=min(each, 0.9 - mu)), of_use(mu, sigma)).terms["cpu risk"][0]) for each in requests
    )
    assert few <= many + 1e-9


@pytest.mark.parametrize("mode", Mode)
def test_without_metrics_there_is_no_opinion(mode: Mode) -> None:
    for agent in (SafeOverload(options(cpu=(), mode=mode)), SafeBalance(options(cpu=(), mode=mode))):
        assert agent.score(pod(cpu=0.1), Nodes(3)).known.tolist() == [False] * 3


def test_the_worse_of_the_known_resources_counts() -> None:
    names = {"cpu": (Usage(mean="cpu", form=Form.RATIO),), "memory": (Usage(mean="memory", form=Form.RATIO),)}
    use = {"cpu": [0.2, 0.6, 0.2, nan], "memory": [0.4, 0.4, nan, nan]}
    nodes = Nodes(4, metrics=use, capacity={"cpu": [1.0] * 4, "memory": [1.0] * 4})
    found = SafeBalance(options(**names)).score(pod(memory=0.1), nodes)
    assert found.known.tolist() == [True, True, True, False]
    assert found.values[:3].tolist() == pytest.approx([0.75, 0.7, 0.9])
    hot = Nodes(
        4,
        metrics={"cpu": [0.5, 0.99, 0.5, 0.5], "memory": [0.5, 0.5, nan, 0.99]},
        capacity={"cpu": [1.0] * 4, "memory": [1.0] * 4},
    )
    passes = SafeOverload(options(**names)).filter(pod(), hot)
    assert passes.passed.tolist() == [True, False, True, False]
