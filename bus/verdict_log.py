"""Every revision of every verdict, in order, from VERDICT_LOG; and the last ones, from VERDICTS."""

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from bus.buckets import VERDICTS
from bus.connection import Bus
from bus.entry import RawEntry, is_tombstone
from bus.errors import UnavailableError
from bus.kinds import NODE_VERDICTS
from bus.pull import Message
from bus.record_kind import Entry, hand_on
from bus.stream_reader import FROM_START, Start, StreamReader, origin
from tas.verdict.verdict import NodeVerdict

NODES_AT_ONCE = 100
"""Of so many nodes one consumer reads the history."""


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


async def verdicts_at(
    bus: Bus, revision: int, nodes: Collection[str]
) -> AsyncGenerator[list[Entry[str, NodeVerdict]], None]:
    """Of each of these nodes the last verdict up to a revision, tombstones included, in parts. Raises BusError.

    Each of them must have a later revision, too. A node is left out if it had no verdict then, or if the history of the
    bucket does not reach back so far.
    """
    names = sorted(nodes)
    for start in range(0, len(names), NODES_AT_ONCE):
        filters = [VERDICTS.subject(NODE_VERDICTS.key(node)) for node in names[start : start + NODES_AT_ONCE]]
        last: dict[str, Message] = {}
        reader = StreamReader(bus, VERDICTS, FROM_START, filters=filters)
        async with aclosing(reader.stored()) as batches:
            async for batch in batches:
                last |= {message.subject: message for message in batch.messages if message.sequence <= revision}
                if (reader.applied or 0) > revision:
                    break
        if (reader.applied or 0) <= revision:  # a copy of the stream that is behind (facts.md n74)
            raise UnavailableError(f"{VERDICTS.stream}: a server lacks what nodes have after revision {revision}")
        entries = (_entry(bus, message, message.sequence) for message in last.values())
        yield [entry for entry in entries if entry is not None]


def _entry(bus: Bus, message: Message, revision: int) -> Entry[str, NodeVerdict] | None:
    value = None if is_tombstone(message.headers) else message.data
    raw = RawEntry(key=VERDICTS.key(message.subject), value=value, revision=revision, created=message.arrived)
    found: list[Entry[str, NodeVerdict]] = []
    hand_on(VERDICTS, (NODE_VERDICTS.to(found.append),), bus.on_invalid, raw)
    return found[0] if found else None
