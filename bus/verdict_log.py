"""Every revision of every verdict, in order, from VERDICT_LOG; and the last ones, from VERDICTS."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from bus.buckets import VERDICTS
from bus.connection import Bus
from bus.entry import RawEntry, is_tombstone
from bus.kinds import NODE_VERDICTS
from bus.pull import Message
from bus.record_kind import Entry, hand_on
from bus.stream_reader import Start, StreamReader, origin
from tas.verdict.verdict import NodeVerdict


class LoggedVerdict(NamedTuple):
    """A revision of a node's verdict, with its sequence in VERDICT_LOG. The entry is None if its key is invalid."""

    entry: Entry[str, NodeVerdict] | None
    revision: int
    sequence: int


def logged_verdicts(bus: Bus, messages: Sequence[Message]) -> Iterator[LoggedVerdict]:
    """The revisions that messages of VERDICT_LOG have."""
    for message in messages:
        revision = origin(message)
        yield LoggedVerdict(_entry(bus, message, revision), revision, message.sequence)


async def last_verdicts(bus: Bus) -> AsyncGenerator[list[Entry[str, NodeVerdict]], None]:
    """The last revision of each verdict, tombstones included, in parts. Raises BusError."""
    reader = StreamReader(bus, VERDICTS, Start(last_per_subject=True))
    async with aclosing(reader.stored()) as batches:
        async for batch in batches:
            entries = (_entry(bus, message, message.sequence) for message in batch.messages)
            yield [entry for entry in entries if entry is not None]


def _entry(bus: Bus, message: Message, revision: int) -> Entry[str, NodeVerdict] | None:
    value = None if is_tombstone(message.headers) else message.data
    raw = RawEntry(key=VERDICTS.key(message.subject), value=value, revision=revision, created=message.arrived)
    found: list[Entry[str, NodeVerdict]] = []
    hand_on(VERDICTS, (NODE_VERDICTS.to(found.append),), bus.on_invalid, raw)
    return found[0] if found else None
