"""One session of the publisher: from what was announced last to a loss of the bus, the lease or the epoch.

The order of reads and writes lives here. `tas.events.transitions` decides what is published.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from math import inf
from typing import Any, NamedTuple

import msgspec
import structlog

from bus.buckets import NODES, POLICIES, VERDICT_LOG, VERDICTS
from bus.connection import Bus
from bus.connection import Epoch as StreamEpoch
from bus.errors import BusError, ConflictError, UnavailableError
from bus.events import (
    AnnouncedUpTo,
    Expected,
    last_events,
    last_of,
    publish_events,
    read_position,
    why_not_publishable,
    write_position,
)
from bus.kinds import BREAKER_RECORDS, NODE_FACTS, PAUSE_RECORDS, POLICY_RECORDS, SOURCE_STATES
from bus.record_kind import Entry, Handler
from bus.records.nodes import NodeFacts
from bus.records.policies import PolicyRecord
from bus.stream_reader import Lost, Start, StreamReader
from bus.subjects import event_subject
from bus.verdict_log import LoggedVerdict, last_verdicts, logged_verdicts
from bus.watch import Watch
from tas.errors import line_of
from tas.events.announcements import Announcements, thing_of
from tas.events.data import Gap, ViolationStarted
from tas.events.event import Event
from tas.events.transitions import (
    Epoch,
    KnownPolicy,
    Publication,
    Revision,
    of_breaker,
    of_epoch,
    of_gap,
    of_labels,
    of_missing_node,
    of_pause,
    of_policy,
    of_source,
    of_verdict,
)
from tas.policy.policy import PolicyKey
from tas.sources.state import SourceState
from tas.verdict.brake import Breaker, Pause
from tas.verdict.verdict import NodeVerdict
from workers.following.synced import SyncedWatch
from workers.publishing.metrics import Metrics

log = structlog.get_logger("events")

BATCH = 256
"""Events that are published together."""

CHANGES = 1024
"""Changes that are compared with the announcements before the position is noted."""

MAX_QUEUED = 4096
"""While so many changes are queued, the log of verdicts is not read: it waits on the bus."""

POSITION_SECONDS = 5.0
"""How often the position is stored while verdicts change. After a kill so much of the log is compared again."""

EPOCH_CHECK_SECONDS = 2.0
"""How often the epochs of the streams are compared with those of the session."""

YIELD_CHANGES = 64
"""After so many changes without an event other tasks may run."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, and the next event by it, if any. Changes of one group are announced one after the other.

    `logged` is the verdict in the log behind the change.
    """

    group: tuple[str, ...]
    next_event: Callable[[], Event | None]
    stored: float
    logged: LoggedVerdict | None = None


class _KnownNode(NamedTuple):
    """What a verdict does not say of its node."""

    uid: str
    created: float | None


class _Streams(NamedTuple):
    """The epochs of the verdicts and of their log."""

    verdicts: StreamEpoch
    log: StreamEpoch

    @classmethod
    async def of(cls, bus: Bus) -> "_Streams":
        """The current epochs. Raises BusError."""
        return cls(*await asyncio.gather(bus.epoch(VERDICTS), bus.epoch(VERDICT_LOG)))

    @property
    def created(self) -> tuple[str, str]:
        """The times of creation, as the server reports them."""
        return self.verdicts.created, self.log.created


class Session:
    """A session. `run` ends with a BusError when the next session must begin."""

    def __init__(
        self,
        bus: Bus,
        metrics: Metrics,
        streams: _Streams,
        announced: Announcements,
        position: tuple[AnnouncedUpTo | None, int],
        *,
        source: str,
    ) -> None:
        self._bus = bus
        self._metrics = metrics
        self._source = source
        self._streams = streams
        self._announced = announced
        self._position, self._position_sequence = position
        began = _seconds(streams.verdicts.created)
        is_known = self._position is not None and self._position.epoch == streams.verdicts.created
        self._epoch = Epoch(str(int(began * 1e6)), began, is_known)
        self._queue: deque[_Change] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._lists_known = asyncio.Event()
        self._is_reading = False
        self._done: LoggedVerdict | None = None
        self._written_at = time.monotonic()
        self._policies: dict[PolicyKey, KnownPolicy] = {}
        self._nodes: dict[str, _KnownNode] = {}
        self._synced_nodes = SyncedWatch(
            bus, bucket=NODES, on_epoch=lambda _: None, on_complete=lambda _: self._note_lists()
        )
        self._synced_policies = SyncedWatch(
            bus, bucket=POLICIES, on_epoch=lambda _: None, on_complete=lambda _: self._note_lists()
        )
        self._watches = (
            self._watch_of(NODE_FACTS.to(self._take_facts), on_epoch=self._nodes.clear),
            self._watch_of(POLICY_RECORDS.to(self._take_policy), on_epoch=self._policies.clear),
            self._watch_of(SOURCE_STATES.to(self._take_source)),
            self._watch_of(BREAKER_RECORDS.to(self._take_breaker), PAUSE_RECORDS.to(self._take_pause)),
        )

    @classmethod
    async def begin(cls, bus: Bus, metrics: Metrics, *, source: str) -> "Session":
        """A session that knows what was announced. Raises BusError."""
        streams = await _Streams.of(bus)
        position = await read_position(bus)
        announced = Announcements()
        for message in await last_events(bus):
            announced.add(message.event, message.sequence)
        return cls(bus, metrics, streams, announced, position, source=source)

    @property
    def behind(self) -> int:
        """Changes that are read and not announced yet."""
        return len(self._queue)

    def unready(self) -> str | None:
        """Why transitions may not be published yet."""
        reasons = [reason for each in (self._synced_nodes, self._synced_policies) if (reason := each.unready())]
        if not reasons and not self._is_reading:
            reasons.append(f"{VERDICT_LOG.name}: not read yet")
        return "; ".join(reasons) or None

    async def run(self) -> None:
        """Publishes until cancelled, or until the bus, the lease or the epoch is lost. Raises BusError."""
        await self._announce([self._change(("bus",), of_epoch, Revision(0, self._epoch.began))])
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._synced_nodes.run(),
                self._synced_policies.run(),
                *(watch.run() for watch in self._watches),
                self._follow_log(),
                self._announce_queued(),
                self._check_epoch(),
            ):
                tasks.create_task(work)

    # What the bus says

    def _watch_of(self, *handlers: Handler[Any, Any], on_epoch: Callable[[], None] = lambda: None) -> Watch:
        return Watch(self._bus, *handlers, on_epoch=lambda _: on_epoch(), on_batch=self._note_lists)

    def _note_lists(self) -> None:
        """Notes whether all lists are complete; then deleted nodes have no label any more."""
        if not all(watch.status.caught_up for watch in self._watches):
            return
        if self._synced_nodes.unready() is None and self._synced_policies.unready() is None:
            if not self._lists_known.is_set() and self._is_cluster:
                self._add_missing("label", self._announced.nodes("label") - self._nodes.keys())
            self._lists_known.set()

    @property
    def _is_cluster(self) -> bool:
        """Whether the list of nodes is complete, and comes from a Kubernetes API."""
        synced = self._synced_nodes.synced
        return synced is not None and synced.cluster

    def _take_facts(self, entry: Entry[str, NodeFacts]) -> None:
        facts, node = entry.readable(), entry.key
        if facts is None and entry.present:
            return
        if facts is None:
            self._nodes.pop(node, None)
        else:
            self._nodes[node] = _known_node(facts)
        event = partial(
            of_labels,
            node=node,
            labels=None if facts is None else facts.labels,
            node_uid="" if facts is None else facts.uid,
            node_created=None if facts is None else self._nodes[node].created,
            is_complete=facts is None or not facts.labels_left_out,
        )
        self._add(self._change(("node", node), event, Revision(entry.revision, entry.created)))

    def _take_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        record, key = entry.readable(), entry.key
        if record is None:
            if not entry.present:
                self._policies.pop(key, None)
            return
        self._policies[key] = _known_policy(record)
        event = partial(
            of_policy,
            key=key,
            uid=record.uid,
            generation=record.generation,
            problems=record.problems,
            created=record.created,
        )
        self._add(self._change(("policy", key.namespace, key.name), event, Revision(entry.revision, entry.created)))

    def _take_source(self, entry: Entry[str, SourceState]) -> None:
        state = entry.readable()
        if state is not None or not entry.present:
            event = partial(of_source, source=entry.key, state=state)
            self._add(self._change(("source", entry.key), event, Revision(entry.revision, entry.created)))

    def _take_breaker(self, entry: Entry[str, Breaker]) -> None:
        breaker = entry.readable()
        if breaker is not None or not entry.present:
            event = partial(of_breaker, name=entry.key, breaker=breaker)
            self._add(self._change(("breaker", entry.key), event, Revision(entry.revision, entry.created)))

    def _take_pause(self, entry: Entry[str, Pause]) -> None:
        pause = entry.readable()
        if pause is not None or not entry.present:
            event = partial(of_pause, pause=pause)
            self._add(self._change(("pause",), event, Revision(entry.revision, entry.created)))

    def _take_verdict(self, entry: Entry[str, NodeVerdict], logged: LoggedVerdict | None = None) -> None:
        node, found = entry.key, _Decoded(entry)

        def event(of: Publication) -> Event | None:
            if found.is_invalid:
                return None
            known = self._nodes.get(node)
            created = None if known is None else known.created
            return of_verdict(of, node, found.verdict, node_created=created, policies=self._policies)

        self._add(self._change(("node", node), event, Revision(entry.revision, entry.created), logged))

    def _add_missing(self, channel: str, nodes: Collection[str]) -> None:
        """Adds that a complete list of the API server does not have these nodes."""

        def event(node: str) -> Event | None:
            return of_missing_node(self._announced, self._epoch, channel, node, now=time.time(), source=self._source)

        for node in sorted(nodes):
            self._add(_Change(("node", node), partial(event, node), time.time()))

    async def _follow_log(self) -> None:
        """Reads every revision of the verdicts. Raises BusError."""
        await self._lists_known.wait()
        position = self._position
        last: int | None = None
        if position is not None and (position.epoch, position.log) == self._streams.created:
            after, last = position.sequence, position.revision or None
        else:
            if position is not None and position.epoch == self._streams.verdicts.created:
                # The log alone was replaced.
                await self._note_gap(Lost(VERDICT_LOG.name, position.sequence + 1, self._streams.log.last_sequence))
            after = await self._take_all_verdicts()
        reader = StreamReader(self._bus, VERDICT_LOG, Start(after=after))
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                if batch.lost is not None:
                    await self._note_gap(batch.lost)
                    await self._take_all_verdicts()
                    last = None
                for logged in logged_verdicts(self._bus, batch.messages):
                    if last is not None and logged.revision > last + 1:
                        await self._note_gap(Lost(VERDICTS.stream, last + 1, logged.revision - 1))
                        await self._take_all_verdicts()
                    last = logged.revision
                    if logged.entry is not None:
                        self._take_verdict(logged.entry, logged)
                if not batch.messages:
                    await self._flush()
                    self._is_reading = True
                await self._wait_for_room()

    async def _take_all_verdicts(self) -> int:
        """Compares the stored verdicts, and returns after which sequence of the log to continue. Raises BusError."""
        after = (await self._bus.epoch(VERDICT_LOG)).last_sequence
        found: set[str] = set()
        async with aclosing(last_verdicts(self._bus)) as parts:
            async for entries in parts:
                for entry in entries:
                    found.add(entry.key)
                    self._take_verdict(entry)
                await self._wait_for_room()
        if self._is_cluster:
            self._add_missing("violation", self._announced.nodes("violation") - self._nodes.keys() - found)
        await self._flush()
        self._done = LoggedVerdict(None, 0, after)  # the last revision may be a tombstone, which is no entry
        self._written_at = -inf
        self._wake.set()
        return after

    async def _note_gap(self, lost: Lost) -> None:
        """Announces that changes were lost, before anything that follows. Raises BusError."""
        await self._compare_epochs()
        log.warning("events_gap", stream=lost.stream, first=lost.first, last=lost.last)
        self._metrics.gaps.inc()
        await self._flush()
        data = Gap(stream=lost.stream, first=lost.first, last=lost.last)
        self._add(self._change(("gap",), partial(of_gap, data=data), Revision(lost.last, time.time())))
        await self._flush()

    async def _check_epoch(self) -> None:
        while True:
            await asyncio.sleep(EPOCH_CHECK_SECONDS)
            await self._compare_epochs()

    async def _compare_epochs(self) -> None:
        """Raises UnavailableError if the verdicts or their log were replaced."""
        if (await _Streams.of(self._bus)).created != self._streams.created:
            raise UnavailableError("the bus has a new epoch")

    # What is announced

    def _change(
        self,
        group: tuple[str, ...],
        event: Callable[[Publication], Event | None],
        revision: Revision,
        logged: LoggedVerdict | None = None,
    ) -> _Change:
        def next_event() -> Event | None:
            return event(Publication(self._announced, self._epoch, revision, source=self._source))

        return _Change(group, next_event, revision.stored, logged)

    def _add(self, change: _Change) -> None:
        self._queue.append(change)
        self._idle.clear()
        self._wake.set()

    async def _wait_for_room(self) -> None:
        if len(self._queue) > MAX_QUEUED:
            await self._flush()

    async def _flush(self) -> None:
        """Waits until all changes are announced."""
        if self._queue:
            await self._idle.wait()

    async def _announce_queued(self) -> None:
        """Announces what is queued, until cancelled. Raises BusError."""
        while True:
            wait = None if self._done is None else max(0.0, self._written_at + POSITION_SECONDS - time.monotonic())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            self._wake.clear()
            while self._queue:
                changes = list(islice(self._queue, CHANGES))
                await self._announce(changes)
                for change in changes:
                    self._queue.popleft()
                    self._done = change.logged or self._done
            self._idle.set()
            if self._done is not None and time.monotonic() - self._written_at >= POSITION_SECONDS:
                await self._write_position(self._done)

    async def _write_position(self, done: LoggedVerdict) -> None:
        created, log_created = self._streams.created
        position = AnnouncedUpTo(epoch=created, log=log_created, sequence=done.sequence, revision=done.revision)
        self._position_sequence = await write_position(self._bus, position, expected=self._position_sequence)
        self._written_at = time.monotonic()
        self._done = None
        if not self._epoch.is_known:
            self._epoch = self._epoch._replace(is_known=True)
            log.info("events_epoch_known", epoch=self._epoch.name)

    async def _announce(self, changes: Sequence[_Change]) -> None:
        """Publishes all events of these changes, those of a group in order. Raises BusError."""
        groups: dict[tuple[str, ...], deque[_Change]] = {}
        for change in changes:
            groups.setdefault(change.group, deque()).append(change)
        while groups:
            due: list[tuple[_Change, Event]] = []
            for number, (group, waiting) in enumerate(list(groups.items()), 1):
                found = next(_due(waiting), None)
                if found is None:
                    del groups[group]
                elif not self._leave_out(found[1]):
                    due.append(found)
                if number % YIELD_CHANGES == 0:
                    await asyncio.sleep(0)
            if await self._read_unknown([event for _, event in due]):
                continue
            for start in range(0, len(due), BATCH):
                await self._publish(due[start : start + BATCH])

    async def _read_unknown(self, due: Sequence[Event]) -> bool:
        """Reads nodes and policies that only a verdict has mentioned yet; returns whether there were any.

        A violation of a new node or policy is no resync, but the verdict may arrive before them. Raises BusError.
        """
        found = False
        for event in due:
            data = event.data
            if not event.resync or not isinstance(data, ViolationStarted):
                continue
            node, key = self._nodes.get(data.node), PolicyKey(data.namespace, data.policy)
            if self._is_cluster and (node is None or node.uid != data.node_uid):
                facts = (await NODE_FACTS.get(self._bus, data.node)).readable()
                self._nodes[data.node] = _KnownNode(
                    data.node_uid, None if facts is None else _known_node(facts).created
                )
                found = True
            policy = self._policies.get(key)
            if policy is None or policy.uid != data.policy_uid:
                record = (await POLICY_RECORDS.get(self._bus, key)).readable()
                known = KnownPolicy() if record is None else _known_policy(record)
                self._policies[key] = known._replace(uid=data.policy_uid)
                found = True
        return found

    async def _publish(self, due: Sequence[tuple[_Change, Event]]) -> None:
        expected = [Expected(event, self._announced.sequence(thing_of(event.data))) for _, event in due]
        outcomes = await publish_events(self._bus, expected)
        conflicts: list[Event] = []
        failure: BusError | None = None
        for (change, event), outcome in zip(due, outcomes, strict=True):
            if isinstance(outcome, int):
                self._announced.add(event, outcome)
                self._metrics.published.labels(event.data.TYPE).inc()
                self._metrics.seconds.observe(max(0.0, time.time() - change.stored))
            elif isinstance(outcome, ConflictError):
                conflicts.append(event)
            else:
                failure = outcome
        if failure is not None:
            raise failure
        if conflicts:
            await self._read_again(conflicts)

    def _leave_out(self, event: Event) -> bool:
        """Whether the server would not accept an event: then it counts as announced, else no other would follow."""
        if not (problem := why_not_publishable(event)):
            return False
        log.error("event_not_publishable", subject=line_of(event_subject(event.data)), error=problem)
        self._announced.add(event, self._announced.sequence(thing_of(event.data)))
        return True

    async def _read_again(self, conflicts: Sequence[Event]) -> None:
        """Reads what another replica has announced instead. Raises BusError."""
        self._metrics.conflicts.inc(len(conflicts))
        subjects = {event_subject(event.data): thing_of(event.data) for event in conflicts}
        for message in await last_of(self._bus, list(subjects)):
            self._announced.add(message.event, message.sequence)
            subjects.pop(message.subject, None)
        for thing in subjects.values():
            self._announced.note_lost(thing)


class _Decoded:
    """The record of an entry, decoded once and only when it is needed."""

    def __init__(self, entry: Entry[str, NodeVerdict]) -> None:
        self._entry = entry
        self._read = False
        self._verdict: NodeVerdict | None = None

    @property
    def verdict(self) -> NodeVerdict | None:
        """The verdict; None if it is deleted or invalid."""
        if not self._read:
            self._read, self._verdict = True, self._entry.readable()
        return self._verdict

    @property
    def is_invalid(self) -> bool:
        """Whether the entry cannot be read."""
        return self.verdict is None and self._entry.present


def _due(waiting: deque[_Change]) -> Iterator[tuple[_Change, Event]]:
    """The next event of a group, with its change; changes without an event are dropped."""
    while waiting:
        event = waiting[0].next_event()
        if event is not None:
            yield waiting[0], event
        waiting.popleft()


def _known_node(facts: NodeFacts) -> _KnownNode:
    return _KnownNode(facts.uid, None if facts.created is None else facts.created.timestamp())


def _known_policy(record: PolicyRecord) -> KnownPolicy:
    policy = record.policy
    return KnownPolicy(record.created, dry_run=policy.suspend or policy.dry_run, uid=record.uid)


def _seconds(created: str) -> float:
    return msgspec.convert(created, datetime).timestamp()
