"""Overtakes the backlog of a shared consumer: a burst of messages must not delay the messages behind the burst.

A second consumer, without acknowledgements, receives the messages ahead of the shared one, and hands them on with the
smallest first (samples of a node), or the newest of each subject and of each source in turn (tables): a message of
16 kB is received in microseconds, but it takes a millisecond to handle. It may leave out any message, since the shared
consumer delivers every message. So what it keeps in memory has limits.
"""

import asyncio
import heapq
import time
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import structlog

from bus.buckets import NANOSECONDS, Stream
from bus.connection import Bus
from bus.errors import BusError
from bus.link import CALL_SECONDS
from bus.pull import Message, Pull

log = structlog.get_logger(__name__)

BEHIND_MESSAGES = 500
"""A backlog of more messages is overtaken if at most half as many subjects are in a batch."""

LARGE_BYTES = 2 << 10
"""The mean size of large messages."""

BEHIND_BYTES = 2 << 20
"""A backlog of more bytes is overtaken if its messages are large."""

FAR_BEHIND_MESSAGES = 20_000
"""A larger backlog is overtaken whatever it is, beginning with the last message of each subject."""

BATCH = 512
"""The messages of one request, also the most that wait in the client."""

CHUNK_BYTES = 64 << 10
CHUNK_MESSAGES = 64
"""After so much is handled, it is checked whether new messages have arrived."""

SMALL_CHUNK_BYTES = 8 << 10
"""The same while messages arrive: small messages are handled at once, and receiving continues."""

TURN_BYTES = 256 << 10
"""At least so much of the newest messages is handled at once: of each subject only one waits."""

HELD_BYTES = 32 << 20
"""The most bytes that wait: beyond this, messages of whoever has the most are left out."""

HELD_MESSAGES = 20_480
"""The most messages that wait: more than the largest cluster has nodes."""

STEP_BYTES = 64
"""Messages larger than `EQUAL_BYTES` have their turn by their size in steps of so many bytes."""

MESSAGE_BYTES = 512
"""So much counts for each message beside its data: without data it takes a third more memory, for its subject too."""

SUBJECT_BYTES = 64 << 10
"""The most bytes of one subject that wait, except for a single message: its newest messages."""

EQUAL_BYTES = 4 << 10
"""Single messages up to this size are equal: a sample with 200 metrics is not left out for one without any."""

RECEIVE_SECONDS = 0.05
"""While messages arrive, some of those that wait are handled after so long."""

WAIT_SECONDS = 2.0
"""The longest wait of the shared consumer for this one."""

INACTIVE_SECONDS = 10
"""The server deletes the consumer after so long without a request."""


class Overtaking:
    """Hands on messages ahead of a shared consumer while that one is behind.

    `handler` gets messages that the shared consumer delivers as well, earlier or later. Its BusError is ignored.
    """

    def __init__(
        self,
        bus: Bus,
        stream: Stream,
        handler: Callable[[Sequence[Message]], Awaitable[None]],
        *,
        held: "Callable[[], Held]",
        batch: int = BATCH,
    ) -> None:
        """`held` returns what keeps the messages that wait; at most `batch` others wait in the client."""
        self._held = held
        self._batch = batch
        self._bus = bus
        self._stream = stream
        self._handler = handler
        self._behind = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._last: Message | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._behind.wait()
            await self._bus.wait_connected()
            try:
                await self._overtake()
            except BusError as error:
                log.info("overtaking_interrupted", stream=self._stream.name, error=str(error))
                await asyncio.sleep(1.0)
            finally:
                self._idle.set()

    async def give_way(self, messages: Sequence[Message]) -> None:
        """Notes the backlog after a batch of the shared consumer, and waits while newer messages are handled."""
        self._last = messages[-1]
        if is_overtaken(messages):
            if not self._behind.is_set():
                log.info("backlog_overtaken", stream=self._stream.name, pending=self._last.pending)
                self._idle.clear()
            self._behind.set()
        elif not self._last.pending:
            self._behind.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                await self._idle.wait()

    async def _overtake(self) -> None:
        """Hands on messages over one consumer until the backlog has ended. Raises BusError."""
        held = self._held()
        name, bound = await self._create(far=held.far)
        pull = Pull(self._bus.link, self._stream.stream, name, batch=self._batch)
        try:
            await pull.open()
            pending, handled_at = 1, time.monotonic()
            while self._behind.is_set() or len(held):
                messages = pull.take() if len(held) and not pending else await pull.next()
                for message in messages:
                    held.add(message)
                    pending = message.pending
                if pending > bound:
                    return  # the next consumer begins with the last message of each subject
                if not pending or time.monotonic() > handled_at + RECEIVE_SECONDS:
                    handled_at = time.monotonic()
                    with suppress(BusError):  # the shared consumer delivers these messages, too
                        await self._handler(held.take(SMALL_CHUNK_BYTES if pending else CHUNK_BYTES))
                    await asyncio.sleep(0)  # lets the client receive
                if len(held):
                    self._idle.clear()
                elif not pending:
                    self._idle.set()
        finally:
            await pull.close()
            await self._delete(name)

    async def _create(self, *, far: int) -> tuple[str, int]:
        """Creates the consumer; returns its name, and how many messages it may be behind. Raises BusError."""
        (subject,) = self._stream.subjects
        config: dict[str, Any] = {
            "filter_subject": subject,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "inactive_threshold": INACTIVE_SECONDS * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        last = self._last
        if last is not None and last.pending <= far:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": last.sequence + 1}
        name, created = await self._bus.create_consumer(
            self._stream.stream, config, prefix="overtaking", filter_subject=subject
        )
        return name, int(created["num_pending"]) + max(far, self._batch)

    async def _delete(self, name: str) -> None:
        with suppress(BusError):  # the server deletes it after a while
            await self._bus.link.api(f"CONSUMER.DELETE.{self._stream.stream}.{name}", seconds=CALL_SECONDS)


def is_overtaken(messages: Sequence[Message]) -> bool:
    """Whether the backlog behind these messages delays others."""
    pending = messages[-1].pending
    few = 2 * len({message.subject for message in messages}) <= len(messages)
    mean = sum(len(message.data) for message in messages) / len(messages)
    return (
        pending > FAR_BEHIND_MESSAGES
        or (few and pending > BEHIND_MESSAGES)
        or (mean > LARGE_BYTES and pending * mean > BEHIND_BYTES)
    )


class Held(Protocol):
    """Messages that wait.

    Attributes:
        far: A larger backlog is overtaken beginning with the last message of each subject.
    """

    far: int

    def __len__(self) -> int: ...

    def add(self, message: Message) -> None:
        """Adds a message, and may leave out others."""
        ...

    def take(self, limit: int = CHUNK_BYTES) -> list[Message]:
        """Removes and returns those that are handled next, of about `limit` bytes."""
        ...


class _Largest:
    """Names with weights. Of those with about the largest weight, the one that has had it longest is found at once.

    About: to a factor of two. So a change of a weight takes the same few steps, however many names there are.
    """

    def __init__(self) -> None:
        self._levels: list[OrderedDict[str, None]] = []
        self._level: dict[str, int] = {}

    def put(self, name: str, weight: int) -> None:
        """Sets the weight of a name."""
        level, before = weight.bit_length(), self._level.get(name)
        if level != before:
            self.drop(name)
            while len(self._levels) <= level:
                self._levels.append(OrderedDict())
            self._levels[level][name] = None
            self._level[name] = level

    def drop(self, name: str) -> None:
        """Forgets a name; one that is not known is fine."""
        if (level := self._level.pop(name, None)) is not None:
            del self._levels[level][name]

    def first(self) -> str:
        """A name with about the largest weight; there must be one."""
        return next(next(iter(level)) for level in reversed(self._levels) if level)


class _Group:
    """The messages of an owner that wait: their bytes, and its subjects by what the oldest message of each has."""

    __slots__ = ("bytes", "subjects")

    def __init__(self) -> None:
        self.bytes = 0
        self.subjects = _Largest()


class HeldMessages:
    """Messages that wait, to be taken with the smallest first; of one size, the oldest first.

    Each message has a share: the bytes of its subject that are newer, and its own if they are more than `EQUAL_BYTES`.
    Beyond the limits, of the owner with about the most bytes the oldest message of the subject with about the largest
    share is left out. Of equal ones it is the oldest, which the shared consumer delivers next.
    """

    def __init__(self) -> None:
        self.far = FAR_BEHIND_MESSAGES
        self._count = 0
        self._subjects: dict[str, OrderedDict[int, Message]] = {}
        self._bytes: defaultdict[str, int] = defaultdict(int)
        self._owners: dict[str, _Group] = {}
        self._largest = _Largest()
        self._places: dict[int, OrderedDict[int, Message]] = {}
        self._order: list[int] = []  # each place once, also those that have become empty since
        self._ordered: set[int] = set()
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, message: Message) -> None:
        """Adds a message; if too many wait, leaves out older ones of its subject, or of the nodes with the most."""
        subject, size, place = message.subject, _size(message), _place(message)
        of_subject = self._subjects.setdefault(subject, OrderedDict())
        of_subject[message.sequence] = message
        self._places.setdefault(place, OrderedDict())[message.sequence] = message
        if place not in self._ordered:
            self._ordered.add(place)
            heapq.heappush(self._order, place)
        self._count += 1
        self._bytes[subject] += size
        self._owners.setdefault(_owner(message), _Group()).bytes += size
        self.bytes += size
        self._weigh(message)
        while self._bytes[subject] > SUBJECT_BYTES and len(of_subject) > 1:
            self._remove(next(iter(of_subject.values())))
        while self._count > 1 and (self.bytes > HELD_BYTES or self._count > HELD_MESSAGES):
            self._remove(self._oldest_of(self._owners[self._largest.first()]))

    def take(self, limit: int = CHUNK_BYTES) -> list[Message]:
        """Removes and returns the smallest messages, as many as are handled at once, of about `limit` bytes."""
        taken: list[Message] = []
        size = 0
        while self._order and len(taken) < CHUNK_MESSAGES and size < limit:
            waiting = self._places.get(self._order[0])
            if waiting is None:
                self._ordered.remove(heapq.heappop(self._order))
            else:
                taken.append(next(iter(waiting.values())))
                self._remove(taken[-1])
                size += len(taken[-1].data)
        return taken

    def _oldest_of(self, group: _Group) -> Message:
        return next(iter(self._subjects[group.subjects.first()].values()))

    def _remove(self, message: Message) -> None:
        subject, owner, place = message.subject, _owner(message), _place(message)
        of_subject, at_place = self._subjects[subject], self._places[place]
        del of_subject[message.sequence], at_place[message.sequence]
        if not at_place:
            del self._places[place]
        self._count -= 1
        self.bytes -= _size(message)
        self._bytes[subject] -= _size(message)
        group = self._owners[owner]
        group.bytes -= _size(message)
        if not of_subject:
            del self._subjects[subject], self._bytes[subject]
            group.subjects.drop(subject)
        if group.bytes:
            self._weigh(message)
        else:
            del self._owners[owner]
            self._largest.drop(owner)

    def _weigh(self, message: Message) -> None:
        """Sets the weights of the subject and of the owner of a message, which has been added or removed."""
        subject, owner = message.subject, _owner(message)
        group = self._owners[owner]
        if (of_subject := self._subjects.get(subject)) is not None:
            group.subjects.put(subject, _share(self._bytes[subject], next(iter(of_subject.values()))))
        self._largest.put(owner, _share(group.bytes, self._oldest_of(group)))


class NewestMessages:
    """The newest message of each subject, to be taken one of each source in turn: all but the subject's last token.

    A source with many subjects, or with many messages, delays no other one by more than one message in each turn. The
    subject that has waited longest comes first, so each of a source's subjects has its turn, too.
    """

    def __init__(self) -> None:
        self.far = 0
        self._sources: OrderedDict[str, OrderedDict[str, Message]] = OrderedDict()
        self._bytes: defaultdict[str, int] = defaultdict(int)
        self._largest = _Largest()
        self._count = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, message: Message) -> None:
        """Adds a message in place of that of its subject; beyond the limit leaves out some of the largest sources."""
        source = _owner(message)
        waiting = self._sources.setdefault(source, OrderedDict())
        before = waiting.get(message.subject)
        waiting[message.subject] = message  # at the place of the one before
        more = _size(message) - (0 if before is None else _size(before))
        self._count += before is None
        self._bytes[source] += more
        self.bytes += more
        self._weigh(source)
        while self._count > 1 and (self.bytes > HELD_BYTES or self._count > HELD_MESSAGES):
            self._remove(next(iter(self._sources[self._largest.first()].values())))

    def take(self, limit: int = CHUNK_BYTES) -> list[Message]:
        """Removes and returns one message of each source, or less: about `limit` or `TURN_BYTES`. Others come next."""
        taken: list[Message] = []
        size = 0
        for source in tuple(self._sources):
            if len(taken) == CHUNK_MESSAGES or size >= max(limit, TURN_BYTES):
                break
            taken.append(next(iter(self._sources[source].values())))
            self._remove(taken[-1])
            size += len(taken[-1].data)
            if source in self._sources:  # it is the last one of the next turn
                self._sources.move_to_end(source)
        return taken

    def _remove(self, message: Message) -> None:
        source = _owner(message)
        del self._sources[source][message.subject]
        self._count -= 1
        self._bytes[source] -= _size(message)
        self.bytes -= _size(message)
        if self._sources[source]:
            self._weigh(source)
        else:
            del self._sources[source], self._bytes[source]
            self._largest.drop(source)

    def _weigh(self, source: str) -> None:
        """Sets the weight of a source, some of whose messages wait."""
        self._largest.put(source, _share(self._bytes[source], next(iter(self._sources[source].values()))))


def _size(message: Message) -> int:
    """What counts of a message that waits."""
    return len(message.data) + MESSAGE_BYTES


def _place(message: Message) -> int:
    """When a message has its turn: the smallest ones first, large ones in steps.

    There are few places, whatever the sizes are.
    """
    size = len(message.data)
    return size if size <= EQUAL_BYTES else EQUAL_BYTES + size // STEP_BYTES


def _share(of_group: int, oldest: Message) -> int:
    """The share of the oldest message of a group that has so many bytes."""
    size = _size(oldest)
    return of_group if size > EQUAL_BYTES else of_group - size


def _owner(message: Message) -> str:
    """The node of samples or the source of a table, with what is before it in the subject."""
    return message.subject.rpartition(".")[0]
