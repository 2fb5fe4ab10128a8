"""The samples of a node as the leader of NODES has them: its own record, and its rows in the tables of all sources.

A node can be in one table of each source and number of parts. Which tables there are, the leader lists. Many nodes in
flight share the reads of the list and of each table.
"""

import asyncio
from functools import partial
from typing import NamedTuple

from bus.connection import Bus
from bus.kinds import NODE_FACTS, NODE_SAMPLES, NODE_TABLES
from bus.record_kind import Entry, Unreadable
from bus.records.nodes import NodeFacts, StoredSamples
from tas.errors import InvalidInputError
from tas.samples.sample import NodeSamples, since
from tas.samples.table import Table, TableKey, combined_samples
from workers.following.next_call import NextCall


class ReadSamples(NamedTuple):
    """What the leader has of a node.

    Attributes:
        readable: The samples in all valid records.
        is_complete: Whether no record is invalid, or vanished while it was read.
        revision: The last revision of the records that have samples of the node; 0 without any.
        facts: Its facts.
    """

    readable: NodeSamples
    is_complete: bool
    revision: int
    facts: Entry[str, NodeFacts]

    @property
    def samples(self) -> NodeSamples | None:
        """The samples as evidence; None if they are not complete: then they are not known."""
        return self.readable if self.is_complete else None


class NodeSamplesReads:
    """Reads from the leader, shared by all nodes in flight."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._keys = NextCall(partial(NODE_TABLES.listed, bus))
        self._reads: dict[TableKey, NextCall[Entry[TableKey, Table]]] = {}
        self._decoded: dict[TableKey, tuple[int, Table]] = {}

    async def read(self, node: str) -> ReadSamples:
        """The facts of a node, and its samples without those measured before it was created. Raises BusError."""
        single, facts, keys = await asyncio.gather(
            NODE_SAMPLES.get(self._bus, node), NODE_FACTS.get(self._bus, node), self._keys()
        )
        self._forget_all_but(keys)
        tables = await asyncio.gather(*(self._table(key) for key in keys if key.part.has(node)))
        stored = single.read()
        own = stored.samples if isinstance(stored, StoredSamples) else ()
        of_node = [(revision, table) for revision, table in tables if isinstance(table, Table) and node in table.rows]
        revision = max([single.revision, *(revision for revision, _ in of_node)])
        is_complete = not any(isinstance(each, Unreadable) for each in (stored, *(table for _, table in tables)))
        known = facts.readable()
        samples = combined_samples(own, [table.scrapes(node) for _, table in of_node]) if of_node else own
        readable = since(samples, None if known is None else known.created_at)
        return ReadSamples(readable, is_complete, revision, facts)

    async def _table(self, key: TableKey) -> tuple[int, Table | Unreadable | None]:
        """The revision of a table and the table; None if it was deleted, as tables without counting values are."""
        if key not in self._reads:
            self._reads[key] = NextCall(partial(NODE_TABLES.get, self._bus, key))
        entry = await self._reads[key]()
        known = self._decoded.get(key)
        if known is not None and known[0] == entry.revision:
            return known
        table = entry.read()
        if isinstance(table, Table):
            self._decoded[key] = entry.revision, table
        elif entry.revision == 0:
            error = InvalidInputError("entry of NODES", "key", NODE_TABLES.key(key), "vanished while it was read")
            return 0, Unreadable(error)
        return entry.revision, table

    def _forget_all_but(self, keys: list[TableKey]) -> None:
        for key in self._reads.keys() - keys:
            del self._reads[key]
            self._decoded.pop(key, None)
