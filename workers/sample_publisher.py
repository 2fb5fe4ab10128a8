"""What a source gave, onto the bus: one message a node and scrape."""

import asyncio
import time
from collections import defaultdict

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from bus.messages import encode_samples
from bus.subjects import samples_subject
from tas.sample import Scrape
from tas.sources.reading import Reading, scrapes

AT_ONCE = 256
"""Messages on their way at the same time: enough for a whole cluster in a moment, and no flood."""

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
        nodes: defaultdict[str, list[Scrape]] = defaultdict(list)
        for node, scrape in scrapes(readings, source=self._source, asked=asked):
            nodes[node].append(scrape)
        now = time.monotonic()
        self._said = {node: said for node, said in self._said.items() if now - said[1] < REPEAT_SECONDS}
        due = [(node, news) for node, news in nodes.items() if node not in self._said or self._said[node][0] != news]
        failures: list[BusError] = []
        turns = asyncio.Semaphore(AT_ONCE)

        async def say(node: str, news: list[Scrape]) -> None:
            async with turns:
                if failures:  # the others would wait as long in vain
                    return
                try:
                    for scrape in news:
                        await self._bus.publish(SAMPLES, samples_subject(node, self._source), encode_samples(scrape))
                except BusError as error:
                    failures.append(error)
                else:
                    self._said[node] = (news, now)

        await asyncio.gather(*(say(node, news) for node, news in due))
        if failures:
            raise failures[0]
        return sum(len(news) for _, news in due)
