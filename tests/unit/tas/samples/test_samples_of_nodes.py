"""The samples of nodes, from their own records and from tables."""

from tas.samples.parts import MAX_PARTS, parts_with
from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, Table, samples_of_nodes
from tas.values.quantity import Quantity

NOW = 1_000_000.0


def scrape(value: int, *, ago: float, source: str = "a", metric: str = "load", sequence: int = 1) -> Scrape:
    at = NOW - ago
    return Scrape(source=source, measured=at, arrived=at, sequence=sequence, metrics={metric: Quantity(value)})


def table(*nodes: str, ago: float = 10.0, source: str = "a", metric: str = "load") -> Table:
    """A table with the number of its row as value."""
    values = tuple(map(Quantity, range(len(nodes))))
    return Table(source, nodes, {metric: Column(values, Reading(NOW - ago, NOW - ago, 1))})


def test_each_node_with_a_record_or_a_row_has_its_samples() -> None:
    single = {"one": (scrape(7, ago=1, source="b"),), "two": (scrape(8, ago=1, source="b"),)}
    assert samples_of_nodes(single, [table("two", "three")], {}) == {
        "one": single["one"],
        "two": (scrape(0, ago=10), *single["two"]),
        "three": (scrape(1, ago=10),),
    }


def test_the_newest_value_of_a_source_counts_whatever_has_it() -> None:
    tables = [table("old", "new", "same"), table("new", ago=5)]
    single = {"old": (scrape(7, ago=9),), "new": (scrape(7, ago=6),), "same": (scrape(7, ago=10, sequence=0),)}
    assert samples_of_nodes(single, tables, {}) == {
        "old": single["old"],
        "new": (scrape(0, ago=5),),
        "same": single["same"],
    }


def test_a_value_from_before_the_node_was_created_does_not_count() -> None:
    created = {"gone": NOW - 9, "stays": NOW - 10, "mixed": NOW - 9}
    tables = [table("gone", "stays", "mixed"), table("mixed", ago=5, metric="free")]
    expected = {"stays": (scrape(1, ago=10),), "mixed": (scrape(0, ago=5, metric="free"),)}
    assert samples_of_nodes({}, tables, created) == expected
    single = {
        "gone": (scrape(0, ago=10),),
        "stays": (scrape(1, ago=10),),
        "mixed": (scrape(2, ago=10), scrape(0, ago=5, metric="free")),
    }
    assert samples_of_nodes(single, [], created) == expected


def test_a_node_has_one_part_in_each_layout() -> None:
    parts = list(parts_with("node-1.example"))
    assert [part.of for part in parts] == [1, 2, 4, 8, 16, 32, 64]
    assert parts[-1].of == MAX_PARTS
    assert all(part.has("node-1.example") for part in parts)
