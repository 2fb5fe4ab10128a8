"""Series of remote write: their metric and node, the value that counts, and when a series no longer counts."""

import math
import tracemalloc
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.samples.freshness import is_fresh, stale_at
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples, Scrape, merge, newest
from tas.sources import remote_write
from tas.sources import series as series_rules
from tas.sources.remote_write import MAX_LABELS, MAX_SERIES_OF_NODE, InvalidSeries, SeriesStore
from tas.sources.result import RefusalCount, RefusalReason, SourceResult, SuspectReason, scrapes
from tas.sources.series import LOOKBACK, Aggregate, Identity, Mappings, MetricMapping
from tas.sources.write_request import WriteError, decode_write_request
from tas.values.quantity import Quantity, format_quantity, parse_quantity
from tests.fuzz.hostile import WRITE_MESSAGES
from tests.sources.writing import STALE, Series, body, compressed, series
from tests.unit.growth import Work, is_within

LONG_WORK = {
    "empty-series",
    "metadata",
    "nameless",
    "nameless-labels",
    "no-node",
    "one-node",
    "others",
    "twice",
    "unknown-fields",
}
"""Requests with most work for their size: each takes half a second to two."""

NOW = 1767225600.0
MS = 1767225600_000


class Sender:
    """Writes to a store as a sender does."""

    def __init__(self, *metrics: str, **mappings: MetricMapping) -> None:
        self.metrics = frozenset(metrics or ("load",))
        self.store = SeriesStore(Mappings(metrics=mappings))

    def send(self, *written: Series, now: float = NOW) -> SourceResult:
        result, invalid = self.store.add_request(decode_write_request(body(written)), self.metrics, now=now)
        assert invalid is None
        return result

    def values(self, *written: Series, now: float = NOW) -> dict[tuple[str, str], tuple[str, float]]:
        """By metric and node: the value, and how many seconds before `NOW` it was measured."""
        result = self.send(*written, now=now)
        got = {}
        for each in result.samples:
            assert each.measured is not None
            got[each.metric, each.node] = (format_quantity(each.value), round(NOW - each.measured, 3))
        return got


class Target:
    """A scraped target with a series for each processor, whose sum is the metric of a node."""

    def __init__(self, *, interval: float, delay: float) -> None:
        self.now = NOW + delay - interval
        self.samples: NodeSamples = ()
        self.sums: list[str] = []
        self._sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
        self._interval = interval
        self._delay = delay
        self._stored: list[tuple[float, NodeSamples]] = []

    def scrape(self, *values: float) -> None:
        """The next scrape: it arrives `delay` seconds later, at `now`, each series in a request of its own."""
        self.now += self._interval
        measured = MS + round((self.now - self._delay - NOW) * 1000)
        for number, value in enumerate(values):
            result = self._sender.send(series("load", (value, measured), node="a", cpu=str(number)), now=self.now)
            for _, scrape in scrapes(result.samples, source="s", requested_at=self.now):
                arrived = msgspec.structs.replace(scrape, sequence=len(self._stored) + 1)
                self.samples = merge(self.samples, [arrived])
                self._stored.append((self.now, self.samples))
                self.sums.append(format_quantity(scrape.metrics["load"]))

    def has_always_been_fresh(self, *, stale_after: float, until: float) -> bool:
        """Whether the value was fresh in every second from its first sample on."""
        second = self._stored[0][0]
        while second < until:
            (current,) = [samples for time, samples in self._stored if time <= second][-1]
            if not is_fresh(current, stale_after, second):
                return False
            second += 1
        return True


def test_series_with_the_name_of_a_metric_are_that_metric() -> None:
    sender = Sender("load", "free")
    assert sender.values(
        series("load", (0.7, MS - 1500), instance="node-1:9100", job="node"),
        series("node_load", (0.9, MS), node="node-2"),
        series("other", (1.0, MS), node="node-1"),
        series("free", (2.0**40, MS), node="node-1"),
    ) == {
        ("load", "node-1"): ("0.7", 1.5),
        ("load", "node-2"): ("0.9", 0.0),
        ("free", "node-1"): (str(2**40), 0.0),
    }


def test_the_plain_name_counts_before_the_one_with_the_prefix_node() -> None:
    sender = Sender()
    assert sender.values(series("node_load", (1.0, MS), node="a"), series("load", (2.0, MS - 5000), node="a")) == {
        ("load", "a"): ("2", 5.0)
    }
    assert sender.values(series("node_load", (3.0, MS + 1000), node="a")) == {("load", "a"): ("2", 5.0)}


def test_a_mapping_selects_the_series_of_a_metric() -> None:
    mapping = MetricMapping(series="node_disk", labels={"mountpoint": "/", "readonly": ""}, node_label="host")
    sender = Sender("disk", "node_disk", disk=mapping)
    assert sender.values(
        series("node_disk", (1.0, MS), mountpoint="/", host="a", node="x1"),
        series("node_disk", (2.0, MS), mountpoint="/var", host="a", node="x2"),
        series("node_disk", (3.0, MS), mountpoint="/", readonly="1", host="b", node="x3"),
        series("disk", (4.0, MS), mountpoint="/", host="c", node="x4"),
    ) == {
        ("disk", "a"): ("1", 0.0),
        ("node_disk", "x1"): ("1", 0.0),
        ("node_disk", "x2"): ("2", 0.0),
        ("node_disk", "x3"): ("3", 0.0),
    }


def test_a_series_without_a_valid_node_is_refused_alone() -> None:
    result = Sender().send(
        series("load", (1.0, MS), job="x"),
        series("load", (1.0, MS), node="No Node"),
        series("load", (2.0, MS), node="a"),
    )
    assert [sample.node for sample in result.samples] == ["a"]
    assert result.refusals[RefusalReason.NODE].count == 2
    assert "must name a node" in result.refusals[RefusalReason.NODE].example


@pytest.mark.parametrize(
    "number", [math.nan, math.inf, -math.inf, 1e300, -1e41, -(2.0**63), -(2.0**63) / 1000, 2.0**63]
)
def test_facts_n51_facts_n60_a_value_that_is_no_quantity_is_refused_alone(number: float) -> None:
    result = Sender().send(series("load", (number, MS), (1.0, MS - 1), node="a"), series("load", (2.0, MS), node="b"))
    assert {sample.node: format_quantity(sample.value) for sample in result.samples} == {"a": "1", "b": "2"}
    assert result.refusals[RefusalReason.VALUE].count == 1


def test_a_blank_or_a_value_out_of_bounds_is_in_no_aggregate_facts_n61() -> None:
    """Of a metric whose series says DCGM, one that says `blanks`, and one with `max`; each has a wrong value."""
    mappings = {
        "temperature": MetricMapping(series="DCGM_FI_DEV_GPU_TEMP", aggregate=Aggregate.MAX),
        "memory": MetricMapping(blanks=True, aggregate=Aggregate.SUM),
        "power": MetricMapping(max=1000, aggregate=Aggregate.AVG),
    }
    wrong = {"DCGM_FI_DEV_GPU_TEMP": float(0x7FFFFFF0), "memory": 2.0**47 + 2, "power": 1001.0}
    sender, result = Sender(*mappings, **mappings), SourceResult()
    for at in (MS - 1000, MS):
        written = [
            series(name, (value, at), node="a", gpu=str(gpu))
            for name, blank in wrong.items()
            for gpu, value in enumerate((blank, 30.0, 40.0))
        ]
        result = sender.send(*written)
    assert {each.metric: format_quantity(each.value) for each in result.samples} == {
        "temperature": "40",
        "memory": "70",
        "power": "35",
    }
    assert result.refusals[RefusalReason.VALUE].count == 3


@pytest.mark.parametrize("seconds", [10.5, 10**7, -3601.0, -(10**9)])
def test_facts_n52_a_sample_with_an_invalid_time_is_refused_and_does_not_outdate_others(seconds: float) -> None:
    sender = Sender()
    result = sender.send(series("load", (1.0, MS + int(seconds * 1000)), node="a"))
    assert result.samples == ()
    assert result.refusals[RefusalReason.TIME].count == 1
    assert sender.values(series("load", (2.0, MS), node="a")) == {("load", "a"): ("2", 0.0)}


def test_the_newest_of_several_samples_of_a_series_counts() -> None:
    assert Sender().values(series("load", (1.0, MS - 20), (3.0, MS), (2.0, MS - 10), node="a")) == {
        ("load", "a"): ("3", 0.0)
    }


def test_a_series_without_samples_gives_no_value() -> None:
    assert Sender().send(series("load", node="a")) == SourceResult()


class TestStaleMarkers:
    def test_facts_n24_a_stale_marker_gives_no_value_and_removes_none(self) -> None:
        assert Sender().send(series("load", (STALE, MS), node="a")) == SourceResult()

    def test_a_sample_older_than_the_stale_marker_does_not_count(self) -> None:
        sender = Sender()
        assert sender.values(series("load", (1.0, MS - 10), (STALE, MS), node="a")) == {("load", "a"): ("1", 0.01)}
        assert sender.values(series("load", (2.0, MS - 5), node="a")) == {}
        assert sender.values(series("load", (3.0, MS + 5), node="a")) == {("load", "a"): ("3", -0.005)}

    def test_one_failed_scrape_changes_no_value(self) -> None:
        """Scrapes every 15 s arrive 5 s later; the third one fails, the fourth one continues the series."""
        target = Target(interval=15, delay=5)
        for values in ((1.0, 2.0), (1.0, 2.0), (STALE, STALE)):
            target.scrape(*values)
        assert [each.ends for each in target.samples] == [target.now + 30]
        target.scrape(1.0, 2.0)
        assert [each.ends for each in target.samples] == [None]
        assert target.has_always_been_fresh(stale_after=120, until=target.now + 100)
        assert set(target.sums) == {"3"}  # never a sum of some of the series: each is in another request

    def test_a_series_without_a_sample_for_two_intervals_is_stale(self) -> None:
        target = Target(interval=15, delay=5)
        for values in ((1.0, 2.0), (1.0, 2.0), (STALE, STALE)):
            target.scrape(*values)
        ends = target.now + 30
        (last,) = target.samples
        assert is_fresh(last, 120, ends - 0.001)
        assert not is_fresh(last, 120, ends)
        assert stale_at(last, 20) == last.time + 20 < ends  # at most `staleAfter`

    def test_without_a_known_interval_stale_after_alone_counts(self) -> None:
        sender = Sender()
        sender.send(series("load", (1.0, MS), node="a"))
        (sample,) = sender.send(series("load", (STALE, MS + 15_000), node="a"), now=NOW + 15).samples
        assert sample.ends == NOW + 15 + MAX_SAMPLE_AGE

    def test_two_senders_of_one_series_alternate_and_the_longer_gap_counts(self) -> None:
        sender = Sender()
        for second in (0, 1, 15, 16):
            sender.send(series("load", (1.0, MS + second * 1000), node="a"), now=NOW + second)
        (sample,) = sender.send(series("load", (STALE, MS + 30_000), node="a"), now=NOW + 30).samples
        assert sample.ends == NOW + 30 + 2 * 14

    def test_a_repeated_stale_marker_does_not_move_the_end(self) -> None:
        sender = Sender()
        for second in (0, 10):
            sender.send(series("load", (1.0, MS + second * 1000), node="a"), now=NOW + second)
        ends = [
            sample.ends
            for later in (20, 25)  # the first request was not published, so the sender repeats it
            for sample in sender.send(series("load", (STALE, MS + 20_000), node="a"), now=NOW + later).samples
        ]
        assert ends == [NOW + 40, NOW + 40]

    def test_an_ended_series_does_not_count_as_a_second_series(self) -> None:
        sender = Sender()
        sender.send(series("load", (1.0, MS - 10), node="a", pod="x"))
        sender.send(series("load", (STALE, MS - 5), node="a", pod="x"))
        assert sender.values(series("load", (2.0, MS), node="a", pod="y")) == {("load", "a"): ("2", 0.0)}

    def test_an_ended_series_is_in_an_aggregate_for_two_intervals(self) -> None:
        sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
        for second in (0, 10):
            for cpu in "01":
                sender.send(series("load", (1.0, MS + second * 1000), node="a", cpu=cpu), now=NOW + second)
        sender.send(series("load", (STALE, MS + 20_000), node="a", cpu="0"), now=NOW + 20)
        sums = []
        for second in (20, 30, 40, 50):
            found = sender.values(series("load", (4.0, MS + second * 1000), node="a", cpu="1"), now=NOW + second)
            sums.append(found["load", "a"][0])
        assert sums == ["5", "5", "4", "4"]

    def test_a_sample_much_older_than_the_end_of_another_series_does_not_count(self) -> None:
        sender = Sender()
        sender.send(series("load", (STALE, MS), node="a", cpu="0"))
        assert sender.values(series("load", (2.0, MS - int(LOOKBACK * 1000)), node="a", cpu="1")) == {}


class TestSeveralSeriesOfOneNode:
    def test_several_series_without_an_aggregate_are_refused_naming_two(self) -> None:
        result = Sender().send(
            series("load", (1.0, MS), node="a", cpu="0"), series("load", (2.0, MS), node="a", cpu="1")
        )
        assert result.samples == ()
        assert result.refusals[RefusalReason.DUPLICATE].count == 2
        assert """'{cpu="0"}': and {cpu="1"}""" in result.refusals[RefusalReason.DUPLICATE].example

    def test_several_series_in_different_requests_are_refused(self) -> None:
        sender = Sender()
        sender.send(series("load", (1.0, MS - 1000), node="a", cpu="0"))
        result = sender.send(series("load", (2.0, MS), node="a", cpu="1"))
        assert result.samples == ()
        assert result.refusals[RefusalReason.DUPLICATE].count == 2

    def test_a_series_without_new_samples_stops_counting_after_a_while(self) -> None:
        sender = Sender()
        sender.send(series("load", (1.0, MS), node="a", cpu="0"))
        later = int(LOOKBACK * 1000)
        assert sender.values(series("load", (2.0, MS + later - 1), node="a", cpu="1"), now=NOW + LOOKBACK) == {}
        assert sender.values(series("load", (3.0, MS + later), node="a", cpu="1"), now=NOW + LOOKBACK) == {
            ("load", "a"): ("3", -LOOKBACK)
        }

    def test_an_aggregate_counts_from_the_second_round_on(self) -> None:
        sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
        assert sender.values(series("load", (1.0, MS - 9000), node="a", cpu="0")) == {}  # and perhaps not all of it
        assert sender.values(series("load", (2.0, MS - 9000), node="a", cpu="1")) == {}
        assert sender.values(series("load", (3.0, MS - 2000), node="a", cpu="0")) == {("load", "a"): ("5", 2.0)}
        assert sender.values(series("load", (4.0, MS - 2000), node="a", cpu="1")) == {("load", "a"): ("7", 2.0)}

    def test_a_request_that_was_not_published_may_be_sent_again(self) -> None:
        sender = Sender(load=MetricMapping(aggregate=Aggregate.MAX))
        sender.send(series("load", (1.0, MS - 9000), node="a", cpu="0"))
        request = series("load", (2.0, MS), node="a", cpu="0")
        assert sender.values(request) == sender.values(request) == {("load", "a"): ("2", 0.0)}

    def test_a_repeated_first_round_is_not_a_second_round(self) -> None:
        sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
        request = series("load", (1.0, MS - 9000), node="a", cpu="0")
        assert sender.values(request) == sender.values(request) == {}

    def test_the_old_samples_of_a_sender_that_is_behind_count_while_it_sends(self) -> None:
        sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
        behind = int(2 * LOOKBACK * 1000)
        for later in (0, 100):
            for cpu in ("0", "1"):
                written = series("load", (1.0, MS + later * 1000 - behind), node="a", cpu=cpu)
                sender.send(written, now=NOW + later)
        last = series("load", (5.0, MS + 130_000 - behind), node="a", cpu="0")
        assert sender.values(last, now=NOW + 130) == {("load", "a"): ("6", 2 * LOOKBACK - 130)}

    @pytest.mark.parametrize(
        ("ahead", "taken"), [(10_000, True), (10_001, False), (-3_600_000, True), (-3_600_001, False)]
    )
    def test_a_time_within_the_limits_is_accepted(self, ahead: int, taken: bool) -> None:
        assert bool(Sender().send(series("load", (1.0, MS + ahead), node="a")).samples) is taken


class TestManySeriesOfOneNode:
    """Each request with one of them looks at all of them, so their number is bounded."""

    @staticmethod
    def store(most: int = 10) -> Sender:
        sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
        sender.store = SeriesStore(
            Mappings(metrics={"load": MetricMapping(aggregate=Aggregate.SUM)}), max_series_of_node=most
        )
        return sender

    def test_a_stranger_cannot_make_the_requests_of_others_dear(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks = identified = 0
        counts, identity_of = remote_write._StoredSeries.counts, series_rules.identity_of

        def counted(stored: remote_write._StoredSeries, horizon: float, now: float) -> bool:
            nonlocal looks
            looks += 1
            return counts(stored, horizon, now)

        def identify(labels: Mapping[str, str], replica_labels: Collection[str]) -> Identity:
            nonlocal identified
            identified += 1
            return identity_of(labels, replica_labels)

        monkeypatch.setattr(remote_write._StoredSeries, "counts", counted)
        monkeypatch.setattr(remote_write, "identity_of", identify)
        sender = Sender()
        many = 3 * MAX_SERIES_OF_NODE
        result = sender.send(*(series("load", (1.0, MS), node="a", x=str(number)) for number in range(many)))
        assert result.samples == ()
        assert result.refusals[RefusalReason.SHAPE].count == 1
        assert sender.store.series <= MAX_SERIES_OF_NODE
        assert looks <= many + MAX_SERIES_OF_NODE
        for number in range(10):
            looks = 0
            sender.send(series("load", (2.0, MS + number), node="a", x=f"new {number}"))
            sender.send(series("load", (2.0, MS + number), node="b"))
            assert looks <= MAX_SERIES_OF_NODE
        assert identified <= 2 * MAX_SERIES_OF_NODE
        assert sender.values(series("load", (3.0, MS + 99), node="b")) == {("load", "b"): ("3", -0.099)}

    def test_the_series_that_was_sent_last_stays_and_no_sum_is_of_a_part(self) -> None:
        """After the last series that was too many, the node has no value for as long as series count."""
        sender = self.store(most=10)
        written = [series("load", (1.0, MS), node="a", cpu=str(number)) for number in range(10)]
        sender.send(*written)
        again = [series("load", (1.0, MS + 1), node="a", cpu=str(number)) for number in range(10)]
        assert sender.values(*again) == {("load", "a"): ("10", -0.001)}
        more = sender.send(series("load", (1.0, MS + 2), node="a", cpu="10"))
        assert more.samples == ()
        assert more.refusals[RefusalReason.SHAPE].example.startswith("load of a: number of series = 'more than 10'")
        assert sender.store.series == 9
        later = LOOKBACK - 1
        for second in (60.0, later):
            found = sender.send(
                *(series("load", (2.0, MS + int(second * 1000)), node="a", cpu=str(number)) for number in range(3, 10)),
                now=NOW + second,
            )
            assert found.samples == ()
            assert found.refusals[RefusalReason.SHAPE].count == 1
        after = LOOKBACK + 1
        written = [series("load", (3.0, MS + int(after * 1000)), node="a", cpu=str(number)) for number in range(3, 10)]
        assert sender.values(*written, now=NOW + after) == {("load", "a"): ("21", -after)}

    def test_series_that_have_ended_make_room_without_a_loss(self) -> None:
        sender = self.store(most=10)
        for number in range(40):  # as pods that come and go
            now, at = NOW + number * 60, MS + number * 60_000
            sender.send(series("load", (1.0, at), node="a", pod=str(number)), now=now)
            sender.send(series("load", (1.0, at + 1000), node="a", pod=str(number)), now=now + 1)
            found = sender.send(series("load", (STALE, at + 2000), node="a", pod=str(number)), now=now + 2)
            assert found.refusals == {}
        assert sender.store.series <= 10


class TestWhatBreaksTheProtocol:
    def test_a_series_without_a_name_or_with_a_duplicate_label_is_reported_and_others_are_accepted(self) -> None:
        store = SeriesStore(Mappings())
        request = body(
            [
                ({"node": "a"}, [(1.0, MS)]),
                ((("__name__", "load"), ("node", "a"), ("node", "b")), [(1.0, MS)]),
                series("load", (2.0, MS), node="c"),
            ]
        )
        result, invalid = store.add_request(decode_write_request(request), frozenset({"load"}), now=NOW)
        assert [sample.node for sample in result.samples] == ["c"]
        assert invalid == InvalidSeries(2, "series {'node': 'a'}: has no label __name__")


class TestMemory:
    def test_series_that_no_policy_uses_are_not_stored(self) -> None:
        sender = Sender()
        sender.send(*(series(f"other{number}", (1.0, MS), node="a") for number in range(100)))
        assert sender.store.series == 0

    def test_series_without_new_samples_are_deleted(self) -> None:
        sender = Sender()
        sender.send(*(series("load", (1.0, MS), node=f"n{number}") for number in range(100)))
        assert sender.store.series == 100
        sender.send(series("load", (1.0, MS + 130_000), node="n1"), now=NOW + 130)
        assert sender.store.series == 1

    def test_no_more_series_than_the_limit_are_stored(self) -> None:
        store = SeriesStore(Mappings(), max_series=3)
        written = [series("load", (1.0, MS), node=f"n{number}") for number in range(5)]
        result, _ = store.add_request(decode_write_request(body(written)), frozenset({"load"}), now=NOW)
        assert [sample.node for sample in result.samples] == ["n0", "n1", "n2"]
        assert result.refusals[RefusalReason.SHAPE].count == 2
        assert "3 series of" in result.refusals[RefusalReason.SHAPE].example

    def test_no_more_bytes_than_the_limit_are_stored(self) -> None:
        store = SeriesStore(Mappings(), max_bytes=5_000)
        written = [series("load", (1.0, MS), node=f"n{number}", x="x" * 2000) for number in range(5)]
        result, _ = store.add_request(decode_write_request(body(written)), frozenset({"load"}), now=NOW)
        assert [sample.node for sample in result.samples] == ["n0", "n1", "n2"]
        assert result.refusals[RefusalReason.SHAPE].count == 2
        again, _ = store.add_request(decode_write_request(body(written[4:])), frozenset({"load"}), now=NOW + 130)
        assert again.refusals.keys() == {RefusalReason.TIME} or [each.node for each in again.samples] == ["n4"]

    def test_a_series_with_a_too_long_label_is_refused_alone(self) -> None:
        result = Sender().send(
            series("load", (1.0, MS), node="a", x="é" * 1025),
            series("load", (1.0, MS), node="b", x="é" * 1024),
        )
        assert [sample.node for sample in result.samples] == ["b"]
        assert "no label of more than 2048 bytes" in result.refusals[RefusalReason.SHAPE].example

    def test_a_series_with_too_many_labels_is_invalid_alone(self) -> None:
        many = {f"l{number}": "" for number in range(MAX_LABELS)}
        request = body([series("load", (1.0, MS), node="a", **many), series("load", (2.0, MS), node="b")])
        result, invalid = SeriesStore(Mappings()).add_request(
            decode_write_request(request), frozenset({"load"}), now=NOW
        )
        assert [sample.node for sample in result.samples] == ["b"]
        assert invalid == InvalidSeries(1, "series with 130 labels: must be at most 128")

    def test_after_too_many_samples_the_rest_of_a_request_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_write, "MAX_SAMPLES", 2000)
        samples = [(1.0, MS - number) for number in range(30)]
        written = [series("load", *samples, node=f"n{number}") for number in range(80)]
        result, invalid = SeriesStore(Mappings()).add_request(
            decode_write_request(body(written)), frozenset({"load"}), now=NOW
        )
        assert len(result.samples) == 67
        assert invalid == InvalidSeries(13, "more than 2000 samples in a request: send fewer at once")

    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.ci] if name in LONG_WORK else []) for name in WRITE_MESSAGES]
    )
    def test_a_hostile_request_takes_bounded_time_and_memory(self, name: str) -> None:
        def prepare(shape: str, size: int) -> Work:
            request = compressed(WRITE_MESSAGES[shape](size))

            def work() -> None:
                with suppress(WriteError):
                    SeriesStore(Mappings()).add_request(decode_write_request(request), frozenset({"load"}), now=NOW)

            return work

        size = 8 << 20
        work = prepare(name, size)
        # An honest request of a 32nd of the bytes has one sample of each of some thousand nodes.
        assert is_within(10, lambda: work, lambda: prepare("nodes", size // 32))
        tracemalloc.start()
        try:
            work()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * size  # a copy of the request, and as much again

    @pytest.mark.ci
    def test_100_000_series_in_one_request(self) -> None:
        written = [
            series(f"metric_{number % 100}", (float(number), MS), instance=f"node-{number // 100}:9100", job="node")
            for number in range(100_000)
        ]
        result = Sender("metric_7").send(*written)
        assert len(result.samples) == 1000
        assert {(sample.node, format_quantity(sample.value)) for sample in result.samples} == {
            (f"node-{number}", str(number * 100 + 7)) for number in range(1000)
        }


@given(number=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e39, max_value=1e39))
def test_a_number_has_the_same_value_as_in_an_answer_of_prometheus(number: float) -> None:
    (sample,) = Sender().send(series("load", (number, MS), node="a")).samples
    assert sample.value == parse_quantity(repr(number))


samples = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(-5, 5)),
    min_size=1,
    max_size=12,
    unique_by=lambda sample: sample[:2],  # of one time a series has one value
)


@given(written=samples, data=st.data())
def test_the_newest_sample_counts_in_any_order_and_split_into_requests(
    written: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    requests = data.draw(_requests(written))
    repeated = data.draw(st.lists(st.sampled_from(requests), max_size=3))
    sender = Sender()
    known: dict[str, NodeSamples] = {}
    for sequence, request in enumerate([*requests, *repeated]):
        result = sender.send(*(series("load", (float(value), MS + time), node=node) for node, time, value in request))
        _downstream(known, result, sequence)
    for node in {node for node, _, _ in written}:
        _, expected = max((time, value) for each, time, value in written if each == node)
        counted = newest(known[node], "load")
        assert counted is not None
        assert format_quantity(counted.metrics["load"]) == str(expected)


def _downstream(known: dict[str, NodeSamples], result: SourceResult, sequence: int) -> None:
    """Merges a result as `materialize` does."""
    for node, scrape in scrapes(result.samples, source="remote-write", requested_at=NOW):
        arrived = Scrape(
            source=scrape.source, measured=scrape.measured, arrived=NOW + 9, sequence=sequence, metrics=scrape.metrics
        )
        known[node] = merge(known.get(node, ()), [arrived])


@st.composite
def _requests(draw: st.DrawFn, written: Sequence[tuple[str, int, int]]) -> list[list[tuple[str, int, int]]]:
    """All samples in any order, cut into requests anywhere."""
    order = draw(st.permutations(written))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=3)))
    return [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@given(values=st.dictionaries(st.sampled_from("0123"), st.integers(-100, 100), min_size=1), data=st.data())
def test_an_aggregate_is_that_of_all_series_in_any_split_into_requests(
    values: Mapping[str, int], data: st.DataObject
) -> None:
    written: Iterable[tuple[str, int, int]] = [(cpu, 0, value) for cpu, value in values.items()]
    requests = data.draw(_requests(list(written)))
    sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
    last: Quantity | None = None
    for round_ in (-1000, 0):
        for request in requests:
            result = sender.send(
                *(series("load", (float(value + round_), MS + round_), node="a", cpu=cpu) for cpu, _, value in request)
            )
            last = result.samples[0].value if result.samples else last
    assert last is not None
    assert format_quantity(last) == str(sum(values.values()))


@pytest.mark.parametrize("pods", ["aab", "abb", "abc", "aaa"])
def test_a_jump_is_found_although_the_exporter_restarts_with_other_labels_as_of_a_polled_source(pods: str) -> None:
    sender = Sender("load")
    for number, (pod, value) in enumerate(zip(pods, (35.0, 644245923.0, 34.0), strict=True)):
        at = MS + number * 15_000
        found = sender.send(series("load", (value, at), node="a", pod=pod), now=at / 1000).suspect
        assert bool(found) == (number == 2)
    assert found[SuspectReason.JUMP] == RefusalCount(
        count=1, example="load of a: value = 644245923: jumped for one scrape, from 35 and back to 34"
    )


def test_a_new_series_of_a_sum_continues_no_other() -> None:
    sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
    for number, value in enumerate((35.0, 644245923.0, 34.0)):
        at = MS + number * 15_000
        assert not sender.send(series("load", (value, at), node="a", gpu=str(number)), now=at / 1000).suspect


def test_a_series_that_jumps_for_one_scrape_is_suspect_beside_another_of_its_node() -> None:
    sender = Sender(load=MetricMapping(aggregate=Aggregate.SUM))
    for number, value in enumerate((35.0, 644245923.0, 34.0)):
        at = MS + number * 15_000
        written = (series("load", (value, at), node="a", gpu="0"), series("load", (80000.0, at), node="a", gpu="1"))
        found = sender.send(*written, now=at / 1000).suspect
        assert bool(found) == (number == 2)
    assert found[SuspectReason.JUMP].count == 1
    assert found[SuspectReason.JUMP].example.startswith("load of a: value = 644245923: jumped for one scrape")
