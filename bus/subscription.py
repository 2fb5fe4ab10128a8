"""Events for programs of your own: `async with Subscription(...) as events: async for event in events: ...`.

The server remembers by the name of a subscription how far it has come. An event is acknowledged when the body of the
loop has ended. So each event is handled at least once, in order, and one at a time.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import structlog

from bus.buckets import EVENTS, NANOSECONDS
from bus.connection import CALL_SECONDS, Bus
from bus.dead_letters import DeadLetter, publish_dead_letter
from bus.errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, BusError, none_if
from bus.events import decoded
from bus.pull import Message, Pull
from bus.rights.access import Access
from bus.stream_reader import Start
from bus.subjects import selection_filters
from tas.errors import InvalidInputError, line_of
from tas.events.data import Data, Unknown
from tas.events.event import Event, lost_event
from tas.events.selection import Selection, parse_policy_name
from tas.values.backoff import Backoff

log = structlog.get_logger(__name__)

ACK_SECONDS = 30.0
"""After so long without a sign of life from this process, the server delivers an event again."""

SLOW_SECONDS = 600.0
"""A body of the loop that takes longer is reported, and the server may deliver its event to another replica."""

NOTE_SECONDS = 60.0
"""How often a subscription notes on the server how far it has come.

The server's own mark does not do: it passes events that were deleted, and not those that are for others.
"""

FORGET_SECONDS = 60.0
"""No event is deleted by a limit of EVENTS within this time."""

ATTEMPTS = 10
RETRY = Backoff(first=1.0, longest=60.0)
"""Ten attempts take about four minutes."""

ATTACH = Backoff(first=0.1, longest=5.0)
"""The waits after failures to attach."""

NOTED = "tas-sequence"
"""The metadata of the consumer with the sequence up to which the subscription has come."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ACK, _NAK, _IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class _Position(NamedTuple):
    """The epoch of EVENTS, and the sequence up to which every event is done, is not wanted, or was reported as lost."""

    epoch: str
    sequence: int


@dataclass(slots=True)
class Counts:
    """What became of the events of a subscription since the process began, for the metrics of the program.

    Attributes:
        done: Events whose body of the loop has ended.
        retried: Calls of `retry` after which the event comes again.
        dead_letters: Events that were given up.
        gaps: How often events were lost.
        skipped: Events that only restate what is, and were not wanted.
        waiting: Events that waited on the server when the last one arrived; filters may leave some of them out.
    """

    done: int = 0
    retried: int = 0
    dead_letters: int = 0
    gaps: int = 0
    skipped: int = 0
    waiting: int = 0


class Subscription:
    """A subscription to the public events, as an async iterator of `Event`.

    The body of the loop decides what becomes of an event. When the body has ended, also by `continue` or `break`, the
    event is done. After `await events.retry(error)` the event comes again, after a wait that doubles. Meanwhile no
    other event comes, since an older event must not be handled after a newer one. After the last attempt the event
    becomes a dead letter. An exception that leaves `async with` counts as `retry`. If the process is killed, the
    event comes again. Of several processes with the same name, one gets the next event.

    A `Gap` says that events were lost to this subscription: read what is stored now, and continue. While server or
    bus are lost, the loop waits.

    Attributes:
        counts: What became of the events so far.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        of: Collection[type[Data]] = (),
        node: str = "",
        policy: str = "",
        since_seconds: float | None = None,
        resync: bool = False,
        attempts: int = ATTEMPTS,
        retry: Backoff = RETRY,
        access: Access | None = None,
    ) -> None:
        """A subscription; nothing is sent before `async with`.

        Args:
            url: The address of the bus, as for `Bus.connect`.
            name: The name of the subscription on the server: 1 to 64 letters, digits, `-` and `_`.
            of: The types of data, such as `ViolationStarted`; none means all. A `Gap` always comes.
            node: Only events about this node.
            policy: Only events about policies with this name, or about `NAMESPACE/NAME`.
            since_seconds: How old the first event may be when the name is used for the first time. Default: only
                new events.
            resync: Whether events come that only restate what is, after a wipe of the bus. An automation that acts
                on transitions must not get them.
            attempts: How often an event is delivered at most.
            retry: The waits between the attempts.
            access: The files with credentials and certificates, as for `Bus.connect`.
        Raises InvalidInputError.
        """
        if not _NAME.fullmatch(name):
            raise InvalidInputError("subscription", "name", name, "must be 1 to 64 letters, digits, - and _")
        namespace, policy_name = parse_policy_name(policy) if policy else ("", "")
        self.name = name
        self.counts = Counts()
        self._selection = Selection(of=tuple(of), node=node, namespace=namespace, policy=policy_name)
        self._url = url
        self._access = access
        self._since_seconds = since_seconds
        self._resync = resync
        self._attempts = attempts
        self._retry = retry
        self._stack = AsyncExitStack()
        self._bus: Bus | None = None
        self._pull: Pull | None = None
        self._position: _Position | None = None
        self._from_start = False
        self._is_caught_up = False
        self._ready: deque[tuple[Event, Message | None]] = deque()
        self._current: Message | None = None  # of the event that the body of the loop has
        self._held: Message | None = None  # delivered, and not answered yet
        self._held_since = 0.0
        self._unconfirmed: tuple[str, bytes] | None = None  # the reply subject and the answer to it
        self._failures = 0
        self._skipped = 0

    @property
    def bus(self) -> Bus:
        """The connection, to read what is stored on the bus."""
        assert self._bus is not None, "use `async with`"
        return self._bus

    @property
    def lag_seconds(self) -> float:
        """How long ago the event that the body of the loop has was stored; 0 without an event."""
        return 0.0 if self._held is None else max(0.0, time.time() - self._held.arrived)

    async def __aenter__(self) -> Self:
        """Connects in the background: the first event waits until a server answers."""
        connecting = Bus.connect(self._url, name=f"tas-events-{self.name}", streams=(), access=self._access)
        self._bus = await self._stack.enter_async_context(connecting)
        keeping = asyncio.create_task(self._keep(), name=f"subscription {self.name}")
        self._stack.callback(keeping.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settles the last event, and gives back events that were not handed out."""
        try:
            with suppress(BusError):
                await self._detach()  # before: else the event may come again to this process, and lose an attempt
            with suppress(BusError):
                if self._current is not None and isinstance(error, Exception):
                    log.error("event_handler_failed", subscription=self.name, error=repr(error))
                    await self.retry(error)
                elif self._current is not None and error is None:
                    await self._done(self._current)
                elif self._current is not None:
                    await self._settle(self._current, _NAK)
                elif self._held is not None:
                    await self._settle(self._held, _NAK)
                await self._note()
        finally:
            await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """The next event; the one before is done, unless `retry` was called."""
        if self._current is not None:
            await self._done(self._current)
        while not self._ready:
            try:
                if self._pull is None:
                    await self._attach()
                assert self._pull is not None
                for message in await self._pull.next():
                    await self._receive(message)
            except BusError as error:
                await self._interrupted(error)
        event, self._current = self._ready.popleft()
        return event

    async def retry(self, reason: object) -> None:
        """The event could not be handled: it comes again later, or becomes a dead letter after its last attempt.

        `reason` is an error or a text, for the log and the dead letter. A `Gap` does not come again.
        """
        message = self._current
        if message is None:
            return
        text = line_of(str(reason) or type(reason).__name__)
        if message.deliveries >= self._attempts:
            await self._give_up(message, text)
            return
        self.counts.retried += 1
        seconds = self._retry.after(message.deliveries)
        log.warning(
            "event_retried",
            subscription=self.name,
            sequence=message.sequence,
            attempt=message.deliveries,
            seconds=round(seconds, 1),
            error=text,
        )
        await self._settle(message, _nak(seconds))

    async def _receive(self, message: Message) -> None:
        """Takes a message: its event becomes ready, or the message is settled."""
        assert self._position is not None
        now = asyncio.get_running_loop().time()
        idle_seconds = now - self._held_since
        self._held, self._held_since = message, now
        self.counts.waiting = message.pending
        if message.sequence <= self._position.sequence:  # done, but the acknowledgement was lost
            await self._settle(message, _ACK)
            return
        others_between = message.sequence > self._position.sequence + 1
        if others_between and not (self._is_caught_up and idle_seconds < FORGET_SECONDS):
            state = (await self.bus.api(f"STREAM.INFO.{EVENTS.stream}"))["state"]
            self._pass_gap(min(message.sequence, state["first_seq"]))
        self._is_caught_up = message.pending == 0
        if message.deliveries > self._attempts:  # every time, the process ended before the body did
            await self._give_up(message, "the process ended while it handled the event")
            return
        event = self._wanted(message)
        if self._skipped and (event is not None or self._is_caught_up):
            log.info("resync_events_skipped", subscription=self.name, events=self._skipped)
            self._skipped = 0
        if event is None:
            await self._settle(message, _ACK)
        else:
            self._ready.append((event, message))

    def _wanted(self, message: Message) -> Event | None:
        """The event of a message if it is for the body of the loop."""
        found, invalid = decoded([message])
        for error in invalid:
            log.warning("event_unreadable", subscription=self.name, sequence=message.sequence, error=str(error))
        for each in found:
            if isinstance(each.event.data, Unknown):
                log.warning(
                    "event_type_unknown",
                    subscription=self.name,
                    sequence=message.sequence,
                    type=line_of(each.event.type),
                )
            elif not self._selection.selects(each.event.data):
                continue
            elif each.event.resync and not self._resync:
                self._skipped += 1
                self.counts.skipped += 1
            else:
                return each.event
        return None

    async def _done(self, message: Message) -> None:
        self.counts.done += 1
        await self._settle(message, _ACK)

    async def _settle(self, message: Message, answer: bytes) -> None:
        """Answers the server; an answer that it does not confirm is sent again after the interruption."""
        self._current = self._held = None
        if answer == _ACK:
            self._advance(message.sequence)
        self._unconfirmed = (message.reply, answer)
        with suppress(BusError):
            await self._confirm()

    async def _confirm(self) -> None:
        if self._unconfirmed is not None:
            reply, answer = self._unconfirmed
            await self.bus.link.request(reply, answer, seconds=CALL_SECONDS)
            self._unconfirmed = None

    async def _give_up(self, message: Message, reason: str) -> None:
        """Stores a dead letter, and only then acknowledges the event."""
        letter = DeadLetter(self.name, reason, message.deliveries, message.sequence)
        try:
            await publish_dead_letter(self.bus, letter, message.headers, message.data)
        except BusError as error:
            log.warning("dead_letter_not_stored", subscription=self.name, sequence=message.sequence, error=str(error))
            await self._settle(message, _nak(self._retry.longest))
            return
        self.counts.dead_letters += 1
        log.error("event_dead_lettered", subscription=self.name, sequence=message.sequence, error=reason)
        await self._settle(message, _ACK)

    async def _attach(self) -> None:
        """Finds or creates the durable consumer, and begins to receive. Raises BusError."""
        await self.bus.wait_connected()
        try:
            info = await self.bus.api(f"STREAM.INFO.{EVENTS.stream}")
        except BusError as error:
            self._from_start = self._from_start or error.code == STREAM_NOT_FOUND
            raise
        epoch, state = info["created"], info["state"]
        known = self._position
        wiped = known is not None and known.epoch != epoch
        if known is not None:
            start = Start(after=state["first_seq"] - 1 if wiped else known.sequence)
        elif self._from_start:
            start = Start(after=state["first_seq"] - 1)
        elif self._since_seconds is not None:
            start = Start(time=time.time() - self._since_seconds)
        else:
            start = Start(after=state["last_seq"])
        found = await self._ensure(start)
        if not wiped:
            with suppress(BusError):  # the consumer may be a new one: then the event is recognized by its sequence
                await self._confirm()
        self._unconfirmed = None
        acknowledged = found["ack_floor"]["stream_seq"]
        if wiped and known is not None:
            self._report_gap(known.sequence + 1, state["first_seq"] - 1)
        if known is None or wiped:
            noted = int(found["config"].get("metadata", {}).get(NOTED, 0))
            self._position = _Position(epoch, noted or acknowledged)
        self._pass_gap(state["first_seq"])
        self._advance(acknowledged)
        self._is_caught_up = found["num_pending"] == found["num_ack_pending"] == 0
        self._pull = Pull(self.bus.link, EVENTS.stream, self.name, batch=1)
        await self._pull.open()
        self._failures = 0

    async def _ensure(self, start: Start) -> dict[str, Any]:
        """The consumer; created if missing, updated if this process selects other events. Raises BusError."""
        config: dict[str, Any] = {
            "ack_policy": "explicit",
            "ack_wait": int(ACK_SECONDS * NANOSECONDS),
            "max_ack_pending": 1,  # an older event never comes after a newer one
            "max_deliver": -1,
            "filter_subjects": selection_filters(self._selection),
        }
        found = await none_if(CONSUMER_NOT_FOUND, self.bus.api(f"CONSUMER.INFO.{EVENTS.stream}.{self.name}"))
        if found is None:
            log.info("subscription_created", subscription=self.name)
            return await self._write(config | start.configuration(), "create")
        if any(found["config"].get(field) != value for field, value in config.items()):
            return await self._write(found["config"] | config, "update")
        return found

    async def _write(self, config: Mapping[str, Any], action: Literal["create", "update"]) -> dict[str, Any]:
        return await self.bus.write_durable(EVENTS.stream, self.name, config, action=action)

    def _pass_gap(self, first: int) -> None:
        """Reports what is missing between the position and `first`, the next sequence that is stored."""
        assert self._position is not None
        if first > self._position.sequence + 1:
            self._report_gap(self._position.sequence + 1, first - 1)
            self._advance(first - 1)

    def _advance(self, sequence: int) -> None:
        if self._position is not None and sequence > self._position.sequence:
            self._position = self._position._replace(sequence=sequence)

    def _report_gap(self, first: int, last: int) -> None:
        self.counts.gaps += 1
        log.warning("events_lost", subscription=self.name, first=first, last=last)
        self._ready.append((lost_event(EVENTS.stream, first, last, now=time.time()), None))

    async def _interrupted(self, error: BusError) -> None:
        """Waits before the next attempt to attach."""
        if not self._failures:
            log.warning("subscription_interrupted", subscription=self.name, error=str(error))
        self._failures += 1
        await self._detach()
        await asyncio.sleep(ATTACH.after(self._failures))

    async def _detach(self) -> None:
        pull, self._pull = self._pull, None
        if pull is None:
            return
        for message in await pull.drain():
            with suppress(BusError):
                await self.bus.link.send(message.reply, _NAK)  # another replica can have it at once

    async def _keep(self) -> None:
        """Tells the server that this process still handles its event, and how far the subscription has come."""
        loop = asyncio.get_running_loop()
        noted = loop.time()
        reported: Message | None = None
        while True:
            await asyncio.sleep(ACK_SECONDS / 3)
            message = self._held
            with suppress(BusError):
                if message is not None and loop.time() - self._held_since < SLOW_SECONDS:
                    await self.bus.link.send(message.reply, _IN_PROGRESS)
                elif message is not None and message is not reported:
                    reported = message
                    log.warning("event_handler_slow", subscription=self.name, sequence=message.sequence)
                if loop.time() - noted > NOTE_SECONDS:
                    noted = loop.time()
                    await self._note()

    async def _note(self) -> None:
        """Notes the position, or the end of the stream if no event waits. Raises BusError."""
        epoch = await self.bus.epoch(EVENTS)
        found = await self.bus.api(f"CONSUMER.INFO.{EVENTS.stream}.{self.name}")
        if self._position is None or self._position.epoch != epoch.created:
            return
        if found["num_pending"] == found["num_ack_pending"] == 0:
            self._advance(epoch.last_sequence)
        metadata = found["config"].get("metadata", {})
        if metadata.get(NOTED) != (sequence := str(self._position.sequence)):
            await self._write(found["config"] | {"metadata": metadata | {NOTED: sequence}}, "update")


def _nak(seconds: float) -> bytes:
    return b'%s {"delay": %d}' % (_NAK, seconds * NANOSECONDS)
