"""Finds out which metrics have a fresh sample of at least one node.

The records of nodes are kept encoded, and decoded only to find metrics without a known fresh sample. For a reported
metric a few nodes suffice. For a missing metric all nodes must be searched: one search finds all such metrics, and lets
other tasks run in between.
"""

import asyncio
from collections.abc import Iterable, Mapping
from math import inf

from bus.record_kind import Entry
from tas.samples.freshness import is_fresh
from tas.samples.sample import NodeSamples, Scrape, newest
from tas.verdict.status import MetricUse

NODE_BATCH = 32
"""After so many nodes other tasks may run (a millisecond, at 20 metrics a node)."""


class SeenMetrics:
    """The newest sample of each needed metric."""

    def __init__(self) -> None:
        self._nodes: dict[str, Entry[str, NodeSamples]] = {}
        self._newest: dict[MetricUse, Scrape] = {}
        self._at = -inf

    def take(self, entry: Entry[str, NodeSamples]) -> None:
        """Applies a node's entry, or its deletion."""
        if entry.present:
            self._nodes[entry.key] = entry
        else:
            self._nodes.pop(entry.key, None)

    def clear(self) -> None:
        """Removes all nodes; found samples stay."""
        self._nodes.clear()

    async def search(self, uses: Mapping[MetricUse, float], now: float) -> None:
        """Searches fresh samples of metrics, each with the seconds after which a sample is stale."""
        self._at = now
        missing = self._missing(uses)
        self._newest = {use: self._newest[use] for use in uses.keys() & self._newest.keys()}
        for number, entry in enumerate(list(self._nodes.values()), 1):
            if not missing:
                return
            if self._find(missing, entry):
                missing = self._missing(missing)
            if number % NODE_BATCH == 0:
                await asyncio.sleep(0)

    def unseen(self, uses: Iterable[MetricUse], stale_after: float) -> list[MetricUse]:
        """The metrics of `uses` without a fresh sample at the last search."""
        return [use for use in uses if not self._is_fresh(use, stale_after)]

    def _missing(self, uses: Mapping[MetricUse, float]) -> Mapping[MetricUse, float]:
        return {use: stale_after for use, stale_after in uses.items() if not self._is_fresh(use, stale_after)}

    def _is_fresh(self, use: MetricUse, stale_after: float) -> bool:
        scrape = self._newest.get(use)
        return scrape is not None and is_fresh(scrape, stale_after, self._at)

    def _find(self, uses: Iterable[MetricUse], entry: Entry[str, NodeSamples]) -> bool:
        """Notes the node's samples of `uses`; returns whether the node has any."""
        named = [use for use in uses if entry.mentions(use.metric)]
        samples = entry.readable() if named else None
        if samples is None:
            return False
        for use in named:
            scrape = newest(samples, use.metric, use.source or None)
            if scrape is not None:
                self._newest[use] = max(scrape, self._newest.get(use, scrape), key=_preference)
        return True


def _preference(scrape: Scrape) -> tuple[bool, float]:
    """The newest sample is fresh for the longest time, if its series has not ended."""
    return (scrape.ends is None, scrape.time)
