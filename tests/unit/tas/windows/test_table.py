"""The series of all nodes."""

import random
import sys
from collections import Counter
from unittest.mock import patch

import pytest
from fastdigest import TDigest
from msgspec.structs import replace

from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE, Scrape
from tas.values.quantity import NANO, Quantity
from tas.windows import quantiles
from tas.windows.key import Family, StoredSeries
from tas.windows.table import MAX_ROOM, ROOM, MissingStatistics, WindowTable
from tests.unit.growth import Work, grows_linearly

START = 1_764_028_800.0


def of_operator(*names: str) -> dict[str, list[str]]:
    return {name: [] for name in names}


def add(table: WindowTable, node: str, after: float, **metrics: float) -> None:
    values = {metric: Quantity(round(value * NANO)) for metric, value in metrics.items()}
    at = START + after
    table.add(node, Scrape(source="s", measured=at, arrived=at, sequence=1, metrics=values))


def samples(table: WindowTable) -> dict[tuple[str, str], tuple[float, float | None]]:
    """Value, and time after `START`, of the changed statistics by node and name."""
    return {
        (sample.node, sample.metric): (sample.value / NANO, sample.measured and sample.measured - START)
        for node, keys in table.changed().items()
        for sample in table.samples(node, keys)
    }


def not_covered(metric: str, window: int, span: int) -> str:
    """Why a statistic is missing while its window is filled; all in seconds."""
    return (
        f"the window of {window} s is not covered yet: the values of {metric} span {span} s so far, "
        f"{window // 2} s are needed"
    )


def test_only_what_is_wanted_is_computed_each_of_the_time_of_its_newest_value() -> None:
    table = WindowTable()
    table.want(of_operator("cpu:mean:1m", "cpu:max:1m", "cpu:p50:1m", "memory:ewma:5m", "load1"))
    assert len(table.keys) == 3
    assert set(table.metrics) == {"cpu", "memory"}
    for after in (0, 30, 60):
        add(table, "a", after, cpu=after, memory=1, load1=1)
        add(table, "b", after / 2, cpu=5)
    assert samples(table) == {
        ("a", "cpu:mean:1m"): (30, 60),
        ("a", "cpu:max:1m"): (60, 60),
        ("a", "cpu:p50:1m"): (30, 60),
        ("b", "cpu:mean:1m"): (5, 30),
        ("b", "cpu:max:1m"): (5, 30),
        ("b", "cpu:p50:1m"): (5, 30),
    }
    assert samples(table) == {}, "nothing has changed since"
    assert table.missing(START + 60) == MissingStatistics(
        {"memory:ewma:5m": not_covered("memory", 300, 60)}, {"memory:ewma:5m"}
    )


def test_what_is_no_longer_wanted_is_dropped_and_what_is_still_wanted_is_kept() -> None:
    table = WindowTable()
    table.want(of_operator("cpu:mean:1m", "cpu:p50:1m"))
    add(table, "a", 0, cpu=1)
    assert table.count == 2
    assert table.has_series_of("cpu:max:1m"), "of the same sums"
    table.want(of_operator("cpu:max:1m"))
    assert not table.has_series_of("cpu:p50:1m")
    assert table.count == 1
    add(table, "a", 30, cpu=3)
    assert samples(table) == {("a", "cpu:max:1m"): (3, 30)}
    assert not table.has_series_of("memory:mean:1m")
    table.want(of_operator("memory:mean:1m"))
    assert (table.count, table.nodes) == (0, set())
    assert table.missing(START + 60) == MissingStatistics({"memory:mean:1m": "no value of memory yet"}, set())


def test_a_window_of_which_no_value_comes_any_more_is_not_warming() -> None:
    """The series of a window of a day stays for a day: so long nothing said that the source is dead."""
    table = WindowTable()
    table.want(of_operator("cpu:mean:1d"))
    for node, after in (("a", 0), ("b", 0), ("a", 600)):
        add(table, node, after, cpu=1)
    why = not_covered("cpu", 86400, 600)
    last = START + 600 + MAX_SAMPLE_AGE
    assert table.missing(last) == MissingStatistics({"cpu:mean:1d": why}, {"cpu:mean:1d"})
    ended = MissingStatistics({"cpu:mean:1d": f"{why}; the last value came more than 3600 s ago"}, set())
    assert table.missing(last + 1) == ended
    add(table, "b", 700, cpu=1)
    assert table.missing(last + 1).warming == {"cpu:mean:1d"}, "of any node"


def test_a_statistic_whose_last_value_no_policy_can_use_is_missing_although_its_window_is_covered() -> None:
    """It is as old as its last value, and was neither published nor named missing until the window had passed."""
    table = WindowTable()
    table.want(of_operator("cpu:mean:1d"))
    half = 43_200
    for node, after in (("a", 0), ("b", half), ("a", half)):
        add(table, node, after, cpu=1)
    last = START + half + MAX_SAMPLE_AGE
    assert table.missing(last) == MissingStatistics({}, set())
    why = "no fresh value of cpu; the last value came more than 3600 s ago"
    assert table.missing(last + 1) == MissingStatistics({"cpu:mean:1d": why}, set())
    add(table, "a", half + 10, cpu=1)
    assert table.missing(last + 1) == MissingStatistics({}, set())


def test_what_is_missing_takes_the_same_few_steps_for_any_number_of_nodes() -> None:
    """While windows filled, each node was looked at: 20,000 series stopped the process for 0.1 s, each ten seconds."""

    def steps(nodes: int) -> int:
        """The calls of functions, also if the node whose values cover the most has gone."""
        table = WindowTable()
        table.want(of_operator("cpu:mean:1d", "cpu:p50:1d", "cpu:ewma:1d"))
        for number in range(nodes):
            add(table, f"n{number}", 0, cpu=1)
        add(table, "n0", 60, cpu=1)
        calls = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            table.drop_node("n0")
            found = table.missing(START + 60)
        finally:
            sys.setprofile(None)
        assert found.warming == found.why.keys() == {"cpu:mean:1d", "cpu:p50:1d", "cpu:ewma:1d"}
        return calls

    assert steps(1000) == steps(10)


def test_how_far_a_window_is_covered_after_any_changes() -> None:
    """Known as if each node were looked at."""
    chance = random.Random(1)
    table = WindowTable()
    table.want(of_operator("cpu:mean:1m"))
    (key,) = table.keys
    seen: set[bool] = set()
    after = 0
    for step in range(2000):
        if chance.random() < 0.1:
            table.drop_node(f"n{chance.randrange(4)}")
        else:
            # After 70 s nothing that was before is in the window.
            after += chance.choices((0, 1, 3, 70), weights=(30, 30, 30, 2))[0]
            add(table, f"n{chance.randrange(4)}", after, cpu=step)
        spans = {f"{of_node[key].covered:.0f}" for of_node in table._nodes.values()}
        missing = table.missing(START + after).why
        is_known = any(float(span) >= 30 for span in spans)
        assert bool(missing) is not is_known
        seen.add(is_known)
        if missing and spans:
            assert missing["cpu:mean:1m"] in {not_covered("cpu", 60, int(span)) for span in spans}
    assert seen == {True, False}


def test_how_far_a_window_is_covered_is_told_of_the_node_that_covers_the_most() -> None:
    """If that one goes, of another one until values come."""
    table = WindowTable()
    table.want(of_operator("cpu:mean:10m"))
    for node, start in (("a", 100), ("b", 0), ("c", 50)):
        for after in (start, 200):
            add(table, node, after, cpu=1)
    assert list(table.missing(START + 200).why.values()) == [not_covered("cpu", 600, 200)]
    table.drop_node("b")
    for node in ("a", "c"):
        add(table, node, 210, cpu=1)
    assert list(table.missing(START + 210).why.values()) == [not_covered("cpu", 600, 160)]
    for node in ("a", "c"):
        table.drop_node(node)
    assert list(table.missing(START + 210).why.values()) == ["no value of cpu yet"]


def test_nodes_go_one_after_the_other_in_a_time_by_their_number() -> None:
    """The first one covered the most, then the next one, and to find this one all were passed that had gone."""

    def prepare(count: int) -> Work:
        table = WindowTable()
        table.want(of_operator("cpu:mean:1m"))
        add(table, "first", 0, cpu=1)
        (coverage,) = table._coverage.values()
        (series,) = coverage._nodes.values()  # the same for all nodes: only the way to it counts
        for number in range(count):
            coverage.note(f"n{number}", series)
        nodes = list(coverage._nodes)

        def work() -> None:
            for node in nodes:
                coverage.forget(node)

        return work

    assert grows_linearly(prepare, 40_000)


def test_there_is_a_limit_and_a_node_that_has_gone_gives_its_place_back() -> None:
    table = WindowTable(max_room=2)
    table.want(of_operator("cpu:mean:1m"))
    for node in ("a", "b", "c"):
        add(table, node, 0, cpu=1)
    assert (set(table.nodes), table.refused) == ({"a", "b"}, 1)
    assert not table.restore("d", next(iter(table.keys)), StoredSeries(times={}), now=START)
    table.want(of_operator("cpu:mean:1m", "load:p50:1m"))
    add(table, "a", 0, load=1)
    assert (
        table.missing(START + 60).why["load:p50:1m"]
        == "no room for more series: too many statistics or durations are wanted"
    )
    table.drop_node("a")
    add(table, "c", 1, cpu=1)
    assert set(table.nodes) == {"b", "c"}
    table.drop_ended([*table.nodes], START + 60.0)
    assert set(table.nodes) == {"b", "c"}, "a value as old as the window is in it"
    table.drop_ended([*table.nodes], START + 60.5)
    assert set(table.nodes) == {"c"}
    assert table.count == 1


def test_a_namespace_leaves_room_for_others_and_a_percentile_takes_more() -> None:
    table = WindowTable(max_room=100)
    of_hostile = {f"cpu:mean:{minutes}m": ["hostile"] for minutes in range(1, 50)}
    # What others need too takes no room of those that need less.
    table.want(of_hostile | {"cpu:mean:1m": ["hostile", "good"], "cpu:p50:1m": ["good"]} | of_operator("load:max:1h"))
    for node in map(str, range(3)):
        add(table, node, 0, cpu=1)
    assert table.full == {"hostile"}
    kept = [{key.seconds: key.family for key, _ in table.stored(node, "")} for node in table.nodes]
    assert all(each[60] for each in kept)
    families = Counter(key.family for node in table.nodes for key, _ in table.stored(node, ""))
    assert families[Family.QUANTILES] == 3, "all that the other namespace needs"
    of_hostile_author = families[Family.MOMENTS] - 3
    left = table.room
    assert left == 100 - 3 * (1 + 4) - of_hostile_author
    assert 3 * left < of_hostile_author < 100 * 4 / 5
    add(table, "3", 0, cpu=1)
    assert table.room == left - (1 + 4), "a new node gets only those of the other namespace"
    assert set(table.missing(START + 60).why.values()) == {
        "no value of load yet",
        not_covered("cpu", 60, 0),
    } | {not_covered("cpu", minutes * 60, 0) for minutes in range(2, 50)}
    left = table.room
    # The operator may take all that is left.
    for number in range(left + 1):
        add(table, f"other-{number}", 1, load=1)
    assert (table.room, table.full) == (0, {"hostile", ""})


def test_the_room_of_a_process_is_that_of_the_documentation() -> None:
    """Of 100,000 units (docs/how-to/sources.md), which six means of each of 15,000 nodes leave for others."""
    table = WindowTable()
    assert table.room == MAX_ROOM == 100_000
    assert table.room > 6 * 15_000
    assert ROOM == {Family.MOMENTS: 1, Family.AVERAGE: 1, Family.QUANTILES: 4}


def test_the_share_of_a_namespace_to_the_last_series() -> None:
    """Of 5 it gets 4, since then 1 is left. The operator gets all, but nothing that has no room."""
    for names, kept in (({"cpu:mean:1m": ["a"]}, 4), (of_operator("cpu:mean:1m"), 5), (of_operator("cpu:p50:1m"), 1)):
        table = WindowTable(max_room=5)
        table.want(names)
        for number in range(9):
            add(table, f"n{number}", 0, cpu=1)
        assert table.count == kept
        assert table.refused == 9 - kept
        table.want({})
        assert (table.full, table.refused, table.room) == (set(), 0, 5)
    # One of the two names that need the series is the operator's: nobody pays.
    table = WindowTable(max_room=5)
    table.want({"cpu:mean:1m": ["a"], "cpu:max:1m": []})
    for number in range(9):
        add(table, f"n{number}", 0, cpu=1)
    assert (table.count, table.full) == (5, {""})


def test_the_series_of_another_table_go_on_as_far_as_they_are_wanted_and_there_is_room() -> None:
    table, other = WindowTable(max_room=3), WindowTable()
    table.want(of_operator("cpu:mean:1m", "cpu:max:2m"))
    add(table, "z", 0, cpu=1)
    assert table.room == 1
    other.want(of_operator("cpu:max:2m", "memory:max:2m"))
    for node in ("a", "b"):
        add(other, node, 0, cpu=1, memory=1)
    table.changed()
    table.take(other)
    assert (table.count, table.room, table.refused) == (3, 0, 1)
    assert set(table.changed()) == {"a"}, "what it had before has not changed, and of b nothing was taken"
    add(table, "a", 60, cpu=5)
    assert samples(table) == {("a", "cpu:max:2m"): (5, 60)}


def test_what_is_taken_from_another_table_is_shown_at_once() -> None:
    """Else a statistic of hours would wait for the next value of its metric."""
    table, other = WindowTable(), WindowTable()
    for each in (table, other):
        each.want(of_operator("cpu:mean:1m"))
    for after in (0, 60):
        add(other, "a", after, cpu=after)
    table.take(other)
    assert samples(table) == {("a", "cpu:mean:1m"): (30, 60)}


def test_a_stored_series_that_is_taken_from_another_table_is_shown_with_its_next_value() -> None:
    """Its last value may be hours old, and no reader of samples takes it then."""
    table, other, before = WindowTable(), WindowTable(), WindowTable()
    for each in (table, other, before):
        each.want(of_operator("cpu:mean:1m"))
    for node in ("a", "b"):
        for after in (0, 30):
            add(before, node, after, cpu=1)
        for key, stored in before.stored(node, ""):
            assert other.restore(node, key, stored, now=START + 30)
    add(other, "b", 45, cpu=4)
    table.take(other)
    assert samples(table) == {("b", "cpu:mean:1m"): (2, 45)}
    add(table, "a", 60, cpu=7)
    assert samples(table) == {("a", "cpu:mean:1m"): (3, 60)}


def test_what_another_table_had_no_room_for_counts_as_refused() -> None:
    names = {"cpu:mean:1m": ["mine"], "load:mean:1m": ["theirs"]}
    table, other = WindowTable(max_room=2), WindowTable(max_room=2)
    for each in (table, other):
        each.want(names)
    for number in range(3):
        add(table, f"n{number}", 0, cpu=1)
        add(other, f"n{number}", 0, load=1)
    assert [(each.count, each.refused, each.full) for each in (table, other)] == [(1, 2, {"mine"}), (1, 2, {"theirs"})]
    other.drop_node("n0")
    table.take(other)
    assert (table.count, table.refused, table.full) == (1, 4, {"mine", "theirs"})


def test_a_table_beside_another_one_has_its_room_and_knows_what_namespaces_have_taken() -> None:
    """Else one that has its share already would take the room of the others there, and lose it when both are one."""
    table = WindowTable(max_room=100)
    table.want({f"cpu:mean:{minutes}m": ["hostile"] for minutes in range(1, 91)})
    add(table, "a", 0, cpu=1)
    assert (table.room, table.full) == (20, {"hostile"})
    beside = table.beside({"load:max:1m": ["hostile"], "load:mean:2m": ["good"]})
    for node in map(str, range(16)):
        add(beside, node, 0, load=1)
    assert beside.full == {"hostile"}
    assert {key.seconds for node in beside.nodes for key, _ in beside.stored(node, "")} == {120}
    assert beside.room == 4


def test_a_stored_series_goes_on_in_another_table() -> None:
    table, other = WindowTable(), WindowTable()
    for each in (table, other):
        each.want(of_operator("cpu:mean:1m"))
    add(table, "a", 0, cpu=1)
    for key, stored in table.stored("a", "uid"):
        assert stored.node_uid == "uid"
        assert other.restore("a", key, stored, now=START)
    assert samples(other) == {}
    add(other, "a", 30, cpu=3)
    assert samples(other) == {("a", "cpu:mean:1m"): (2, 30)}
    with pytest.raises(ValueError, match="given in a series of moments"):
        other.restore("a", key, StoredSeries(times={}, average=[1.0, 1.0, 1.0, 1.0]), now=START)


@pytest.mark.parametrize("name", ["cpu:mean:1m", "cpu:p50:1m", "cpu:ewma:1m"])
def test_a_stored_series_without_a_value_in_its_window_is_not_taken_in(name: str) -> None:
    """It is stored for ten minutes more: with it, one new value would be a mean that covers the window."""
    before, table = WindowTable(), WindowTable()
    for each in (before, table):
        each.want(of_operator(name))
    for after in (0, 30):
        add(before, "a", after, cpu=1)
    ((key, stored),) = before.stored("a", "")
    assert not table.restore("a", key, stored, now=START + 90.5)
    assert (table.count, table.refused) == (0, 0)
    add(table, "a", 91, cpu=5)
    assert samples(table) == {}
    table.drop_node("a")
    assert table.restore("a", key, stored, now=START + 90), "a value as old as the window is in it"


@pytest.mark.parametrize("name", ["cpu:mean:1m", "cpu:p50:1m", "cpu:ewma:1m"])
def test_a_stored_series_from_the_future_keeps_out_no_value_of_now(name: str) -> None:
    """Whoever wrote it: its source, or its window, would take nothing in before that time, and be stored again."""
    ahead = WindowTable()
    ahead.want(of_operator(name))
    add(ahead, "a", 1e9, cpu=5)
    ((key, stored),) = ahead.stored("a", "")
    assert ahead.restore("a", key, stored, now=START + 1e9 - FUTURE_TOLERANCE), "as far as a clock may be ahead"
    for hostile in (stored, replace(stored, times={}), StoredSeries(times={"s": START + 1e9})):
        table = WindowTable()
        table.want(of_operator(name))
        assert not table.restore("a", key, hostile, now=START)
        for after in (0, 30):
            add(table, "a", after, cpu=1)
        assert samples(table) == {("a", name): (1, 30)}


def test_many_percentiles_of_a_series_take_little_more_than_one() -> None:
    """A policy may name any number: the values are merged once for all of them."""
    table = WindowTable()
    table.want(of_operator("cpu:p50:1m"))
    for after in range(61):
        add(table, "a", after, cpu=after)
    table.want(of_operator(*(f"cpu:p{number}:1m" for number in range(100))))
    with patch.object(quantiles, "TDigest", wraps=TDigest) as digest:
        found = list(table.samples("a", table.keys))
    assert digest.call_count == 1
    assert {sample.metric: sample.value / NANO for sample in found} == {
        f"cpu:p{number}:1m": pytest.approx(number * 0.6) for number in range(100)
    }


def test_a_node_that_has_gone_has_no_changes_and_a_new_list_of_statistics_counts_refusals_from_nothing() -> None:
    table = WindowTable(max_room=1)
    table.want(of_operator("cpu:mean:1m"))
    add(table, "a", 0, cpu=1)
    add(table, "b", 0, cpu=1)
    assert table.refused == 1
    table.drop_node("a")
    assert table.changed() == {}
    table.want(of_operator("cpu:mean:1m", "cpu:p50:1m"))
    assert table.refused == 0


def test_the_room_is_what_the_series_take_after_any_changes() -> None:
    """Counted anew from the series that there are."""
    chance = random.Random(1)
    names = [
        f"{metric}:{kind}:{minutes}m" for metric in ("cpu", "load") for kind in ("mean", "p50") for minutes in (1, 2)
    ]
    table = WindowTable(max_room=20)
    refused: set[str] = set()
    for step in range(500):
        match chance.randrange(5):
            case 0:
                table.want({name: chance.sample(["a", "b"], k=1) for name in chance.sample(names, k=4)})
            case 1:
                table.drop_node(f"n{chance.randrange(6)}")
            case 2:
                table.drop_ended([*table.nodes], START + step - 30)
            case 3:
                other = WindowTable(max_room=table.room)
                other.want({name: ["b"] for name in chance.sample(names, k=2)})
                add(other, f"n{chance.randrange(6)}", step, cpu=1, load=1)
                table.take(other)
            case _:
                add(table, f"n{chance.randrange(6)}", step, cpu=1, load=1)
        series = [key for node in table.nodes for key, _ in table.stored(node, "")]
        assert table.count == len(series)
        assert table.room == 20 - sum(ROOM[key.family] for key in series) >= 0
        assert sum(table._used.values()) == 20 - table.room
        # Without those of which there are none: they would grow with every duration that ever was wanted.
        assert {key: each.count for key, each in table._coverage.items()} == dict(Counter(series))
        refused |= table.full
    assert refused == {"a", "b"}


def test_series_of_a_node_take_time_by_their_number() -> None:
    """An author who wants many durations of one metric stopped the process: each series copied those before it."""

    def prepare(count: int) -> Work:
        names = of_operator(*(f"cpu:mean:{duration}s" for duration in range(60, 60 + count)))
        table, other = WindowTable(), WindowTable()
        for each in (table, other):
            each.want(names)

        def work() -> None:
            add(table, "a", 0, cpu=1)
            other.take(table)
            assert other.count == count
            other.drop_ended([*other.nodes], START + 1e6)
            assert other.count == 0

        return work

    assert grows_linearly(prepare, 2000)


def test_of_a_scrape_it_is_known_how_many_series_have_a_value() -> None:
    table = WindowTable()
    table.want(of_operator("cpu:mean:1m", "cpu:p50:1m", "cpu:max:1m", "load:mean:1m"))
    at = Scrape(source="s", measured=START, arrived=START, sequence=1, metrics={"cpu": Quantity(NANO)})
    assert table.add("a", at) == 2


def test_shared_series_take_the_room_of_the_namespace_that_needs_the_least_room() -> None:
    """Not of the one with the fewest series: those may be percentiles, which leave no room for what others need."""
    table = WindowTable(max_room=200)
    costly = {f"load:p50:{minutes}m": ["costly"] for minutes in range(1, 4)}
    means = {f"cpu:mean:{minutes}m": ["means"] for minutes in range(1, 7)}
    table.want(costly | means | {"cpu:mean:9m": ["costly", "means"]})
    for number in range(10):
        add(table, f"n{number}", 0, load=1, cpu=1)
    assert table.full >= {"costly"}
    assert [key.seconds for node in table.nodes for key, _ in table.stored(node, "")].count(540) == 10
