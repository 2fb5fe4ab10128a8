"""One session of the publisher: from what was announced last to a loss of the bus, the lease or the epoch.

This module reads the bus, and says which records change together. `announcer` publishes, in order.
`tas.events.transitions` decides what is published.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog

from bus.buckets import NODES, PAUSED, VERDICT_LOG, VERDICTS
from bus.connection import Bus
from bus.connection import Epoch as StreamEpoch
from bus.errors import UnavailableError
from bus.event_position import AnnouncedUpTo, read_position
from bus.events import last_events
from bus.kinds import BREAKER_RECORDS, NODE_FACTS, PAUSE_RECORDS, POLICY_RECORDS, SOURCE_STATES
from bus.record_kind import Entry, RecordKind
from bus.records.nodes import NodeFacts
from bus.records.policies import PolicyRecord
from bus.stream_reader import Lost, Start, StreamReader
from bus.subjects import event_subject
from bus.ticks import tick
from bus.verdict_log import LoggedVerdict, last_verdicts, logged_verdicts, verdicts_at
from bus.watch import Watch
from tas.events.announcements import Announcements
from tas.events.data import ALL_POLICIES, Gap, ViolationStarted
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
    of_pause,
    of_policy,
    of_removed_policy,
    of_source,
    of_verdict,
)
from tas.policy.policy import PolicyKey
from tas.sources.state import SourceState
from tas.verdict.freeze import ALL, Breaker, Pause
from tas.verdict.verdict import NodeVerdict
from workers.events.announcer import Announcer
from workers.events.metrics import Metrics
from workers.following.synced import SyncedWatch
from workers.process.tasks import together
from workers.samples.source_states import EXPIRE_SECONDS

log = structlog.get_logger("events")

K = TypeVar("K", str, PolicyKey)

EPOCH_CHECK_SECONDS = 5.0
"""How often the epochs of the streams are compared with those of the session."""


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
        self._streams = streams
        self._announced = announced
        stored, position_sequence = position
        created = streams.verdicts.created
        self._position = stored if stored is not None and created in (stored.epoch, stored.comparing) else None
        self._began = _seconds(created)
        is_known = self._position is not None and not self._position.comparing
        self._announcer = Announcer(
            bus,
            metrics,
            announced=announced,
            epoch=Epoch(str(int(self._began * 1e6)), self._began, is_known),
            streams=streams.created,
            position_sequence=position_sequence,
            source=source,
            read_unknown=self._read_unknown,
        )
        self._lists_known = asyncio.Event()
        self._is_reading = False
        self._policies: dict[PolicyKey, KnownPolicy] = {}
        self._nodes: dict[str, _KnownNode] = {}
        # What is stored, readable or not: only the rest was deleted.
        self._listed_nodes: set[str] = set()
        self._listed_policies: set[PolicyKey] = set()
        self._listed_freezes: set[str] = set()
        self._source_seen = dict.fromkeys((name for (name,) in announced.names("source")), time.monotonic())
        self._are_labels_compared = False
        self._comparisons: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        # Its own watch: a watch of all keys of NODES would get every sample.
        self._synced_nodes = SyncedWatch(
            bus, bucket=NODES, on_epoch=lambda _: None, on_complete=lambda _: self._note_lists()
        )
        self._facts = Watch(
            bus,
            NODE_FACTS.to(self._take_facts),
            on_epoch=lambda _: self._forget_nodes(),
            on_batch=self._note_lists,
        )
        self._synced_policies = SyncedWatch(
            bus,
            POLICY_RECORDS.to(self._take_policy),
            on_epoch=lambda _: self._forget_policies(),
            on_complete=lambda _: self._take_all_policies(),
            on_batch=self._note_lists,
        )
        self._source_states = Watch(
            bus, SOURCE_STATES.to(self._take_source), on_epoch=lambda _: None, on_batch=self._note_lists
        )
        self._freezes = SyncedWatch(
            bus,
            BREAKER_RECORDS.to(self._take_breaker),
            PAUSE_RECORDS.to(self._take_pause),
            on_epoch=lambda _: self._listed_freezes.clear(),
            on_complete=lambda _: self._take_all_freezes(),
            on_batch=self._note_lists,
        )
        self._watches = (self._facts, self._synced_policies, self._source_states, self._freezes)

    @classmethod
    async def begin(cls, bus: Bus, metrics: Metrics, *, source: str) -> "Session":
        """A session that knows what was announced. Raises BusError."""
        streams = await _Streams.of(bus)
        position = await read_position(bus)
        announced = Announcements()
        for message in await last_events(bus):
            # Else it is about another thing than its subject, whose writer may give any names: none is looked up.
            if event_subject(message.event.data) == message.subject:
                announced.add(message.event, message.sequence)
        return cls(bus, metrics, streams, announced, position, source=source)

    @property
    def behind(self) -> int:
        """Changes that are read and not announced yet."""
        return len(self._announcer)

    def unready(self) -> str | None:
        """Why transitions may not be published yet."""
        reasons = [reason for each in (self._synced_nodes, self._synced_policies) if (reason := each.unready())]
        if not reasons and not self._is_reading:
            reasons.append(f"{VERDICT_LOG.name}: not read yet")
        return "; ".join(reasons) or None

    async def run(self) -> None:
        """Publishes until cancelled, or until the bus, the lease or the epoch is lost. Raises BusError."""
        await self._announcer.announce_first(of_epoch, Revision(0, self._began))
        await together(
            self._synced_nodes.run(),
            *(watch.run() for watch in self._watches),
            self._follow_log(),
            self._compare_lists(),
            self._announcer.run(),
            self._check_regularly(),
        )

    # What the bus says

    def _forget_nodes(self) -> None:
        self._nodes.clear()
        self._listed_nodes.clear()
        self._are_labels_compared = False
        self._lists_known.clear()

    def _forget_policies(self) -> None:
        self._policies.clear()
        self._listed_policies.clear()

    def _note_lists(self) -> None:
        """Notes whether all lists are complete; then deleted nodes have no label any more."""
        if not all(watch.status.caught_up for watch in self._watches):
            return
        if self._synced_nodes.unready() is not None or self._synced_policies.unready() is not None:
            return
        listed, facts = self._synced_nodes.status.epoch, self._facts.status.epoch
        if listed is None or facts is None or listed.created != facts.created:
            return  # one of the two watches is still in the epoch before
        self._lists_known.set()
        if not self._are_labels_compared and self._is_cluster:
            self._are_labels_compared = True
            missing = self._announced.nodes("label") - self._listed_nodes
            self._comparisons.put_nowait(partial(self._end_labels, missing, _read_up_to(self._facts)))

    def _take_all_policies(self) -> None:
        """The list of policies is complete: the others were deleted."""
        announced = {PolicyKey(*names) for names in self._announced.names("policy")}
        missing, until = announced - self._listed_policies, _read_up_to(self._synced_policies)
        self._comparisons.put_nowait(partial(self._end_policies, missing, until))
        self._note_lists()

    def _take_all_freezes(self) -> None:
        """The list of breakers is complete: the others were reset, and so was the pause if there is none."""
        announced = {ALL if policy == ALL_POLICIES else policy for (policy,) in self._announced.names("breaker")}
        missing, until = announced - self._listed_freezes, _read_up_to(self._freezes)
        self._comparisons.put_nowait(partial(self._end_breakers, missing, until))
        if PAUSED not in self._listed_freezes and self._announced.names("pause"):
            self._comparisons.put_nowait(partial(self._end_pause, until))
        self._note_lists()

    # What a complete list lacks. Each function gets the revision up to which the list was read

    async def _compare_lists(self) -> None:
        """Ends what complete lists lack. Raises BusError."""
        while True:
            await (await self._comparisons.get())()

    async def _end_labels(self, nodes: Collection[str], until: int) -> None:
        self._announcer.add_missing("label", await self._absent(NODE_FACTS, nodes), until)

    async def _end_policies(self, keys: Collection[PolicyKey], until: int) -> None:
        for key in await self._absent(POLICY_RECORDS, keys):
            group = ("policy", key.namespace, key.name)
            self._announcer.add(group, partial(of_removed_policy, key=key), Revision(until, time.time()))

    async def _end_breakers(self, names: Collection[str], until: int) -> None:
        for name in await self._absent(BREAKER_RECORDS, names):
            event = partial(of_breaker, name=name, breaker=None)
            self._announcer.add(("breaker", name), event, Revision(until, time.time()))

    async def _end_pause(self, until: int) -> None:
        if await self._absent(PAUSE_RECORDS, (PAUSED,)):
            self._announcer.add(("pause",), partial(of_pause, pause=None), Revision(until, time.time()))

    async def _absent(self, kind: RecordKind[K, Any], keys: Collection[K]) -> list[K]:
        """Which of these keys the leader lacks, too. Raises BusError.

        A key that is written again while a list is read moves behind the others: the watch may get it only after it has
        caught up. So it is not in the list, but exists.
        """
        return [key for key in sorted(keys) if not (await kind.get(self._bus, key)).present]

    async def _end_expired_sources(self) -> None:
        """Ends the sources whose state has expired: the server keeps the tombstone only for a minute. Raises BusError.

        A state expires if nobody writes it for `EXPIRE_SECONDS`. If none came for so long, the leader is asked.
        """
        now = time.monotonic()
        if not self._source_states.status.caught_up or self._source_states.status.attached == inf:
            self._source_seen = dict.fromkeys(self._source_seen, now)
            return
        revision = Revision(_read_up_to(self._source_states), time.time())
        due = {source: at for source, at in self._source_seen.items() if now - at > EXPIRE_SECONDS}
        for source in await self._absent(SOURCE_STATES, due):
            if self._source_seen.get(source) != due[source]:
                continue  # a state has come meanwhile
            del self._source_seen[source]
            self._announcer.add(("source", source), partial(of_source, source=source, state=None), revision)

    @property
    def _is_cluster(self) -> bool:
        """Whether the list of nodes is complete, and comes from a Kubernetes API."""
        synced = self._synced_nodes.synced
        return synced is not None and synced.cluster

    def _take_facts(self, entry: Entry[str, NodeFacts]) -> None:
        facts, node = entry.readable(), entry.key
        (self._listed_nodes.add if entry.present else self._listed_nodes.discard)(node)
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
        self._announcer.add(("node", node), event, Revision(entry.revision, entry.created))

    def _take_policy(self, entry: Entry[PolicyKey, PolicyRecord]) -> None:
        record, key, group = entry.readable(), entry.key, ("policy", entry.key.namespace, entry.key.name)
        revision = Revision(entry.revision, entry.created)
        if not entry.present:
            self._policies.pop(key, None)
            self._listed_policies.discard(key)
            self._announcer.add(group, partial(of_removed_policy, key=key), revision)
            return
        self._listed_policies.add(key)
        if record is None:
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
        self._announcer.add(group, event, revision)

    def _take_source(self, entry: Entry[str, SourceState]) -> None:
        state = entry.readable()
        if entry.present:
            self._source_seen[entry.key] = time.monotonic()
        else:
            self._source_seen.pop(entry.key, None)
        if state is not None or not entry.present:
            event = partial(of_source, source=entry.key, state=state)
            self._announcer.add(("source", entry.key), event, Revision(entry.revision, entry.created))

    def _take_breaker(self, entry: Entry[str, Breaker]) -> None:
        breaker = entry.readable()
        self._note_freeze(entry.key, is_stored=entry.present)
        if breaker is not None or not entry.present:
            event = partial(of_breaker, name=entry.key, breaker=breaker)
            self._announcer.add(("breaker", entry.key), event, Revision(entry.revision, entry.created))

    def _take_pause(self, entry: Entry[str, Pause]) -> None:
        pause = entry.readable()
        self._note_freeze(entry.key, is_stored=entry.present)
        if pause is not None or not entry.present:
            event = partial(of_pause, pause=pause)
            self._announcer.add(("pause",), event, Revision(entry.revision, entry.created))

    def _note_freeze(self, key: str, *, is_stored: bool) -> None:
        (self._listed_freezes.add if is_stored else self._listed_freezes.discard)(key)

    def _take_verdict(self, entry: Entry[str, NodeVerdict], logged: LoggedVerdict | None = None) -> None:
        node, found = entry.key, _Decoded(entry)

        def event(of: Publication) -> Event | None:
            if found.is_invalid:
                return None
            known = self._nodes.get(node)
            created = None if known is None else known.created
            return of_verdict(of, node, found.verdict, node_created=created, policies=self._policies)

        self._announcer.add(("node", node), event, Revision(entry.revision, entry.created), logged)

    async def _follow_log(self) -> None:
        """Reads every revision of the verdicts. Raises BusError."""
        await self._lists_known.wait()
        position = self._position
        if position is not None and position.log == self._streams.log.created:
            begin = LoggedVerdict(None, position.revision, position.sequence)
            # An earlier version has handled the deletions before, and their alerts of stale metrics still fire.
            is_compared = position.ends_metrics and not position.comparing
        else:
            begin, is_compared = await self._log_end(), False
            if position is None:
                # Before the first event of a verdict: whoever goes on after a kill begins at the same revision.
                await self._announcer.store_position(begin, compared=False)
            else:
                # The log alone was replaced.
                await self._note_gap(Lost(VERDICT_LOG.name, position.sequence + 1, self._streams.log.last_sequence))
        if not is_compared:
            await self._take_last_verdicts(begin)
        last = begin.revision or None
        reader = StreamReader(self._bus, VERDICT_LOG, Start(after=begin.sequence))
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                if batch.lost is not None:
                    await self._note_gap(batch.lost)
                    await self._take_last_verdicts(await self._log_end())
                    last = None
                for logged in logged_verdicts(self._bus, batch.messages):
                    if last is not None and logged.revision > last + 1:
                        await self._note_gap(Lost(VERDICTS.stream, last + 1, logged.revision - 1))
                        await self._take_last_verdicts(await self._log_end())
                    last = logged.revision
                    if logged.entry is not None:
                        self._take_verdict(logged.entry, logged)
                if not batch.messages:
                    await self._announcer.flush()
                    self._is_reading = True
                await self._announcer.wait_for_room()

    async def _log_end(self) -> LoggedVerdict:
        """A revision and a sequence of the log behind which the log has every later revision. Raises BusError."""
        sequence = (await self._bus.epoch(VERDICT_LOG)).last_sequence  # first: what is stored now is copied behind it
        return LoggedVerdict(None, (await self._bus.epoch(VERDICTS)).last_sequence, sequence)

    async def _take_last_verdicts(self, until: LoggedVerdict) -> None:
        """Compares the last verdicts up to a revision: the log has the later ones. Raises BusError."""
        found: set[str] = set()
        later: set[str] = set()
        async with aclosing(last_verdicts(self._bus)) as parts:
            async for entries in parts:
                for entry in entries:
                    if entry.revision <= until.revision:
                        self._take_verdict(entry)
                    elif entry.key not in found:
                        later.add(entry.key)
                    found.add(entry.key)
                await self._announcer.wait_for_room()
        async with aclosing(verdicts_at(self._bus, until.revision, later)) as parts:
            async for entries in parts:
                for entry in entries:
                    self._take_verdict(entry)
                await self._announcer.wait_for_room()
        await self._lists_known.wait()  # again: the watch of nodes may have begun anew
        if self._is_cluster:
            for channel in ("violation", "metric"):
                missing = self._announced.nodes(channel) - self._listed_nodes - found
                self._announcer.add_missing(channel, await self._absent(NODE_FACTS, missing), until.revision)
        await self._announcer.flush()
        self._announcer.note_position(until)

    async def _note_gap(self, lost: Lost) -> None:
        """Announces that changes were lost, before anything that follows. Raises BusError."""
        await self._compare_epochs()
        log.warning("events_gap", stream=lost.stream, first=lost.first, last=lost.last)
        self._metrics.gaps.inc()
        await self._announcer.flush()
        data = Gap(stream=lost.stream, first=lost.first, last=lost.last)
        self._announcer.add(("gap",), partial(of_gap, data=data), Revision(lost.last, time.time()))
        await self._announcer.flush()

    async def _check_regularly(self) -> None:
        while True:
            await tick(EPOCH_CHECK_SECONDS)
            await self._compare_epochs()
            await self._end_expired_sources()

    async def _compare_epochs(self) -> None:
        """Raises UnavailableError if the verdicts or their log were replaced."""
        if (await _Streams.of(self._bus)).created != self._streams.created:
            raise UnavailableError("the bus has a new epoch")

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


def _read_up_to(watch: Watch | SyncedWatch) -> int:
    """Up to which revision a watch that has caught up knows its bucket."""
    epoch = watch.status.epoch
    return max(watch.status.applied, 0 if epoch is None else epoch.last_sequence)


def _known_node(facts: NodeFacts) -> _KnownNode:
    return _KnownNode(facts.uid, facts.created_at)


def _known_policy(record: PolicyRecord) -> KnownPolicy:
    policy = record.policy
    return KnownPolicy(record.created, dry_run=policy.suspend or policy.dry_run, uid=record.uid)


def _seconds(created: str) -> float:
    return msgspec.convert(created, datetime).timestamp()
