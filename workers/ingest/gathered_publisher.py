"""Publishes what a source brings little by little: what arrives meanwhile becomes tables together."""

import asyncio
import time
from collections.abc import Iterator, Sequence

import msgspec

from bus.errors import BusError
from tas.samples.parts import Layout
from tas.sources.result import Sample
from workers.ingest.sample_publisher import SamplePublisher

GATHER_SECONDS = 0.25
"""The shortest time between two publications: each makes `materialize` write every table that it has a row of."""

LONGEST_GATHER_SECONDS = 2.0
"""The longest time between two publications, beside the time that the bus takes."""

STORED_BYTES_A_SECOND = 1 << 20
"""About so much `materialize` writes because of one source: the samples of a larger cluster are gathered for longer."""

ROW_BYTES, VALUE_BYTES = 26, 10
"""Of a row, and of each value of it, in a stored table."""

FULL = 50_000
"""So many samples are not gathered any longer."""


class _Gathered:
    """Samples that are published together, and the future of that."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()


class GatheredPublisher:
    """Publishes samples together, while `run` runs."""

    def __init__(self, publisher: SamplePublisher) -> None:
        self._publisher = publisher
        self._layout = Layout()
        self._gathered: _Gathered | None = None
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()

    async def publish(self, samples: Sequence[Sample], *, requested_at: float) -> int:
        """Returns when the bus has stored the samples; the number of messages for all that were gathered with these.

        Only the first of those who wait together gets the number, the others 0. Raises BusError.
        """
        if not samples:
            return 0
        if (gathered := self._gathered) is None:
            gathered = self._gathered = _Gathered()
            self._arrived.set()
        is_first = not gathered.samples
        gathered.samples += (
            msgspec.structs.replace(each, measured=requested_at) if each.measured is None else each for each in samples
        )
        if len(gathered.samples) >= FULL:
            self._full.set()
        messages = await asyncio.shield(gathered.stored)  # who is cancelled takes nothing away from the others
        return messages if is_first else 0

    async def run(self) -> None:
        """Publishes what is gathered, until cancelled."""
        pause = GATHER_SECONDS
        while True:
            await self._arrived.wait()
            await self._wait(pause)
            gathered, self._gathered = self._gathered, None
            self._arrived.clear()
            assert gathered is not None
            try:
                gathered.stored.set_result(await self._publish(gathered.samples))
            except BusError as error:
                gathered.stored.set_exception(error)
            finally:
                if not gathered.stored.done():
                    gathered.stored.cancel()
            pause = self._pause(gathered.samples)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._full.wait()
        except TimeoutError:
            return
        self._full.clear()

    def _pause(self, samples: Sequence[Sample]) -> float:
        """The seconds for which the next samples are gathered."""
        row = ROW_BYTES + VALUE_BYTES * len({each.metric for each in samples})
        stored = self._layout.nodes * row
        return min(max(GATHER_SECONDS, stored / STORED_BYTES_A_SECOND), LONGEST_GATHER_SECONDS)

    async def _publish(self, samples: Sequence[Sample]) -> int:
        self._layout.add((each.node for each in samples), time.monotonic())
        self._publisher.need_parts(self._layout.parts)
        return sum([await self._publisher.publish(each, requested_at=time.time()) for each in _in_order(samples)])


def _in_order(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """The samples, so that each list has one value of a metric of a node; earlier values come in earlier lists."""
    lists: list[list[Sample]] = []
    counts: dict[tuple[str, str], int] = {}
    for each in sorted(samples, key=lambda sample: sample.measured or 0.0):
        place = (each.node, each.metric)
        number = counts.get(place, 0)
        counts[place] = number + 1
        if number == len(lists):
            lists.append([])
        lists[number].append(each)
    yield from lists
