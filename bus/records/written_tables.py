"""Stored tables that this process has encoded: it has them in memory once, and does not decode them again.

A process that writes tables and follows them, too, as `tas run all`, gets its own bytes back from the bus.
"""

from hashlib import blake2b
from weakref import WeakValueDictionary

from bus.records.tables import decode_stored_table, encode_stored_table
from tas.samples.table import Table, TableKey

_written: WeakValueDictionary[bytes, Table] = WeakValueDictionary()
"""By the digest of the bytes, as long as anybody has the table."""


def encode_written_table(table: Table) -> bytes:
    """As `encode_stored_table`. The table must be one that was decoded, or merged of such: equal to its stored copy."""
    data = encode_stored_table(table)
    _written[_digest(data)] = table
    return data


def decode_written_table(key: TableKey, data: bytes) -> Table:
    """As `decode_stored_table`: the same object as was encoded, if it still exists. Raises InvalidInputError."""
    found = _written.get(_digest(data))
    # The bytes do not name the source.
    return found if found is not None and found.source == key.source else decode_stored_table(key, data)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
