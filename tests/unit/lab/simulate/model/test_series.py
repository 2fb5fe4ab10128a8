"""The metrics of a simulation and their windows."""

import numpy as np
import pytest

from lab.simulate.model.series import Series

SIZES = np.array([[4000.0, 8000.0], [100.0, 200.0], [10.0, 10.0]])


def measured(*cpu: float) -> Series:
    series = Series(SIZES, period=60.0, periods=10)
    for value in cpu:
        series.add(np.array([[value, value * 2], [50.0, 50.0], [1.0, 20.0]]))
    return series


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("cpu", [5.0, 10.0]),
        ("cpu_ratio", [1.25, 1.25]),
        ("memory", [50.0, 50.0]),
        ("memory_ratio", [0.5, 0.25]),
        ("network", [1.0, 20.0]),
        ("network_ratio", [0.1, 2.0]),
        ("congestion-factor", [10.0, 100.0]),
        ("cpu:mean:2m", [4.5, 9.0]),
        ("cpu:mean:90s", [5.0, 10.0]),  # one measurement a minute
        ("cpu:mean:24h", [3.0, 6.0]),
        ("cpu:std:3m", [(2 / 3) ** 0.5, 2 * (2 / 3) ** 0.5]),
        ("cpu:min:2m", [4.0, 8.0]),
        ("cpu:max:24h", [5.0, 10.0]),
        ("cpu:p50:24h", [3.0, 6.0]),
        ("cpu:p75:5m", [4.0, 8.0]),
        ("cpu:p99:1m", [5.0, 10.0]),
        ("cpu:ewma:2m", [(4 * 0.5 + 5) / 1.5, (8 * 0.5 + 10) / 1.5]),  # half as much after half of the duration
        ("cpu:forecast:2m", [7.0, 14.0]),
        ("cpu:forecast:1m", [5.0, 10.0]),  # one measurement has no trend
    ],
)
def test_a_metric_is_the_newest_measurement_or_a_statistic(metric: str, values: list[float]) -> None:
    assert measured(1000, 2000, 3000, 4000, 5000).column(metric).tolist() == pytest.approx(values)


@pytest.mark.parametrize("metric", ["load1", "cpu:mode:5m", "load1:mean:5m", "cpu:mean:often", "cpu:p100:5m", ""])
def test_another_metric_is_unknown(metric: str) -> None:
    assert np.isnan(measured(1000).column(metric)).all()


def test_before_the_first_measurement_all_is_unknown() -> None:
    series = measured()
    assert series.measured is None
    assert np.isnan(series.column("cpu")).all()
    assert np.isnan(series.column("cpu:mean:5m")).all()


def test_a_new_measurement_counts_at_once() -> None:
    series = measured(1000)
    assert series.column("cpu").tolist() == [1.0, 2.0]
    series.add(np.array([[3000.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    assert series.measured == 60.0
    assert series.column("cpu").tolist() == [3.0, 0.0]
