"""Sources that contradict each other: fresh values of one metric of one node."""

import pytest

from tas.samples.contradictions import APART, Contradiction, contradictions
from tas.samples.sample import NodeSamples, Scrape
from tas.values.quantity import parse_quantity

NOW = 1000.0
STALE_AFTER = 120.0


def scrape(source: str, value: str, *, age: float = 1.0, metric: str = "m") -> Scrape:
    at = NOW - age
    return Scrape(source=source, measured=at, arrived=at, sequence=1, metrics={metric: parse_quantity(value)})


def found(**samples: NodeSamples) -> list[Contradiction]:
    return contradictions(samples, {"m": STALE_AFTER}, now=NOW)


def test_two_fresh_values_that_differ_by_more_than_half_contradict_each_other() -> None:
    (one,) = found(a=(scrape("x", "10"), scrape("y", "90")), b=(scrape("x", "90"), scrape("y", "89")))
    assert str(one) == "m of a: 10 by x, and 90 by y"


@pytest.mark.parametrize(
    "second",
    [
        scrape("y", "90", age=STALE_AFTER + 1),  # stale
        scrape("y", "90", age=APART + 2),  # of another time
        scrape("y", "20"),
        scrape("y", "5"),
        scrape("y", "90", metric="n"),
    ],
)
def test_these_do_not(second: Scrape) -> None:
    assert found(a=(scrape("x", "10"), second)) == []


@pytest.mark.parametrize(("apart", "count"), [(APART, 1), (APART + 0.001, 0)])
def test_values_contradict_each_other_if_they_are_apart_by_at_most_the_limit(apart: float, count: int) -> None:
    assert len(found(a=(scrape("x", "10", age=0.0), scrape("y", "90", age=apart)))) == count


def test_a_value_alone_and_a_metric_that_no_policy_uses_do_not() -> None:
    assert found(a=(scrape("x", "10"),), b=(scrape("y", "90"),)) == []
    assert found(a=(scrape("x", "10", metric="n"), scrape("y", "90", metric="n"))) == []


def test_a_counter_that_moves_between_two_polls_does_not() -> None:
    steps = [(scrape("x", str(count)), scrape("y", str(count + 300))) for count in range(1000, 100000, 777)]
    assert found(**{f"n{number}": each for number, each in enumerate(steps)}) == []


def test_differences_that_are_small_beside_other_nodes_do_not() -> None:
    idle = (scrape("x", "0.01"), scrape("y", "0.03"))
    assert len(found(a=idle)) == 1
    assert found(a=idle, b=(scrape("x", "8"),)) == []


def test_signs_and_zero() -> None:
    assert len(found(a=(scrape("x", "-5"), scrape("y", "5")))) == 1
    assert len(found(a=(scrape("x", "0"), scrape("y", "5")))) == 1
    assert found(a=(scrape("x", "0"), scrape("y", "0"))) == []


def test_the_bound_of_a_metric_is_a_setting_and_the_largest_difference_is_shown() -> None:
    three = (scrape("x", "10"), scrape("y", "12"), scrape("z", "13"))
    assert found(a=three) == []
    stale_after = {"m": STALE_AFTER}
    (one,) = contradictions({"a": three}, stale_after, now=NOW, bounds={"m": 0.1})
    assert str(one) == "m of a: 10 by x, and 13 by z"
    far = {"a": (scrape("x", "-10"), scrape("y", "90"))}
    assert contradictions(far, stale_after, now=NOW, bounds={"m": 10.0, "n": 0.1}) == []
