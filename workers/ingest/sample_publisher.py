"""Publishes the samples of a source: one message per node and scrape."""

import asyncio
import time
from collections import defaultdict

from bus.connection import Bus
from bus.scrapes import publish_scrapes
from tas.samples.sample import Scrape
from tas.sources.result import Sample, scrapes

MAX_CONCURRENT = 256
"""Nodes whose messages are published at the same time."""

REPEAT_SECONDS = 10.0
"""After this time the same scrapes are published again: the bus may have been wiped meanwhile."""


class SamplePublisher:
    """Publishes for one source. Scrapes of a node that were published recently are not repeated."""

    def __init__(self, bus: Bus, source: str) -> None:
        self._bus = bus
        self._source = source
        self._published: dict[str, tuple[list[Scrape], float]] = {}

    async def publish(self, samples: tuple[Sample, ...], *, requested_at: float) -> int:
        """Publishes the samples, and returns the number of messages.

        `requested_at` is when the poll was sent, in seconds since 1970: the time of samples without a time.
        Raises BusError if not all could be published. Some may have been; publishing them again is harmless.
        """
        now = time.monotonic()
        self._published = {node: recent for node, recent in self._published.items() if now - recent[1] < REPEAT_SECONDS}
        # In a thread: a whole cluster takes a while, in which the lease must be renewed.
        due = await asyncio.to_thread(self._due, samples, requested_at)
        published = 0
        for start in range(0, len(due), MAX_CONCURRENT):
            batch = due[start : start + MAX_CONCURRENT]
            flat = [(node, scrape) for node, scrapes_of_node in batch for scrape in scrapes_of_node]
            await publish_scrapes(self._bus, flat)
            self._published |= {node: (scrapes_of_node, now) for node, scrapes_of_node in batch}
            published += len(flat)
        return published

    def _due(self, samples: tuple[Sample, ...], requested_at: float) -> list[tuple[str, list[Scrape]]]:
        """The scrapes of each node, without the nodes whose scrapes were published recently."""
        nodes: defaultdict[str, list[Scrape]] = defaultdict(list)
        for node, scrape in scrapes(samples, source=self._source, requested_at=requested_at):
            nodes[node].append(scrape)
        recent = self._published
        return [
            (node, scrapes_of_node)
            for node, scrapes_of_node in nodes.items()
            if node not in recent or recent[node][0] != scrapes_of_node
        ]
