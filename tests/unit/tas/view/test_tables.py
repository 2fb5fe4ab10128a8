"""Which nodes several tables of a view have, against a count over all tables; what a change of one table looks at."""

import random
from collections import Counter

from tas.samples.parts import Part
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import parse_quantity
from tas.view.tables import Tables

METRICS = ("m", "k", "x")
READING = Reading(measured=1.0, arrived=1.0, sequence=1)
VALUE = parse_quantity("1")


def table_with(source: str, nodes: tuple[str, ...], metrics: tuple[str, ...]) -> Table:
    return Table(source=source, nodes=nodes, columns={each: Column((VALUE,) * len(nodes), READING) for each in metrics})


def shared(tables: dict[TableKey, Table], metric: str) -> set[str]:
    found = Counter(node for table in tables.values() if metric in table.columns for node in table.nodes)
    return {node for node, count in found.items() if count > 1}


def test_nodes_of_several_tables_are_those_that_a_count_over_all_tables_finds() -> None:
    chance = random.Random(1)
    tables, known = Tables(), dict[TableKey, Table]()
    shares = 0
    for _ in range(600):
        key = TableKey(chance.choice("ab"), Part(2, chance.randrange(2)))
        nodes = tuple(chance.sample("pqrstu", chance.randint(1, 4)))
        metrics = tuple(chance.sample(METRICS, chance.randint(1, 3)))
        table = None if chance.random() < 0.2 else table_with(key.source, nodes, metrics)
        before = {metric: shared(known, metric) for metric in METRICS}
        change = tables.replace(key, table)
        known.pop(key, None)
        if table is not None:
            known[key] = table
        for metric in METRICS:
            assert set(tables.shared(metric)) == shared(known, metric)
            if metric in change.metrics:
                assert change.rows & change.shared[metric] == change.rows & (before[metric] | shared(known, metric))
                shares += len(change.rows & change.shared[metric])
    assert shares > 100, "the hard case came up"


class Unread(dict[str, int]):
    """The rows of a table that must not be looked at as a whole."""

    def keys(self) -> None:  # type: ignore[override]
        raise AssertionError("all rows of another table")

    __iter__ = keys  # type: ignore[assignment]


def test_a_change_of_one_table_looks_at_no_row_of_the_others() -> None:
    """Where nodes come and go, each part changes at each poll: with 127 parts of 1,000 nodes each took 40 ms."""
    tables = Tables()
    keys = [TableKey("s", Part(64, index)) for index in range(64)]
    for number, key in enumerate(keys):
        tables.replace(key, table_with("s", (f"n{number}", f"o{number}"), METRICS))
    for key in keys[1:]:
        found = tables.get(key)
        assert found is not None
        found.__dict__["rows"] = Unread(found.rows)
    change = tables.replace(keys[0], table_with("s", ("n0", "new", "n1"), METRICS))
    assert tables.shared("m") == {"n1"}
    assert change.shared["m"] == {"n1"}
