"""Publishes what a source brings little by little, so that what comes meanwhile becomes tables together."""

import asyncio
import time
from collections.abc import Iterator, Sequence

from tas.samples.parts import Layout
from tas.sources.result import Sample
from workers.samples.publisher import SamplePublisher

GATHER_SECONDS = 0.25
"""The shortest time between two publications: each makes `materialize` write every table that it has a row of."""

LONGEST_GATHER_SECONDS = 2.0
"""The longest time between two publications, beside the time that the bus takes."""

STORED_BYTES_A_SECOND = 1 << 20
"""About so much `materialize` writes because of one source: the samples of a larger cluster are gathered for longer."""

ROW_BYTES, VALUE_BYTES = 26, 10
"""Of a row, and of each value of it, in a stored table."""

TIMED_ROW_BYTES, TIMED_VALUE_BYTES = 115, 5
"""So much more of a row with a time of its own, and of each value, which has to say that this is its time."""


class GatheredPublisher:
    """Publishes for one caller, which gathers while it waits: between two publications is a pause."""

    def __init__(self, publisher: SamplePublisher) -> None:
        self._publisher = publisher
        self._layout = Layout()
        self._next_at = 0.0

    async def publish(self, samples: Sequence[Sample], *, requested_at: float) -> int:
        """As `SamplePublisher.publish`, after the pause. Raises BusError."""
        if not samples:
            return 0
        await asyncio.sleep(max(0.0, self._next_at - time.monotonic()))
        self._layout.add((each.node for each in samples), time.monotonic())
        self._publisher.need_parts(self._layout.parts)
        lists = _in_order(samples, requested_at)
        messages = sum([await self._publisher.publish(each, requested_at=requested_at) for each in lists])
        self._next_at = time.monotonic() + self._pause(samples)
        return messages

    def _pause(self, samples: Sequence[Sample]) -> float:
        """The seconds until the next publication may begin."""
        stored = stored_bytes(samples, self._layout.nodes)
        return min(max(GATHER_SECONDS, stored / STORED_BYTES_A_SECOND), LONGEST_GATHER_SECONDS)


def stored_bytes(samples: Sequence[Sample], nodes: int) -> int:
    """About how many bytes the stored tables of a source with so many nodes have, whose rows are like these samples."""
    metrics = len({each.metric for each in samples})
    row = ROW_BYTES + VALUE_BYTES * metrics
    if any(each.measured is not None for each in samples):
        row += TIMED_ROW_BYTES + TIMED_VALUE_BYTES * metrics
    return nodes * row


def _in_order(samples: Sequence[Sample], requested_at: float) -> Iterator[list[Sample]]:
    """The samples, so that each list has one value of a metric of a node; earlier values come in earlier lists."""
    lists: list[list[Sample]] = []
    counts: dict[tuple[str, str], int] = {}
    for each in sorted(samples, key=lambda sample: requested_at if sample.measured is None else sample.measured):
        place = (each.node, each.metric)
        number = counts.get(place, 0)
        counts[place] = number + 1
        if number == len(lists):
            lists.append([])
        lists[number].append(each)
    yield from lists
