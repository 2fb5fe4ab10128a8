"""Tables on TABLES: publishers and readers of tables see no bytes and no subjects."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from bus.buckets import TABLES
from bus.connection import Bus
from bus.records.samples import SamplesMessage
from bus.records.tables import MAX_TABLE_BYTES, Refused, decode_table, encode_table
from bus.subjects import TABLES as SUBJECT
from bus.subjects import tables_subject
from tas.samples.table import Table, TableKey

M = TypeVar("M", bound=SamplesMessage)


class ReceivedTable(NamedTuple):
    """The table of a message: None without a valid value."""

    key: TableKey
    table: Table | None
    refused: Refused


class EncodedTable(NamedTuple):
    """A table to be published, with its message."""

    key: TableKey
    table: Table
    message: bytes


def encoded_tables(
    tables: Iterable[tuple[TableKey, Table]], *, most: int
) -> tuple[list[EncodedTable], list[tuple[TableKey, Table]]]:
    """The tables with their messages, each with one window and one end; and those that would take more bytes."""
    encoded = [EncodedTable(key, table, encode_table(table)) for key, table in tables]
    limit = min(most, MAX_TABLE_BYTES)
    fits = [each for each in encoded if len(each.message) <= limit]
    return fits, [each[:2] for each in encoded if len(each.message) > limit]


async def publish_tables(bus: Bus, tables: Sequence[EncodedTable]) -> None:
    """Publishes tables together. Raises BusError if one was not stored."""
    await bus.publish_all(TABLES, [(tables_subject(each.key), each.message) for each in tables])


def received_table(message: SamplesMessage, known: Table | None = None) -> ReceivedTable:
    """The table of a message; with the names of the nodes of `known`, which are not checked again.

    Raises InvalidInputError if the subject names no source and part.
    """
    nodes = () if known is None else known.nodes
    return ReceivedTable(
        *decode_table(message.subject, message.data, arrived=message.arrived, sequence=message.sequence, nodes=nodes)
    )


def is_table(message: SamplesMessage) -> bool:
    """Whether this is a message of TABLES, and not of SAMPLES."""
    return message.subject.startswith(f"{SUBJECT}.")


def by_table(messages: Iterable[M]) -> list[list[M]]:
    """The messages of each source and part, the newest first."""
    subjects: dict[str, list[M]] = {}
    for message in messages:
        subjects.setdefault(message.subject, []).append(message)
    return [sorted(each, key=lambda message: message.sequence, reverse=True) for each in subjects.values()]
