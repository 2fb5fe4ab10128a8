import pytest

from tas.values.backoff import Backoff

BACKOFF = Backoff(first=0.5, longest=3.0)


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0.5), (1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (10**9, 3.0)])
def test_the_wait_doubles_with_each_failure_up_to_the_longest(failures: int, seconds: float) -> None:
    assert BACKOFF.after(failures, chance=lambda: 0.0) == seconds


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 2.0), (0.5, 1.5), (1.0, 1.0)])
def test_chance_takes_off_up_to_a_half(chance: float, seconds: float) -> None:
    assert BACKOFF.after(3, chance=lambda: chance) == seconds


def test_without_a_given_chance_waits_differ_between_a_half_and_the_whole() -> None:
    waits = {BACKOFF.after(3) for _ in range(100)}

    assert len(waits) > 1
    assert all(1.0 <= wait <= 2.0 for wait in waits)
