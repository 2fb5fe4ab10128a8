"""Names of statistics of windows."""

import pytest

from tas.values.window import Kind, Window, near_window, window_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu:mean:5m", Window("cpu", Kind.MEAN, 0.0, 300.0)),
        ("cpu:p95:5m", Window("cpu", Kind.PERCENTILE, 95.0, 300.0)),
        ("cpu:p99:24h", Window("cpu", Kind.PERCENTILE, 99.0, 86400.0)),
        ("cpu:p0:60s", Window("cpu", Kind.PERCENTILE, 0.0, 60.0)),
        ("cpu:forecast:1d", Window("cpu", Kind.FORECAST, 0.0, 86400.0)),
        ("instance:node_cpu:ratio:std:90m", Window("instance:node_cpu:ratio", Kind.STD, 0.0, 5400.0)),
    ],
)
def test_a_statistic(name: str, expected: Window) -> None:
    assert window_of(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "cpu:5m",
        ":mean:5m",
        "instance:node_cpu:ratio",
        "job:latency:mean5m",
        "cpu:mean:5",
        "cpu:mean:59s",
        "cpu:mean:25h",
        "cpu:mean:-5m",
        "cpu:mean:9999999m",
        "cpu:mean:\u0665m",
        "cpu:p100:5m",
        "cpu:p99.9:5m",
        "cpu:p:5m",
        "cpu:p05:5m",
        "cpu:P95:5m",
        "cpu:median:5m",
    ],
)
def test_any_other_name_is_an_ordinary_metric(name: str) -> None:
    assert window_of(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cpu:mean:30s", "30s is no duration from 1m to 24h (units: s, m, h, d)"),
        ("cpu:mean:10d", "10d is no duration from 1m to 24h (units: s, m, h, d)"),
        ("cpu:p95:5x", "5x is no duration from 1m to 24h (units: s, m, h, d)"),
        ("cpu:std:5", "5 is no duration from 1m to 24h (units: s, m, h, d)"),
        ("cpu:p101:5m", "p101 is no percentile from p0 to p99"),
        ("cpu:P95:5m", "P95 is no percentile from p0 to p99"),
        ("cpu:meen:5m", "meen is no statistic, is it mean?"),
        ("cpu:avg:5m", "avg is no statistic, is it mean?"),
        ("cpu:median:5m", "median is no statistic, is it p50?"),
    ],
)
def test_a_name_that_is_almost_a_statistic(name: str, reason: str) -> None:
    assert near_window(name) == reason


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "cpu:5m",
        ":mean:5m",
        "cpu:mean:5m",
        "job:latency:mean5m",
        "instance:node_cpu:ratio",
        "a:requests:rate5m",
        "cluster:requests:5m",
        "instance:cpu:max",
        "a:mean:total",
    ],
)
def test_a_recording_rule_is_no_statistic(name: str) -> None:
    assert near_window(name) is None
