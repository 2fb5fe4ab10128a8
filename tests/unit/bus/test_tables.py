"""Tables on the bus: only the invalid part of a message is refused, and a written table reads back."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.connection import Bus, StreamMessage
from bus.errors import STREAM_NOT_FOUND, UnavailableError
from bus.records.tables import (
    MAX_NAMED,
    MAX_TABLE_BYTES,
    MAX_TABLE_METRICS,
    Refused,
    decode_stored_table,
    decode_table,
    encode_stored_table,
    encode_table,
)
from bus.tables import by_table, encoded_tables, last_tables, received_table
from tas.errors import InvalidInputError
from tas.samples.parts import MAX_ROWS, Part, part_number
from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE
from tas.samples.table import Column, Reading, Table, TableKey, merge_tables, table_of
from tas.values.quantity import MAX_QUANTITY, NANO, Quantity
from tests.unit.growth import is_within
from tests.unit.tas.generators import matching, metric_names, quantities, source_names

SUBJECT = "tas.tables.machine.1-0"
KEY = TableKey("machine", Part(1, 0))
ARRIVED = 1_800_000_000.0
SEQUENCE = 1_795_277_068_888_665
NO_YEAR = "0001-01-01T00:00:00+01:00"
"""A time for which UTC has no year, so it cannot be written again."""
FIELDS = ("nodes", "metrics", "measured", "window", "ends")
"""The fields of which a part may be refused."""

times = st.integers(1_000_000_000_000_000, 4_000_000_000_000_000).map(lambda microseconds: microseconds / 10**6)
recent = st.integers(0, 3_600_000_000).map(lambda microseconds: ARRIVED - microseconds / 10**6)
windows = st.none() | st.floats(0.001, 86400)
node_lists = st.lists(matching(r"[a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?(\.[a-z]{1,3})?"), max_size=5, unique=True)


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def decoded(body: Any, *, newer: Sequence[Table] = (), sequence: int = SEQUENCE) -> tuple[Table | None, Refused]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    key, table, refused = decode_table(SUBJECT, data, arrived=ARRIVED, sequence=sequence, newer=newer)
    assert key == KEY
    assert table is None or (table.source == "machine" and (table.nodes or table.left_out))
    assert all(error.subject == "table machine/1-0" for error in refused.errors)
    named = [error.field.partition(".")[0] for error in refused.errors]
    assert set(named) == refused.counts.keys()  # each counted field is named
    assert all(named.count(field) <= count for field, count in refused.counts.items())
    assert min(sum(refused.counts.values()), MAX_NAMED) <= len(named) <= MAX_NAMED + len(FIELDS) - 1
    return table, refused


def values(table: Table | None) -> dict[str, dict[str, float]]:
    """The values of a table by node and metric."""
    if table is None:
        return {}
    return {
        node: {metric: value / NANO for scrape in table.scrapes(node) for metric, value in scrape.metrics.items()}
        for node in table.nodes
    }


def accepted(body: Any) -> Table:
    table, refused = decoded(body)
    assert refused == ((), {})
    assert table is not None
    return table


def refused_whole(body: Any) -> InvalidInputError:
    table, refused = decoded(body)
    assert table is None
    (error,) = refused.errors
    assert refused.counts == {error.field: 1}
    return error


def of_a_and_b(**fields: Any) -> dict[str, Any]:
    return {"nodes": ["a", "b"], "metrics": {"x": [1, 2], "y": ["3", "4"]}} | fields


ALL = {"a": {"x": 1, "y": 3}, "b": {"x": 2, "y": 4}}


class TestMessages:
    def test_values_are_numbers_texts_or_absent(self) -> None:
        body = b'{"nodes": ["a", "b", "c"], "metrics": {"x": ["2Gi", 0.5, null], "y": ["1500m", "\\u0032", "1e3"]}}'
        assert values(accepted(body)) == {"a": {"x": 2**31, "y": 1.5}, "b": {"x": 0.5, "y": 2}, "c": {"y": 1000}}

    def test_a_long_number_is_not_rounded(self) -> None:
        digits = "12345678901234567890123456789.123456789"
        table = accepted(f'{{"nodes": ["a"], "metrics": {{"x": [{digits}]}}}}'.encode())
        assert table.columns["x"].values == (12345678901234567890123456789123456789,)

    def test_without_times_the_arrival_counts(self) -> None:
        table = accepted(of_a_and_b())
        assert values(table) == ALL
        assert {column.reading for column in table.columns.values()} == {Reading(ARRIVED, ARRIVED, SEQUENCE)}

    @pytest.mark.parametrize("body", [{"nodes": [], "metrics": {}}, {"nodes": ["a"], "metrics": {"x": [None]}}])
    def test_a_table_without_values_is_none_and_nothing_is_refused(self, body: Any) -> None:
        assert decoded(body) == (None, ((), {}))

    def test_a_row_and_a_column_without_values_are_left_out(self) -> None:
        table = accepted({"nodes": ["a", "b"], "metrics": {"x": [None, 1], "y": [None, None]}})
        assert (table.nodes, list(table.columns)) == (("b",), ["x"])

    def test_fields_of_later_versions_are_ignored(self) -> None:
        assert values(accepted(of_a_and_b(later={"any": ["thing"]}))) == ALL

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"{", b"null", b"[]", b"1", b'"a"', b"{}", b'{"nodes": []}', b'{"metrics": {}}', b"\xff", b"\0"),
            *(b'{"nodes": {}, "metrics": {}}', b'{"nodes": ["a"], "metrics": []}', b'{"nodes": [1], "metrics": {}}'),
            *(b'{"nodes": ["a", null], "metrics": {}}', b'{"nodes": ["\xff"], "metrics": {"x": [1]}}'),
            *(b'{"nodes": ["a"], "metrics": {"\xff": [1]}}', b'{"nodes": ["a"], "metrics": {"x": [1]}} x'),
            *(b'{"nodes": ["a", "\\ud800"], "metrics": {}}', b'{"nodes": ["a"], "metrics": {"x": ["\\ud800"]}}'),
            b'{"nodes": ["a"], "metrics": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
            b'{"nodes": ' + b"[" * 200_000 + b', "metrics": {}}',
        ],
        ids=range(22),
    )
    def test_a_body_of_another_form_is_refused_as_a_whole(self, body: bytes) -> None:
        assert refused_whole(body).field == "body"

    def test_too_many_bytes_are_refused_before_they_are_read(self) -> None:
        body = json.dumps(of_a_and_b()).encode()
        assert values(accepted(body.ljust(MAX_TABLE_BYTES))) == ALL
        error = refused_whole(body.ljust(MAX_TABLE_BYTES + 1))
        assert (error.field, error.value) == ("body", f"'{MAX_TABLE_BYTES + 1} bytes'")

    def test_too_many_rows_and_too_many_columns_are_refused(self) -> None:
        for field, most in (("nodes", MAX_ROWS), ("metrics", MAX_TABLE_METRICS)):

            def body(count: int, field: str = field) -> dict[str, Any]:
                rows, columns = (count, 1) if field == "nodes" else (1, count)
                nodes = [f"n{number}" for number in range(rows)]
                return {"nodes": nodes, "metrics": {f"m{number}": [1] * rows for number in range(columns)}}

            assert accepted(body(most))
            error = refused_whole(body(most + 1))
            assert (error.field, error.value) == (field, f"'{most + 1} {field}'")

    @pytest.mark.parametrize(
        "subject",
        ["", "tas.tables", "tas.tables.machine", "tas.tables.machine.3-0", "tas.samples.a.b", "tas.tables.*.1-0"],
    )
    def test_an_invalid_subject_is_an_error(self, subject: str) -> None:
        with pytest.raises(InvalidInputError) as caught:
            decode_table(subject, b"{}", arrived=ARRIVED, sequence=1)
        assert caught.value.field == "subject"


class TestRows:
    @pytest.mark.parametrize("name", ["", "A", "a_b", "a..b", "-a", "a b", "a\n", "ä", "_0", "_1", ".", "*", "a" * 254])
    def test_an_invalid_name_costs_only_its_row(self, name: str) -> None:
        table, refused = decoded({"nodes": ["a", name, "b"], "metrics": {"x": [1, 9, 2], "y": ["3", "9", "4"]}})
        assert values(table) == ALL
        (error,) = refused.errors
        assert (error.field, refused.counts) == ("nodes.1", {"nodes": 1})
        assert "DNS subdomain" in error.reason

    def test_a_node_that_is_there_twice_has_no_values(self) -> None:
        """Nothing says which of them is right."""
        table, refused = decoded({"nodes": ["a", "c", "b", "c"], "metrics": {"x": [1, 8, 2, 8], "y": [3, 9, 4, 9]}})
        assert values(table) == ALL
        assert refused.counts == {"nodes": 2}
        assert [error.field for error in refused.errors] == ["nodes.1", "nodes.3"]

    def test_a_node_of_another_part_has_no_values(self) -> None:
        nodes = [f"node-{number}" for number in range(20)]
        mine = [node for node in nodes if part_number(node, 4) == 2]
        assert 0 < len(mine) < 20
        data = json.dumps({"nodes": nodes, "metrics": {"x": [1] * 20}}).encode()
        key, table, refused = decode_table("tas.tables.machine.4-2", data, arrived=ARRIVED, sequence=1)
        assert key == ("machine", (4, 2))
        assert table is not None
        assert list(table.nodes) == mine
        assert refused.counts == {"nodes": 20 - len(mine)}
        assert {error.reason for error in refused.errors} == {"does not belong to part 4-2"}

    def test_no_value_of_a_refused_row_is_refused_again(self) -> None:
        _, refused = decoded({"nodes": ["a", "A"], "metrics": {"x": [1, 2]}, "measured": [None, "never"]})
        assert refused.counts == {"nodes": 1}

    def test_all_rows_are_refused(self) -> None:
        table, refused = decoded({"nodes": ["A", "b", "b"], "metrics": {"x": [1, 2, 3]}})
        assert table is None
        assert refused.counts == {"nodes": 3}

    def test_the_nodes_of_an_earlier_table_are_not_checked_again(self) -> None:
        known = [accepted(of_a_and_b())]
        table, refused = decoded(of_a_and_b(), newer=known)
        assert table is not None
        assert table.nodes is known[0].nodes
        assert refused == ((), {})
        other, refused = decoded({"nodes": ["a", "A"], "metrics": {"x": [1, 2]}}, newer=known)
        assert values(other) == {"a": {"x": 1}}
        assert refused.counts == {"nodes": 1}


class TestColumns:
    @pytest.mark.parametrize("column", ["[]", "[1]", "[1, 2, 3]", '["1"]', '["1", "2", "3"]', "[null]"])
    def test_a_column_of_another_length_is_refused(self, column: str) -> None:
        body = f'{{"nodes": ["a", "b"], "metrics": {{"x": [1, 2], "bad": {column}, "y": ["3", "4"]}}}}'
        table, refused = decoded(body.encode())
        assert values(table) == ALL
        (error,) = refused.errors
        assert (error.field, error.reason) == ("metrics.bad", "must be one for each of 2 nodes")
        assert refused.counts == {"metrics": 1}

    @pytest.mark.parametrize("column", ["null", "1", '"1"', "true", "{}", '{"a": 1}', "NaN", '"' + "x" * 100_000 + '"'])
    def test_a_column_that_is_no_list_is_refused(self, column: str) -> None:
        body = f'{{"nodes": ["a", "b"], "metrics": {{"x": [1, 2], "bad": {column}, "y": ["3", "4"]}}}}'
        table, refused = decoded(body.encode())
        assert values(table) == ALL
        (error,) = refused.errors
        assert (error.field, error.reason) == ("metrics.bad", "must be a list of values by row")

    @pytest.mark.parametrize("name", ["", "a b", "a.b", "a/b", "ä", "a\n", "m" * 254, "*", ">"])
    def test_a_column_with_an_invalid_name_is_refused(self, name: str) -> None:
        table, refused = decoded(of_a_and_b(metrics={"x": [1, 2], name: [5, 6], "y": [3, 4]}))
        assert values(table) == ALL
        assert refused.counts == {"metrics": 1}
        assert refused.errors[0].field == "metrics"

    @pytest.mark.parametrize(
        "cell",
        [
            *('"NaN"', "NaN", "Infinity", "-Infinity", "1e400", '"1e400"', "1e99999999999", "true", "false", "{}"),
            *('{"a": [1]}', "[]", "[1]", "[[]]", '""', '" 2"', '"two"', '"0x10"', '"1_000"', '"\u0661"', '"null"'),
            *('"' + "1" * 1001 + '"', "9" * 1001, "[" * 500 + "]" * 500),
            *('"-9223372036854775808m"', "-9223372036854775.808", "9223372036854775792", "9.223372036854776e18"),
        ],
    )
    def test_an_invalid_value_costs_only_its_cell(self, cell: str) -> None:
        for column, other in ((f"[1, {cell}]", 1.0), (f'[{cell}, "2"]', 2.0)):
            body = f'{{"nodes": ["a", "b"], "metrics": {{"x": {column}, "y": ["3", 4]}}}}'
            table, refused = decoded(body.encode())
            kept = values(table)
            bad = "b" if other == 1.0 else "a"
            assert kept == {node: ({} if node == bad else {"x": other}) | {"y": ALL[node]["y"]} for node in "ab"}
            assert refused.counts == {"metrics": 1}
            assert refused.errors[0].field == f"metrics.x.{bad}"
            assert len(str(refused.errors[0])) < 1000

    def test_a_small_blank_costs_its_cell_in_a_column_of_dcgm_alone_facts_n61(self) -> None:
        columns = {"DCGM_FI_DEV_GPU_TEMP": [2147483634, 35], "x": [2147483634, 35], "dcgm_y": [None, 140737488355328]}
        table, refused = decoded({"nodes": ["a", "b"], "metrics": columns})
        assert values(table) == {"a": {"x": 2147483634}, "b": {"DCGM_FI_DEV_GPU_TEMP": 35, "x": 35}}
        assert [error.field for error in refused.errors] == ["metrics.DCGM_FI_DEV_GPU_TEMP.a", "metrics.dcgm_y.b"]

    def test_invalid_utf_8_in_a_value_costs_only_its_cell(self) -> None:
        table, refused = decoded(b'{"nodes": ["a", "b"], "metrics": {"x": ["\xff", 2], "y": [3, 4]}}')
        assert values(table) == {"a": {"y": 3}, "b": {"x": 2, "y": 4}}
        assert refused.counts == {"metrics": 1}

    def test_valid_and_invalid_values_in_one_column(self) -> None:
        cells = '1, "2", NaN, "text", {"a": 1}, null, [], -0.5, "5Mi", Infinity'
        body = f'{{"nodes": {json.dumps(list("abcdefghij"))}, "metrics": {{"x": [{cells}]}}}}'
        table, refused = decoded(body.encode())
        assert values(table) == {"a": {"x": 1}, "b": {"x": 2}, "h": {"x": -0.5}, "i": {"x": 5 * 2**20}}
        assert [error.field for error in refused.errors] == [f"metrics.x.{node}" for node in "cdegj"]
        assert [error.value for error in refused.errors] == ["'NaN'", "'text'", """'{"a": 1}'""", "'[]'", "'Infinity'"]

    def test_the_largest_values_are_accepted(self) -> None:
        table = accepted({"nodes": ["a", "b"], "metrics": {"x": ["1e40", "-1e40"]}})
        assert table.columns["x"].values == (MAX_QUANTITY, -MAX_QUANTITY)


FAR: tuple[str, str] = rfc3339(ARRIVED + FUTURE_TOLERANCE + 1), rfc3339(ARRIVED - MAX_SAMPLE_AGE - 1)
WRONG: list[tuple[str, Any]] = [
    *(("measured", wrong) for wrong in (*FAR, NO_YEAR, "2026-01-01T00:00:00", "now", "", 1_800_000_000, True)),
    *(("window", wrong) for wrong in (0, -1, 86401, 1e300, "60", "", True)),
    *(("ends", wrong) for wrong in (NO_YEAR, "2026-01-01T00:00:00", "never", 5, False)),
]
"""Values that a field may not have."""


class TestTimes:
    def test_one_time_for_all_one_for_each_row_and_either_by_metric(self) -> None:
        one, two = rfc3339(ARRIVED - 5), rfc3339(ARRIVED - 7)
        for measured, expected in (
            (one, {"x": (5, 5), "y": (5, 5)}),
            ([one, two], {"x": (5, 7), "y": (5, 7)}),
            ([None, two], {"x": (0, 7), "y": (0, 7)}),
            ({"x": one}, {"x": (5, 5), "y": (0, 0)}),
            ({"x": [two, one], "y": two, "other": one}, {"x": (7, 5), "y": (7, 7)}),
            ({}, {"x": (0, 0), "y": (0, 0)}),
            (None, {"x": (0, 0), "y": (0, 0)}),
        ):
            table = accepted(of_a_and_b(measured=measured))
            assert values(table) == ALL
            found = {
                metric: tuple(ARRIVED - reading.measured for reading in column.readings)
                for metric, column in table.columns.items()
            }
            assert found == expected, measured

    def test_windows_and_ends_have_the_same_forms(self) -> None:
        end = rfc3339(ARRIVED + 5)
        table = accepted(of_a_and_b(window={"x": 60, "y": [None, 0.5]}, ends=[end, None]))
        shapes = {
            metric: [(reading.window, reading.ends) for reading in column.readings]
            for metric, column in table.columns.items()
        }
        assert shapes == {
            "x": [(60, ARRIVED + 5), (60, None)],
            "y": [(None, ARRIVED + 5), (0.5, None)],
        }

    @pytest.mark.parametrize(("field", "wrong"), [*WRONG, *((field, [[]]) for field in ("measured", "window", "ends"))])
    def test_a_wrong_one_for_the_table_refuses_all(self, field: str, wrong: Any) -> None:
        assert refused_whole(of_a_and_b(**{field: wrong})).field == field

    @pytest.mark.parametrize(("field", "wrong"), [*WRONG, ("measured", []), ("window", {}), ("ends", {"a": []})])
    def test_a_wrong_one_of_a_row_costs_only_the_values_of_this_row(self, field: str, wrong: Any) -> None:
        table, refused = decoded(of_a_and_b(**{field: [None, wrong]}))
        assert values(table) == {"a": ALL["a"]}
        assert refused.counts == {field: 2}
        assert [error.field for error in refused.errors] == [f"{field}.x.b", f"{field}.y.b"]
        assert all(error.value in (repr(json.dumps(wrong)), repr(str(wrong))) for error in refused.errors)

    @pytest.mark.parametrize(("field", "wrong"), [*WRONG, ("measured", [None]), ("window", {"a": 1}), ("ends", [])])
    def test_a_wrong_one_of_a_metric_costs_only_its_column(self, field: str, wrong: Any) -> None:
        table, refused = decoded(of_a_and_b(**{field: {"x": wrong, "y": None, "other": wrong}}))
        assert values(table) == {node: {"y": each["y"]} for node, each in ALL.items()}
        assert refused.counts == {field: 1}
        assert refused.errors[0].field == f"{field}.x"

    @pytest.mark.parametrize(("field", "wrong"), WRONG)
    def test_a_wrong_one_of_a_row_of_a_metric_costs_only_its_cell(self, field: str, wrong: Any) -> None:
        table, refused = decoded(of_a_and_b(**{field: {"y": [wrong, None]}}))
        assert values(table) == {"a": {"x": 1}, "b": ALL["b"]}
        assert refused.counts == {field: 1}
        assert refused.errors[0].field == f"{field}.y.a"

    @pytest.mark.parametrize("field", ["measured", "window", "ends"])
    def test_a_list_of_another_length_refuses_the_table_or_the_column(self, field: str) -> None:
        for wrong in ([], [None], [None] * 3):
            error = refused_whole(of_a_and_b(**{field: wrong}))
            assert (error.field, error.reason) == (field, "must be one for each of 2 nodes")

    def test_faults_of_two_fields_in_one_cell_count_once_and_without_a_value_not_at_all(self) -> None:
        body = {
            "nodes": ["a", "b"],
            "metrics": {"x": [1, 2], "y": [None, 4]},
            "measured": ["x", None],
            "window": [0, 1],
        }
        table, refused = decoded(body)
        assert values(table) == {"b": ALL["b"]}
        assert sum(refused.counts.values()) == 1

    def test_a_time_at_the_limit_is_accepted_and_one_ahead_counts_as_the_arrival(self) -> None:
        table = accepted(of_a_and_b(measured=[rfc3339(ARRIVED - MAX_SAMPLE_AGE), rfc3339(ARRIVED + FUTURE_TOLERANCE)]))
        assert [reading.time for reading in table.columns["x"].readings] == [ARRIVED - MAX_SAMPLE_AGE, ARRIVED]

    def test_invalid_utf_8_by_metric_refuses_all(self) -> None:
        assert refused_whole(b'{"nodes": ["a"], "metrics": {"x": [1]}, "ends": {"\xff": 1}}').field == "ends"


class TestManyRefusals:
    def test_all_are_counted_and_the_first_are_named(self) -> None:
        nodes = [f"n{number}" for number in range(MAX_ROWS)]
        body = {"nodes": nodes, "metrics": {f"m{number}": [{}] * MAX_ROWS for number in range(60)}}
        table, refused = decoded(body)
        assert table is None
        assert refused.counts == {"metrics": 60 * MAX_ROWS}
        assert [error.field for error in refused.errors] == [f"metrics.m0.n{row}" for row in range(MAX_NAMED)]

    def test_of_each_field_one_is_named(self) -> None:
        """Else its refusals would be in no log, and be counted nowhere."""
        body = {
            "nodes": ["A"] * 20 + ["a", "b", "c"],
            "metrics": {"x": ["bad"] * 20 + [1, 2, "bad"], "y": [None] * 20 + ["bad", None, None]},
            "measured": [None] * 20 + ["x", None, None],
            "window": [None] * 21 + [0, None],
            "ends": {"x": [None] * 23, "y": 1},
        }
        table, refused = decoded(body)
        assert table is None
        assert refused.counts == {"nodes": 20, "metrics": 2, "measured": 1, "window": 1, "ends": 1}
        fields = [error.field.partition(".")[0] for error in refused.errors]
        assert fields[:MAX_NAMED] == ["nodes"] * MAX_NAMED
        assert sorted(fields[MAX_NAMED:]) == ["ends", "measured", "metrics", "window"]

    def test_the_fields_of_the_counts_have_no_names_that_a_publisher_chooses(self) -> None:
        """They are labels of metrics."""
        of_metrics = {f"m{number}": 5 for number in range(50)}
        body = {"nodes": ["a"], "metrics": {metric: [1] for metric in of_metrics}, "measured": of_metrics}
        table, refused = decoded(body)
        assert table is None
        assert refused.counts == {"measured": 50}
        assert refused.errors[0].field == "measured.m0"

    def test_a_list_for_all_metrics_is_decoded_once(self) -> None:
        """Once it was decoded again for each metric, if another field is by metric: seconds for one message."""

        def prepare(metrics: int) -> Callable[[], object]:
            nodes = [f"n{number}" for number in range(500)]
            more = {f"m{number}": [None] * 500 for number in range(metrics)}
            body = {"nodes": nodes, "metrics": more, "measured": [1] * 500, "window": {"m0": 1}}
            data = json.dumps(body, separators=(",", ":")).encode()
            return lambda: decoded(data)

        assert is_within(24, lambda: prepare(80), lambda: prepare(10))

        def wrong(length: int) -> Callable[[], object]:
            body = {"nodes": ["n"], "metrics": {f"m{number}": [1] for number in range(1000)}, "window": {"m0": 1}}
            data = json.dumps(body | {"measured": [1] * length}, separators=(",", ":")).encode()
            return lambda: refused_whole(data)

        assert is_within(24, lambda: wrong(64_000), lambda: wrong(8_000))


SHAPES = st.tuples(windows, st.none() | times)


@st.composite
def drawn_tables(
    draw: st.DrawFn, measured: st.SearchStrategy[float], shapes: st.SearchStrategy[Any], *, arrived: float | None
) -> Table:
    """A table with one reading for each column, or one for each row; `arrived`: also one window and one end for all."""
    nodes = tuple(draw(node_lists))
    same = draw(shapes)

    def reading() -> Reading:
        window, ends = draw(shapes) if arrived is None else same
        at = draw(times) if arrived is None else arrived
        return Reading(draw(measured), at, SEQUENCE, window, ends)

    columns: dict[str, Column] = {}
    for metric in draw(st.lists(metric_names, max_size=3, unique=True)):
        row = tuple(draw(st.none() | quantities) for _ in nodes)
        columns[metric] = Column(row, reading() if draw(st.booleans()) else tuple(reading() for _ in nodes))
    return table_of("machine", nodes, columns)


def of_nodes(table: Table | None) -> dict[str, Any]:
    return {} if table is None else {node: table.scrapes(node) for node in table.nodes}


class TestRoundTrips:
    @given(drawn_tables(recent, SHAPES, arrived=ARRIVED).filter(lambda table: table.nodes))
    def test_an_encoded_message_reads_back(self, table: Table) -> None:
        found = accepted(encode_table(table))
        assert of_nodes(found) == of_nodes(table)
        assert (found.nodes, list(found.columns)) == (table.nodes, list(table.columns))

    def test_a_stored_table_says_what_was_left_out(self) -> None:
        table = replace(accepted(of_a_and_b()), left_out=frozenset({"y", "gone"}))
        assert decode_stored_table(KEY, encode_stored_table(table)).left_out == {"y", "gone"}

    @given(drawn_tables(times, SHAPES, arrived=None), source_names)
    def test_a_stored_table_reads_back(self, table: Table, source: str) -> None:
        key = TableKey(source, Part(1, 0))
        found = decode_stored_table(key, encode_stored_table(table))
        again = table_of(source, table.nodes, table.columns)
        assert (found.source, found.nodes, list(found.columns)) == (source, again.nodes, list(again.columns))
        assert of_nodes(found) == of_nodes(again)
        assert decode_stored_table(key, encode_stored_table(found)) == found

    @given(
        drawn_tables(recent, SHAPES, arrived=ARRIVED),
        st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    )
    def test_a_damaged_message_is_read_or_refused(self, table: Table, damage: list[tuple[int, int]]) -> None:
        data = bytearray(encode_table(table) if table.nodes else b"{}")
        for place, byte in damage:
            data[place % len(data)] = byte
        decoded(bytes(data))

    def test_a_table_equals_its_stored_copy_whatever_the_time_of_its_arrival_is(self) -> None:
        data = json.dumps(of_a_and_b()).encode()
        _, table, _ = decode_table(SUBJECT, data, arrived=ARRIVED + 0.1234567, sequence=SEQUENCE)
        assert table is not None
        assert decode_stored_table(KEY, encode_stored_table(table)) == table

    def test_what_is_stored_together_fits_or_is_left(self) -> None:
        small, large = (
            table_of("machine", tuple(f"n{row}" for row in range(rows)), {"x": column_of(rows)}) for rows in (1, 100)
        )
        other = TableKey("machine", Part(2, 1))
        fits, left = encoded_tables([(KEY, small), (other, large)], most=400)
        assert [(each.key, each.table) for each in fits] == [(KEY, small)]
        assert all(len(each.message) <= 400 for each in fits)
        assert left == [(other, large)]
        size = len(fits[0].message)
        several = [(KEY, small), (KEY, small)]
        assert len(encoded_tables(several, most=2 * size)[0]) == 2
        assert encoded_tables(several, most=2 * size - 1) == ([], several)

    def test_no_message_is_larger_than_the_stream_takes(self) -> None:
        rows = MAX_ROWS
        columns = {f"m{number}": column_of(rows, 10**30) for number in range(20)}
        table = table_of("machine", tuple(f"n{row}" for row in range(rows)), columns)
        assert encoded_tables([(KEY, table)], most=1 << 30) == ([], [(KEY, table)])


def column_of(rows: int, value: int = 1) -> Column:
    return Column((Quantity(value),) * rows, Reading(ARRIVED, ARRIVED, SEQUENCE))


READING: dict[str, Any] = {"measured": rfc3339(ARRIVED), "arrived": rfc3339(ARRIVED), "sequence": 1}


def record(**changes: Any) -> bytes:
    fields = {
        "nodes": ["a", "b"],
        "readings": [READING, READING | {"sequence": 2}],
        "metrics": {"x": {"values": ["1", "2"], "reading": 0}, "y": {"values": [None, "4"], "reading": [-1, 1]}},
    }
    return json.dumps(fields | changes).encode()


def each(field: str, *wrong: Any, **others: Any) -> list[dict[str, Any]]:
    """An object for each wrong value of a field."""
    return [others | {field: value} for value in wrong]


MALFORMED_COLUMNS: list[Any] = [
    *each("reading", 2, -1, -2, 10**30, -(10**30), 0.5, True, "0", None, {}, values=["1", "2"]),
    *each("reading", [], [0], [0, 1, 0], [0, 2], [0, -2], [0, -1], [None, 0], [0.5, 0], [[0], 0], values=["1", "2"]),
    *each("values", [], ["1"], ["1", "2", "3"], "12", None, {}, [1, 2], reading=0),
    *each("values", [], ["1"], ["1", "2", "3"], ["NaN", "1"], ["", "1"], reading=[0, 0]),
    *({"values": ["1", "2"]}, {"reading": 0}, {}, [], None, 1, "x"),
]
WRONG_READINGS: list[tuple[str, Any]] = [
    *(("measured", NO_YEAR), ("arrived", NO_YEAR), ("ends", NO_YEAR), ("measured", "2026-01-01"), ("measured", 1)),
    *(("arrived", None), ("sequence", "1"), ("sequence", 1.5), ("window", "60"), ("ends", 5)),
]
MALFORMED_RECORDS: list[dict[str, Any]] = [
    *each("nodes", ["a", "a"], ["a"], ["a", "b", "c"], ["a", 1], ["a", None], "ab", None, {}),
    *each("readings", [{}, {}], [1, 2], {}, None, "x"),
    *each("readings", *([READING, READING | {field: wrong}] for field, wrong in WRONG_READINGS)),
    *each("metrics", [], None, "x", 1),
]


class TestStored:
    def test_a_column_has_one_reading_or_one_for_each_value(self) -> None:
        table = decode_stored_table(KEY, record())
        assert values(table) == {"a": {"x": 1}, "b": {"x": 2, "y": 4}}
        assert table.columns["x"].reading == Reading(ARRIVED, ARRIVED, 1)
        assert table.columns["y"].at(1).sequence == 2

    def test_a_table_without_nodes_is_read(self) -> None:
        table = decode_stored_table(KEY, record(nodes=[], readings=[], metrics={}))
        assert table == Table("machine", (), {})

    def test_a_row_and_a_column_without_values_are_left_out(self) -> None:
        """Else the time of a column without values could outdate all others."""
        late = READING | {"measured": "2999-01-01T00:00:00Z", "arrived": "2999-01-01T00:00:00Z"}
        columns = {"x": {"values": ["1", None], "reading": 0}, "y": {"values": [None, None], "reading": 1}}
        table = decode_stored_table(KEY, record(readings=[READING, late], metrics=columns))
        assert values(table) == {"a": {"x": 1}}
        assert table.newest == ARRIVED

    @pytest.mark.parametrize("column", MALFORMED_COLUMNS)
    def test_a_malformed_column_is_an_error(self, column: Any) -> None:
        with pytest.raises(InvalidInputError):
            decode_stored_table(KEY, record(metrics={"x": column}))

    @pytest.mark.parametrize("reading", [-1, 0, [-1, -1], [0, -1]])
    def test_without_readings_no_column_is_valid(self, reading: Any) -> None:
        for texts in ([None, None], ["1", None]):
            with pytest.raises(InvalidInputError):
                decode_stored_table(KEY, record(readings=[], metrics={"x": {"values": texts, "reading": reading}}))

    @pytest.mark.parametrize("reading", [2, -1, [0]])
    def test_a_column_of_no_rows_needs_valid_readings(self, reading: Any) -> None:
        with pytest.raises(InvalidInputError):
            decode_stored_table(KEY, record(nodes=[], metrics={"x": {"values": [], "reading": reading}}))

    @pytest.mark.parametrize("changes", MALFORMED_RECORDS)
    def test_a_malformed_record_is_an_error(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidInputError):
            decode_stored_table(KEY, record(**changes))

    @pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"\xff", b"{}", b"[" * 100_000, b'{"nodes":["\xff"]}'])
    def test_bytes_of_another_form_are_an_error(self, data: bytes) -> None:
        with pytest.raises(InvalidInputError):
            decode_stored_table(KEY, data)

    @given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
    def test_a_damaged_record_is_read_or_an_error(self, damage: list[tuple[int, int]]) -> None:
        data = bytearray(record())
        for place, byte in damage:
            data[place % len(data)] = byte
        try:
            table = decode_stored_table(KEY, bytes(data))
        except InvalidInputError:
            return
        assert decode_stored_table(KEY, encode_stored_table(table)) == table


class Message:
    def __init__(self, subject: str, sequence: int) -> None:
        self.subject = subject
        self.sequence = sequence
        self.data = json.dumps(of_a_and_b()).encode()
        self.arrived = ARRIVED


def test_messages_of_a_source_and_part_are_handled_together_the_newest_first() -> None:
    one, two, three = (
        Message(f"tas.tables.{subject}", sequence) for subject, sequence in (("a.1-0", 1), ("b.1-0", 2), ("a.1-0", 3))
    )
    assert by_table([one, two, three]) == [[three, one], [two]]
    found = received_table(one)
    assert found.key == TableKey("a", Part(1, 0))
    assert found.table is not None
    again = received_table(three, lambda _: (found.table,))
    assert again.table is not None
    assert again.table.nodes is found.table.nodes


class TestOlderMessages:
    """Of a message with newer ones only the cells count, and are decoded, that have no newer valid value."""

    def older(self, **metrics: Any) -> tuple[Table | None, Refused]:
        newer, _ = decoded(
            {"nodes": ["a", "b"], "metrics": {"x": [1, None], "y": ["3", "wrong"]}}, sequence=SEQUENCE + 1
        )
        assert newer is not None
        return decoded({"nodes": ["a", "b"], "metrics": metrics}, newer=[newer])

    def test_a_cell_counts_if_the_newer_one_is_null_invalid_or_missing(self) -> None:
        table, _ = self.older(x=[9, 9], y=[9, 9], z=[9, None])
        assert table is not None
        assert values(table) == {"a": {"z": 9}, "b": {"x": 9, "y": 9}}
        assert table.left_out == {"x", "y"}

    def test_a_cell_with_a_newer_value_is_not_decoded(self) -> None:
        table, refused = self.older(x=["not decoded", "9"], y=["not decoded", "wrong, too"])
        assert table is not None
        assert values(table) == {"b": {"x": 9}}
        assert refused.counts == {"metrics": 1}

    def test_a_message_without_a_cell_that_counts_says_what_is_left_out(self) -> None:
        table, refused = self.older(x=[9, None])
        assert table is not None
        assert not table.nodes
        assert table.left_out == {"x"}
        newer, _ = decoded(of_a_and_b(), sequence=SEQUENCE + 1)
        assert newer is not None
        table, refused = decoded(of_a_and_b(x="not even a list"), newer=[newer])
        assert table is not None
        assert not table.nodes
        assert table.left_out == {"x", "y"}
        assert refused == ((), {})

    def test_a_later_message_that_was_measured_earlier_leaves_nothing_out(self) -> None:
        earlier, later = rfc3339(ARRIVED - 60), rfc3339(ARRIVED - 1)
        newer, _ = decoded(of_a_and_b(measured=earlier), sequence=SEQUENCE + 1)
        assert newer is not None
        table, _ = decoded(of_a_and_b(measured=later), newer=[newer])
        assert table is not None
        assert (values(table), table.left_out) == (ALL, frozenset())

    def test_the_same_message_leaves_nothing_out(self) -> None:
        table = accepted(of_a_and_b())
        again, _ = decoded(of_a_and_b(), newer=[table])
        assert (again, again and again.left_out) == (table, frozenset())

    @given(st.data())
    def test_the_newest_first_gives_the_same_as_all_in_order(self, data: st.DataObject) -> None:
        nodes = ["a", "b", "c"]
        bodies = []
        for _ in range(data.draw(st.integers(1, 4))):
            names = data.draw(st.permutations(nodes))[: data.draw(st.integers(1, 3))]
            cells = st.lists(st.sampled_from([None, 1, 2, "x"]), min_size=len(names), max_size=len(names))
            moments = st.sampled_from([rfc3339(ARRIVED - ago) for ago in (0, 1, 2)])
            per_row = st.lists(moments, min_size=len(names), max_size=len(names))
            times = data.draw(moments | per_row | st.fixed_dictionaries({"x": per_row}))
            metrics = {metric: data.draw(cells) for metric in data.draw(st.sets(st.sampled_from("xy"), min_size=1))}
            bodies.append({"nodes": names, "measured": times, "metrics": metrics})
        whole: Table | None = None
        for number, body in enumerate(bodies):
            table, _ = decoded(body, sequence=SEQUENCE + number)
            whole = table if whole is None else whole if table is None else merge_tables(whole, table)
        newest: Table | None = None
        for number, body in reversed(list(enumerate(bodies))):
            table, _ = decoded(body, sequence=SEQUENCE + number, newer=[] if newest is None else [newest])
            if table is not None and table.nodes:
                newest = table if newest is None else merge_tables(newest, table)
        assert of_nodes(newest) == of_nodes(whole)


@pytest.mark.parametrize(("there_for", "asked"), [(0, 1), (2, 3)])
async def test_without_tables_or_if_they_go_meanwhile_a_node_has_no_messages_and_nobody_asks_on(
    there_for: int, asked: int
) -> None:
    subjects: list[str] = []

    class _Bus:
        async def last_messages(self, _stream: object, subject: str) -> list[StreamMessage]:
            subjects.append(subject)
            if len(subjects) > there_for:
                raise UnavailableError("stream not found", code=STREAM_NOT_FOUND)
            return [StreamMessage(subject=subject, data=b"", sequence=1, arrived=ARRIVED)]

    assert await last_tables(cast("Bus", _Bus()), "node-1") == []
    assert len(subjects) == asked
