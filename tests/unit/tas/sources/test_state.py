"""The health of a source, its state, and when the state is written."""

from math import isnan
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from bus.records.sources import decode_source_state, encode_source_state
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.sources.nodes import NodeNames
from tas.sources.result import RefusalReason, ResultBuilder, SourceResult, SuspectReason, combined, with_valid_times
from tas.sources.state import (
    COUNTER_WRITE_INTERVAL_SECONDS,
    LOST_FOR_SECONDS,
    MAX_STORED_METRICS,
    MAX_STORED_METRICS_BYTES,
    MAX_STORED_REFUSED_BYTES,
    MAX_WRITE_INTERVAL_SECONDS,
    MIN_WRITE_INTERVAL_SECONDS,
    UNATTENDED_SECONDS,
    Health,
    LostNodes,
    PollResult,
    SourceMetric,
    SourceState,
    SourceTracker,
    _FreshNodes,
    as_stored,
    health,
    is_write_due,
    tolerances_of,
)

STALE_AFTER = 60.0


def make_tracker(*, period: float | None = 1.0) -> SourceTracker:
    tracker = SourceTracker(kind="k", holder="h", period=period, now=100.0)
    tracker.set_metrics({"m": STALE_AFTER, "n": STALE_AFTER}, now=0.0)
    return tracker


def health_of(tracker: SourceTracker, now: float) -> Health:
    return health(tracker.state(now=now), is_held=True, now=now)


def result(
    *values: tuple[str, str], measured: float | None = None, missing: dict[str, str] | None = None
) -> SourceResult:
    builder = ResultBuilder()
    for node, metric in values:
        builder.add(node=node, metric=metric, value="1", measured=measured)
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


def test_the_age_of_the_newest_value_counts_from_its_measurement_and_only_while_policies_use_a_metric() -> None:
    tracker = make_tracker()
    assert isnan(tracker.value_age(100.0))
    tracker.record_result(result(("a", "other"), measured=99.0), published=1, now=100.0)
    assert isnan(tracker.value_age(100.0)), "no policy uses it"
    tracker.record_result(result(("a", "m"), measured=80.0), published=1, now=101.0)
    tracker.record_result(result(("b", "m"), measured=70.0), published=1, now=102.0)
    assert tracker.value_age(103.0) == 23.0
    tracker.record_result(result(("b", "m")), published=1, now=104.0)
    assert tracker.value_age(105.0) == 1.0, "without a time, a value is measured when it comes"
    assert tracker.overdue(110.0) == pytest.approx(110.0 - 104.0 - 1.0)
    tracker.set_metrics({}, now=111.0)
    assert isnan(tracker.value_age(112.0))
    assert tracker.overdue(200.0) == 0.0


def test_a_source_whose_windows_are_not_covered_yet_is_not_overdue() -> None:
    tracker = make_tracker()
    warming = SourceResult(missing={"m": "1 of 5 minutes", "n": "1 of 5 minutes"}, warming=frozenset({"m", "n"}))
    tracker.record_result(warming, published=0, now=400.0)
    assert tracker.overdue(400.5) == 0.0
    assert tracker.overdue(411.0) == 10.0


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
    assert tracker.state(now=103.0).metrics == {"m": SourceMetric(missing="no value"), "n": SourceMetric(nodes=1)}


def test_a_metric_whose_values_are_refused_now_is_not_missing_for_the_reason_of_the_poll_before() -> None:
    tracker = make_tracker()
    tracker.record_result(result(missing={"n": "unknown"}), published=0, now=101.0)
    builder = ResultBuilder()
    builder.add(node="a", metric="m", value="1")
    builder.add(node="a", metric="n", value="NaN")
    tracker.record_result(builder.result(), published=1, now=102.0)
    missing = tracker.state(now=103.0).metrics["n"].missing
    assert missing.startswith("no value accepted, as n of a: value = 'NaN': ")


def given(tracker: SourceTracker, nodes: str, now: float, metric: str = "m", **values: Any) -> None:
    tracker.record_result(result(*((node, metric) for node in nodes), **values), published=len(nodes), now=now)


def take_turns(tracker: SourceTracker, turn: list[str], metrics: list[str], nodes: str, now: float) -> None:
    """A poll of which only the metrics in `turn` were read."""
    builder = ResultBuilder()
    for metric in metrics:
        if metric not in turn:
            builder.add_missing(metric, "others came first", without_turn=True)
    read = result(*((node, metric) for metric in turn for node in nodes))
    tracker.record_result(combined([read, builder.result()]), published=1, now=now)


class TestLostNodes:
    """A node is lost that had a fresh sample within the hour and has none now, for three polls and for 15 s."""

    def test_a_node_that_the_answers_lack_is_lost_since_the_last_one_that_had_it(self) -> None:
        tracker = make_tracker()
        for now in (101.0, 102.0):
            given(tracker, "abcd", now)
        for now in (103.0, 104.0):
            given(tracker, "ab", now)
        assert tracker.nodes(116.9) == (2, None)
        assert tracker.nodes(117.0) == (2, LostNodes(metric="m", count=2, nodes=4, since=102.0, names=("c", "d")))
        given(tracker, "abc", 118.0)
        assert tracker.nodes(119.0) == (3, LostNodes(metric="m", count=1, nodes=4, since=102.0, names=("d",)))
        given(tracker, "abcd", 119.0)
        assert tracker.nodes(140.0) == (4, None)

    def test_one_failed_scrape_is_no_loss_and_does_not_count_for_the_next(self) -> None:
        tracker = make_tracker()
        for now, nodes in ((101.0, "ab"), (110.0, "a"), (112.0, "ab"), (125.0, "a")):
            given(tracker, nodes, now)
        assert tracker.nodes(126.9) == (1, None)
        assert tracker.nodes(127.0)[1] is not None

    def test_with_a_long_period_it_takes_three_polls(self) -> None:
        tracker = make_tracker(period=20.0)
        for now, nodes in ((120.0, "ab"), (140.0, "a"), (160.0, "a")):
            given(tracker, nodes, now)
        assert tracker.nodes(179.0) == (1, None)
        assert tracker.nodes(180.0)[1] is not None

    @pytest.mark.parametrize("period", [1.0, None])
    def test_a_value_that_is_old_when_it_comes_or_becomes_stale_is_no_fresh_one(self, period: float | None) -> None:
        tracker = make_tracker(period=period)
        given(tracker, "ab", 101.0)
        for now in (150.0, 190.0):
            samples = (*result(("a", "m")).samples, *result(("b", "m"), measured=101.0).samples)
            tracker.record_result(SourceResult(samples=samples), published=2, now=now)
        assert tracker.nodes(175.0) == (1, None)
        lost = tracker.nodes(190.0)[1]
        assert lost is not None
        assert (lost.names, lost.since) == (("b",), 101.0 + STALE_AFTER)
        # Of a source that writes to us another replica may have the others.
        assert tracker.state(now=190.0, lost=lost).lost == (None if period is None else lost)

    def test_metrics_that_take_turns_lose_no_node_while_they_wait(self) -> None:
        """20 metrics, of which each poll reads 2: all nodes of the other 18 were lost, and the metrics missing."""
        metrics = [f"metric_{number:02}" for number in range(20)]
        tracker = SourceTracker(kind="k", holder="h", period=5.0, now=100.0)
        tracker.set_metrics(dict.fromkeys(metrics, 120.0), now=100.0)
        for poll in range(40):
            now = 100.0 + 5.0 * poll
            turn = [metrics[(2 * poll + each) % 20] for each in range(2)]
            take_turns(tracker, turn, metrics, "a" if poll == 20 else "ab", now)
            assert tracker.nodes(now + 4.0) == (2, None), "one failed scrape of two metrics is no loss"
            missing = {metric for metric, each in tracker.state(now=now).metrics.items() if each.missing}
            assert missing == set(metrics[2 * poll + 2 :]), "only those that were never read"

    def test_a_node_that_three_turns_of_a_metric_lack_is_lost_since_the_turn_before(self) -> None:
        tracker = make_tracker(period=5.0)
        for now, nodes in ((100.0, "ab"), (120.0, "ab"), (140.0, "a"), (160.0, "a")):
            take_turns(tracker, ["m"], ["m", "n"], nodes, now)
            for later in (5.0, 10.0, 15.0):
                take_turns(tracker, ["n"], ["m", "n"], "a", now + later)
        assert tracker.nodes(179.9) == (1, None)
        lost = LostNodes(metric="m", count=1, nodes=2, since=120.0, names=("b",))
        assert tracker.nodes(180.0) == (1, lost)

    def test_one_failed_scrape_before_a_metric_waits_for_its_next_turn_is_no_loss(self) -> None:
        tracker = make_tracker(period=5.0)
        for now, nodes in ((100.0, "ab"), (105.0, "a")):
            take_turns(tracker, ["m"], ["m", "n"], nodes, now)
        for now in (110.0, 115.0, 120.0, 125.0):
            take_turns(tracker, ["n"], ["m", "n"], "ab", now)
        assert tracker.nodes(125.0) == (2, None)

    def test_a_metric_that_has_no_turn_is_missing_once_its_samples_are_stale(self) -> None:
        tracker = make_tracker(period=5.0)
        take_turns(tracker, ["m", "n"], ["m", "n"], "ab", 100.0)
        take_turns(tracker, ["n"], ["m", "n"], "ab", 100.0 + STALE_AFTER - 1.0)
        assert tracker.state(now=99.9 + STALE_AFTER).metrics["m"] == SourceMetric(nodes=2)
        assert tracker.state(now=100.0 + STALE_AFTER).metrics["m"] == SourceMetric(missing="others came first")

    def test_the_metric_that_lost_the_most_nodes_counts(self) -> None:
        tracker = make_tracker()
        both = tuple((node, metric) for node in "abc" for metric in "mn")
        tracker.record_result(result(*both), published=6, now=101.0)
        tracker.record_result(result(("a", "m"), ("b", "m"), ("a", "n")), published=3, now=102.0)
        assert tracker.nodes(120.0) == (1, LostNodes(metric="n", count=2, nodes=3, since=101.0, names=("b", "c")))
        tracker.set_metrics({"m": STALE_AFTER}, now=120.0)
        lost = tracker.nodes(120.0)[1]
        assert lost is not None
        assert lost.metric == "m"

    def test_a_failed_poll_loses_nobody_until_samples_are_stale_and_the_next_answer_says_who_is_left(self) -> None:
        tracker = make_tracker()
        given(tracker, "abcd", 101.0)
        tracker.record_failure("down", now=102.0)
        assert tracker.nodes(130.0) == (4, None)
        assert tracker.nodes(176.0)[0] == 0
        given(tracker, "ab", 177.0)
        lost = tracker.nodes(178.0)[1]
        assert lost is not None
        assert (lost.count, lost.nodes) == (2, 4)

    def test_a_deleted_node_is_not_lost_and_after_an_hour_nobody_is(self) -> None:
        tracker = make_tracker()
        given(tracker, "abcd", 101.0)
        given(tracker, "a", 102.0)
        names = NodeNames(dict.fromkeys("abc", ()), is_complete=True)
        lost = tracker.nodes(120.0, names.exists)[1]
        assert lost is not None
        assert (lost.count, lost.nodes) == (2, 3)
        assert tracker.nodes(120.0, NodeNames({}, is_complete=False).exists)[1] == tracker.nodes(120.0)[1]
        given(tracker, "a", 101.0 + MAX_SAMPLE_AGE)
        assert tracker.nodes(101.0 + MAX_SAMPLE_AGE)[1] is None

    @pytest.mark.parametrize("is_before", [True, False])
    def test_a_replica_that_takes_over_knows_who_is_lost(self, is_before: bool) -> None:
        tracker = make_tracker()
        if not is_before:
            given(tracker, "ab", 201.0)
        tracker.remember({"m": {"a": 150.0, "b": 150.0, "c": 150.0, "d": 140.0}, "unused": {"x": 150.0}})
        if is_before:
            given(tracker, "ab", 201.0)
        assert tracker.nodes(202.0) == (2, LostNodes(metric="m", count=2, nodes=4, since=140.0, names=("c", "d")))

    def test_a_change_of_their_number_is_written_soon(self) -> None:
        tracker = make_tracker()
        given(tracker, "abcd", 101.0)
        written = tracker.state(now=130.0)
        given(tracker, "ab", 102.0)
        assert is_write_due(
            written, replace(tracker.state(now=131.0, lost=tracker.nodes(131.0)[1]), polls=written.polls)
        )

    def test_the_lost_are_only_copied_when_one_of_them_is_due(self) -> None:
        nodes = _FreshNodes()
        nodes.add("abc", 150.0, ended=False)
        nodes.lose("d", 100.0)
        lost = nodes.lost(160.0)
        assert all(nodes.lost(now) is lost for now in (161.0, 99.0 + LOST_FOR_SECONDS))
        assert nodes.lost(100.0 + LOST_FOR_SECONDS) == dict.fromkeys("abc", 150.0)
        assert nodes.lost(150.0 + LOST_FOR_SECONDS) == {}

    def test_of_a_dead_source_each_node_is_looked_up_once_whatever_the_number_of_metrics(self) -> None:
        metrics = [f"m{number}" for number in range(10)]
        tracker = make_tracker()
        tracker.set_metrics(dict.fromkeys(metrics, STALE_AFTER), now=100.0)
        tracker.record_result(
            result(*((node, metric) for metric in metrics for node in "abc")), published=30, now=101.0
        )
        asked: list[str] = []

        def exists(node: str) -> bool:
            asked.append(node)
            return True

        found = tracker.nodes(200.0, exists)[1]
        assert found is not None
        assert (found.metric, found.count, sorted(asked)) == ("m0", 3, list("abc"))

    def test_names_are_bounded(self) -> None:
        tracker = make_tracker()
        given(tracker, "abcdefgh", 101.0)
        given(tracker, "a", 102.0)
        lost = tracker.nodes(120.0)[1]
        assert lost is not None
        assert (lost.count, lost.names) == (7, ("b", "c", "d"))


class TestHealth:
    """The health of a source follows from the fresh samples of metrics that policies use, for every kind."""

    def test_a_dead_exporter_behind_a_living_prometheus_is_found_when_its_samples_are_stale(self) -> None:
        tracker = make_tracker(period=None)
        assert health_of(tracker, 100.0) is Health.WAITING
        tracker.record_result(result(("a", "m"), ("a", "n")), published=2, now=101.0)
        assert health_of(tracker, 101.0) is Health.HEALTHY
        for second in range(102, 500):  # Prometheus writes on: other series, and none of this exporter
            tracker.record_result(result(), published=0, now=float(second))
            expected = Health.HEALTHY if second < 101.0 + STALE_AFTER else Health.FAILING
            assert health_of(tracker, float(second)) is expected
        state = tracker.state(now=500.0)
        assert (state.last_success, state.polls, state.failures) == (101.0, 399, 0)
        assert state.metrics["m"].missing == "no fresh sample: the newest is older than 60 s"
        tracker.record_result(result(("a", "m")), published=1, now=501.0)
        assert tracker.state(now=501.0).last_success == 501.0
        assert health_of(tracker, 501.0) is Health.PARTIAL

    def test_a_stale_marker_is_visible_at_once_and_is_no_success(self) -> None:
        tracker = make_tracker(period=None)
        tracker.set_metrics({"m": STALE_AFTER}, now=0.0)
        tracker.record_result(result(("a", "m"), ("b", "m")), published=2, now=100.0)
        (sample, _) = result(("a", "m"), ("b", "m"), measured=100.0).samples
        ended = SourceResult(samples=(msgspec.structs.replace(sample, ends=130.0),))
        tracker.record_result(ended, published=1, now=110.0)
        state = tracker.state(now=110.0)
        assert (state.metrics["m"], state.last_success) == (SourceMetric(nodes=2, ended=1), 100.0)
        assert tracker.state(now=130.0).metrics["m"] == SourceMetric(nodes=1)
        tracker.record_result(ended, published=1, now=110.0)
        tracker.record_result(result(("a", "m")), published=1, now=125.0)  # only one scrape had failed
        assert tracker.state(now=130.0).metrics["m"] == SourceMetric(nodes=2)

    def test_a_source_whose_series_have_ended_is_failing_and_says_so(self) -> None:
        tracker = make_tracker(period=None)
        tracker.set_metrics({"m": STALE_AFTER}, now=0.0)
        (sample,) = result(("a", "m"), measured=100.0).samples
        ended = SourceResult(samples=(msgspec.structs.replace(sample, ends=130.0),))
        tracker.record_result(ended, published=1, now=110.0)
        assert health_of(tracker, 129.0) is Health.HEALTHY
        assert health_of(tracker, 130.0) is Health.FAILING
        assert "has ended, by a stale marker" in tracker.state(now=130.0).metrics["m"].missing

    def test_a_request_of_remote_write_with_only_refused_values_is_a_failure(self) -> None:
        tracker = make_tracker(period=None)
        builder = ResultBuilder()
        builder.add(node="a", metric="m", value="NaN")
        tracker.record_result(builder.result(), published=0, now=101.0)
        state = tracker.state(now=101.0)
        assert (state.last_success, state.last_failure, state.failures) == (None, 101.0, 1)
        assert state.metrics["m"].missing.startswith("no value accepted, as m of a: value = 'NaN'")
        assert health_of(tracker, 101.0) is Health.FAILING

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            pytest.param(result(), "no value", id="nothing"),
            pytest.param(result(("a", "other")), "no value", id="other-metrics"),
            pytest.param(result(("a", "m"), measured=0.0), "no fresh sample: the newest is", id="stale"),
            pytest.param(result(missing={"m": "404"}), "404", id="missing"),
            pytest.param(
                with_valid_times(result(("a", "m"), measured=0.0), now=MAX_SAMPLE_AGE + 101.0),
                "no value accepted, as m of a: measured = 0.0: must be at most 3600 s ago",
                id="too-old",
            ),
        ],
    )
    def test_a_poll_without_a_fresh_sample_of_a_used_metric_is_no_success(
        self, answer: SourceResult, reason: str
    ) -> None:
        tracker = make_tracker()
        assert tracker.record_result(answer, published=0, now=101.0) is PollResult.NONE
        state = tracker.state(now=101.0)
        assert (state.last_success, state.last_failure, state.failures) == (None, 101.0, 1)
        assert state.problem == "no fresh value of any metric that policies use"
        assert state.metrics["m"].missing.startswith(reason)
        assert health_of(tracker, 101.0) is Health.FAILING
        assert tracker.record_result(result(("a", "m"), ("a", "n")), published=2, now=102.0) is PollResult.ALL
        assert (tracker.problem, health_of(tracker, 102.0)) == ("", Health.HEALTHY)

    def test_a_poll_with_some_of_the_metrics_or_a_refused_value_is_partial(self) -> None:
        tracker = make_tracker()
        assert tracker.record_result(result(("a", "m")), published=1, now=101.0) is PollResult.SOME
        assert health_of(tracker, 101.0) is Health.PARTIAL
        builder = ResultBuilder()
        for metric in "mn":
            builder.add(node="a", metric=metric, value="1")
        builder.refuse(RefusalReason.NODE, "b", "f", "v", "r")
        assert tracker.record_result(builder.result(), published=2, now=102.0) is PollResult.SOME
        assert health_of(tracker, 102.0) is Health.HEALTHY

    def test_the_longest_stale_after_of_the_policies_counts(self) -> None:
        tracker = make_tracker()
        tracker.set_metrics({"m": 600.0}, now=0.0)
        assert tracker.record_result(result(("a", "m"), measured=0.0), published=1, now=599.0) is PollResult.ALL
        assert health_of(tracker, 599.0) is Health.HEALTHY
        assert health_of(tracker, 600.0) is Health.FAILING

    def test_a_new_metric_is_not_missing_before_it_was_polled(self) -> None:
        tracker = make_tracker()
        tracker.record_result(result(("a", "m"), ("a", "n")), published=2, now=101.0)
        tracker.set_metrics({"m": STALE_AFTER, "new": STALE_AFTER}, now=0.0)
        assert tracker.state(now=101.0).metrics == {"m": SourceMetric(nodes=1), "new": SourceMetric()}
        tracker.record_result(result(("a", "m")), published=1, now=102.0)
        assert tracker.state(now=102.0).metrics["new"].missing == "no value"

    @pytest.mark.parametrize(
        ("warming", "expected"),
        [({"m", "n"}, Health.WARMING), ({"n"}, Health.PARTIAL), (set(), Health.FAILING)],
    )
    def test_statistics_whose_windows_are_not_covered_yet_are_no_fault(
        self, warming: set[str], expected: Health
    ) -> None:
        tracker = make_tracker(period=None)
        builder = ResultBuilder()
        for metric in ("m", "n"):
            builder.add_missing(metric, "why", warming=metric in warming)
        tracker.record_result(builder.result(), published=0, now=101.0)
        assert health_of(tracker, 101.0) is expected
        state = tracker.state(now=101.0)
        assert state.metrics["m"] == SourceMetric(missing="why", warming="m" in warming)
        assert decode_source_state(encode_source_state(state)) == state
        many = {f"{metric}-{number}": each for number in range(1001) for metric, each in state.metrics.items()}
        stored = as_stored(msgspec.structs.replace(state, metrics=many))
        assert stored.metrics_left_out > 0
        assert health(stored, is_held=True, now=101.0) is expected

    def test_a_statistic_that_had_a_value_or_another_reason_is_not_warming(self) -> None:
        tracker = make_tracker(period=None)
        for reason, warming, expected in (("why", True, Health.WARMING), ("gone", False, Health.PARTIAL)):
            builder = ResultBuilder()
            builder.add(node="a", metric="m", value="1")
            builder.add_missing("n", reason, warming=warming)
            tracker.record_result(builder.result(), published=1, now=101.0)
            assert health_of(tracker, 101.0) is expected
        tracker.record_result(result(("a", "m"), ("a", "n")), published=2, now=102.0)
        assert health_of(tracker, 102.0) is Health.HEALTHY
        assert health_of(tracker, 102.0 + STALE_AFTER) is Health.FAILING

    def test_a_source_without_a_replica_is_unattended(self) -> None:
        polled, written = make_tracker(), make_tracker(period=None)
        for tracker in (polled, written):
            tracker.record_result(result(("a", "m"), ("a", "n")), published=2, now=101.0)
        assert health(polled.state(now=101.0), is_held=False, now=101.0) is Health.UNATTENDED
        state = written.state(now=101.0)
        assert health(state, is_held=False, now=100.9 + UNATTENDED_SECONDS) is Health.HEALTHY
        assert health(state, is_held=False, now=101.0 + UNATTENDED_SECONDS) is Health.UNATTENDED

    def test_a_source_whose_metrics_no_policy_uses_is_idle(self) -> None:
        tracker = make_tracker()
        tracker.record_failure("down", now=101.0)
        assert health_of(tracker, 101.0) is Health.FAILING
        tracker.set_metrics({}, now=0.0)
        assert health_of(tracker, 101.0) is Health.IDLE


def test_the_nodes_of_several_write_requests_add_up_until_their_samples_are_stale() -> None:
    tracker = make_tracker(period=None)
    for second, node in enumerate("abc"):
        tracker.record_result(result((node, "m")), published=1, now=100.0 + second)
    assert tracker.state(now=103.0).metrics["m"].nodes == 3
    assert tracker.state(now=100.5 + STALE_AFTER).metrics["m"].nodes == 2
    assert tracker.state(now=103.0 + STALE_AFTER).metrics["m"].nodes == 0


def test_a_metric_is_no_longer_missing_after_a_value_was_received() -> None:
    tracker = make_tracker(period=None)
    tracker.record_result(result(missing={"m": "unknown", "n": "unknown"}), published=0, now=101.0)
    tracker.record_result(result(("a", "m")), published=1, now=102.0)
    assert tracker.state(now=103.0).metrics == {"m": SourceMetric(nodes=1), "n": SourceMetric(missing="unknown")}


def test_metrics_that_no_policy_uses_any_more_are_deleted() -> None:
    tracker = make_tracker()
    tracker.record_result(result(("a", "m"), missing={"n": "unknown"}), published=1, now=101.0)
    tracker.set_metrics({"m": STALE_AFTER}, now=0.0)
    tracker.record_result(result(("a", "m"), missing={"n": "unknown"}), published=1, now=101.0)
    assert tracker.state(now=101.0).metrics.keys() == {"m"}
    tracker.record_failure("down", now=102.0)
    tracker.set_metrics({}, now=0.0)
    assert (tracker.state(now=103.0).metrics, tracker.problem) == ({}, "")


def test_refusals_add_up_and_the_newest_is_the_example() -> None:
    tracker = make_tracker()
    for time, node in ((101.0, "a"), (102.0, "b")):
        builder = ResultBuilder()
        builder.refuse(RefusalReason.NODE, node, "f", "v", "r", count=3)
        tracker.record_result(builder.result(), published=0, now=time)
    refusal = tracker.state(now=200.0).refused[RefusalReason.NODE]
    assert (refusal.count, refusal.example, refusal.time) == (6, "b: f = 'v': r", 102.0)


def test_the_tolerance_of_a_metric_is_in_the_state_for_those_who_compare_sources() -> None:
    tracker = make_tracker()
    tracker.set_tolerances({"m": 0.2, "unused": 0.1})
    state = tracker.state(now=101.0)
    assert {metric: each.tolerance for metric, each in state.metrics.items()} == {"m": 0.2, "n": None}
    assert decode_source_state(encode_source_state(state)) == state
    tracker.set_tolerances({"m": 0.3})
    assert tolerances_of([state, tracker.state(now=101.0)]) == {"m": 0.2}


def test_suspect_values_are_published_and_counted_and_written_soon() -> None:
    tracker = make_tracker()
    tracker.record_result(result(("a", "m")), published=1, now=101.0)
    before = tracker.state(now=101.0)
    blank = ResultBuilder()
    blank.add(node="a", metric="m", value="2147483632")
    for time in (102.0, 103.0):
        assert tracker.record_result(blank.result(), published=1, now=time) is not PollResult.NONE
    state = tracker.state(now=103.0)
    assert state.refused == {}
    assert {why: (each.count, each.time) for why, each in state.suspect.items()} == {SuspectReason.BLANK: (2, 103.0)}
    assert is_write_due(before, state)
    assert decode_source_state(encode_source_state(state)).suspect == state.suspect


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
    tracker.set_metrics({"m": STALE_AFTER}, now=0.0)
    tracker.record_result(result(("a", "m")), published=1, now=100.0)
    written = tracker.state(now=100.0)
    assert not is_write_due(written, replace(written, **change, time=100.0 + after - 0.1))
    assert is_write_due(written, replace(written, **change, time=100.0 + after))
    assert is_write_due(None, written)


class TestAsStored:
    """A stored state has the worst metrics, and counts the others."""

    def state(self, metrics: dict[str, SourceMetric], **changes: Any) -> SourceState:
        return SourceState(
            kind="k",
            holder="h",
            since=0.0,
            time=1.0,
            period=1.0,
            polls=1,
            metrics=dict(sorted(metrics.items())),
            **changes,
        )

    def test_a_state_with_room_for_all_metrics_stays_as_it_is(self) -> None:
        state = self.state(
            {f"m{number}": SourceMetric(missing="no value") for number in range(MAX_STORED_METRICS)},
            refused_now={"a": {"m": "no number"}},
        )
        assert as_stored(state) == state

    def test_the_worst_metrics_are_kept_and_of_those_the_shortest_names(self) -> None:
        good = {f"good-{number:04}": SourceMetric(nodes=1 + number % 7) for number in range(MAX_STORED_METRICS)}
        bad = {
            "its-series-has-ended": SourceMetric(nodes=9, ended=1),
            "not-asked-yet": SourceMetric(),
            "zz": SourceMetric(missing="no value"),
            "aaa": SourceMetric(missing="no value"),
        }
        stored = as_stored(self.state(good | bad))
        assert stored.metrics == dict(list(good.items())[: MAX_STORED_METRICS - len(bad)]) | bad
        assert list(stored.metrics) == sorted(stored.metrics)
        assert (stored.metrics_left_out, stored.missing_left_out) == (len(bad), 0)
        assert stored.metric_count == MAX_STORED_METRICS + len(bad)
        assert as_stored(stored) == stored
        missing = {name: SourceMetric(missing="no value") for name in good}
        stored = as_stored(self.state(missing | bad))
        assert stored.metrics == dict(list(missing.items())[: MAX_STORED_METRICS - 2]) | {
            "zz": bad["zz"],
            "aaa": bad["aaa"],
        }
        assert (stored.metrics_left_out, stored.missing_left_out) == (4, 2)
        assert as_stored(stored) == stored

    def test_long_names_are_left_out_first_and_the_bytes_are_bounded(self) -> None:
        long = {f"a{number:0244}": SourceMetric(missing="x" * 200) for number in range(3200)}
        short = {f"z{number}": SourceMetric(missing="no value") for number in range(100)}
        stored = as_stored(self.state(long | short))
        assert short.keys() < stored.metrics.keys()
        assert stored.missing_left_out == stored.metrics_left_out == 3300 - len(stored.metrics)
        texts = [f"a{number:0244}" for number in range(3200)]
        wordy = as_stored(self.state({name: SourceMetric(missing="x" * 1000) for name in texts}))
        assert list(wordy.metrics) == texts[: len(wordy.metrics)]
        size = len(msgspec.json.encode(wordy.metrics))
        assert MAX_STORED_METRICS_BYTES - 2000 < size <= MAX_STORED_METRICS_BYTES

    def test_what_is_refused_now_is_cut_at_its_bytes(self) -> None:
        refused = {f"node-{node}": {f"m{number}": "no number" for number in range(5000)} for node in range(20)}
        stored = as_stored(self.state({}, refused_now=refused)).refused_now
        nodes = list(stored)
        assert nodes == list(refused)[: len(nodes)]
        assert all(stored[node] == refused[node] for node in nodes[:-1])
        size = len(msgspec.json.encode(stored))
        assert 0.9 * MAX_STORED_REFUSED_BYTES < size <= MAX_STORED_REFUSED_BYTES

    def test_the_health_of_a_stored_state_is_that_of_the_whole_state(self) -> None:
        missing = {f"m{number}": SourceMetric(missing="no value") for number in range(2 * MAX_STORED_METRICS)}
        seen = {f"s{number}": SourceMetric(nodes=1) for number in range(2 * MAX_STORED_METRICS)}
        for metrics, expected in (
            (missing, Health.FAILING),
            (seen, Health.HEALTHY),
            (missing | seen, Health.PARTIAL),
            (seen | {"m": SourceMetric(missing="no value")}, Health.PARTIAL),
        ):
            whole = self.state(metrics)
            assert health(whole, is_held=True, now=1.0) is health(as_stored(whole), is_held=True, now=1.0) is expected

    def test_how_far_a_window_is_covered_is_not_written_with_each_value(self) -> None:
        written = self.state({"m": SourceMetric(missing="30 s so far", warming=True)})
        for metric, is_due in (
            (SourceMetric(missing="31 s so far", warming=True), False),
            (SourceMetric(missing="31 s so far"), True),
            (SourceMetric(nodes=1), True),
        ):
            after = replace(written, metrics={"m": metric}, time=written.time + MIN_WRITE_INTERVAL_SECONDS)
            assert is_write_due(written, after) is is_due

    def test_a_changed_number_of_metrics_left_out_is_written_soon(self) -> None:
        before = as_stored(
            self.state({f"{number:04}": SourceMetric(nodes=1) for number in range(MAX_STORED_METRICS + 1)})
        )
        for change in ({"metrics_left_out": 2}, {"missing_left_out": 1}):
            after = replace(before, time=before.time + MIN_WRITE_INTERVAL_SECONDS, **change)
            assert is_write_due(before, after)
        assert not is_write_due(before, replace(before, time=before.time + MIN_WRITE_INTERVAL_SECONDS))


class TestBehind:
    def test_a_source_whose_polls_take_less_than_the_period_is_behind_by_at_most_a_poll(self) -> None:
        tracker = make_tracker(period=10.0)
        assert tracker.behind(1000.0) == 0, "nothing was polled yet"
        for began in (100.0, 110.0, 120.0):
            tracker.begin_poll(began)
            assert tracker.behind(began) == 0
            assert tracker.behind(began + 2) == (0 if began == 100.0 else 2)
            tracker.end_poll(began)
            assert tracker.behind(began + 10) == 0

    def test_a_source_whose_polls_take_longer_is_always_behind(self) -> None:
        tracker = make_tracker(period=10.0)
        for began in (100.0, 135.0, 170.0):
            tracker.begin_poll(began)
            tracker.end_poll(began)
            assert (tracker.behind(began + 35), tracker.behind(began + 70)) == (25, 60)
            state = tracker.state(now=began + 35)
            assert (state.behind, state.is_behind) == (25, True)

    def test_a_source_that_fails_is_behind_and_current_after_one_poll(self) -> None:
        tracker = make_tracker(period=10.0)
        for began in (100.0, 110.0, 120.0):
            tracker.begin_poll(began)
            tracker.record_failure("down", now=began)
        assert tracker.behind(130.0) == 20
        tracker.begin_poll(130.0)
        tracker.end_poll(130.0)
        assert not tracker.state(now=140.0).is_behind

    def test_a_source_that_nobody_uses_or_that_writes_to_us_is_never_behind(self) -> None:
        for tracker in (make_tracker(period=None), idle := make_tracker(period=10.0)):
            tracker.begin_poll(100.0)
            tracker.end_poll(100.0)
            idle.set_metrics({}, now=0.0)
            assert tracker.behind(1000.0) == 0
        idle.set_metrics({"m": STALE_AFTER}, now=0.0)
        idle.begin_poll(1000.0)
        assert idle.behind(1005.0) == 0, "it was idle, and not behind"

    def test_a_change_to_behind_is_written_soon_and_its_seconds_are_not(self) -> None:
        tracker = make_tracker(period=10.0)
        tracker.begin_poll(100.0)
        written = tracker.state(now=112.0)
        assert not is_write_due(written, tracker.state(now=118.0))
        assert is_write_due(written, late := tracker.state(now=121.0))
        assert not is_write_due(late, tracker.state(now=125.0))
