"""For how long fresh samples of a source are overdue."""

from itertools import pairwise

import pytest

from tas.sources.state import LEARNED_SECONDS, LONGEST_SECONDS, USUAL_SECONDS, Overdue


def wanted(period: float | None, *, at: float = 0.0) -> Overdue:
    overdue = Overdue(period)
    overdue.want(at, wanted=True)
    return overdue


def test_nothing_is_overdue_while_no_policy_wants_a_sample() -> None:
    overdue = Overdue(1.0)
    assert overdue.seconds(1000.0) == 0.0
    overdue.want(1000.0, wanted=True)
    overdue.feed(1001.0)
    overdue.want(1100.0, wanted=False)
    assert overdue.seconds(5000.0) == 0.0
    overdue.feed(5000.0)
    assert overdue.seconds(6000.0) == 0.0
    overdue.want(7000.0, wanted=True)
    assert overdue.seconds(7003.0) == 2.0, "counted from when a policy wants it again, not from the last sample"


def test_a_poll_is_overdue_one_period_after_the_last_fresh_sample_or_after_the_first_wish() -> None:
    overdue = wanted(30.0)
    assert overdue.seconds(30.0) == 0.0
    assert overdue.seconds(40.0) == 10.0
    overdue.feed(41.0)
    overdue.want(45.0, wanted=True)
    assert overdue.seconds(71.0) == 0.0
    assert overdue.seconds(101.0) == 30.0


@pytest.mark.parametrize("interval", [5.0, 15.0, 30.0, 60.0, LONGEST_SECONDS])
def test_a_source_that_writes_is_never_overdue_at_its_own_interval(interval: float) -> None:
    overdue = wanted(None)
    times = [n * interval + burst for n in range(int(2000 / interval)) for burst in (0.0, 0.1, 0.2)]
    for before, now in pairwise(times):
        overdue.feed(before)
        allowed = max(0.0, interval - USUAL_SECONDS) if before < 2 * interval else 0.1
        assert overdue.seconds(now) <= allowed
    assert overdue.seconds(times[-1] + interval + 40.0) >= 35.0, "and is soon, once it is dead"


def test_the_interval_is_taken_as_the_usual_one_until_it_is_known() -> None:
    overdue = wanted(None)
    assert overdue.seconds(USUAL_SECONDS) == 0.0
    assert overdue.seconds(USUAL_SECONDS + 5.0) == 5.0
    for second in range(int(LEARNED_SECONDS) + 2):
        overdue.feed(float(second))
    last = LEARNED_SECONDS + 1.0
    assert overdue.seconds(last + 41.0) == 40.0, "a source that writes each second is dead earlier"


def test_an_outage_is_no_interval_and_a_longer_interval_is_forgotten_some_time_after_its_end() -> None:
    overdue = wanted(None)
    for second in (*range(400), *range(1000, 1700)):
        overdue.feed(float(second))
    assert overdue.seconds(1699.0 + 41.0) == 40.0
    for second in (1740, *range(1741, 1800)):  # one pause of 41 s
        overdue.feed(float(second))
    assert overdue.seconds(1799.0 + 41.0) == 0.0
    for second in range(1800, 1800 + 2 * int(LEARNED_SECONDS) + 2):
        overdue.feed(float(second))
    assert overdue.seconds(1800.0 + 2 * LEARNED_SECONDS + 1.0 + 41.0) == 40.0
