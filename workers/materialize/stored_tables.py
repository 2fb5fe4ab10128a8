"""The tables part of `materialize`: writes the newest values of each table to NODES, from the messages on TABLES.

As with scrapes, any number of replicas take messages from one durable consumer, merging does not depend on the order,
and each write is conditional. A message costs one write, for any number of nodes.

When messages come faster than they can be handled, the newest message of each source and part is handled first, and of
the older ones only the cells count that have no newer value. The stored table says that values were left out.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from bus.buckets import TABLES, TABLES_CONSUMER
from bus.connection import Bus, Epoch
from bus.consumer import Message, SharedConsumer
from bus.errors import BusError, ConflictError, ExpiredError, RefusedError
from bus.kinds import NODE_FACTS, NODE_TABLES
from bus.overtaking import NewestMessages, Overtaking
from bus.record_kind import Entry
from bus.tables import by_table, received_table
from tas.errors import InvalidInputError
from tas.samples.new_nodes import NewNodes
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples
from tas.samples.table import (
    Table,
    TableKey,
    is_superseded,
    merge_tables,
    replaced_columns,
    with_metrics,
    without_earlier,
    without_nodes,
)
from tas.values.nouns import counted
from workers.materialize.known import Known
from workers.process.logs import ThrottledLog
from workers.process.tasks import together

log = structlog.get_logger("materialize")

BATCH = 64
"""The most messages that are handled together, of at most 256 KiB each."""

BATCH_BYTES = 4 << 20
"""A batch ends with the message that exceeds this size: of a part, only the newest message is decoded as a whole."""

BATCH_SECONDS = 5.0
"""How long the write of a table is retried after conflicts: well below the consumer's ack wait."""

MAX_SOURCES = 32
"""The most sources with tables."""

GATHER_SECONDS = 1.0
"""How long deletions of nodes are gathered, so that each table is written once for many of them."""

CHECK_SECONDS = 10.0
"""The time between checks for tables without a value that counts."""

Refuse = Callable[[str, InvalidInputError, int], None]
"""Called with the field or reason, the error and the number of refused values."""


class _Stored(Known[Table]):
    """A table in NODES."""

    __slots__ = ()

    def unsaid(self, left_out: Mapping[str, int], incoming: Table) -> frozenset[str]:
        """The metrics of values that no version has had, and of which none is known that says so.

        `left_out` has metrics, and the last sequence of their values. Of `incoming`, the values are meant that this
        version has replaced.
        """
        metrics = dict(left_out)
        if self.record is not None:
            for metric, sequence in replaced_columns(self.record, incoming).items():
                metrics[metric] = max(sequence, metrics.get(metric, 0))
        return frozenset(self._unsaid(metrics))


class StoredTables:
    """The tables in NODES, in memory and on the bus."""

    def __init__(
        self,
        bus: Bus,
        *,
        unknown: Callable[[Table], Collection[str]],
        samples: Callable[[str], NodeSamples],
        is_cluster: Callable[[], bool],
        new_nodes: NewNodes,
        refuse: Refuse,
        registry: CollectorRegistry,
    ) -> None:
        """`unknown` returns the nodes of a table that Kubernetes does not have; `is_cluster`, whether that is known.

        `samples` returns what the own record of a node has. Without a cluster, `new_nodes` bounds the nodes.
        """
        self._bus = bus
        self._samples = samples
        self._unknown = unknown
        self._is_cluster = is_cluster
        self._new_nodes = new_nodes
        self._refuse = refuse
        self._stored: dict[TableKey, _Stored] = {}
        self._remembered: dict[TableKey, _Stored] = {}  # of the epochs before
        self._epoch: Epoch | None = None
        self._check = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._consumer = SharedConsumer(bus, TABLES, TABLES_CONSUMER, self.handle, batch=BATCH, batch_bytes=BATCH_BYTES)
        self._overtaking = Overtaking(bus, TABLES, self._handle_early, held=NewestMessages, batch=BATCH)
        self._metrics = _Metrics(registry)

    async def run(self) -> None:
        """Consumes until cancelled."""
        await together(
            self._consumer.run(), self._overtaking.run(), self._remove_rows_of_deleted_nodes(), self._remove_tables()
        )

    def start_epoch(self, epoch: Epoch) -> None:
        """Begins again with an empty bucket, and remembers what was in the one before."""
        self._epoch = epoch
        self._remembered |= {key: stored for key, stored in self._stored.items() if stored.is_present}
        self._stored.clear()

    def apply(self, entry: Entry[TableKey, Table]) -> None:
        """Takes in an entry of the bucket."""
        self._remember(entry.key, _Stored(entry.revision, entry=entry), self._epoch)

    def nodes(self) -> Iterator[str]:
        """The nodes with a row, those of several tables more than once."""
        for stored in self._stored.values():
            if stored.record is not None:
                yield from stored.record.rows

    @property
    def remembers(self) -> bool:
        """Whether there are tables of an epoch before that are not written yet."""
        return bool(self._remembered)

    async def write_remembered(self, own_since: Callable[[str], float]) -> int:
        """Writes the tables of the epoch before; returns how many. Those that fail are tried again in the next call.

        `own_since` returns since when a value is one of a node's, in seconds since 1970.
        """
        written = 0
        for key, stored in tuple(self._remembered.items()):
            table = stored.record
            if table is not None:
                table = without_earlier(table, {node: own_since(node) for node in table.nodes})
            try:
                if table is not None and table.nodes and table.newest + MAX_SAMPLE_AGE > time.time():
                    await self._update(key, table, {}, time.monotonic(), _ignore, skips=True)
                    written += 1
            except BusError as error:
                self._throttled.warning("remembered_table_not_written", table=_name(key), error=str(error))
            else:
                if self._remembered.get(key) is stored:
                    del self._remembered[key]
            await asyncio.sleep(0)
        return written

    def check_nodes(self) -> None:
        """Notes that a node was deleted: soon its rows are removed."""
        self._check.set()

    async def handle(self, messages: Sequence[Message]) -> None:
        """Merges a batch into NODES; returns when all its valid values are stored.

        Raises BusError if a write failed temporarily: the batch can be delivered again.
        """
        await self._overtaking.give_way(messages)
        self._metrics.superseded.inc(await self._merge_all(messages))
        self._metrics.messages.inc(len(messages))

    async def _handle_early(self, messages: Sequence[Message]) -> None:
        """Merges messages that overtake others, and that `handle` gets as well: that call counts them."""
        await self._merge_all(messages, overtakes=True)

    async def _merge_all(self, messages: Sequence[Message], *, overtakes: bool = False) -> int:
        """Merges messages; returns how many had values that were left out. Raises BusError as `handle`."""
        failures: list[BusError] = []
        left_out = 0
        for each in by_table(messages):
            try:
                left_out += await self._merge(each, overtakes=overtakes)
            except BusError as error:  # the others are tried, too
                failures.append(error)
            await asyncio.sleep(0)
        if failures:
            raise failures[0]
        return left_out

    async def _merge(self, messages: Sequence[Message], *, overtakes: bool) -> int:
        """Merges messages of one source and part, the newest first; returns and raises as `_merge_all`."""
        received_at = time.monotonic()
        refuse = _ignore if overtakes else self._refuse
        try:
            key, incoming, left_out, count = await self._decode(messages, refuse)
        except InvalidInputError as error:
            refuse(error.field, error, len(messages))
            return 0
        if incoming is not None:
            await self._update(key, incoming, left_out, received_at, refuse, skips=overtakes)
            if incoming.nodes:
                self._metrics.seconds.observe(max(0.0, time.time() - messages[-1].arrived))
        return count

    async def _decode(
        self, messages: Sequence[Message], refuse: Refuse
    ) -> tuple[TableKey, Table | None, Mapping[str, int], int]:
        """The valid values of messages of one key, the newest first; and what was left out.

        That is the metrics of which values were left out, with the last sequence of such a message, and the number of
        these messages. Of an older message only the cells count that have no newer value: the others are not decoded.
        Raises InvalidInputError if their subject is invalid.
        """
        incoming: Table | None = None
        left_out: dict[str, int] = {}
        count = 0
        for message in messages:
            key, table, refused = received_table(message, partial(self._newer, incoming))
            self._note(refused.errors, refused.counts, refuse)
            if table is not None:
                left_out = dict.fromkeys(table.left_out, message.sequence) | left_out
                count += bool(table.left_out)
                table = self._with_room(key, self._of_known_nodes(key, table, refuse), refuse)
                incoming = table if incoming is None else merge_tables(incoming, table)
            await asyncio.sleep(0)
        return key, incoming, left_out, count

    def _note(self, errors: Sequence[InvalidInputError], counts: Mapping[str, int], refuse: Refuse) -> None:
        named = {field: [each for each in errors if each.field.partition(".")[0] == field] for field in counts}
        for field, count in counts.items():
            for number, error in enumerate(named[field]):
                refuse(field, error, 1 if number else count - len(named[field]) + 1)

    def _of_known_nodes(self, key: TableKey, table: Table, refuse: Refuse) -> Table:
        unknown = self._unknown(table)
        if not unknown:
            return table
        first = min(unknown)
        reason = f"Kubernetes has no node of this name, and none of {counted(len(unknown) - 1, 'other')} of this table"
        if len(unknown) == 1:
            reason = "Kubernetes has no node of this name"
        error = InvalidInputError(f"table {key.source}/{key.part}", "nodes", first, reason)
        refuse("unknown_node", error, len(unknown))
        return without_nodes(table, unknown)

    def _with_room(self, key: TableKey, table: Table, refuse: Refuse) -> Table:
        if self._is_cluster():
            return table
        if (stored := self._known(key).record) is not None:
            self._new_nodes.note(stored.rows)
        now = time.monotonic()
        beyond = {node for node in table.nodes if not self._new_nodes.admit(key.source, node, now)}
        if not beyond:
            return table
        error = self._new_nodes.refusal(f"table {key.source}/{key.part}", "nodes", key.source, min(beyond))
        refuse("capacity", error, len(beyond))
        return without_nodes(table, beyond)

    async def _update(
        self,
        key: TableKey,
        incoming: Table,
        left_out: Mapping[str, int],
        received_at: float,
        refuse: Refuse,
        *,
        skips: bool,
    ) -> None:
        """Merges `incoming` into the stored table, with retries after conflicts. Raises BusError.

        The stored table says of which metrics values were left out, also if it has nothing else that is new: another
        replica may have stored the newer values, and has not seen these. With `skips` these are all metrics of
        `incoming`: a reader has not seen what came before it.
        """
        stored, read_at = self._known(key), received_at
        while True:
            if (table := self._next(stored, incoming, left_out, skips=skips)) is None:
                return
            if stored.record is None and (error := self._too_many_sources(key)) is not None:
                refuse("capacity", error, len(incoming.nodes))
                return
            try:
                await self._write_fitting(key, stored, table, read_at)
            except (ConflictError, ExpiredError) as error:
                if time.monotonic() - received_at > BATCH_SECONDS:
                    raise
                if isinstance(error, ConflictError):
                    self._metrics.conflicts.inc()
            except RefusedError as error:
                # A retry alone does not help, and other tables must not wait for this one.
                what = InvalidInputError(f"table {key.source}/{key.part}", "write", "refused", str(error))
                refuse("write", what, len(incoming.nodes))
                return
            else:
                return
            read_at = time.monotonic()
            stored = await self._read(key)

    def _next(self, stored: _Stored, incoming: Table, left_out: Mapping[str, int], *, skips: bool) -> Table | None:
        """The next version, as of `_update`; None if it is not needed."""
        merged = incoming if stored.record is None else merge_tables(stored.record, incoming)
        merged = without_nodes(merged, self._unknown(merged))
        unsaid = frozenset(incoming.columns) if skips else stored.unsaid(left_out, incoming)
        if not merged.nodes or (merged is stored.record and (skips or not unsaid)):
            return None
        return replace(merged, left_out=unsaid)

    def _too_many_sources(self, key: TableKey) -> InvalidInputError | None:
        sources = {each.source for each, stored in self._stored.items() if stored.is_present}
        if key.source in sources or len(sources) < MAX_SOURCES:
            return None
        reason = f"{len(sources)} sources have tables, at most {MAX_SOURCES}"
        return InvalidInputError(f"table {key.source}/{key.part}", "source", key.source, reason)

    def _newer(self, incoming: Table | None, key: TableKey) -> tuple[Table | None, Table | None]:
        """The tables that may have newer values than another message of this key."""
        return incoming, self._known(key).record

    def _known(self, key: TableKey) -> _Stored:
        return self._stored.get(key) or _Stored(0)

    async def _write_fitting(self, key: TableKey, stored: _Stored, table: Table, read_at: float) -> None:
        """Writes a table, without the oldest of its metrics if there is no room for all.

        For an hour a table has the metrics of former policies, too: they must not keep the present ones away.
        """
        try:
            await self._write(key, stored, table, read_at)
        except RefusedError:
            smaller = await self._fitting(table)
            if smaller is table:
                raise
            await self._write(key, stored, smaller, read_at)
            left_out = len(table.columns) - len(smaller.columns)
            self._throttled.warning("table_shortened", table=_name(key), metrics=len(table.columns), left_out=left_out)

    async def _fitting(self, table: Table) -> Table:
        """The table without so many of its oldest metrics that it fits into the bucket; the newest one stays."""
        newest = {metric: max(each.time for each in column.different) for metric, column in table.columns.items()}
        oldest_last = sorted(newest, key=lambda metric: (newest[metric], metric), reverse=True)
        while len(oldest_last) > 1 and NODE_TABLES.size(table) > self._bus.max_value_bytes:
            oldest_last.pop()
            table = with_metrics(table, oldest_last)
            await asyncio.sleep(0)
        return table

    async def _write(self, key: TableKey, stored: _Stored, table: Table | None, read_at: float) -> None:
        """Writes or deletes a table on the condition that it is still as `stored`."""
        epoch = self._epoch
        if table is None:
            revision = await NODE_TABLES.delete(self._bus, key, revision=stored.revision, read_at=read_at)
        else:
            revision = await NODE_TABLES.put(self._bus, key, table, revision=stored.revision, read_at=read_at)
        self._metrics.writes.inc()
        self._remember(key, _Stored(revision, record=table), epoch)

    async def _read(self, key: TableKey) -> _Stored:
        epoch = self._epoch
        entry = await NODE_TABLES.get(self._bus, key)
        stored = _Stored(entry.revision, entry=entry)
        self._remember(key, stored, epoch)
        return stored

    def _remember(self, key: TableKey, stored: _Stored, epoch: Epoch | None) -> None:
        """Keeps `stored` in memory, unless the bucket has a new epoch or a newer revision is known."""
        if epoch is self._epoch and stored.follows(self._stored.get(key)):
            self._stored[key] = stored

    async def _remove_rows_of_deleted_nodes(self) -> None:
        """Removes the rows of nodes that the leader does not have either. Never ends."""
        while True:
            await self._check.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._check.clear()
            if not self._is_cluster():
                continue
            for key in tuple(self._stored):
                table = self._known(key).record
                gone = () if table is None else self._unknown(table)
                try:
                    if gone:
                        await self._remove_rows(key, gone)
                except BusError as error:
                    if not isinstance(error, (ConflictError, ExpiredError)):
                        self._throttled.warning("table_rows_not_removed", table=_name(key), error=str(error))
                    self._check.set()

    async def _remove_rows(self, key: TableKey, nodes: Collection[str]) -> None:
        read_at = time.monotonic()
        stored = await self._read(key)
        facts = await asyncio.gather(*(NODE_FACTS.get(self._bus, node) for node in nodes))
        deleted = {entry.key for entry in facts if not entry.present}
        if stored.record is None or not deleted:
            return
        left = without_nodes(stored.record, deleted)
        if left is not stored.record:
            await self._write(key, stored, left if left.nodes else None, read_at)
            log.info("table_rows_removed", table=_name(key), nodes=len(deleted), first=min(deleted))

    async def _remove_tables(self) -> None:
        """Deletes tables without a value that could count.

        Those of a former layout, of a source that is gone, or of one that has changed to samples of single nodes.
        """
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for key in tuple(self._stored):
                if self._counts_no_more(self._known(key).record):
                    try:
                        await self._remove(key)
                    except BusError as error:
                        self._throttled.warning("table_not_removed", table=_name(key), error=str(error))

    async def _remove(self, key: TableKey) -> None:
        read_at = time.monotonic()
        stored = await self._read(key)
        if self._counts_no_more(stored.record):
            await self._write(key, stored, None, read_at)
            log.info("table_removed", table=_name(key))

    def _counts_no_more(self, table: Table | None) -> bool:
        if table is None:
            return False
        return table.newest + MAX_SAMPLE_AGE < time.time() or is_superseded(table, self._samples)


def _ignore(_field: str, _error: InvalidInputError, _count: int) -> None:
    """Refuses nothing: the message comes again."""


def _name(key: TableKey) -> str:
    return f"{key.source}/{key.part}"


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages = Counter("tas_table_messages", "Messages of TABLES that were handled.", registry=registry)
        self.superseded = Counter(
            "tas_table_messages_superseded",
            "Messages of TABLES with values that were not stored, as newer ones were known.",
            registry=registry,
        )
        self.writes = Counter("tas_table_writes", "Tables written to NODES.", registry=registry)
        self.conflicts = Counter(
            "tas_table_write_conflicts", "Writes repeated after a conflict with another writer.", registry=registry
        )
        self.seconds = Histogram(
            "tas_table_write_seconds",
            "Seconds from a table's arrival on the bus until its newest values are stored in NODES.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
