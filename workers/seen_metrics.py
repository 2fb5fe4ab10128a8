"""Which metrics are seen at all: whether any node has a fresh sample of them.

Nodes are kept as they stand on the bus, and decoded only to find a metric of which no fresh sample is known: of one
that is reported the first few do. Of one that is not, as after its source has fallen silent, all have to be looked at,
so that is done for all such metrics at once and in turns.
"""

import asyncio
from collections.abc import Iterable, Mapping
from math import inf

from bus.messages import decode_node_samples
from tas.errors import InvalidInputError
from tas.sample import newest
from tas.status import MetricUse

NODES_AT_ONCE = 32
"""So many nodes are looked at before others get their turn (a millisecond, at 20 metrics a node)."""


class SeenMetrics:
    """The newest sample of each metric, as far as it is needed."""

    def __init__(self) -> None:
        self._nodes: dict[str, bytes] = {}
        self._newest: dict[MetricUse, float] = {}
        self._at = -inf

    def take(self, node: str, value: bytes | None) -> None:
        """A node's samples as they stand on the bus; None: there are none any more."""
        if value is None:
            self._nodes.pop(node, None)
        else:
            self._nodes[node] = value

    def clear(self) -> None:
        """Nothing is known to stand on the bus. What was seen was seen all the same."""
        self._nodes.clear()

    async def look(self, uses: Mapping[MetricUse, float], now: float) -> None:
        """Looks for fresh samples of metrics, each with the seconds after which one is stale."""
        self._at = now
        missing = self._missing(uses)
        self._newest = {use: self._newest[use] for use in uses.keys() & self._newest.keys()}
        for number, value in enumerate(list(self._nodes.values()), 1):
            if not missing:
                return
            if self._find(missing, value):
                missing = self._missing(missing)
            if number % NODES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def unseen(self, uses: Iterable[MetricUse], stale_after: float) -> list[MetricUse]:
        """Those of `uses`, looked for last, of which no node had a fresh sample then."""
        return [use for use in uses if not self._is_fresh(use, stale_after)]

    def _missing(self, uses: Mapping[MetricUse, float]) -> Mapping[MetricUse, float]:
        return {use: stale_after for use, stale_after in uses.items() if not self._is_fresh(use, stale_after)}

    def _is_fresh(self, use: MetricUse, stale_after: float) -> bool:
        return self._newest.get(use, -inf) + stale_after > self._at

    def _find(self, uses: Iterable[MetricUse], value: bytes) -> bool:
        """Notes what a node has of `uses`; returns whether anything."""
        named = [use for use in uses if f'"{use.metric}"'.encode() in value]
        if not named:
            return False
        try:
            samples = decode_node_samples(value)
        except InvalidInputError:
            return False  # told by whoever judges
        for use in named:
            scrape = newest(samples, use.metric, use.source or None)
            if scrape is not None:
                self._newest[use] = max(scrape.time, self._newest.get(use, -inf))
        return True
