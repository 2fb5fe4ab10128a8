"""Announces changes: publishes the next event of each change until it has none, and stores the position in the log."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf

import structlog

from bus.connection import Bus
from bus.errors import BusError, ConflictError
from bus.event_position import AnnouncedUpTo, write_position
from bus.events import Expected, last_of, publish_events, why_not_publishable
from bus.subjects import event_subject
from bus.verdict_log import LoggedVerdict
from tas.errors import line_of
from tas.events.announcements import Announcements, thing_of
from tas.events.event import Event
from tas.events.transitions import Epoch, Publication, Revision, of_missing_node
from workers.events.metrics import Metrics
from workers.process.tasks import set_within

log = structlog.get_logger("events")

BATCH = 256
"""Events that are published together."""

CHANGES = 1024
"""Changes that are compared with the announcements before the position is noted."""

MAX_QUEUED = 4096
"""While so many changes are queued, the log of verdicts is not read: it waits on the bus."""

POSITION_SECONDS = 5.0
"""How often the position is stored while verdicts change. After a kill so much of the log is compared again."""

YIELD_CHANGES = 64
"""After so many changes without an event other tasks may run."""

NextEvent = Callable[[Publication], Event | None]
"""The next event by a revision of a record: a function of `tas.events.transitions`."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, and the next event by it, if any. Changes of one group are announced one after the other.

    `logged` is the verdict in the log behind the change.
    """

    group: tuple[str, ...]
    next_event: Callable[[], Event | None]
    stored: float
    logged: LoggedVerdict | None = None


class Announcer:
    """The changes of one session, from its queue to EVENTS."""

    def __init__(
        self,
        bus: Bus,
        metrics: Metrics,
        *,
        announced: Announcements,
        epoch: Epoch,
        streams: tuple[str, str],
        position_sequence: int,
        source: str,
        read_unknown: Callable[[Sequence[Event]], Awaitable[bool]],
    ) -> None:
        """An announcer with an empty queue.

        Args:
            bus: The connection.
            metrics: What was published, and how late.
            announced: What was announced before.
            epoch: The epoch of the bus. It counts as known once a position is stored whose verdicts are compared.
            streams: The times of creation of VERDICTS and VERDICT_LOG, as the server reports them.
            position_sequence: What the next write of the position expects, as from `bus.event_position.read_position`.
            source: The attribute of the events.
            read_unknown: Reads what the events are about, and returns whether something was not known: then the
                events are made again. Raises BusError.
        """
        self._bus = bus
        self._metrics = metrics
        self._announced = announced
        self._epoch = epoch
        self._streams = streams
        self._position_sequence = position_sequence
        self._source = source
        self._read_unknown = read_unknown
        self._queue: deque[_Change] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._done: LoggedVerdict | None = None
        self._written_at = time.monotonic()

    def __len__(self) -> int:
        """Changes that are not announced yet."""
        return len(self._queue)

    def add(
        self, group: tuple[str, ...], event: NextEvent, revision: Revision, logged: LoggedVerdict | None = None
    ) -> None:
        """Adds a change. `logged` is the verdict in the log behind the change."""
        self._add(_Change(group, self._next(event, revision), revision.stored, logged))

    def add_missing(self, channel: str, nodes: Collection[str], revision: int) -> None:
        """Adds that a complete list of the API server does not have these nodes. The list was read up to `revision`."""
        for node in sorted(nodes):
            event = partial(of_missing_node, channel=channel, node=node)
            self.add(("node", node), event, Revision(revision, time.time()))

    async def announce_first(self, event: NextEvent, revision: Revision) -> None:
        """Announces a change before all that is queued. Raises BusError."""
        await self._announce([_Change((), self._next(event, revision), revision.stored)])

    async def wait_for_room(self) -> None:
        """Waits while too many changes are queued."""
        if len(self._queue) > MAX_QUEUED:
            await self.flush()

    async def flush(self) -> None:
        """Waits until all changes are announced."""
        if self._queue:
            await self._idle.wait()

    def note_position(self, done: LoggedVerdict) -> None:
        """All up to this verdict is announced: the position is stored at once."""
        self._done = done
        self._written_at = -inf
        self._wake.set()

    async def run(self) -> None:
        """Announces what is queued, until cancelled. Raises BusError."""
        while True:
            wait = None if self._done is None else max(0.0, self._written_at + POSITION_SECONDS - time.monotonic())
            await set_within(self._wake, wait)
            self._wake.clear()
            while self._queue:
                changes = list(islice(self._queue, CHANGES))
                await self._announce(changes)
                for change in changes:
                    self._queue.popleft()
                    self._done = change.logged or self._done
            self._idle.set()
            if self._done is not None and time.monotonic() - self._written_at >= POSITION_SECONDS:
                await self.store_position(self._done)

    async def store_position(self, done: LoggedVerdict, *, compared: bool = True) -> None:
        """Stores the position; `compared`: whether the last verdicts up to it are. Raises BusError."""
        created, log_created = self._streams
        position = AnnouncedUpTo(
            epoch=created if compared else "",
            log=log_created,
            sequence=done.sequence,
            revision=done.revision,
            comparing="" if compared else created,
            ends_metrics=compared,
        )
        # Before the write: meanwhile another position may be noted, which is the next one to be stored.
        self._written_at, self._done = time.monotonic(), None
        self._position_sequence = await write_position(self._bus, position, expected=self._position_sequence)
        if compared and not self._epoch.is_known:
            self._epoch = self._epoch._replace(is_known=True)
            log.info("events_epoch_known", epoch=self._epoch.name)

    def _next(self, event: NextEvent, revision: Revision) -> Callable[[], Event | None]:
        return lambda: event(Publication(self._announced, self._epoch, revision, source=self._source))

    def _add(self, change: _Change) -> None:
        self._queue.append(change)
        self._idle.clear()
        self._wake.set()

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
        things = {event_subject(event.data): thing_of(event.data) for event in conflicts}
        lost = dict(things)
        for last in await last_of(self._bus, list(things)):  # of a subject also what was published meanwhile
            thing = things[last.subject]
            lost.pop(last.subject, None)
            if last.event is not None and thing_of(last.event.data) == thing:
                self._announced.add(last.event, last.sequence)
            else:  # a later version has published it; the sequence is sufficient to go on
                self._announced.note_unknown(thing, last.sequence)
        for thing in lost.values():
            self._announced.note_lost(thing)


def _due(waiting: deque[_Change]) -> Iterator[tuple[_Change, Event]]:
    """The next event of a group, with its change; changes without an event are dropped."""
    while waiting:
        event = waiting[0].next_event()
        if event is not None:
            yield waiting[0], event
        waiting.popleft()
