"""Materialize: scrapes in, each node's newest samples out.

Any number of replicas take messages from one durable. Merging does not depend on order, and each write stands on the
revision it was merged into: so replicas need no partitions, a message that comes twice changes nothing, and a copy
that wakes after a minute can only add.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.buckets import NODES, SAMPLES
from bus.connection import Bus, Entry, Epoch
from bus.consumer import Message, SharedConsumer
from bus.errors import BusError, ConflictError, ExpiredError, RefusedError
from bus.messages import Synced, decode_node_samples, decode_samples, encode_node_samples
from bus.subjects import node_facts_key, node_metrics_key, parse_node_key
from tas.capacity import within_capacity
from tas.errors import InvalidInputError
from tas.sample import NodeSamples, Scrape, merge
from workers.logs import Throttle
from workers.synced import SyncedWatch

log = structlog.get_logger("materialize")

DURABLE = "materialize"

BATCH_SECONDS = 5.0
"""How long a node's write is tried again after conflicts: well below the consumer's ack wait."""

WRITES_AT_ONCE = 32
"""Also how many messages are decoded before others get their turn: in one process an extender answers beside us."""

RETRY_SECONDS = 1.0
"""Until a removal that failed is tried again."""

_REASONS = {
    "subject": "subject",
    "body": "body",
    "node": "names",
    "source": "names",
    "measured": "time",
    "window": "window",
    "metrics": "metrics",
}


def refusal_reason(error: InvalidInputError) -> str:
    """The label for what `decode_samples` refused: few words, whatever was sent."""
    return "value" if error.field.startswith("metrics.") else _REASONS.get(error.field, "other")


class _Known:
    """A node's samples as they stand in NODES at `revision` (0: they never did), decoded when first needed."""

    __slots__ = ("_samples", "_value", "revision")

    def __init__(self, revision: int, *, value: bytes | None = None, samples: NodeSamples = ()) -> None:
        self.revision = revision
        self._value = value
        self._samples = samples

    @property
    def samples(self) -> NodeSamples:
        """Empty as well where nobody can read what stands: the next write replaces it."""
        if self._value is not None:
            try:
                self._samples = decode_node_samples(self._value)
            except InvalidInputError as error:
                log.warning("entry_invalid", object=error.subject, field=error.field, reason=error.reason)
            self._value = None
        return self._samples

    @property
    def stands(self) -> bool:
        """Whether anything is there to remove."""
        return self._value is not None or bool(self._samples)


class Materialize:
    """The worker. It keeps a copy of NODES, which any other copy of it could rebuild."""

    name = "materialize"

    def __init__(self, bus: Bus, *, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._nodes: dict[str, _Known] = {}
        self._facts: set[str] = set()  # nodes that the API server has
        self._gone: set[str] = set()  # nodes whose facts were deleted: not merely absent
        self._epoch: Epoch | None = None
        self._gone_changed = asyncio.Event()
        self._turns = asyncio.Semaphore(WRITES_AT_ONCE)
        self._refusals = Throttle()
        self._watch = SyncedWatch(
            bus,
            NODES,
            on_entry=self._apply,
            on_epoch=self._begin_epoch,
            on_complete=self._complete,
            on_invalid=self._invalid,
        )
        self._consumer = SharedConsumer(bus, SAMPLES, DURABLE, self.handle)
        self._metrics = _Metrics(registry)
        self._metrics.nodes.set_function(lambda: float(sum(known.stands for known in self._nodes.values())))

    def unready(self) -> str | None:
        """Why it does not write yet."""
        return None if self._watch.status.caught_up else f"{NODES.name}: not caught up with the bus"

    async def run(self) -> None:
        """Consumes until cancelled; the batch in hand is finished first."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            tasks.create_task(self._consumer.run())
            tasks.create_task(self._remove_gone())

    async def handle(self, messages: Sequence[Message]) -> None:
        """Merges a batch into NODES; returns when everything in it that can stand does.

        Raises:
            BusError: if something could not be written for now: the batch may come again as it is.
        """
        taken_at = time.monotonic()
        self._metrics.messages.inc(len(messages))
        scrapes: defaultdict[str, list[Scrape]] = defaultdict(list)
        for number, message in enumerate(messages, 1):
            self._decode(message, scrapes)
            if number % WRITES_AT_ONCE == 0:
                await asyncio.sleep(0)
        results = await asyncio.gather(
            *(self._update(node, news, taken_at) for node, news in scrapes.items()), return_exceptions=True
        )
        # One node's trouble is not the others': all were tried. A bug is told before what passes by itself.
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, BusError)):
            raise error

    def _decode(self, message: Message, scrapes: Mapping[str, list[Scrape]]) -> None:
        try:
            node, scrape, refused = decode_samples(
                message.subject, message.data, arrived=message.arrived, sequence=message.sequence
            )
        except InvalidInputError as error:
            self._refuse(refusal_reason(error), error)
            return
        for refusal in refused:
            self._refuse(refusal_reason(refusal), refusal)
        if scrape is None:
            return
        if self._is_unknown(node):
            self._refuse_unknown(node, [scrape])
            return
        scrapes[node].append(scrape)

    async def _update(self, node: str, news: list[Scrape], taken_at: float) -> None:
        """Merges `news` into what stands of the node, again and again until it does."""
        known = self._nodes.get(node) or _Known(0)
        read_at = taken_at
        while True:
            async with self._turns:
                taken, refused = within_capacity(node, known.samples, news)
                merged = merge(known.samples, taken)
                try:
                    if merged is not known.samples:
                        known = await self._write(node, known, merged, read_at)
                    break
                except (ConflictError, ExpiredError) as error:
                    if time.monotonic() - taken_at > BATCH_SECONDS:
                        raise
                    if isinstance(error, ConflictError):
                        self._metrics.conflicts.inc()
                except RefusedError as error:
                    # Repeating it alone will not help, and other nodes must not wait for this one.
                    told = InvalidInputError(f"samples of {node}", "write", "refused", str(error))
                    self._refuse("write", told)
                    return
                read_at = time.monotonic()
                known = await self._read(node)
                if self._cluster and await self._is_gone(node):
                    # Somebody wrote meanwhile, perhaps because the node is gone: our own view may be too old to know.
                    self._refuse_unknown(node, news)
                    return
        for refusal in refused:
            self._refuse("capacity", refusal)
        now = time.time()
        for scrape in taken:
            self._metrics.seconds.observe(max(0.0, now - scrape.arrived))

    async def _write(self, node: str, known: _Known, samples: NodeSamples, read_at: float) -> _Known:
        epoch = self._epoch
        value = encode_node_samples(samples)
        revision = await self._bus.put(NODES, node_metrics_key(node), value, revision=known.revision, read_at=read_at)
        self._metrics.writes.inc()
        written = _Known(revision, samples=samples)
        self._remember(node, written, epoch)
        return written

    async def _read(self, node: str) -> _Known:
        """What stands of the node now, from the stream's leader."""
        epoch = self._epoch
        entry = await self._bus.get(NODES, node_metrics_key(node))
        if entry is None:
            return _Known(0)
        known = _Known(entry.revision, value=entry.value)
        self._remember(node, known, epoch)
        return known

    async def _is_gone(self, node: str) -> bool:
        """Whether the node's facts do not stand now, by the stream's leader."""
        facts = await self._bus.get(NODES, node_facts_key(node))
        return facts is None or facts.value is None

    def _remember(self, node: str, known: _Known, epoch: Epoch | None) -> None:
        """Keeps what stands, unless the bucket has begun anew or something newer is known."""
        current = self._nodes.get(node)
        if epoch is self._epoch and (current is None or current.revision < known.revision):
            self._nodes[node] = known

    # Following NODES

    @property
    def _cluster(self) -> bool:
        """Whether the list of nodes is complete and comes from a Kubernetes API."""
        return self._watch.synced is not None and self._watch.synced.cluster

    def _is_unknown(self, node: str) -> bool:
        return self._cluster and node not in self._facts

    def _begin_epoch(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._nodes.clear()
        self._facts.clear()
        self._gone.clear()

    def _apply(self, entry: Entry) -> None:
        try:
            node, kind = parse_node_key(entry.key)
        except InvalidInputError as error:
            self._invalid(error)
            return
        if kind == "metrics":
            self._remember(node, _Known(entry.revision, value=entry.value), self._epoch)
        elif entry.value is None:
            self._facts.discard(node)
            self._gone.add(node)
        else:
            self._facts.add(node)
            self._gone.discard(node)
        if node in self._gone:
            self._gone_changed.set()

    def _complete(self, synced: Synced) -> None:
        log.info("nodes_complete", cluster=synced.cluster, count=synced.count, by=synced.by)
        self._gone_changed.set()

    def _invalid(self, error: InvalidInputError) -> None:
        self._warn("entry_invalid", object=error.subject, field=error.field, value=error.value, reason=error.reason)

    # Nodes that go

    async def _remove_gone(self) -> None:
        """Removes the samples of nodes whose facts were deleted. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._gone_changed.wait()
            self._gone_changed.clear()
            for node in [node for node in self._gone if self._cluster and self._stands(node)]:
                try:
                    await self._remove(node)
                except BusError as error:
                    self._warn("node_samples_not_removed", node=node, error=str(error))
                    loop.call_later(RETRY_SECONDS, self._gone_changed.set)

    def _stands(self, node: str) -> bool:
        known = self._nodes.get(node)
        return known is not None and known.stands

    async def _remove(self, node: str) -> None:
        read_at = time.monotonic()
        known = await self._read(node)
        if not known.stands or not await self._is_gone(node):
            return
        epoch = self._epoch
        revision = await self._bus.delete(NODES, node_metrics_key(node), revision=known.revision, read_at=read_at)
        self._remember(node, _Known(revision), epoch)
        log.info("node_samples_removed", node=node)

    # What is told

    def _refuse_unknown(self, node: str, scrapes: Iterable[Scrape]) -> None:
        for scrape in scrapes:
            subject = f"sample {node}/{scrape.source}"
            self._refuse(
                "unknown_node", InvalidInputError(subject, "node", node, "Kubernetes has no node of this name")
            )

    def _refuse(self, reason: str, error: InvalidInputError) -> None:
        self._metrics.refused.labels(reason).inc()
        held_back = self._refusals.admit((reason, error.subject), time.monotonic())
        if held_back is not None:
            log.warning(
                "sample_refused",
                object=error.subject,
                field=error.field,
                value=error.value,
                reason=error.reason,
                alike_before=held_back,
            )

    def _warn(self, event: str, **fields: object) -> None:
        held_back = self._refusals.admit(event, time.monotonic())
        if held_back is not None:
            log.warning(event, alike_before=held_back, **fields)


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.messages = Counter("tas_sample_messages", "Messages taken from SAMPLES.", registry=registry)
        self.refused = Counter(
            "tas_samples_refused", "Messages or single metrics that were refused.", ["reason"], registry=registry
        )
        self.writes = Counter("tas_node_writes", "Nodes written to NODES.", registry=registry)
        self.conflicts = Counter(
            "tas_node_write_conflicts", "Writes repeated since another was first.", registry=registry
        )
        self.seconds = Histogram(
            "tas_sample_write_seconds",
            "From a message's arrival on the bus until it stands in NODES.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        self.nodes = Gauge("tas_nodes", "Nodes of which samples are known.", registry=registry)
        for reason in (*dict.fromkeys(_REASONS.values()), "value", "other", "unknown_node", "capacity", "write"):
            self.refused.labels(reason)  # from the start on, so that a rate is never without its zero
