"""What is kept of a source, and when it is written."""

from typing import Any

import pytest
from msgspec.structs import replace

from tas.sources.reading import Batch, Gathering, Refused
from tas.sources.state import (
    CHANGED_SECONDS,
    CONFIRMED_SECONDS,
    COUNTED_SECONDS,
    SEEN_SECONDS,
    Account,
    SourceMetric,
    is_due,
)


def account(*, period: float | None = 1.0) -> Account:
    account = Account(kind="k", holder="h", period=period, now=100.0)
    account.want({"m", "n"})
    return account


def batch(*values: tuple[str, str], missing: dict[str, str] | None = None) -> Batch:
    gathering = Gathering()
    for node, metric in values:
        gathering.add(node=node, metric=metric, value="1")
    for metric, why in (missing or {}).items():
        gathering.miss(metric, why)
    return gathering.batch()


def test_looks_are_counted_and_told_by_metric() -> None:
    kept = account()
    kept.failed("down", now=101.0)
    kept.took(batch(("a", "m"), ("b", "m"), missing={"n": "unknown", "unused": "?"}), published=2, now=102.0)
    state = kept.state(now=103.0)
    assert (state.since, state.time, state.looks, state.failures, state.samples) == (100.0, 103.0, 2, 1, 2)
    assert (state.problem, state.last_failure, state.last_success) == ("", 101.0, 102.0)
    assert state.metrics == {"m": SourceMetric(nodes=2), "n": SourceMetric(missing="unknown")}


def test_a_failure_keeps_what_the_last_look_said_of_metrics() -> None:
    kept = account()
    kept.took(batch(("a", "m")), published=1, now=101.0)
    kept.failed("down", now=102.0)
    assert kept.state(now=103.0).problem == "down"
    assert kept.state(now=103.0).metrics["m"].nodes == 1


def test_each_look_at_a_source_that_is_asked_stands_for_itself() -> None:
    kept = account()
    kept.took(batch(("a", "m"), ("b", "m"), missing={"n": "unknown"}), published=2, now=101.0)
    kept.took(batch(("a", "n")), published=1, now=102.0)
    assert kept.state(now=103.0).metrics == {"m": SourceMetric(nodes=0), "n": SourceMetric(nodes=1)}


def test_what_is_written_piece_by_piece_is_put_together_for_a_while() -> None:
    kept = account(period=None)
    for second, node in enumerate("abc"):
        kept.took(batch((node, "m")), published=1, now=100.0 + second)
    assert kept.state(now=103.0).metrics["m"].nodes == 3
    assert kept.state(now=100.5 + SEEN_SECONDS).metrics["m"].nodes == 2
    assert kept.state(now=103.0 + SEEN_SECONDS).metrics["m"].nodes == 0


def test_what_policies_use_no_more_is_forgotten() -> None:
    kept = account()
    kept.took(batch(("a", "m"), missing={"n": "unknown"}), published=1, now=101.0)
    kept.want({"m"})
    assert kept.missing == {}
    assert kept.state(now=101.0).metrics.keys() == {"m"}
    kept.failed("down", now=102.0)
    kept.want(())
    assert (kept.state(now=103.0).metrics, kept.problem) == ({}, "")


def test_refusals_add_up_and_the_newest_is_the_example() -> None:
    kept = account()
    for node in "ab":
        gathering = Gathering()
        gathering.refuse(Refused.NODE, node, "f", "v", "r", count=3)
        kept.took(gathering.batch(), published=0, now=101.0)
    refusal = kept.state(now=102.0).refused[Refused.NODE]
    assert (refusal.count, refusal.example) == (6, "b: f = 'v': r")


@pytest.mark.parametrize(
    ("change", "after"),
    [
        ({"problem": "down"}, CHANGED_SECONDS),
        ({"metrics": {"m": SourceMetric(missing="unknown")}}, CHANGED_SECONDS),
        ({"metrics": {}}, CHANGED_SECONDS),
        ({"holder": "another"}, CHANGED_SECONDS),
        ({"metrics": {"m": SourceMetric(nodes=2)}, "looks": 2}, COUNTED_SECONDS),
        ({"looks": 2, "last_success": 105.0, "samples": 7}, COUNTED_SECONDS),
        ({}, CONFIRMED_SECONDS),
    ],
)
def test_a_state_is_due_as_soon_as_somebody_may_wait_for_it(change: dict[str, Any], after: float) -> None:
    kept = account()
    kept.want({"m"})
    kept.took(batch(("a", "m")), published=1, now=100.0)
    written = kept.state(now=100.0)
    assert not is_due(written, replace(written, **change, time=100.0 + after - 0.1))
    assert is_due(written, replace(written, **change, time=100.0 + after))
    assert is_due(None, written)
