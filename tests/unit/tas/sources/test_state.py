"""The state of a source, and when it is written."""

from typing import Any

import pytest
from msgspec.structs import replace

from tas.sources.result import RefusalReason, ResultBuilder, SourceResult
from tas.sources.state import (
    COUNTER_WRITE_INTERVAL_SECONDS,
    MAX_WRITE_INTERVAL_SECONDS,
    MIN_WRITE_INTERVAL_SECONDS,
    NODE_SEEN_SECONDS,
    SourceMetric,
    SourceTracker,
    is_write_due,
)


def make_tracker(*, period: float | None = 1.0) -> SourceTracker:
    tracker = SourceTracker(kind="k", holder="h", period=period, now=100.0)
    tracker.set_metrics({"m", "n"})
    return tracker


def result(*values: tuple[str, str], missing: dict[str, str] | None = None) -> SourceResult:
    builder = ResultBuilder()
    for node, metric in values:
        builder.add(node=node, metric=metric, value="1")
    for metric, why in (missing or {}).items():
        builder.add_missing(metric, why)
    return builder.result()


def test_polls_are_counted_and_reported_by_metric() -> None:
    tracker = make_tracker()
    tracker.record_failure("down", now=101.0)
    tracker.record_result(
        result(("a", "m"), ("b", "m"), missing={"n": "unknown", "unused": "?"}), published=2, now=102.0
    )
    state = tracker.state(now=103.0)
    assert (state.since, state.time, state.polls, state.failures, state.samples) == (100.0, 103.0, 2, 1, 2)
    assert (state.problem, state.last_failure, state.last_success) == ("", 101.0, 102.0)
    assert state.metrics == {"m": SourceMetric(nodes=2), "n": SourceMetric(missing="unknown")}


def test_a_failure_keeps_the_metrics_of_the_last_poll() -> None:
    tracker = make_tracker()
    tracker.record_result(result(("a", "m")), published=1, now=101.0)
    tracker.record_failure("down", now=102.0)
    assert tracker.state(now=103.0).problem == "down"
    assert tracker.state(now=103.0).metrics["m"].nodes == 1


def test_each_poll_replaces_the_metrics_of_the_poll_before() -> None:
    tracker = make_tracker()
    tracker.record_result(result(("a", "m"), ("b", "m"), missing={"n": "unknown"}), published=2, now=101.0)
    tracker.record_result(result(("a", "n")), published=1, now=102.0)
    assert tracker.state(now=103.0).metrics == {"m": SourceMetric(nodes=0), "n": SourceMetric(nodes=1)}


def test_a_metric_whose_values_are_refused_now_is_not_missing_for_the_reason_of_the_poll_before() -> None:
    tracker = make_tracker()
    tracker.record_result(result(missing={"n": "unknown"}), published=0, now=101.0)
    tracker.record_result(result(("a", "m")), published=1, now=102.0)
    assert tracker.state(now=103.0).metrics["n"] == SourceMetric()


def test_the_nodes_of_several_write_requests_add_up_for_a_while() -> None:
    tracker = make_tracker(period=None)
    for second, node in enumerate("abc"):
        tracker.record_result(result((node, "m")), published=1, now=100.0 + second)
    assert tracker.state(now=103.0).metrics["m"].nodes == 3
    assert tracker.state(now=100.5 + NODE_SEEN_SECONDS).metrics["m"].nodes == 2
    assert tracker.state(now=103.0 + NODE_SEEN_SECONDS).metrics["m"].nodes == 0


def test_a_metric_is_no_longer_missing_after_a_value_was_received() -> None:
    tracker = make_tracker(period=None)
    tracker.record_result(result(missing={"m": "unknown", "n": "unknown"}), published=0, now=101.0)
    tracker.record_result(result(("a", "m")), published=1, now=102.0)
    assert tracker.state(now=103.0).metrics == {"m": SourceMetric(nodes=1), "n": SourceMetric(missing="unknown")}


def test_metrics_that_no_policy_uses_any_more_are_deleted() -> None:
    tracker = make_tracker()
    tracker.record_result(result(("a", "m"), missing={"n": "unknown"}), published=1, now=101.0)
    tracker.set_metrics({"m"})
    tracker.record_result(result(("a", "m"), missing={"n": "unknown"}), published=1, now=101.0)
    assert tracker.missing == {}
    assert tracker.state(now=101.0).metrics.keys() == {"m"}
    tracker.record_failure("down", now=102.0)
    tracker.set_metrics(())
    assert (tracker.state(now=103.0).metrics, tracker.problem) == ({}, "")


def test_refusals_add_up_and_the_newest_is_the_example() -> None:
    tracker = make_tracker()
    for node in "ab":
        builder = ResultBuilder()
        builder.refuse(RefusalReason.NODE, node, "f", "v", "r", count=3)
        tracker.record_result(builder.result(), published=0, now=101.0)
    refusal = tracker.state(now=102.0).refused[RefusalReason.NODE]
    assert (refusal.count, refusal.example) == (6, "b: f = 'v': r")


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ({"problem": "down"}, MIN_WRITE_INTERVAL_SECONDS),
        ({"metrics": {"m": SourceMetric(missing="unknown")}}, MIN_WRITE_INTERVAL_SECONDS),
        ({"metrics": {}}, MIN_WRITE_INTERVAL_SECONDS),
        ({"holder": "another"}, MIN_WRITE_INTERVAL_SECONDS),
        ({"metrics": {"m": SourceMetric(nodes=2)}, "polls": 2}, COUNTER_WRITE_INTERVAL_SECONDS),
        ({"polls": 2, "last_success": 105.0, "samples": 7}, COUNTER_WRITE_INTERVAL_SECONDS),
        ({}, MAX_WRITE_INTERVAL_SECONDS),
    ],
)
def test_a_change_that_a_user_waits_for_is_written_first(change: dict[str, Any], after: float) -> None:
    tracker = make_tracker()
    tracker.set_metrics({"m"})
    tracker.record_result(result(("a", "m")), published=1, now=100.0)
    written = tracker.state(now=100.0)
    assert not is_write_due(written, replace(written, **change, time=100.0 + after - 0.1))
    assert is_write_due(written, replace(written, **change, time=100.0 + after))
    assert is_write_due(None, written)
