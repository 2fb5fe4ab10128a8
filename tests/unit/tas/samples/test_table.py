"""Merging tables: the same result in any order, any grouping, any number of times, and as scrape by scrape."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from math import inf
from types import FrameType
from typing import Any, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tas.samples.parts import MAX_ROWS
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples, Scrape, merge, newest_of_series
from tas.samples.table import (
    Column,
    Reading,
    Table,
    combined_samples,
    is_superseded,
    merge_tables,
    replaced_columns,
    table_of,
    without_earlier,
    without_nodes,
)
from tas.values.quantity import Quantity
from tests.unit.growth import is_within

SOURCE = "machine"
EMPTY = Table(SOURCE, (), {})
NODES = ("a", "b", "c", "d")

T = TypeVar("T")


def at(time: float, sequence: int = 1, **more: Any) -> Reading:
    return Reading(time, time, sequence, **more)


def column(reading: Reading | Sequence[Reading], *values: int | None) -> Column:
    return Column(
        tuple(None if value is None else Quantity(value) for value in values),
        reading if isinstance(reading, Reading) else tuple(reading),
    )


def table(nodes: Iterable[str], **columns: Column) -> Table:
    return table_of(SOURCE, tuple(nodes), columns)


def of_nodes(each: Table) -> Mapping[str, NodeSamples]:
    """What a table says, whatever the order of its rows is."""
    found = {node: each.scrapes(node) for node in each.nodes}
    assert all(found.values()), "a row without values"
    assert all(any(value is not None for value in column.values) for column in each.columns.values())
    assert all(len(column.values) == len(each.nodes) for column in each.columns.values())
    return found


def merged(*tables: Table) -> Table:
    known = EMPTY
    for each in tables:
        known = merge_tables(known, each)
    return known


# Few times, sequences and names, so that ties and tables that outdate each other in part are common.
def readings(times: Sequence[float]) -> st.SearchStrategy[Reading]:
    return st.builds(
        Reading,
        measured=st.sampled_from(times),
        arrived=st.sampled_from(times),
        sequence=st.integers(0, 2),
        window=st.sampled_from([None, 60.0]),
        ends=st.sampled_from([None, 3600.0]),
    )


@st.composite
def tables(draw: st.DrawFn, times: Sequence[float] = (0.0, 1.0, 2.0)) -> Table:
    """A table with one reading for each column, or one for each row."""
    nodes = draw(st.permutations(NODES).map(tuple) | st.just(NODES))[: draw(st.integers(0, 4))]
    count = len(nodes)
    values = st.tuples(*[st.none() | st.integers(0, 2).map(Quantity)] * count) | st.just((Quantity(1),) * count)
    columns = st.builds(Column, values, readings(times) | st.tuples(*[readings(times)] * count))
    return table_of(SOURCE, nodes, draw(st.dictionaries(st.sampled_from("xyz"), columns, max_size=3)))


ACROSS_THE_HORIZON = (0.0, 1.0, 3600.0, 3601.0, 3602.5, 7300.0)
any_tables = tables() | tables(ACROSS_THE_HORIZON)


class TestMerge:
    @given(st.lists(any_tables, max_size=4), st.randoms(use_true_random=False))
    def test_the_order_does_not_matter(self, several: list[Table], random: Any) -> None:
        other = list(several)
        random.shuffle(other)
        assert of_nodes(merged(*several)) == of_nodes(merged(*other))

    @given(any_tables, any_tables, any_tables)
    def test_the_grouping_does_not_matter(self, one: Table, two: Table, three: Table) -> None:
        one, two, three = (merged(each) for each in (one, two, three))
        left = merge_tables(merge_tables(one, two), three)
        assert of_nodes(left) == of_nodes(merge_tables(one, merge_tables(two, three)))

    @given(st.lists(any_tables, min_size=1, max_size=4))
    def test_merging_again_changes_nothing(self, several: list[Table]) -> None:
        known = merged(*several)
        assert merge_tables(known, known) is known
        for each in several:
            assert of_nodes(merge_tables(known, each)) == of_nodes(known)

    @given(any_tables)
    def test_a_table_merged_with_itself_is_the_same_object(self, one: Table) -> None:
        assert merge_tables(one, one) is one

    @given(st.lists(tables(), max_size=4))
    def test_the_result_is_that_of_merging_the_scrapes_of_each_node(self, several: list[Table]) -> None:
        expected: dict[str, NodeSamples] = {}
        for each in several:
            for node, scrapes in of_nodes(each).items():
                expected[node] = merge(expected.get(node, ()), scrapes)
        assert of_nodes(merged(*several)) == expected

    @given(any_tables, any_tables)
    def test_whole_columns_give_the_same_as_single_values(self, one: Table, two: Table) -> None:
        """The fast path is taken only for columns with one reading, so here each row gets its own."""

        def by_row(each: Table) -> Table:
            columns = {metric: Column(column.values, tuple(column.readings)) for metric, column in each.columns.items()}
            return Table(each.source, each.nodes, columns)

        assert of_nodes(merge_tables(one, two)) == of_nodes(merge_tables(by_row(one), by_row(two)))

    def test_values_are_kept_where_the_newer_column_has_none(self) -> None:
        known = table("ab", x=column(at(1), 1, 2), y=column(at(1), 3, 4))
        found = merge_tables(known, table("ab", x=column(at(2, 2), None, 5)))
        assert found.columns["x"] == column([at(1), at(2, 2)], 1, 5)
        assert found.columns["y"] is known.columns["y"]

    def test_a_newer_column_replaces_an_older_one_as_a_whole(self) -> None:
        known = table("ab", x=column(at(1), None, 2), y=column(at(1), 7, 8))
        late = table("ab", x=column(at(2), None, 5), z=column(at(1), 9, 9))
        assert merge_tables(known, late).columns["x"] is late.columns["x"]
        assert merge_tables(late, known).columns["x"] is late.columns["x"]

    def test_a_table_of_other_nodes_adds_rows_and_keeps_the_order_of_those_before(self) -> None:
        found = merge_tables(table("ba", x=column(at(1), 1, 2)), table("cab", x=column(at(2), 3, 4, 5)))
        assert found == table("bac", x=column(at(2), 5, 4, 3))

    def test_of_equal_ranks_the_greater_value_counts(self) -> None:
        one, other = (table("ab", x=column(at(1), *values)) for values in ((1, 4), (2, 3)))
        assert merge_tables(one, other) == merge_tables(other, one) == table("ab", x=column(at(1), 2, 4))

    def test_the_time_that_counts_is_at_most_that_of_the_arrival(self) -> None:
        ahead = table("a", x=column(Reading(9.0, 1.0, 1), 1))
        later = table("a", x=column(Reading(2.0, 2.0, 2), 2))
        assert merge_tables(ahead, later) == merge_tables(later, ahead) == later

    def test_an_older_table_changes_nothing_even_if_it_has_other_readings_by_row(self) -> None:
        """Else each late message would cost a write."""
        known = Table(SOURCE, ("a", "b"), {"x": column([at(5), at(5)], 1, 2)})
        assert merge_tables(known, table("ba", x=column([at(4), at(5)], 1, 1))) is known

    def test_a_row_and_a_column_more_than_an_hour_older_are_removed(self) -> None:
        known = table("ab", x=column([at(1), at(2)], 1, 2), y=column(at(1), 3, 4))
        horizon = 1 + MAX_SAMPLE_AGE
        late = table("c", z=column(at(horizon), 5))
        assert set(merge_tables(known, late).nodes) == {"a", "b", "c"}  # exactly an hour: they stay
        found = merge_tables(known, table("c", z=column(at(horizon + 0.5), 5)))
        assert found == table("bc", x=column(at(2), 2, None), z=column(at(horizon + 0.5), None, 5))

    def test_beside_a_removed_value_one_of_exactly_an_hour_stays(self) -> None:
        known = table("ab", x=column([at(1), at(2)], 1, 2))
        found = merge_tables(known, table("c", z=column(at(2 + MAX_SAMPLE_AGE), 5)))
        assert found == table("bc", x=column(at(2), 2, None), z=column(at(2 + MAX_SAMPLE_AGE), None, 5))

    def test_a_table_more_than_an_hour_older_changes_nothing(self) -> None:
        known = table("ab", x=column(at(MAX_SAMPLE_AGE + 2), 1, 2))
        for old in (table("ab", y=column(at(1), 1, 2)), table("cb", x=column(at(1), 1, 2))):
            assert merge_tables(known, old) is known

    def test_the_columns_of_the_usual_message_cost_no_step_by_row(self) -> None:
        def steps(rows: int, columns: int) -> int:
            nodes = [f"node-{number}" for number in range(rows)]
            known, late = (
                table(nodes, **{f"m{number}": column(at(time), *range(rows)) for number in range(columns)})
                for time in (1.0, 2.0)
            )
            found, counted = counted_steps(lambda: merge_tables(known, late))
            assert found == late
            return counted

        assert steps(10, 5) == steps(MAX_ROWS, 5)
        assert steps(10, 10) <= 2 * steps(10, 5)

    @pytest.mark.parametrize("reverse", [False, True])
    def test_the_time_of_the_slow_path_grows_with_the_rows(self, reverse: bool) -> None:
        """With its nodes in another order, and a time for each row."""

        def prepare(rows: int) -> Callable[[], object]:
            nodes = [f"node-{number}" for number in range(rows)]
            known = table(nodes, x=column([at(1 + number / rows) for number in range(rows)], *range(rows)))
            late = table(nodes[::-1] if reverse else nodes, x=column([at(3, n) for n in range(rows)], *range(rows)))
            return lambda: merge_tables(known, late)

        assert is_within(24, lambda: prepare(8000), lambda: prepare(1000))


def counted_steps(work: Callable[[], T]) -> tuple[T, int]:
    """The result of `work`, and how many lines of Python it ran and how many calls, those of generators included."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = work()
    finally:
        sys.settrace(before)
    assert count > 10
    return found, count


class TestReplaced:
    def test_a_column_is_replaced_where_a_value_was_measured_and_published_later(self) -> None:
        known = table("ab", x=column(at(9, 9), 1, 1), y=column([at(9, 9), at(3, 3)], 1, 1), z=column(at(1, 8), 1, 1))
        older = table("bca", x=column(at(5, 5), 2, 2, 2), y=column(at(5, 5), 2, 2, None), z=column(at(5, 5), 2, 2, 2))
        assert replaced_columns(known, older) == {"x": 5}
        assert replaced_columns(known, table("a", y=column(at(5, 5), 2))) == {"y": 5}
        assert replaced_columns(known, table("a", x=column(at(5, 9), 2))) == {}
        assert replaced_columns(known, table("a", x=column(at(10, 5), 2))) == {}
        known = table("a", x=column(at(9, 4), 1), y=column(at(9, 9), 1))
        assert replaced_columns(known, table("a", x=column(at(5, 5), 2))) == {}, "x came late and never counted"

    def test_the_sequence_is_that_of_the_last_value_that_is_replaced(self) -> None:
        known = table("abc", x=column([at(9, 9), at(9, 9), at(3, 3)], 1, 1, 1))
        older = table("abc", x=column([at(5, 5), at(6, 6), at(7, 7)], 2, 2, 2))
        assert replaced_columns(known, older) == {"x": 6}

    def test_a_table_of_later_messages_costs_no_step_by_row(self) -> None:
        def steps(rows: int) -> int:
            names = [f"n{row}" for row in range(rows)]
            known, later = (table(names, x=column(at(n, n), *range(rows))) for n in (1, 2))
            assert known.last_sequence == 1  # known since the message was decoded
            found, count = counted_steps(lambda: replaced_columns(known, later))
            assert found == {}
            return count

        assert steps(1000) == steps(10)

    def test_a_version_says_what_readers_have_not_seen_of_messages_before_each_of_its_values(self) -> None:
        version = Table(SOURCE, ("a", "b"), {"x": column([at(9, 9), at(7, 7)], 1, 1)}, frozenset({"x", "gone"}))
        assert version.unseen == {"x": 7}, "the row with the value 7 may have come later"
        assert Table(SOURCE, ("a",), {"x": column(at(9, 9), 1)}).unseen == {}


class TestTable:
    def test_the_scrapes_of_a_node_are_its_values_by_reading(self) -> None:
        late = Reading(measured=3.0, arrived=2.0, sequence=7, window=60.0, ends=9.0)
        found = table("ab", x=column([at(1), late], 1, 2), y=column(late, 3, 4), z=column(at(1), None, 5))
        assert found.scrapes("b") == (
            Scrape(source=SOURCE, measured=1.0, arrived=1.0, sequence=1, metrics={"z": Quantity(5)}),
            Scrape(
                source=SOURCE,
                measured=3.0,
                arrived=2.0,
                sequence=7,
                window=60.0,
                ends=9.0,
                metrics={"x": Quantity(2), "y": Quantity(4)},
            ),
        )
        assert [scrape.metrics for scrape in found.scrapes("a")] == [{"x": 1}, {"y": 3}]
        assert found.scrapes("c") == ()

    def test_the_newest_time_is_that_of_a_value(self) -> None:
        assert table("ab", x=column([at(1), at(5)], 1, None), y=column(at(3), 1, None)).newest == 3.0
        assert table("a", x=column(Reading(9.0, 4.0, 1), 1)).newest == 4.0
        assert EMPTY.newest == -inf

    def test_a_table_has_no_empty_rows_and_columns(self) -> None:
        found = table("abc", x=column([at(1), at(2), at(3)], 1, None, None), y=column(at(4), None, None, None))
        assert found == Table(SOURCE, ("a",), {"x": column(at(1), 1)})
        assert table("ab", x=column(at(1), None, None)) == EMPTY
        assert table("ab") == EMPTY

    def test_a_reading_becomes_stale_after_its_time_or_at_its_end(self) -> None:
        assert Reading(5.0, 3.0, 1).stale_at(60.0) == 63.0
        assert Reading(5.0, 9.0, 1, ends=30.0).stale_at(60.0) == 30.0
        assert Reading(5.0, 9.0, 1, ends=300.0).stale_at(60.0) == 65.0

    @given(readings((0.0, 1.0)), readings((0.0, 1.0)))
    def test_readings_are_ordered_as_scrapes(self, one: Reading, other: Reading) -> None:
        assume(one != other)
        ordered = sorted((one, other), key=lambda each: each.rank)
        for first, second in permutations((one, other)):
            (kept,) = merge(
                table("a", x=column(first, 1)).scrapes("a"),
                table("a", x=column(second, 1)).scrapes("a"),
            )
            assert (kept.measured, kept.arrived, kept.sequence, kept.window, kept.ends) == ordered[1]


class TestWithout:
    @given(any_tables, st.sets(st.sampled_from([*NODES, "other"])))
    def test_nodes_are_removed_and_nothing_else(self, known: Table, nodes: set[str]) -> None:
        found = without_nodes(known, nodes)
        assert of_nodes(found) == {node: each for node, each in of_nodes(known).items() if node not in nodes}
        assert (found is known) is nodes.isdisjoint(known.nodes)

    @given(any_tables, st.dictionaries(st.sampled_from([*NODES, "other"]), st.sampled_from((0.0, 1.0, 2.0, 3601.0))))
    def test_values_from_before_the_creation_of_their_node_are_removed_and_nothing_else(
        self, known: Table, created: dict[str, float]
    ) -> None:
        left = {
            node: tuple(scrape for scrape in scrapes if scrape.time >= created.get(node, -inf))
            for node, scrapes in of_nodes(known).items()
        }
        found = without_earlier(known, created)
        assert of_nodes(found) == {node: scrapes for node, scrapes in left.items() if scrapes}
        assert (found is known) is (left == of_nodes(known))

    def test_only_the_cells_of_the_new_node_are_removed(self) -> None:
        known = table("ab", x=column(at(1), 1, 2), y=column([at(1), at(2)], 3, 4))
        found = without_earlier(known, {"a": 1.0, "b": 2.0, "c": 9.0})
        assert found == table("ab", x=column(at(1), 1, None), y=column([at(1), at(2)], 3, 4))
        assert without_earlier(known, {"b": 1.0}) is known  # measured when the node was created


def scrape(time: float, sequence: int = 1, source: str = SOURCE, **metrics: int) -> Scrape:
    values = {name: Quantity(value) for name, value in metrics.items()}
    return Scrape(source=source, measured=time, arrived=time, sequence=sequence, metrics=values)


class TestCombined:
    def test_of_each_source_and_metric_the_newest_counts(self) -> None:
        single = (scrape(2, x=1, y=1), scrape(3, 1, "other", x=2))
        rows = [(scrape(1, 9, x=5), scrape(3, 9, y=6)), (scrape(1, 1, "third", x=7),)]
        assert combined_samples(single, rows) == (
            scrape(2, x=1),
            scrape(3, 9, y=6),
            scrape(3, 1, "other", x=2),
            scrape(1, 1, "third", x=7),
        )

    @pytest.mark.parametrize("sequence", [0, 5, 9])
    def test_at_equal_times_of_a_source_the_record_of_the_node_counts(self, sequence: int) -> None:
        """Whatever the sequences are: those of two streams cannot be compared."""
        found = combined_samples((scrape(2, 5, x=1),), [(scrape(2, sequence, x=2, y=3),)])
        assert {(metric, value) for each in found for metric, value in each.metrics.items()} == {("x", 1), ("y", 3)}

    @given(any_tables, any_tables, any_tables)
    def test_a_table_is_superseded_if_the_samples_of_its_nodes_are_the_same_without_it(
        self, own: Table, one: Table, other: Table
    ) -> None:
        for known in (own, merge_tables(merge_tables(own, one), other), one):
            same = all(
                combined_samples(known.scrapes(node), [one.scrapes(node)]) == combined_samples(known.scrapes(node), [])
                for node in one.nodes
            )
            assert is_superseded(one, known.scrapes) is same
        assert is_superseded(one, one.scrapes)
        assert not one.nodes or not is_superseded(one, lambda _: ())

    def test_of_two_tables_at_equal_times_the_later_message_counts(self) -> None:
        rows = [(scrape(2, 5, x=1),), (scrape(2, 6, x=2),)]
        assert combined_samples((), rows) == combined_samples((), rows[::-1]) == (scrape(2, 6, x=2),)

    @given(any_tables, any_tables, any_tables, st.sampled_from(NODES))
    def test_each_series_has_the_newest_time_and_each_metric_of_a_source_occurs_once(
        self, own: Table, one: Table, other: Table, node: str
    ) -> None:
        rows = [each.scrapes(node) for each in (one, other)]
        single = own.scrapes(node)
        found = combined_samples(single, rows)
        series = [(each.source, metric) for each in found for metric in each.metrics]
        assert len(series) == len(set(series))
        every = [each for samples in (single, *rows) for each in samples]
        for each in found:
            for metric, value in each.metrics.items():
                times = [scrape.time for scrape in every if metric in scrape.metrics]
                assert each.time == max(times)
                for scrape in single:
                    assert metric not in scrape.metrics or scrape.time < each.time or value == scrape.metrics[metric]
        assert set(newest_of_series(found)) == {
            (metric, source) for each in every for metric in each.metrics for source in (None, SOURCE)
        }
        assert list(found) == sorted(found, key=lambda each: (each.source, each.order))

    def test_without_tables_the_samples_stay(self) -> None:
        single = (scrape(1, x=1), scrape(2, y=2))
        assert combined_samples(single, []) == single
        assert combined_samples((), []) == ()
