"""The limits of time, at the limit and a microsecond before and after it: the precision of times on the bus."""

import math

import pytest

from tas.samples.freshness import is_fresh, kept_until, stale_at, time_fault
from tas.samples.sample import Scrape

NOW = 1_800_000_000.0
MICROSECOND = 1e-6


def scrape(time: float, ends: float | None = None) -> Scrape:
    return Scrape(source="s", measured=time, arrived=time, sequence=1, metrics={}, ends=ends)


@pytest.mark.parametrize(
    ("age", "fresh"),
    [
        (0.0, True),
        (-10.0, True),
        (30.0 - MICROSECOND, True),
        (30.0, False),
        (30.0 + MICROSECOND, False),
        (float("inf"), False),
    ],
)
def test_a_sample_is_fresh_until_it_is_as_old_as_stale_after(age: float, fresh: bool) -> None:
    assert is_fresh(scrape(NOW - age), 30.0, NOW) is fresh


def test_a_sample_is_stale_from_the_time_of_stale_at() -> None:
    sample = scrape(NOW)
    deadline = stale_at(sample, 0.1)
    assert is_fresh(sample, 0.1, deadline - MICROSECOND)
    assert not is_fresh(sample, 0.1, deadline)
    assert not is_fresh(sample, 0.1, deadline + MICROSECOND)


@pytest.mark.parametrize(
    ("ends", "stale_after", "stale"),
    [(10.0, 30.0, 10.0), (40.0, 30.0, 30.0), (-5.0, 30.0, -5.0), (None, 30.0, 30.0)],
)
def test_the_end_of_a_series_makes_its_samples_stale_before_stale_after_does(
    ends: float | None, stale_after: float, stale: float
) -> None:
    sample = scrape(NOW, ends=None if ends is None else NOW + ends)
    assert stale_at(sample, stale_after) == NOW + stale
    assert not is_fresh(sample, stale_after, NOW + stale)
    assert is_fresh(sample, stale_after, NOW + stale - MICROSECOND)


@pytest.mark.parametrize(
    ("offset", "fault"),
    [
        (0.0, None),
        (10.0 - MICROSECOND, None),
        (10.0, None),
        (10.0 + MICROSECOND, "must be at most 10 s ahead, and is 10 s ahead"),
        (75.0, "must be at most 10 s ahead, and is 75 s ahead"),
        (-3600.0 + MICROSECOND, None),
        (-3600.0, None),
        (-3600.0 - MICROSECOND, "must be at most 3600 s ago, and is 3600 s ago"),
        (-7200.0, "must be at most 3600 s ago, and is 7200 s ago"),
    ],
)
def test_a_measured_time_is_accepted_from_an_hour_ago_to_ten_seconds_ahead(offset: float, fault: str | None) -> None:
    assert time_fault(NOW + offset, NOW) == fault


@pytest.mark.parametrize(
    ("measured", "until"),
    [(NOW - MICROSECOND, -math.inf), (NOW, NOW + 60.0), (NOW + MICROSECOND, NOW + 60.0 + MICROSECOND)],
)
def test_a_value_is_kept_if_it_was_measured_when_the_node_was_created_or_later(measured: float, until: float) -> None:
    assert kept_until(measured, 60.0, NOW) == until
