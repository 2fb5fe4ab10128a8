"""Stored samples and tables that this process has encoded: they are in memory once, and not decoded again.

A process that writes NODES and follows it, too, as `tas run all`, gets its own bytes back from the bus. The records
must be ones that were decoded, or merged of such: equal to their stored copies.
"""

from hashlib import blake2b
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from bus.records.nodes import StoredSamples, decode_node_samples, encode_node_samples
from bus.records.tables import decode_stored_table, encode_stored_table
from tas.samples.table import Table, TableKey

R = TypeVar("R", StoredSamples, Table)


class _Written(Generic[R]):
    """Records by the digest of their bytes, each as long as anybody has it."""

    def __init__(self) -> None:
        self._records: WeakValueDictionary[bytes, R] = WeakValueDictionary()

    def add(self, record: R, data: bytes) -> bytes:
        self._records[_digest(data)] = record
        return data

    def get(self, data: bytes) -> R | None:
        return self._records.get(_digest(data)) if self._records else None  # most processes write none


_samples: _Written[StoredSamples] = _Written()
_tables: _Written[Table] = _Written()


def encode_written_samples(stored: StoredSamples) -> bytes:
    """As `encode_node_samples`."""
    return _samples.add(stored, encode_node_samples(stored.samples, stored.left_out))


def decode_written_samples(data: bytes) -> StoredSamples:
    """As `decode_node_samples`: the same object as was encoded, if it still exists. Raises InvalidInputError."""
    found = _samples.get(data)
    return decode_node_samples(data) if found is None else found


def encode_written_table(table: Table) -> bytes:
    """As `encode_stored_table`."""
    return _tables.add(table, encode_stored_table(table))


def decode_written_table(key: TableKey, data: bytes) -> Table:
    """As `decode_stored_table`: the same object as was encoded, if it still exists. Raises InvalidInputError."""
    found = _tables.get(data)
    # The bytes do not name the source.
    return found if found is not None and found.source == key.source else decode_stored_table(key, data)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
