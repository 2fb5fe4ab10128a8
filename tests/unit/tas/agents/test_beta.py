"""The incomplete beta function against identities and tables."""

from itertools import pairwise
from math import comb, lgamma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.agents.beta import NotConvergedError, beta_cdf, beta_survival, log_gamma

PARTS = st.floats(min_value=0.001, max_value=0.999)
SHAPES = st.floats(min_value=0.05, max_value=5000.0)


def cdf(x: float, a: float, b: float) -> float:
    return float(beta_cdf(np.array([x]), np.array([a]), np.array([b]))[0])


@given(PARTS, SHAPES, SHAPES)
def test_mirrored(x: float, a: float, b: float) -> None:
    assert cdf(x, a, b) == pytest.approx(1.0 - cdf(1.0 - x, b, a), abs=1e-9)


@given(PARTS, SHAPES)
def test_powers(x: float, a: float) -> None:
    assert cdf(x, a, 1.0) == pytest.approx(x**a, abs=1e-11)
    assert cdf(x, 1.0, a) == pytest.approx(1.0 - (1.0 - x) ** a, abs=1e-11)


@given(PARTS, st.integers(1, 30), st.integers(1, 30))
def test_of_whole_shapes_is_a_sum_of_binomials(x: float, a: int, b: int) -> None:
    n = a + b - 1
    expected = sum(comb(n, k) * x**k * (1.0 - x) ** (n - k) for k in range(a, n + 1))
    assert cdf(x, float(a), float(b)) == pytest.approx(expected, abs=1e-12)


@given(PARTS, SHAPES, SHAPES)
def test_the_recurrence_of_the_first_shape(x: float, a: float, b: float) -> None:
    """DLMF 8.17.20: I(x; a, b) is larger than I(x; a + 1, b), by a positive term."""
    assert cdf(x, a, b) >= cdf(x, a + 1.0, b) - 1e-12


@given(SHAPES, SHAPES)
def test_it_grows_from_0_to_1(a: float, b: float) -> None:
    values = beta_cdf(np.linspace(0.0, 1.0, 21), np.full(21, a), np.full(21, b)).tolist()
    assert (values[0], values[-1]) == (0.0, 1.0)
    assert all(left <= right + 1e-12 for left, right in pairwise(values))


@pytest.mark.parametrize("both", [1e2, 1e4, 1e6])
def test_the_middle_of_a_narrow_distribution(both: float) -> None:
    assert cdf(0.5, both / 2, both / 2) == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize(
    ("mu", "sigma", "quantiles"),
    [
        (0.8, 0.1, {0.5: 0.813526, 0.7: 0.862737, 0.9: 0.918523, 0.95: 0.938897}),
        (0.8, 0.15, {0.7: 0.903067}),
    ],
)
def test_published_quantiles(mu: float, sigma: float, quantiles: dict[float, float]) -> None:
    both = mu * (1 - mu) / sigma**2 - 1
    for part, value in quantiles.items():
        assert cdf(value, mu * both, (1 - mu) * both) == pytest.approx(part, abs=2e-6)


def test_a_small_probability_keeps_its_digits() -> None:
    x, a, b = np.array([0.9]), np.array([6.0]), np.array([14.0])
    exact = sum(comb(19, k) * 0.9**k * 0.1 ** (19 - k) for k in range(6))
    assert float(beta_survival(x, a, b)[0]) == pytest.approx(exact, rel=1e-9)
    assert exact < 1e-10


def test_defect_s2_one_that_does_not_converge_is_reported() -> None:
    with pytest.raises(NotConvergedError, match=r"a = 1e\+12"):
        cdf(0.5, 1e12, 1e12)


@given(st.lists(st.floats(min_value=1e-9, max_value=1e9), min_size=1, max_size=20))
def test_the_logarithm_of_gamma(values: list[float]) -> None:
    found = log_gamma(np.array(values)).tolist()
    assert found == pytest.approx([lgamma(value) for value in values], rel=1e-13, abs=1e-13)


def test_a_column_has_the_values_of_its_elements_alone() -> None:
    """Elements converge after different numbers of rounds, and those that go on are sorted out several times."""
    chance = np.random.default_rng(1)
    x, both = chance.uniform(0.01, 0.99, 400), 10 ** chance.uniform(0, 8, 400)
    mean = np.clip(x + chance.normal(0, 0.2, 400) / np.sqrt(both), 0.005, 0.995)
    a, b = mean * both, (1 - mean) * both
    alone = [cdf(*each) for each in zip(x.tolist(), a.tolist(), b.tolist(), strict=True)]
    assert beta_cdf(x, a, b).tolist() == alone
    assert sum(0.01 < value < 0.99 for value in alone) > 100
