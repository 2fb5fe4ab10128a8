"""Tables on the bus equal the sample files, and what is refused of them is what docs/how-to/publish.md says."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bus.records.tables import MAX_TABLE_BYTES, decode_stored_table, decode_table, encode_stored_table, encode_table
from bus.subjects import node_table_key, tables_subject
from tas.samples.parts import MAX_ROWS, Part
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import parse_quantity

GOLDEN = Path(__file__).parents[1] / "golden" / "bus"
YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
SEQUENCE = 1767225600000044
NAMES = ("ip-10-0-0-1.ec2.internal", "node-1")
KEY = TableKey("my-program", Part(1, 0))


def column(*values: str | None, reading: Reading | tuple[Reading, ...]) -> Column:
    return Column(tuple(None if value is None else parse_quantity(value) for value in values), reading)


def received(name: str, key: TableKey, arrived: float) -> Table:
    data = (GOLDEN / name).read_bytes()
    found, table, refused = decode_table(tables_subject(key), data, arrived=arrived, sequence=SEQUENCE)
    assert (found, refused.counts) == (key, {})
    assert table is not None
    return table


def test_a_table_is_its_sample_file() -> None:
    reading = Reading(YEAR, YEAR + 1, SEQUENCE, 60)
    columns = {
        "health_metric": column("2", None, reading=reading),
        "load1": column("0.5", "0.73", reading=reading),
        "memory_available_bytes": column("2Gi", "1500Mi", reading=reading),
    }
    table = Table("my-program", NAMES, columns)
    assert received("table.json", KEY, YEAR + 1) == table
    again = decode_table(tables_subject(KEY), encode_table(table), arrived=YEAR + 1, sequence=SEQUENCE)
    assert again[1] == table


def test_times_by_row_and_by_metric_are_their_sample_file_and_stored_as_the_other_one() -> None:
    key = TableKey("my-program", Part(2, 1))
    at = [Reading(YEAR + late, YEAR + 11, SEQUENCE, 60) for late in (0, 5)]
    late = Reading(YEAR + 10, YEAR + 11, SEQUENCE)
    cpu = (*at, late._replace(window=60, ends=YEAR + 60))
    free = (late, late, late._replace(ends=YEAR + 60))
    columns = {
        "cpu_ratio": column("0.5", "0.25", "0.125", reading=cpu),
        "memory_available_bytes": column("2Gi", None, "1Gi", reading=free),
    }
    table = Table("my-program", (*NAMES, "node-2"), columns)
    assert received("table-times.json", key, YEAR + 11) == table
    assert json.loads(encode_stored_table(table)) == json.loads((GOLDEN / "node-table.json").read_bytes())
    stored = decode_stored_table(key, (GOLDEN / "node-table.json").read_bytes())
    for node in table.nodes:
        assert stored.scrapes(node) == table.scrapes(node) != ()
    assert (tables_subject(key), node_table_key(key)) == ("tas.tables.my-program.2-1", "_table.my-program.2-1")


ROWS = ["node-1", "node-2"]


@pytest.mark.parametrize(
    ("changes", "field", "left"),
    [
        ({"metrics": {"a": ["NaN", "1"], "b": ["1", True]}}, "metrics", {"a": [None, "1"], "b": ["1", None]}),
        ({"metrics": {"a": ["1"], "b": ["1", "2"]}}, "metrics", {"b": ["1", "2"]}),
        ({"metrics": {"a b": ["1", "2"], "b": ["1", "2"]}}, "metrics", {"b": ["1", "2"]}),
        ({"nodes": ["node-1", "No"]}, "nodes", {"a": ["1", None]}),
        ({"nodes": ["node-1", "node-1"]}, "nodes", {}),
        ({"measured": ["2025-12-31T20:00:00Z", None]}, "measured", {"a": [None, "2"]}),
        ({"measured": "2025-12-31T20:00:00Z"}, "measured", {}),
        ({"measured": "2026-01-01T00:00:00"}, "measured", {}),
        ({"measured": ["2026-01-01T00:00:00Z"]}, "measured", {}),
        ({"metrics": {"a": ["1", "2"], "b": ["1", "2"]}, "window": {"a": 0}}, "window", {"b": ["1", "2"]}),
        ({"nodes": [f"n{row}" for row in range(MAX_ROWS + 1)]}, "nodes", {}),
        ({"padding": "x" * MAX_TABLE_BYTES}, "body", {}),
    ],
)
def test_an_invalid_value_affects_only_its_cell_row_or_column(
    changes: dict[str, Any], field: str, left: dict[str, list[str | None]]
) -> None:
    body = json.dumps({"nodes": ROWS, "metrics": {"a": ["1", "2"]}} | changes).encode()
    _, table, refused = decode_table(tables_subject(KEY), body, arrived=YEAR, sequence=1)
    assert refused.counts.keys() == {field}
    kept = (
        {}
        if table is None
        else {(node, metric) for node in table.nodes for scrape in table.scrapes(node) for metric in scrape.metrics}
    )
    nodes = changes.get("nodes", ROWS)
    assert set(kept) == {
        (nodes[row], metric) for metric, values in left.items() for row, value in enumerate(values) if value is not None
    }


def test_a_row_that_belongs_to_another_part_is_refused() -> None:
    body = json.dumps({"nodes": ROWS, "metrics": {"a": ["1", "2"]}}).encode()
    _, table, refused = decode_table("tas.tables.my-program.4-3", body, arrived=YEAR, sequence=1)
    assert (table and table.nodes, refused.counts) == (("node-1",), {"nodes": 1})
    assert [error.reason for error in refused.about("node-2")] == ["does not belong to part 4-3"]
    assert refused.about("node-1") == []
