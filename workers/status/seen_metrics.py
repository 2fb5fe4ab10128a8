"""Finds out which metrics have a fresh sample of at least one node.

The records of nodes and the tables are kept encoded, and decoded only to find metrics without a known fresh sample. For
a reported metric one table or a few nodes suffice. For a missing metric all must be searched: one search finds all such
metrics, and lets other tasks run in between. Of a table only the readings of columns matter, not its nodes.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple, TypeVar

from bus.record_kind import Entry
from bus.records.nodes import StoredSamples
from tas.samples.freshness import stale_time
from tas.samples.sample import Scrape, newest
from tas.samples.table import Reading, Table, TableKey
from tas.verdict.status import MetricUse

K = TypeVar("K")
V = TypeVar("V")

NODE_BATCH = 32
"""After so many nodes other tasks may run (a millisecond, at 20 metrics a node)."""

USE_BATCH = 1000
"""After so many metrics of policies other tasks may run."""

_Missing = dict[str, dict[MetricUse, float]]
"""By metric, what was not found fresh yet, with the seconds after which a sample is stale."""


class _Seen(NamedTuple):
    """A sample that was found. In this order: the newest one is fresh for the longest time, if it has no end."""

    is_endless: bool
    time: float
    ends: float | None

    @classmethod
    def of(cls, sample: Scrape | Reading) -> "_Seen":
        return cls(sample.ends is None, sample.time, sample.ends)

    def is_fresh(self, stale_after: float, now: float) -> bool:
        return stale_time(self.time, stale_after, self.ends) > now


class SeenMetrics:
    """The newest sample of each needed metric."""

    def __init__(self) -> None:
        self._nodes: dict[str, Entry[str, StoredSamples]] = {}
        self._tables: dict[TableKey, Entry[TableKey, Table]] = {}
        self._newest: dict[MetricUse, _Seen] = {}
        self._at = -inf

    def take(self, entry: Entry[str, StoredSamples]) -> None:
        """Applies a node's entry, or its deletion."""
        if entry.present:
            self._nodes[entry.key] = entry
        else:
            self._nodes.pop(entry.key, None)

    def take_table(self, entry: Entry[TableKey, Table]) -> None:
        """Applies a table's entry, or its deletion."""
        if entry.present:
            self._tables[entry.key] = entry
        else:
            self._tables.pop(entry.key, None)

    def clear(self) -> None:
        """Removes all nodes and tables; found samples stay."""
        self._nodes.clear()
        self._tables.clear()

    async def search(self, uses: Mapping[MetricUse, float], now: float) -> None:
        """Searches fresh samples of metrics, each with the seconds after which a sample is stale."""
        self._at = now
        missing: _Missing = {}
        for number, (use, stale_after) in enumerate(uses.items(), 1):
            if not self._is_fresh(use, stale_after):
                missing.setdefault(use.metric, {})[use] = stale_after
            if number % USE_BATCH == 0:
                await asyncio.sleep(0)
        self._newest = {use: self._newest[use] for use in uses.keys() & self._newest.keys()}
        for table in list(self._tables.values()):
            if not missing:
                return
            self._find(missing, table, _seen_in_table, sources=("", table.key.source))
            await asyncio.sleep(0)
        for number, entry in enumerate(list(self._nodes.values()), 1):
            if not missing:
                return
            self._find(missing, entry, _seen_of_node)
            if number % NODE_BATCH == 0:
                await asyncio.sleep(0)

    def unseen(self, uses: Iterable[MetricUse], stale_after: float) -> list[MetricUse]:
        """The metrics of `uses` without a fresh sample at the last search."""
        return [use for use in uses if not self._is_fresh(use, stale_after)]

    def _is_fresh(self, use: MetricUse, stale_after: float) -> bool:
        seen = self._newest.get(use)
        return seen is not None and seen.is_fresh(stale_after, self._at)

    def _find(
        self,
        missing: _Missing,
        entry: Entry[K, V],
        seen_in: Callable[[V, MetricUse], _Seen | None],
        *,
        sources: Collection[str] = (),
    ) -> None:
        """Notes the samples of a record, and removes what is fresh. The record has samples of `sources`; empty: of any.

        The work goes by the record: an author may have invented thousands of metrics.
        """
        named = [
            use
            for metric in entry.mentioned(missing.keys())
            for use in missing[metric]
            if not sources or use.source in sources
        ]
        record = entry.readable() if named else None
        if record is None:
            return
        for use in named:
            seen = seen_in(record, use)
            if seen is not None:
                self._newest[use] = max(seen, self._newest.get(use, seen))
            if self._is_fresh(use, missing[use.metric][use]):
                del missing[use.metric][use]
                if not missing[use.metric]:
                    del missing[use.metric]


def _seen_of_node(stored: StoredSamples, use: MetricUse) -> _Seen | None:
    scrape = newest(stored.samples, use.metric, use.source or None)
    return None if scrape is None else _Seen.of(scrape)


def _seen_in_table(table: Table, use: MetricUse) -> _Seen | None:
    column = table.columns.get(use.metric)
    return None if column is None else max(map(_Seen.of, column.different))
