"""Materialize: writes each node's newest samples to NODES, from the scrapes on SAMPLES and the tables on TABLES.

Any number of replicas take messages from one durable consumer. Merging does not depend on the order, and each write is
conditional on the revision that it was merged with. So replicas need no partitions, a message that is delivered twice
changes nothing, and a replica that was paused for a minute can only add newer samples.

After a wipe of the bus it writes what it remembers: a source that is silent sends nothing again, and then an extender
that starts would pass nodes that a running one rejects by their last known values.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.buckets import NODES, SAMPLES, SAMPLES_CONSUMER
from bus.connection import Bus, Epoch
from bus.consumer import Message, SharedConsumer
from bus.errors import BusError, ConflictError, ExpiredError, RefusedError
from bus.kinds import NODE_FACTS, NODE_RELEASES, NODE_SAMPLES, NODE_TABLES
from bus.overtaking import HeldMessages, Overtaking
from bus.record_kind import Entry
from bus.records.nodes import NodeFacts, NodeRelease, StoredSamples
from bus.records.synced import Synced
from bus.scrapes import by_source
from tas.errors import InvalidInputError
from tas.processes.process import RefusedSamples
from tas.processes.refused import RefusedBySource
from tas.samples.capacity import refusal_of_new_source, within_capacity
from tas.samples.freshness import kept_from
from tas.samples.new_nodes import NewNodes
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples, Scrape, merge, replaced_metrics
from tas.samples.table import Table
from tas.samples.unknown_node import is_unknown_node
from workers.following.synced import SyncedWatch
from workers.materialize.known import Known
from workers.materialize.stored_tables import StoredTables
from workers.process.logs import ThrottledLog
from workers.process.tasks import together

log = structlog.get_logger("materialize")

BATCH_SECONDS = 5.0
"""How long a node's write is retried after conflicts: well below the consumer's ack wait."""

MAX_CONCURRENT_WRITES = 32

DECODED_AT_ONCE = 8
"""After so many messages the event loop runs: an extender may answer in the same process."""

PACE_SECONDS = 0.1
"""How long writes of replicas are gathered before this one learns of them. Most are its own, which it knows; after a
write of another replica, its next write of the node conflicts until then, and is repeated."""

RETRY_SECONDS = 1.0
"""The delay before a failed deletion is retried."""

MAX_REFUSED_OBJECTS = 8
"""For how many objects refusals of one reason are logged every ten seconds; one more line counts all others."""

_REASONS = {
    "subject": "subject",
    "body": "body",
    "node": "names",
    "source": "names",
    "nodes": "names",
    "measured": "time",
    "window": "window",
    "ends": "time",
    "metrics": "metrics",
}


_Refusal = tuple[str, InvalidInputError]
"""A refused message or metric, with its reason for the metric label."""


def refusal_reason(error: InvalidInputError) -> str:
    """The metric label for an error of a message, one of a fixed set."""
    return "value" if error.field.startswith("metrics.") else _REASONS.get(error.field, "other")


class _KnownSamples(Known[StoredSamples]):
    """A node's samples in NODES."""

    __slots__ = ()

    @property
    def samples(self) -> NodeSamples:
        """The samples; none if the stored record is invalid."""
        return () if self.record is None else self.record.samples

    def unsaid(self, left_out: Mapping[tuple[str, str], int], incoming: Iterable[Scrape]) -> frozenset[str]:
        """The metrics of values that no version has had, and of which none is known that says so.

        `left_out`: as of `_Incoming`. Of `incoming`, the values are meant that this version has replaced.
        """
        series = dict(left_out)
        for scrape in incoming:
            for metric in replaced_metrics(self.samples, scrape):
                series[scrape.source, metric] = max(scrape.sequence, series.get((scrape.source, metric), 0))
        return frozenset(metric for _, metric in self._unsaid(series))


@dataclass(slots=True, eq=False)
class _Incoming:
    """What messages have brought of one node, and the source and metric of values that were left out.

    `left_out` has the sequence of the last message of which the value of a source and metric was left out.
    """

    scrapes: list[Scrape] = field(default_factory=list)
    left_out: dict[tuple[str, str], int] = field(default_factory=dict)


class Materialize:
    """The worker. It keeps a copy of NODES in memory, which every replica can rebuild."""

    name = "materialize"

    def __init__(self, bus: Bus, *, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._nodes: dict[str, _KnownSamples] = {}
        self._facts: dict[str, float | None] = {}  # nodes of the API server, and when they were created, if known
        self._released: dict[str, float] = {}  # when a node was released, also in the epochs before
        self._remembered: dict[str, _KnownSamples] = {}  # of the epochs before
        self._remembers = asyncio.Event()
        self._deleted: set[str] = set()  # nodes whose facts were deleted, or are not in the complete list of a cluster
        self._epoch: Epoch | None = None
        self._deleted_changed = asyncio.Event()
        self._write_slots = asyncio.Semaphore(MAX_CONCURRENT_WRITES)
        self._throttled = ThrottledLog(log)
        self._refusals: defaultdict[str, ThrottledLog] = defaultdict(
            lambda: ThrottledLog(log, keys=MAX_REFUSED_OBJECTS)
        )  # by reason: many objects with one fault do not hide another fault
        self._refused = RefusedBySource()
        self._new_nodes = NewNodes(self._nodes_with_samples)
        self._tables = StoredTables(
            bus,
            unknown=self._unknown_nodes,
            samples=self._stored_samples,
            is_cluster=lambda: self._cluster is True,
            new_nodes=self._new_nodes,
            refuse=self._refuse_values,
            registry=registry,
        )
        self._watch = SyncedWatch(
            bus,
            NODE_SAMPLES.to(self._apply_samples),
            NODE_TABLES.to(self._tables.apply),
            NODE_FACTS.to(self._apply_facts),
            NODE_RELEASES.to(self._apply_release),
            on_epoch=self._start_epoch,
            on_complete=self._complete,
            pace=PACE_SECONDS,
        )
        self._consumer = SharedConsumer(bus, SAMPLES, SAMPLES_CONSUMER, self.handle)
        self._overtaking = Overtaking(bus, SAMPLES, self._handle_early, held=HeldMessages)
        self._metrics = _Metrics(registry)
        self._metrics.nodes.set_function(lambda: float(sum(stored.is_present for stored in self._nodes.values())))

    def unready(self) -> str | None:
        """Why the worker does not write yet."""
        return None if self._watch.status.caught_up else f"{NODES.name}: not caught up with the bus"

    def refused_samples(self) -> Sequence[RefusedSamples]:
        """What it has refused lately, by source and reason, the newest first."""
        return self._refused.newest(time.time())

    async def run(self) -> None:
        """Consumes until cancelled, then finishes the current batch."""
        await together(
            self._watch.run(),
            self._consumer.run(),
            self._overtaking.run(),
            self._tables.run(),
            self._delete_samples_of_deleted_nodes(),
            self._write_remembered(),
        )

    async def handle(self, messages: Sequence[Message]) -> None:
        """Merges a batch into NODES; returns when all valid samples of the batch are stored.

        Raises BusError if a write failed temporarily: the batch can be delivered again.
        """
        await self._overtaking.give_way(messages)
        refused = await self._merge(messages)
        self._metrics.messages.inc(len(messages))
        for reason, error in refused:
            self._refuse(reason, error)

    async def _handle_early(self, messages: Sequence[Message]) -> None:
        """Merges messages that `handle` gets as well: that call counts what is refused."""
        await self._merge(messages, overtakes=True)

    async def _merge(self, messages: Sequence[Message], *, overtakes: bool = False) -> list[_Refusal]:
        """Merges messages into NODES, and returns what is refused. Raises BusError as `handle`."""
        received_at = time.monotonic()
        found, refused = await self._decode(messages)
        updates = (self._update(node, each, received_at, skips=overtakes) for node, each in found.items())
        results = await asyncio.gather(*updates, return_exceptions=True)
        # All nodes were tried, independently of each other. A bug is raised rather than a temporary error.
        failures = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(failures, key=lambda error: isinstance(error, BusError)):
            raise error
        return refused + [refusal for result in results if not isinstance(result, BaseException) for refusal in result]

    async def _decode(self, messages: Sequence[Message]) -> tuple[Mapping[str, _Incoming], list[_Refusal]]:
        """What has come of each node, without metrics of which there is a newer value; what is refused."""
        incoming: defaultdict[str, _Incoming] = defaultdict(_Incoming)
        found, invalid = by_source(messages)
        refused = [(refusal_reason(error), error) for error in invalid]
        steps = 0
        for each in found:
            if self._is_unknown_node(each.node):
                refused += [("unknown_node", _unknown(each.node, each.source))] * len(each.messages)
                continue
            if not self._cluster and not self._new_nodes.admit(each.source, each.node, time.monotonic()):
                subject = f"sample {each.node}/{each.source}"
                too_many = self._new_nodes.refusal(subject, "node", each.source, each.node)
                refused += [("capacity", too_many)] * len(each.messages)
                continue
            stored = self._nodes.get(each.node) or _KnownSamples(0)
            if (refusal := refusal_of_new_source(each.node, each.source, stored.samples)) is not None:
                refused += [("capacity", refusal)] * len(each.messages)
                continue
            for newest in each.newest(stored.samples):
                refused += ((refusal_reason(error), error) for error in newest.refused)
                if newest.scrape is not None:
                    incoming[each.node].scrapes.append(newest.scrape)
                for metric in newest.left_out:
                    series = (each.source, metric)
                    left_out = incoming[each.node].left_out
                    left_out[series] = max(newest.sequence, left_out.get(series, 0))
                steps += 1
                if steps % DECODED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        for of_node in incoming.values():
            of_node.scrapes.sort(key=lambda scrape: scrape.sequence)
        return incoming, refused

    async def _update(self, node: str, incoming: _Incoming, received_at: float, *, skips: bool) -> list[_Refusal]:
        """Merges `incoming` into the node's stored samples, with retries after conflicts; returns what is refused.

        The stored record says of which metrics values were left out, also if it has nothing else that is new: another
        replica may have stored the newer values, and has not seen these. With `skips` these are all metrics that are
        stored: a reader has not seen what came before them.
        """
        stored = self._nodes.get(node) or _KnownSamples(0)
        read_at = received_at
        while True:
            async with self._write_slots:
                accepted, refused = within_capacity(node, stored.samples, incoming.scrapes)
                merged = merge(stored.samples, accepted)
                if skips:
                    left_out = frozenset(metric for scrape in accepted for metric in scrape.metrics)
                else:
                    left_out = stored.unsaid(incoming.left_out, accepted)
                try:
                    if merged is not stored.samples or (merged and left_out and not skips):
                        stored = await self._write(node, stored, StoredSamples(merged, left_out), read_at)
                    break
                except (ConflictError, ExpiredError) as error:
                    if time.monotonic() - received_at > BATCH_SECONDS:
                        raise
                    if isinstance(error, ConflictError):
                        self._metrics.conflicts.inc()
                except RefusedError as error:
                    # A retry alone does not help, and other nodes must not wait for this one.
                    return [("write", InvalidInputError(f"samples of {node}", "write", "refused", str(error)))]
                read_at = time.monotonic()
                stored = await self._read(node)
                if self._cluster and await self._is_deleted(node):
                    # Another replica wrote meanwhile, perhaps because the node was deleted: our view may be older.
                    return [("unknown_node", _unknown(node, scrape.source)) for scrape in incoming.scrapes]
        now = time.time()
        for scrape in accepted:
            self._metrics.seconds.observe(max(0.0, now - scrape.arrived))
        return [("capacity", refusal) for refusal in refused]

    async def _write(self, node: str, known: _KnownSamples, stored: StoredSamples, read_at: float) -> _KnownSamples:
        epoch = self._epoch
        revision = await NODE_SAMPLES.put(self._bus, node, stored, revision=known.revision, read_at=read_at)
        self._metrics.writes.inc()
        written = _KnownSamples(revision, record=stored)
        self._remember(node, written, epoch)
        return written

    async def _read(self, node: str) -> _KnownSamples:
        epoch = self._epoch
        entry = await NODE_SAMPLES.get(self._bus, node)
        stored = _KnownSamples(entry.revision, entry=entry)
        self._remember(node, stored, epoch)
        return stored

    async def _is_deleted(self, node: str) -> bool:
        """Whether the node's facts are missing now, read from the stream's leader."""
        return not (await NODE_FACTS.get(self._bus, node)).present

    def _remember(self, node: str, stored: _KnownSamples, epoch: Epoch | None) -> None:
        """Keeps `stored` in memory, unless the bucket has a new epoch or a newer revision is known."""
        if epoch is self._epoch and stored.follows(self._nodes.get(node)):
            self._nodes[node] = stored

    @property
    def _cluster(self) -> bool | None:
        """Whether the list of nodes comes from a Kubernetes API; None while the list is not complete."""
        return None if self._watch.synced is None else self._watch.synced.cluster

    def _is_unknown_node(self, node: str) -> bool:
        return is_unknown_node(listed=node in self._facts, cluster=self._cluster)

    def _unknown_nodes(self, table: Table) -> Collection[str]:
        """The nodes of a table that Kubernetes does not have."""
        return table.rows.keys() - self._facts.keys() if self._cluster else ()

    def _stored_samples(self, node: str) -> NodeSamples:
        stored = self._nodes.get(node)
        return () if stored is None else stored.samples

    def _nodes_with_samples(self) -> Iterator[str]:
        yield from (node for node, stored in self._nodes.items() if stored.is_present)
        yield from self._tables.nodes()

    def _start_epoch(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._tables.start_epoch(epoch)
        self._new_nodes.clear()
        self._remembered |= {node: stored for node, stored in self._nodes.items() if stored.is_present}
        self._remembers.clear()
        self._nodes.clear()
        self._facts.clear()
        self._deleted.clear()

    def _apply_samples(self, entry: Entry[str, StoredSamples]) -> None:
        self._remember(entry.key, _KnownSamples(entry.revision, entry=entry), self._epoch)
        if entry.present and not self._cluster:  # in a cluster nodes come and go, and nothing is bounded here
            self._new_nodes.note([entry.key])
        if self._is_unknown_node(entry.key):
            # Accepted before the list was complete, or written late; or the deletion, after which nothing is kept.
            self._deleted.add(entry.key)
        if entry.key in self._deleted:
            self._deleted_changed.set()

    def _apply_facts(self, entry: Entry[str, NodeFacts]) -> None:
        if entry.present:
            facts = entry.readable()
            self._facts[entry.key] = None if facts is None else facts.created_at
            self._deleted.discard(entry.key)
        else:
            self._facts.pop(entry.key, None)
            self._deleted.add(entry.key)
            self._deleted_changed.set()
            self._tables.check_nodes()

    def _complete(self, synced: Synced) -> None:
        log.info("nodes_complete", cluster=synced.cluster, count=synced.count, writer=synced.writer)
        if synced.cluster:
            self._new_nodes.clear()  # of samples that came before
            self._deleted |= self._nodes.keys() - self._facts.keys()  # the tombstones of their facts may be purged
            self._tables.check_nodes()
        self._deleted_changed.set()
        self._remembers.set()

    def _apply_release(self, entry: Entry[str, NodeRelease]) -> None:
        release = entry.readable()
        if release is None:
            self._released.pop(entry.key, None)
        else:
            self._released[entry.key] = min(release.time.timestamp(), time.time())

    def _own_since(self, node: str) -> float:
        """Since when a value is one of this node's, as `kept_from`."""
        return kept_from(
            listed=node in self._facts,
            created=self._facts.get(node),
            cluster=self._cluster is True,
            released=self._released.get(node, -inf),
        )

    async def _write_remembered(self) -> None:
        """Writes what it had of the epoch before, once the nodes of the new one are known. Never ends."""
        while True:
            await self._remembers.wait()
            self._remembers.clear()
            nodes = 0
            for node, stored in tuple(self._remembered.items()):
                if self._cluster is None:  # wiped again
                    break
                oldest = max(self._own_since(node), time.time() - MAX_SAMPLE_AGE)
                incoming = _Incoming()
                incoming.scrapes += (scrape for scrape in stored.samples if scrape.time >= oldest)
                try:
                    if incoming.scrapes:
                        await self._update(node, incoming, time.monotonic(), skips=True)
                        nodes += 1
                except BusError as error:
                    self._throttled.warning("remembered_samples_not_written", node=node, error=str(error))
                else:
                    if self._remembered.get(node) is stored:
                        del self._remembered[node]
            tables = 0 if self._cluster is None else await self._tables.write_remembered(self._own_since)
            if nodes or tables:
                log.info("remembered_samples_written", nodes=nodes, tables=tables)
            if self._cluster is not None and (self._remembered or self._tables.remembers):
                await asyncio.sleep(RETRY_SECONDS)
                self._remembers.set()

    async def _delete_samples_of_deleted_nodes(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._deleted_changed.wait()
            self._deleted_changed.clear()
            has_failed = False
            for node in list(self._deleted) if self._cluster else ():
                try:
                    if self._has_samples(node):
                        await self._delete_samples(node)
                except BusError as error:
                    if not isinstance(error, (ConflictError, ExpiredError)):  # those only mean that a newer read is due
                        self._throttled.warning("node_samples_not_deleted", node=node, error=str(error))
                    has_failed = True
                else:
                    self._forget(node)
            if has_failed:
                # A wait, and not a timer: each wake-up would add timers that add the next ones, without end.
                await asyncio.sleep(RETRY_SECONDS)
                self._deleted_changed.set()

    def _forget(self, node: str) -> None:
        """Keeps nothing of a deleted node without samples: a write of late samples comes back through the watch."""
        if node in self._deleted and not self._has_samples(node):
            self._deleted.discard(node)
            self._nodes.pop(node, None)

    def _has_samples(self, node: str) -> bool:
        stored = self._nodes.get(node)
        return stored is not None and stored.is_present

    async def _delete_samples(self, node: str) -> None:
        read_at = time.monotonic()
        stored = await self._read(node)
        if not stored.is_present or not await self._is_deleted(node):
            return
        epoch = self._epoch
        revision = await NODE_SAMPLES.delete(self._bus, node, revision=stored.revision, read_at=read_at)
        self._remember(node, _KnownSamples(revision), epoch)
        log.info("node_samples_deleted", node=node)

    def _refuse_values(self, field: str, error: InvalidInputError, count: int) -> None:
        """Notes refused values of a table, by the field of the message or by a reason."""
        self._refuse("value" if field == "metrics" else _REASONS.get(field, field), error, count)

    def _refuse(self, reason: str, error: InvalidInputError, count: int = 1) -> None:
        self._metrics.refused.labels(reason).inc(count)
        self._refused.note(error.subject, reason, str(error), count=count, now=time.time())
        self._refusals[reason].warning(
            "sample_refused",
            error.subject,
            object=error.subject,
            field=error.field,
            value=error.value,
            reason=error.reason,
        )


def _unknown(node: str, source: str) -> InvalidInputError:
    return InvalidInputError(f"sample {node}/{source}", "node", node, "Kubernetes has no node of this name")


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.messages = counter("tas_sample_messages", "Messages of SAMPLES that were handled.")
        self.refused = counter("tas_samples_refused", "Messages or single metrics that were refused.", ["reason"])
        self.writes = counter("tas_node_writes", "Nodes written to NODES.")
        self.conflicts = counter("tas_node_write_conflicts", "Writes repeated after a conflict with another writer.")
        self.seconds = Histogram(
            "tas_sample_write_seconds",
            "Seconds from a message's arrival on the bus until its newest values are stored in NODES.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        self.nodes = Gauge("tas_nodes", "Nodes with samples.", registry=registry)
        for reason in (*dict.fromkeys(_REASONS.values()), "value", "other", "unknown_node", "capacity", "write"):
            self.refused.labels(reason)  # exported as 0 from the start, so that rates are defined
