"""What one series says of its values, compared with the values themselves."""

import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from fastdigest import TDigest
from hypothesis import given
from hypothesis import strategies as st

from tas.values.quantity import NANO, Quantity
from tas.values.window import Window, window_of
from tas.windows.key import COVERED, StoredSeries, series_key
from tas.windows.moments import Moments
from tas.windows.quantiles import CENTROIDS, MAX_VALUES, RANK_ERROR, Quantiles
from tas.windows.series import MAX_SOURCES, Series
from tas.windows.slots import SLOTS

START = 1_764_028_800.0
"""The begin of a day, so of every slot."""

Values = Sequence[tuple[float, float]]
"""Values with their times after `START`."""


def _window(name: str) -> Window:
    found = window_of(name)
    assert found is not None
    return found


def series_of(name: str, values: Values, *, source: str = "s") -> Series:
    series = Series(series_key(_window(name)))
    for time, value in values:
        series.add(source, START + time, Quantity(round(value * NANO)))
    return series


def statistic(series: Series, name: str) -> float | None:
    (found,) = series.values([_window(name)])
    return None if found is None else found / NANO


def value_of(name: str, values: Values) -> float | None:
    return statistic(series_of(name, values), name)


STEADY = [(second * 10.0, float(second % 7)) for second in range(31)]
"""A value every ten seconds for five minutes."""


@pytest.mark.parametrize(
    ("statistic_name", "expected"),
    [
        ("mean", statistics.fmean(value for _, value in STEADY)),
        ("std", statistics.pstdev(value for _, value in STEADY)),
        ("min", 0.0),
        ("max", 6.0),
        ("p0", 0.0),
        ("p50", statistics.median(value for _, value in STEADY)),
        ("p95", float(np.percentile([value for _, value in STEADY], 95))),
    ],
)
def test_a_statistic_of_all_values_in_the_window(statistic_name: str, expected: float) -> None:
    assert value_of(f"cpu:{statistic_name}:5m", STEADY) == pytest.approx(expected, abs=1e-8)


def test_a_percentile_between_two_values_is_interpolated_as_prometheus_does() -> None:
    """`quantile_over_time(0.25, …)` of 1, 2, 3 and 4 is 1.75."""
    values = [(0.0, 4.0), (20.0, 2.0), (40.0, 3.0), (60.0, 1.0)]
    assert [value_of(f"cpu:{p}:1m", values) for p in ("p25", "p50", "p95")] == [1.75, 2.5, 3.85]


def test_a_line_goes_on_for_another_duration() -> None:
    line = [(time * 7.0, 100 - time * 0.7) for time in range(44)]  # a tenth less each second, until 301 s
    assert value_of("cpu:forecast:5m", line) == pytest.approx(100 - 0.1 * (301 + 300))
    assert value_of("cpu:forecast:5m", [(time, 5.0) for time, _ in line]) == pytest.approx(5)


def test_a_value_counts_half_after_half_of_the_duration() -> None:
    """60 s before the newest one, in a window of two minutes, a value weighs half of it."""
    assert value_of("cpu:ewma:2m", [(0.0, 0.0), (60.0, 9.0)]) == pytest.approx(6)


def test_a_value_leaves_the_window_with_its_slot() -> None:
    """After the duration and a twentieth, nothing of it is left: neither in sums nor in percentiles."""
    for name in ("cpu:max:1m", "cpu:p99:1m"):
        series = series_of(name, [(0.0, 1000.0), *((time * 2.0, 1.0) for time in range(1, 31))])
        assert statistic(series, name) in (1000, pytest.approx(700.3))  # 60 s later it still counts
        series.add("s", START + 60 + 60 / SLOTS, Quantity(NANO))
        assert statistic(series, name) == 1


@pytest.mark.parametrize("name", ["cpu:mean:5m", "cpu:p50:5m", "cpu:ewma:5m"])
def test_nothing_is_known_before_the_values_span_half_of_the_window(name: str) -> None:
    """After a loss of the history a mean of seconds does not pass for one of minutes."""
    needed = COVERED * 300
    assert value_of(name, [(0.0, 1.0), (needed - 1, 1.0)]) is None
    assert value_of(name, [(0.0, 1.0), (needed, 1.0)]) == 1
    assert value_of(name, []) is None


def test_values_of_one_time_have_no_line_and_a_gap_of_a_window_starts_again() -> None:
    assert value_of("cpu:mean:5m", [(0.0, 1.0), (150.0, 1.0), (1000.0, 5.0)]) is None
    assert value_of("cpu:mean:5m", [(0.0, 1.0), (150.0, 1.0), (1000.0, 5.0), (1150.0, 7.0)]) == 6


def test_a_value_counts_once_and_those_of_two_sources_both() -> None:
    name = "cpu:mean:1m"
    series = series_of(name, [(0.0, 1.0), (30.0, 1.0)])
    assert not series.add("s", START + 30, Quantity(100 * NANO))  # received again
    assert not series.add("s", START + 20, Quantity(100 * NANO))  # late
    assert series.add("other", START + 20, Quantity(4 * NANO))
    assert statistic(series, name) == 2


@pytest.mark.parametrize("order", ["rising", "falling", *range(8)])
def test_values_of_many_sources_count_by_their_times_in_whatever_order_they_come(order: str | int) -> None:
    """All are in one window: the statistics are those of the values themselves."""
    rng = random.Random(str(order))
    times = [0.5, 1.0, 2.5, 30.0, 31.0, *(rng.uniform(0.5, 60) for _ in range(MAX_SOURCES - 6)), 60.0]
    values = [(time, rng.uniform(-5, 5)) for time in times]
    match order:
        case "rising":
            values.sort()
        case "falling":
            values.sort(reverse=True)
        case _:
            rng.shuffle(values)
    found: dict[str, float | None] = {}
    for kind in ("mean", "std", "min", "max", "p30", "forecast", "ewma"):
        series = Series(series_key(_window(f"cpu:{kind}:1m")))
        for number, (time, value) in enumerate(values):
            assert series.add(f"s{number}", START + time, Quantity(round(value * NANO)))
        assert series.covered == 59.5
        found[kind] = statistic(series, f"cpu:{kind}:1m")
    at, numbers = np.array(values).T
    slope, base = np.polyfit(at - 60, numbers, 1)
    assert found == {
        "mean": pytest.approx(numbers.mean()),
        "std": pytest.approx(numbers.std()),
        "min": pytest.approx(numbers.min()),
        "max": pytest.approx(numbers.max()),
        "p30": pytest.approx(np.percentile(numbers, 30)),
        "forecast": pytest.approx(base + slope * 60),
        "ewma": pytest.approx(np.average(numbers, weights=0.5 ** ((60 - at) / 30))),
    }


@pytest.mark.parametrize("name", ["cpu:min:1m", "cpu:p0:1m"])
def test_a_late_value_counts_in_the_oldest_slot_of_the_window_and_not_before(name: str) -> None:
    series = series_of(name, [(60.0, 5.0), (90.0, 5.0)])
    assert series.add("late", START + 30 - 0.1, Quantity(NANO))
    assert series.add("oldest", START + 30, Quantity(3 * NANO))
    assert (statistic(series, name), series.covered) == (3, 60)


def test_a_stranger_cannot_add_sources_without_end() -> None:
    series = series_of("cpu:mean:1m", [(0.0, 1.0)])
    added = [series.add(f"s{number}", START, Quantity(NANO)) for number in range(20)]
    assert sum(added) == MAX_SOURCES - 1
    assert not series.add("new", START + 60, Quantity(NANO)), "they are in the window"
    assert series.add("new", START + 61, Quantity(NANO)), "the sources of another time do not count"
    assert len(series.stored("").times) == MAX_SOURCES


WALKS: dict[str, Callable[[random.Random, int], list[float]]] = {
    "uniform": lambda rng, count: [rng.random() for _ in range(count)],
    "skewed": lambda rng, count: [rng.lognormvariate(0, 2) for _ in range(count)],
    "two groups": lambda rng, count: [rng.gauss(0, 0.1) if rng.random() < 0.9 else 100.0 for _ in range(count)],
    "rising": lambda _, count: [float(number) for number in range(count)],
    "few": lambda _, count: [float(number % 97) for number in range(count)],
}


@pytest.mark.parametrize("shape", WALKS)
def test_the_error_of_a_percentile_is_within_what_is_stated(shape: str) -> None:
    """Of ten thousand values in a day: so that each slot has a digest."""
    values = WALKS[shape](random.Random(1), 10_000)
    series = series_of("cpu:p50:24h", [(number * 8.64, value) for number, value in enumerate(values)])
    assert all(digest for _, _, _, digest in series.stored("").quantiles)
    ordered = np.sort(values)
    for percentile in (1, 5, 25, 50, 70, 90, 95, 99):
        found = statistic(series, f"cpu:p{percentile}:24h")
        assert found is not None
        found += 1e-8  # a quantity has nine decimal places
        below, up_to = (
            np.searchsorted(ordered, found - 2e-8 * (side == "left"), side) / 10_000 for side in ("left", "right")
        )
        assert below - RANK_ERROR <= percentile / 100 <= up_to + RANK_ERROR, percentile


times_and_values = st.lists(
    st.tuples(st.floats(0, 900), st.floats(-1e30, 1e30) | st.sampled_from([0.0, 1.0])), min_size=1, max_size=60
)


@given(values=times_and_values)
def test_no_finite_values_give_nonsense(values: Values) -> None:
    """In any order: a statistic is unknown, or lies between the least and the greatest value."""
    low, high = min(value for _, value in values), max(value for _, value in values)
    slack = 1e-6 * max(abs(low), abs(high), 1)
    for kind in ("mean", "min", "max", "p5", "p50", "ewma"):
        if (found := value_of(f"cpu:{kind}:5m", values)) is not None:
            assert low - slack <= found <= high + slack
    assert (value_of("cpu:std:5m", values) or 0) >= 0


@given(values=times_and_values, kind=st.sampled_from(["mean", "std", "forecast", "min", "p90", "ewma"]), rest=st.data())
def test_a_restored_series_goes_on_as_if_it_had_never_ended(values: Values, kind: str, rest: st.DataObject) -> None:
    name = f"cpu:{kind}:5m"
    at = rest.draw(st.integers(0, len(values)))
    whole, begun = series_of(name, values), series_of(name, values[:at])
    resumed = Series.restored(begun.key, begun.stored("uid"))
    for time, value in values[at:]:
        resumed.add("s", START + time, Quantity(round(value * NANO)))
    for late in (0.0, 300.0, 600.0):
        for series in (whole, resumed):
            series.add(f"late {late}", START + late, Quantity(NANO))
    assert resumed.stored("") == whole.stored("")
    assert statistic(resumed, name) == statistic(whole, name)


LARGE_DIGEST = TDigest.from_values([float(number) for number in range(500)], CENTROIDS + 1).to_bytes()


@pytest.mark.parametrize(
    ("name", "stored", "reason"),
    [
        ("cpu:mean:5m", StoredSeries(times={}, moments=[[1.0]]), "10 finite numbers"),
        ("cpu:mean:5m", StoredSeries(times={}, moments=[[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]]), "must not be negative"),
        ("cpu:mean:5m", StoredSeries(times={}, moments=[[1, 1, 0, 0, -1, 0, 0, 0, 0, 0]]), "must not be negative"),
        ("cpu:mean:5m", StoredSeries(times={}, average=[1.0]), "average is given in a series of moments"),
        ("cpu:ewma:5m", StoredSeries(times={}, average=[1.0]), "four finite numbers"),
        ("cpu:ewma:5m", StoredSeries(times={}, average=[1.0, 1.0, 1.0, 0.0]), "four finite numbers"),
        ("cpu:p9:5m", StoredSeries(times={}, quantiles=[(1, 1.0, [], b"")]), "a slot must have"),
        ("cpu:p9:5m", StoredSeries(times={}, quantiles=[(1, 1.0, [1.0], b"nonsense")]), "binary format"),
        ("cpu:p9:5m", StoredSeries(times={}, quantiles=[(1, 1.0, [1.0] * (MAX_VALUES + 1), b"")]), "at most 64"),
        ("cpu:p9:5m", StoredSeries(times={}, quantiles=[(1, 1.0, [], LARGE_DIGEST)]), "at most 64 centroids"),
        ("cpu:p9:5m", StoredSeries(times={str(n): 1.0 for n in range(9)}), "9 sources"),
    ],
)
def test_what_was_not_stored_by_us_is_refused(name: str, stored: StoredSeries, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Series.restored(series_key(_window(name)), stored)


def test_a_series_takes_little_however_many_values_there_are() -> None:
    """A window of a day with a value each second: what is stored is the size of what is in memory."""
    quantiles = Quantiles(86400)
    for second in range(20_000):
        quantiles.add(START + second * 4.32, float(second % 1013))
    stored = quantiles.stored()
    assert len(stored) == SLOTS
    assert all(len(values) <= MAX_VALUES and len(digest) < 2000 for _, _, values, digest in stored)


def test_stored_slots_from_before_the_window_of_the_newest_do_not_count() -> None:
    quantiles = Quantiles(60)
    quantiles.restore([(0, 1.0, [100.0], b""), (SLOTS, 60.0, [1.0], b""), (2 * SLOTS, 120.0, [2.0], b"")])
    assert quantiles.oldest == 60
    assert quantiles.values([_window("cpu:p99:1m")]) == [pytest.approx(1.99)]


def test_the_values_of_a_slot_become_a_digest_at_once() -> None:
    quantiles = Quantiles(86400)
    for number in range(MAX_VALUES + 1):
        quantiles.add(START + number, 1.0)
        assert all(len(values) <= MAX_VALUES for _, _, values, _ in quantiles.stored())
    assert quantiles.stored()[0][3]


def test_an_ended_slot_with_a_digest_keeps_no_values_beside_it() -> None:
    quantiles = Quantiles(86400)
    for number in range(MAX_VALUES + 2):
        quantiles.add(START + number, 1.0)
    assert quantiles.stored()[0][2] == [1.0]
    quantiles.add(START + 5000, 1.0)
    assert quantiles.stored()[0][2] == []


def test_a_value_of_the_slot_before_the_window_changes_nothing() -> None:
    """Its place is that of the newest slot."""
    moments, slot = Moments(60), 60 / SLOTS
    moments.add(START + 300, 1)
    newest = moments.stored()
    moments.add(START + 300 - (SLOTS + 1) * slot, 9)
    assert moments.stored() == newest
    moments.add(START + 300 - SLOTS * slot, 9)
    assert sorted(moments.stored())[1:] == newest
    assert len(moments.stored()) == 2


@given(times=st.lists(st.integers(0, 200), min_size=1, max_size=60))
def test_the_oldest_value_is_known_after_values_in_any_order(times: list[int]) -> None:
    """It is remembered between values: whether a statistic is known is asked for every series, again and again."""
    moments = Moments(60)
    for time in times:
        moments.add(START + time, 1)
        assert moments.oldest == min(row[2] for row in moments.stored())
        again = Moments(60)
        again.restore(moments.stored())
        assert again.oldest == moments.oldest
    moments.restore([[START // 3, 1, START, 1, 0, 1, 1, START, 0, 0]])
    assert moments.oldest == min((row[2] for row in moments.stored()), default=None)
