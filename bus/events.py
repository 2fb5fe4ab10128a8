"""The public events on the bus: everybody else reads and writes `Event`, and sees no bytes and no headers."""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from bus.buckets import ANNOUNCED, EVENTS
from bus.connection import Bus
from bus.errors import BusError
from bus.pull import Message
from bus.stream_reader import FROM_START, Lost, Start, StreamReader, origin
from bus.subjects import EVENTS as EVENTS_SUBJECT
from bus.subjects import event_subject
from tas.errors import InvalidInputError
from tas.events import cloudevents
from tas.events.data import Unknown
from tas.events.event import Event

ALL_EVENTS = f"{EVENTS_SUBJECT}.>"

MAX_BODY_BYTES = 64 << 10
"""The largest data of an event that is published, and that is read: thousands are held for a sink that is down."""

_SUBJECT = re.compile(r"(?=.{1,2000}\Z)[!-)+,/-=?-~-]+(\.[!-)+,/-=?-~-]+)*")
"""Tokens of printable characters of ASCII, without wildcards, in a subject that fits the server's control line."""


@dataclass(frozen=True, slots=True)
class EventMessage:
    """A stored event. `arrived` is when the server stored it, in seconds since 1970."""

    subject: str
    sequence: int
    arrived: float
    event: Event


@dataclass(frozen=True, slots=True)
class Events:
    """Events that arrived together, in order, as `bus.stream_reader.Batch`. `invalid` has what could not be read."""

    messages: Sequence[EventMessage]
    lost: Lost | None = None
    behind: int = 0
    invalid: Sequence[InvalidInputError] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """An event to be published if the last sequence of its subject in EVENTS is still `sequence` (0: none)."""

    event: Event
    sequence: int

    @property
    def subject(self) -> str:
        """The subject of the event."""
        return event_subject(self.event.data)


def why_not_publishable(event: Event) -> str:
    """Why the server would not accept an event, or an empty text. Its names are from records of any writer."""
    if _SUBJECT.fullmatch(event_subject(event.data)) is None:
        return "a name is not valid"
    return f"more than {MAX_BODY_BYTES} bytes" if len(cloudevents.body(event)) > MAX_BODY_BYTES else ""


async def publish_events(bus: Bus, events: Sequence[Expected]) -> list[int | BusError]:
    """Publishes up to a few hundred events of different subjects together; a sequence or an error for each.

    The error is a ConflictError if another publisher was first. Raises UnavailableError if some answers are missing:
    each event may be stored.
    """
    return await bus.publish_each(
        EVENTS,
        [
            (
                each.subject,
                cloudevents.body(each.event),
                cloudevents.headers(each.event) | {"Nats-Expected-Last-Subject-Sequence": str(each.sequence)},
            )
            for each in events
        ],
    )


class EventReader:
    """Reads events in order: all, or those of `filters`, which `bus.subjects.selection_filters` makes."""

    def __init__(self, bus: Bus, start: Start, *, filters: Sequence[str] = (ALL_EVENTS,), batch: int = 256) -> None:
        self._reader = StreamReader(bus, EVENTS, start, filters=filters, batch=batch)

    async def batches(self) -> AsyncGenerator[Events, None]:
        """As `StreamReader.batches`."""
        async with aclosing(self._reader.batches()) as batches:
            async for batch in batches:
                messages, invalid = decoded(batch.messages)
                yield Events(messages, batch.lost, batch.behind, invalid)

    async def stored(self) -> AsyncGenerator[Events, None]:
        """As `StreamReader.stored`."""
        async with aclosing(self._reader.stored()) as batches:
            async for batch in batches:
                messages, invalid = decoded(batch.messages)
                yield Events(messages, batch.lost, batch.behind, invalid)


def decoded(messages: Sequence[Message]) -> tuple[list[EventMessage], list[InvalidInputError]]:
    """The events of messages, and an error for each that has none."""
    found: list[EventMessage] = []
    invalid: list[InvalidInputError] = []
    for message in messages:
        if (size := len(message.data)) > MAX_BODY_BYTES:
            reason = f"must have at most {MAX_BODY_BYTES} bytes"
            invalid.append(InvalidInputError(f"event {message.subject}", "body", size, reason))
            continue
        try:
            event = cloudevents.decode(message.headers, message.data)
        except InvalidInputError as error:
            invalid.append(error)
        else:
            found.append(EventMessage(message.subject, message.sequence, message.arrived, event))
    return found, invalid


async def last_events(bus: Bus, channel: str = "") -> list[EventMessage]:
    """The last event of each subject, or of those of a channel, also if EVENTS no longer has it. Raises BusError.

    ANNOUNCED may be late, as after a restart of the server: what it does not have yet is read from EVENTS.
    `sequence` is that in EVENTS.
    """
    found: dict[str, EventMessage] = {}
    copied = 0
    of = f"{EVENTS_SUBJECT}.{channel}.>" if channel else ALL_EVENTS
    async for batch in StreamReader(bus, ANNOUNCED, FROM_START, filters=(of,)).stored():
        for message in batch.messages:
            copied = max(copied, origin(message))
            events, _ = decoded([message])
            found |= {each.subject: replace(each, sequence=origin(message)) for each in events}
    # If the copy was replaced, and is empty, the last event of each subject is a small part of EVENTS.
    start = Start(after=copied) if copied else Start(last_per_subject=True)
    async for later in EventReader(bus, start, filters=(of,)).stored():
        found |= {each.subject: each for each in later.messages}
    return list(found.values())


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The last event of a subject; None if this version does not know its type, or cannot read it."""

    subject: str
    sequence: int
    event: Event | None


async def last_of(bus: Bus, subjects: Sequence[str]) -> list[LastEvent]:
    """The last event of each of these subjects that EVENTS has, by its leader. Raises BusError."""
    found: list[LastEvent] = []
    async for batch in StreamReader(bus, EVENTS, Start(last_per_subject=True), filters=subjects).stored():
        for message in batch.messages:
            events, _ = decoded([message])
            event = next((each.event for each in events if not isinstance(each.event.data, Unknown)), None)
            found.append(LastEvent(message.subject, message.sequence, event))
    return found
