"""What a source gave, onto the bus: one message a node and scrape."""

import asyncio
import time
from collections import defaultdict

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.messages import encode_samples
from bus.subjects import samples_subject
from tas.sample import Scrape
from tas.sources.reading import Reading, scrapes

AT_ONCE = 256
"""Nodes whose messages are on their way at the same time: enough for a cluster in a moment, and no flood."""

REPEAT_SECONDS = 10.0
"""After so long the same values of the same time are published again: the bus may have been wiped since."""


class SamplePublisher:
    """Publishes for one source. What it said of a node a moment ago, of the same time, it does not say again."""

    def __init__(self, bus: Bus, source: str) -> None:
        self._bus = bus
        self._source = source
        self._said: dict[str, tuple[list[Scrape], float]] = {}

    async def publish(self, readings: tuple[Reading, ...], *, asked: float) -> int:
        """Publishes, and returns how many messages that took.

        `asked` is when the source was asked, in seconds since 1970: what has no time of its own is as old as that.

        Raises:
            BusError: if not all could be published. Some may have been; to publish them again is harmless.
        """
        now = time.monotonic()
        self._said = {node: said for node, said in self._said.items() if now - said[1] < REPEAT_SECONDS}
        # Beside the event loop: of a whole cluster it takes a while, in which a lease is to be renewed.
        due = await asyncio.to_thread(self._due, readings, asked)
        published = 0
        for start in range(0, len(due), AT_ONCE):
            some = due[start : start + AT_ONCE]
            messages = [
                (samples_subject(node, self._source), encode_samples(scrape)) for node, news in some for scrape in news
            ]
            await self._bus.publish_all(SAMPLES, messages)
            self._said |= {node: (news, now) for node, news in some}
            published += len(messages)
        return published

    def _due(self, readings: tuple[Reading, ...], asked: float) -> list[tuple[str, list[Scrape]]]:
        """What there is to say of each node, of those of which it was not said a moment ago."""
        nodes: defaultdict[str, list[Scrape]] = defaultdict(list)
        for node, scrape in scrapes(readings, source=self._source, asked=asked):
            nodes[node].append(scrape)
        said = self._said
        return [(node, news) for node, news in nodes.items() if node not in said or said[node][0] != news]
