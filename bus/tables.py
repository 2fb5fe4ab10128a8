"""Tables on TABLES: publishers and readers of tables see no bytes and no subjects."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from bus.buckets import TABLES
from bus.connection import Bus, StreamMessage
from bus.errors import STREAM_NOT_FOUND, none_if
from bus.records.samples import SamplesMessage
from bus.records.tables import MAX_TABLE_BYTES, MAX_TABLE_METRICS, Refused, decode_table, encode_table
from bus.subjects import TABLES as SUBJECT
from bus.subjects import parse_tables_subject, tables_subject
from tas.errors import InvalidInputError
from tas.samples.parts import MAX_ROWS, parts_with
from tas.samples.sample import NodeSamples
from tas.samples.table import Table, TableKey

M = TypeVar("M", bound=SamplesMessage)


class ReceivedTable(NamedTuple):
    """The table of a message: None without a valid value."""

    key: TableKey
    table: Table | None
    refused: Refused


class ReceivedRow(NamedTuple):
    """What a table of a source has of one node: its samples, and what is refused of it or of the whole table."""

    source: str
    samples: NodeSamples
    refused: Sequence[InvalidInputError]


class EncodedTable(NamedTuple):
    """A table to be published, with its message."""

    key: TableKey
    table: Table
    message: bytes


def encoded_tables(
    tables: Iterable[tuple[TableKey, Table]], *, most: int
) -> tuple[list[EncodedTable], list[tuple[TableKey, Table]]]:
    """The tables with their messages, each with one window and one end; and those that would take more bytes.

    The tables of one key are stored together, so together they may have at most so many bytes.
    """
    encoded = [EncodedTable(key, table, encode_table(table)) for key, table in tables]
    sizes: dict[TableKey, int] = {}
    for each in encoded:
        sizes[each.key] = sizes.get(each.key, 0) + len(each.message)

    def fits(each: EncodedTable) -> bool:
        return sizes[each.key] <= most and len(each.message) <= MAX_TABLE_BYTES

    return [each for each in encoded if fits(each)], [each[:2] for each in encoded if not fits(each)]


async def publish_tables(bus: Bus, tables: Sequence[EncodedTable]) -> None:
    """Publishes tables together. Raises BusError if one was not stored."""
    await bus.publish_all(TABLES, [(tables_subject(each.key), each.message) for each in tables])


def received_table(
    message: SamplesMessage, newer: Callable[[TableKey], Iterable[Table | None]] = lambda _: ()
) -> ReceivedTable:
    """The table of a message, without the cells of which a table of `newer` has a newer value.

    These cells are not even decoded; the table names their columns in `left_out`. `newer` returns tables of the key.
    Raises InvalidInputError if the subject names no source and part.
    """
    known = [table for table in newer(parse_tables_subject(message.subject)) if table is not None]
    return ReceivedTable(
        *decode_table(message.subject, message.data, arrived=message.arrived, sequence=message.sequence, newer=known)
    )


def is_table(message: SamplesMessage) -> bool:
    """Whether this is a message of TABLES, and not of SAMPLES."""
    return message.subject.startswith(f"{SUBJECT}.")


async def last_tables(bus: Bus, node: str) -> list[StreamMessage]:
    """The last message of each source and part that may have a row of a node; none if the bus has no TABLES.

    Raises UnavailableError, RefusedError.
    """
    found: list[StreamMessage] = []
    for part in parts_with(node):
        messages = await none_if(STREAM_NOT_FOUND, bus.last_messages(TABLES, tables_subject(TableKey("*", part))))
        if messages is None:
            return []  # some of the messages would look like all of them
        found += messages
    return found


def received_row(message: SamplesMessage, node: str) -> ReceivedRow:
    """What a message has of one node. Raises InvalidInputError if the subject names no source and part."""
    key, table, refused = decode_table(
        message.subject,
        message.data,
        arrived=message.arrived,
        sequence=message.sequence,
        named=MAX_ROWS * MAX_TABLE_METRICS,  # those of this node may be behind many others
    )
    return ReceivedRow(key.source, () if table is None else table.scrapes(node), refused.about(node))


def by_table(messages: Iterable[M]) -> list[list[M]]:
    """The messages of each source and part, the newest first."""
    subjects: dict[str, list[M]] = {}
    for message in messages:
        subjects.setdefault(message.subject, []).append(message)
    return [sorted(each, key=lambda message: message.sequence, reverse=True) for each in subjects.values()]
