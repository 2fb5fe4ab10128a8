"""Publishes the samples of a source: one message for each node and scrape, or tables of many nodes.

Where the bus takes no tables, the same samples are published by node, and `without_tables` says why.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import structlog

from bus.buckets import TABLES
from bus.connection import Bus
from bus.errors import BusError, NobodyListensError, RefusedError
from bus.scrapes import publish_scrapes
from bus.tables import EncodedTable, encoded_tables, publish_tables
from tas.samples.parts import MAX_PARTS, Layout
from tas.samples.sample import Scrape
from tas.samples.table import Table, TableKey
from tas.sources.jumps import LONGEST, Jumps
from tas.sources.result import RefusalCount, Sample, SuspectReason, scrapes
from tas.sources.tables import Publish, tables_of

MAX_CONCURRENT = 256
"""Messages of nodes that are published at the same time."""

MAX_CONCURRENT_TABLES = 16
"""The same for tables: a message has at most 256 KiB."""

STORED_TIMES = 3
"""How many times the bytes of its message a stored table takes at most: it has a reading for each value."""

REPEAT_SECONDS = 10.0
"""After this time the same values are published again: the bus may have been wiped meanwhile."""

REFUSED_SECONDS = 30.0
"""How long no table is sent after the bus has refused one: for example, an operator has to give the right."""

log = structlog.get_logger("samples")


class SamplePublisher:
    """Publishes for one source. What was published recently is not repeated.

    Attributes:
        without_tables: Why samples that should be tables were last published by node; empty if they were not.
    """

    def __init__(self, bus: Bus, source: str, *, form: Publish = Publish.NODES) -> None:
        self._bus = bus
        self._source = source
        self._form = form
        self._parts = 1
        self._published: dict[str, tuple[list[Scrape], float]] = {}
        self._tables: dict[TableKey, tuple[list[Table], float]] = {}
        self._refused, self._refused_until = "", 0.0
        self._jumps = Jumps()
        self.without_tables = ""

    def need_parts(self, parts: int) -> None:
        """Divides the nodes of a table into at least so many parts: `publish` gets only some of the nodes at a time."""
        self._parts = max(self._parts, parts)

    def take_suspect(self) -> Mapping[SuspectReason, RefusalCount]:
        """The values that were found suspect since the last call: those that jumped for one scrape."""
        return self._jumps.taken()

    async def publish(self, samples: Sequence[Sample], *, requested_at: float) -> int:
        """Publishes the samples, and returns the number of messages.

        `requested_at` is when the poll was sent, in seconds since 1970: the time of samples without a time.
        Raises BusError if not all could be published. Some may have been; publishing them again is harmless.
        """
        if self._form is Publish.NODES:
            return await self._publish_nodes(samples, requested_at)
        why = self._bus.refused(TABLES) or (self._refused if time.monotonic() < self._refused_until else "")
        published, left = 0, samples
        if not why:
            try:
                published, left = await self._publish_tables(samples, requested_at)
            except (RefusedError, NobodyListensError) as error:
                why = self._note_refusal(error)
            else:
                why = f"{MAX_PARTS} tables of {self._most_bytes} bytes each have no room for all nodes" if left else ""
        if left:
            published += await self._publish_nodes(left, requested_at)
        self._note_without_tables(why)
        return published

    def _note_refusal(self, error: BusError) -> str:
        """Returns why no table was stored. A missing stream is created soon, or `Bus.refused` says why not."""
        if isinstance(error, RefusedError):
            self._refused, self._refused_until = str(error), time.monotonic() + REFUSED_SECONDS
        return str(error)

    def _note_without_tables(self, why: str) -> None:
        if why and why != self.without_tables:
            log.warning("source_without_tables", source=self._source, reason=why)
        elif self.without_tables and not why:
            log.info("source_with_tables", source=self._source)
        self.without_tables = why

    async def _publish_tables(self, samples: Sequence[Sample], requested_at: float) -> tuple[int, Sequence[Sample]]:
        """Returns the number of messages, and the samples for which tables have no room. Raises BusError."""
        # In a thread: a whole cluster takes a while, in which the lease must be renewed.
        tables, left = await asyncio.to_thread(self._encoded, samples, requested_at)
        due = list(self._due_tables(tables))
        now = time.monotonic()
        for start in range(0, len(due), MAX_CONCURRENT_TABLES):
            await publish_tables(self._bus, due[start : start + MAX_CONCURRENT_TABLES])
        for key in {each.key for each in due}:
            self._tables[key] = [each.table for each in tables if each.key == key], now
        return len(due), left

    @property
    def _most_bytes(self) -> int:
        """How many bytes the tables of a part may have together, so that a bucket can store them."""
        return self._bus.max_value_bytes // STORED_TIMES

    def _encoded(self, samples: Sequence[Sample], requested_at: float) -> tuple[list[EncodedTable], Sequence[Sample]]:
        """As `_divide`, and notes which values jump."""
        tables, left = self._divide(samples, requested_at)
        for key, of_key in _by_key(tables).items():
            before, _ = self._tables.get(key, ([], 0.0))
            self._jumps.add_tables(before, [each.table for each in of_key], time.monotonic())
        return tables, left

    def _divide(self, samples: Sequence[Sample], requested_at: float) -> tuple[list[EncodedTable], Sequence[Sample]]:
        """The messages, and the samples for which they have no room."""
        while True:
            divided = tables_of(samples, source=self._source, requested_at=requested_at, parts=self._parts)
            self._parts = divided.parts
            encoded, too_large = encoded_tables(divided.tables, most=self._most_bytes)
            if not too_large:
                return encoded, divided.left
            if self._parts * 2 > MAX_PARTS:
                without = {node for _, table in too_large for node in table.nodes}
                return encoded, [*divided.left, *(sample for sample in samples if sample.node in without)]
            self._parts *= 2

    def _due_tables(self, tables: Sequence[EncodedTable]) -> Iterator[EncodedTable]:
        """The tables of the keys that have other values than those published recently."""
        now = time.monotonic()
        for key, of_key in _by_key(tables).items():
            before, at = self._tables.get(key, ([], 0.0))
            if now - at >= REPEAT_SECONDS or before != [each.table for each in of_key]:
                yield from of_key

    async def _publish_nodes(self, samples: Sequence[Sample], requested_at: float) -> int:
        now = time.monotonic()
        self._published = {node: recent for node, recent in self._published.items() if now - recent[1] < LONGEST}
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

    def _due(self, samples: Sequence[Sample], requested_at: float) -> list[tuple[str, list[Scrape]]]:
        """The scrapes of each node, without the nodes whose scrapes were published recently."""
        nodes: defaultdict[str, list[Scrape]] = defaultdict(list)
        for node, scrape in scrapes(samples, source=self._source, requested_at=requested_at):
            nodes[node].append(scrape)
        now = time.monotonic()
        due: list[tuple[str, list[Scrape]]] = []
        for node, scrapes_of_node in nodes.items():
            before, at = self._published.get(node, ([], 0.0))
            if before == scrapes_of_node and now - at < REPEAT_SECONDS:
                continue
            self._jumps.add_scrapes(node, before, scrapes_of_node, now)
            due.append((node, scrapes_of_node))
        return due


def _by_key(tables: Sequence[EncodedTable]) -> Mapping[TableKey, list[EncodedTable]]:
    found: defaultdict[TableKey, list[EncodedTable]] = defaultdict(list)
    for each in tables:
        found[each.key].append(each)
    return found


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
