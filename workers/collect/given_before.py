"""What sources have given before this replica had them, as NODES has it: so that a restart forgets no lost node."""

import asyncio
from collections.abc import Collection, Mapping

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_SAMPLES, NODE_TABLES
from bus.record_kind import Entry, read_entries
from bus.records.nodes import StoredSamples
from tas.samples.table import Table, TableKey

AT_ONCE = 100
"""So many records, or one column of a table, are handled in one piece: the event loop has other work."""


GATHER_SECONDS = 0.5
"""So long a read waits for other sources: a process that starts gets the leases of all its sources at once."""

Given = dict[str, dict[str, float]]
"""By metric, when the newest value of each node was measured, in seconds since 1970."""


class GivenBefore:
    """Reads NODES once for all sources that ask within `GATHER_SECONDS`, and never twice at a time: NODES is large."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._asked: dict[str, Collection[str]] = {}
        self._next: asyncio.Task[Mapping[str, Given]] | None = None
        self._reading = asyncio.Lock()

    async def of(self, source: str, metrics: Collection[str]) -> Given:
        """What a source gave of `metrics`. Raises UnavailableError."""
        self._asked[source] = metrics
        if self._next is None:
            self._next = asyncio.create_task(self._read())
            self._next.add_done_callback(_take_exception)
        return (await asyncio.shield(self._next))[source]

    async def _read(self) -> Mapping[str, Given]:
        await asyncio.sleep(GATHER_SECONDS)
        async with self._reading:
            asked, self._asked, self._next = self._asked, {}, None
            return await _given(self._bus, asked)


async def _given(bus: Bus, asked: Mapping[str, Collection[str]]) -> Mapping[str, Given]:
    single: list[Entry[str, StoredSamples]] = []
    tables: list[Entry[TableKey, Table]] = []
    await read_entries(bus, NODES, NODE_SAMPLES.to(single.append), NODE_TABLES.to(tables.append))
    found: dict[str, Given] = {source: {} for source in asked}
    for number, stored in enumerate(single):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
        record = stored.readable()
        for scrape in () if record is None else record.samples:
            for metric in scrape.metrics.keys() & asked.get(scrape.source, ()):
                _note(found[scrape.source], metric, stored.key, scrape.time)
    for entry in tables:
        table = entry.readable() if entry.key.source in asked else None
        if table is None:
            continue
        for metric in table.columns.keys() & asked[entry.key.source]:
            await asyncio.sleep(0)
            column = table.columns[metric]
            for node, value, reading in zip(table.nodes, column.values, column.readings, strict=True):
                if value is not None:
                    _note(found[entry.key.source], metric, node, reading.time)
    return found


def _note(found: Given, metric: str, node: str, time: float) -> None:
    times = found.setdefault(metric, {})
    times[node] = max(time, times.get(node, time))


def _take_exception(task: "asyncio.Task[Mapping[str, Given]]") -> None:
    """Takes the exception of a read for which nobody waits any more."""
    if not task.cancelled():
        task.exception()
