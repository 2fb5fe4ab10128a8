"""What sources have given before this replica had them, as NODES has it: so that a restart forgets no lost node."""

import asyncio
from collections.abc import Collection

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_SAMPLES, NODE_TABLES
from bus.record_kind import Entry, read_entries
from bus.records.nodes import StoredSamples
from tas.samples.table import Table, TableKey

AT_ONCE = 100
"""So many records, or one column of a table, are handled in one piece: the event loop has other work."""


async def given_before(bus: Bus, source: str) -> dict[str, dict[str, float]]:
    """By metric, when the newest value of each node was measured, in seconds since 1970. NODES is read once.

    Raises UnavailableError.
    """
    single: list[Entry[str, StoredSamples]] = []
    tables: list[Entry[TableKey, Table]] = []
    await read_entries(bus, NODES, NODE_SAMPLES.to(single.append), NODE_TABLES.to(tables.append))
    found: dict[str, dict[str, float]] = {}
    for number, stored in enumerate(single):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
        record = stored.readable()
        for scrape in () if record is None else record.samples:
            for metric in scrape.metrics if scrape.source == source else ():
                _note(found, metric, stored.key, scrape.time)
    for entry in tables:
        table = entry.readable() if entry.key.source == source else None
        if table is None:
            continue
        for metric, column in table.columns.items():
            await asyncio.sleep(0)
            for node, value, reading in zip(table.nodes, column.values, column.readings, strict=True):
                if value is not None:
                    _note(found, metric, node, reading.time)
    return found


def _note(found: dict[str, dict[str, float]], metric: str, node: str, time: float) -> None:
    times = found.setdefault(metric, {})
    times[node] = max(time, times.get(node, time))
