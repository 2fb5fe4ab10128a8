"""Every revision of every verdict, in order, from VERDICT_LOG; and the last ones, from VERDICTS."""

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from bus.buckets import VERDICT_LOG, VERDICTS
from bus.connection import Bus
from bus.entry import RawEntry, is_tombstone
from bus.errors import UnavailableError
from bus.kinds import NODE_VERDICTS
from bus.pull import Message
from bus.record_kind import Entry, hand_on
from bus.stream_reader import ALL_SUBJECTS, FROM_START, Start, StreamReader, origin
from tas.verdict.verdict import NodeVerdict

MAX_FILTERS = 100
"""Of more nodes the history of all is read: a server looks at each message of the stream for each consumer."""


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


async def copied_up_to(bus: Bus) -> int:
    """The revision up to which VERDICT_LOG has been given all; 0 if it is empty. Raises UnavailableError, RefusedError.

    The server copies in order, so it is that of its last message.
    """
    message = await bus.last_message(VERDICT_LOG)
    return 0 if message is None else origin(message)


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
    if not nodes:
        return
    subjects = {VERDICTS.subject(NODE_VERDICTS.key(node)) for node in nodes}
    filters = sorted(subjects) if len(subjects) <= MAX_FILTERS else ALL_SUBJECTS
    # Twice, as all of these verdicts together may be large.
    last: dict[str, int] = {}
    async with aclosing(_history(bus, revision, filters)) as parts:
        async for messages in parts:
            last |= {message.subject: message.sequence for message in messages if message.subject in subjects}
    async with aclosing(_history(bus, revision, filters)) as parts:
        async for messages in parts:
            found = [message for message in messages if last.get(message.subject) == message.sequence]
            entries = (_entry(bus, message, message.sequence) for message in found)
            yield [entry for entry in entries if entry is not None]


async def _history(bus: Bus, revision: int, filters: Sequence[str]) -> AsyncGenerator[list[Message], None]:
    """The stored revisions of verdicts up to one, in parts; there must be later ones. Raises BusError."""
    reader = StreamReader(bus, VERDICTS, FROM_START, filters=filters)
    async with aclosing(reader.stored()) as batches:
        async for batch in batches:
            yield [message for message in batch.messages if message.sequence <= revision]
            if (reader.applied or 0) > revision:
                return
    # A copy of the stream that is behind (facts.md n74).
    raise UnavailableError(f"{VERDICTS.stream}: a server lacks what nodes have after revision {revision}")


def _entry(bus: Bus, message: Message, revision: int) -> Entry[str, NodeVerdict] | None:
    value = None if is_tombstone(message.headers) else message.data
    raw = RawEntry(key=VERDICTS.key(message.subject), value=value, revision=revision, created=message.arrived)
    found: list[Entry[str, NodeVerdict]] = []
    hand_on(VERDICTS, (NODE_VERDICTS.to(found.append),), bus.on_invalid, raw)
    return found[0] if found else None
