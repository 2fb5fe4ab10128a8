"""Tables for tests: what one source measured of several nodes, in parts."""

import time
from collections.abc import Mapping

from bus.connection import Bus
from bus.kinds import NODE_TABLES
from bus.tables import encoded_tables, publish_tables
from tas.samples.parts import divided
from tas.samples.table import Column, Reading, Table, TableKey, table_of
from tas.values.quantity import parse_quantity

PARTS = 4

Nodes = Mapping[str, Mapping[str, str]]
"""The values by node and metric."""


def tables(nodes: Nodes, *, source: str, ago: float = 0.0, sequence: int = 1) -> list[tuple[TableKey, Table]]:
    """A table for each of `PARTS` parts that has a node, measured so many seconds ago."""
    now = time.time()
    reading = Reading(now - ago, now, sequence)
    found = []
    for part, names in divided(nodes, PARTS).items():
        metrics = sorted({metric for name in names for metric in nodes[name]})
        columns = {
            metric: Column(
                tuple(parse_quantity(nodes[name][metric]) if metric in nodes[name] else None for name in names), reading
            )
            for metric in metrics
        }
        found.append((TableKey(source, part), table_of(source, tuple(names), columns)))
    return found


async def put_tables(bus: Bus, nodes: Nodes, *, source: str = "test", ago: float = 0.0, sequence: int = 1) -> None:
    """Stores tables as `materialize` does."""
    for key, table in tables(nodes, source=source, ago=ago, sequence=sequence):
        revision = (await NODE_TABLES.get(bus, key)).revision
        await NODE_TABLES.put(bus, key, table, revision=revision, read_at=time.monotonic())


async def publish(bus: Bus, nodes: Nodes, *, source: str = "test") -> None:
    """Publishes tables as a source does."""
    fits, too_large = encoded_tables(tables(nodes, source=source), most=bus.max_value_bytes)
    assert not too_large
    await publish_tables(bus, fits)
