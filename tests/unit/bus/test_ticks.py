"""Ticks of one length are at the same moments for all loops of a process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.ticks import until_tick

LENGTHS = st.sampled_from([0.02, 0.25, 0.5, 1.0, 2.5, 5.0])
NOW = st.floats(0, 1e6)


@given(NOW, NOW, LENGTHS)
def test_loops_that_begin_at_different_moments_wait_for_the_same_ones(now: float, later: float, seconds: float) -> None:
    apart = (later + until_tick(later, seconds) - now - until_tick(now, seconds)) / seconds
    assert apart == pytest.approx(round(apart), abs=1e-6)


@given(NOW, LENGTHS, st.integers(1, 4))
def test_a_tick_is_one_of_each_shorter_length_too(now: float, seconds: float, parts: int) -> None:
    at = now + until_tick(now, seconds)
    assert until_tick(at, seconds / parts) == pytest.approx(seconds / parts, rel=1e-6)


@given(NOW, LENGTHS)
def test_a_timer_that_ends_a_little_early_does_not_end_twice(now: float, seconds: float) -> None:
    rest = until_tick(now, seconds)
    assert 0.1 * seconds <= rest <= 1.1 * seconds
    assert until_tick(now + rest - 0.001, seconds) > 0.9 * seconds
