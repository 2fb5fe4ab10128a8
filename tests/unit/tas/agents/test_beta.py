"""The incomplete beta function against identities and tables."""

import sys
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from math import comb, lgamma
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.agents import beta
from tas.agents.agent import FloatArray
from tas.agents.beta import NotConvergedError, RememberedBeta, beta_cdf, beta_survival, log_gamma
from workers.serving.interrupting import InterruptedCallError

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


Arguments = Sequence[tuple[float, float, float]]

FEW = st.tuples(st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.sampled_from([1.0, 2.0, 3.5]), st.sampled_from([0.5, 2.0]))
"""So few different arguments that most of them come several times."""


def columns(of: Arguments) -> tuple[FloatArray, FloatArray, FloatArray]:
    x, a, b = np.array(of).T
    return x, a, b


@given(st.lists(st.lists(FEW, min_size=1, max_size=12), min_size=1, max_size=8), st.sampled_from([2, 4, 8, 1024]))
def test_what_is_remembered_is_never_of_other_arguments(requests: Sequence[Arguments], places: int) -> None:
    remembered = RememberedBeta(places)
    for each in requests:
        x, a, b = columns(each)
        assert remembered.cdf(x, a, b).tolist() == beta_cdf(x, a, b).tolist()
        assert remembered.survival(x, a, b).tolist() == beta_survival(x, a, b).tolist()


def test_what_was_asked_before_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def counted(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
        computed.append(x.size)
        return beta_cdf(x, a, b)

    monkeypatch.setattr(beta, "beta_cdf", counted)
    remembered = RememberedBeta()
    asked = [(number / 500, 2.0, 3.0) for number in range(1, 500)]
    first = remembered.cdf(*columns(asked)).tolist()
    assert remembered.cdf(*columns(asked)).tolist() == first
    assert sum(computed) < 525, "in the first call a few had the same place"
    before = len(computed)
    again = remembered.cdf(*columns([*asked[::-1], (0.5, 2.0, 3.5)])).tolist()
    assert again == [*first[::-1], cdf(0.5, 2.0, 3.5)]
    assert computed[before:] == [1]


def test_what_is_asked_for_stays_while_much_else_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = RememberedBeta(256)
    hot = columns([(number / 21, 2.0, 3.0) for number in range(1, 21)])
    values = remembered.cdf(*hot).tolist()
    for number in range(100):  # ten times as many values as there are places
        remembered.cdf(*columns([(part / 28, 4.0 + number, 3.0) for part in range(1, 28)]))
        assert remembered.cdf(*hot).tolist() == values
    monkeypatch.setattr(beta, "beta_cdf", lambda *_: pytest.fail("it was computed again"))
    assert remembered.cdf(*hot).tolist() == values


def is_interrupted(line: int, call: Callable[[], object]) -> bool:
    """Whether the call was interrupted, before this line of those that it runs of `RememberedBeta`."""
    left = line

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_qualname.startswith("RememberedBeta."):
            return None
        if what == "line":
            left -= 1
            if left < 0:
                raise InterruptedCallError("too slow")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except InterruptedCallError:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_call_that_is_interrupted_anywhere_leaves_no_value_of_other_arguments() -> None:
    """As the time limit of an agent does it; here before each line. What is displaced must be gone before it is new."""
    first, second = (columns([(0.3, 2.0, each), (0.7, 3.5, each)]) for each in (3.0, 0.5))
    expected = [beta_cdf(*each).tolist() for each in (first, second)]
    for line in count():
        remembered = RememberedBeta(2)
        remembered.cdf(*first)
        interrupted = is_interrupted(line, lambda: remembered.cdf(*second))  # noqa: B023 - called at once
        places = [remembered._arguments.copy(), remembered._values.copy()]
        known = ~np.isnan(places[0]).any(axis=0)
        assert places[1][known].tolist() == beta_cdf(*places[0][:, known]).tolist(), line
        assert [remembered.cdf(*each).tolist() for each in (second, first)] == expected[::-1], line
        if not interrupted:
            break
    assert line > 20, "it has so many lines at least"
