"""The public events on the bus: everybody else reads and writes `Event`, and sees no bytes and no headers."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from bus.buckets import ANNOUNCED, EVENTS
from bus.connection import Bus
from bus.errors import BusError
from bus.pull import Message
from bus.stream_reader import FROM_START, Lost, Start, StreamReader
from bus.subjects import EVENTS as EVENTS_SUBJECT
from bus.subjects import event_subject
from tas.errors import InvalidInputError
from tas.events import cloudevents
from tas.events.event import Event

__all__ = ["ALL_EVENTS", "EventMessage", "EventReader", "Events", "Expected", "Lost", "Start", "publish_events"]

ALL_EVENTS = f"{EVENTS_SUBJECT}.>"

ORIGIN_HEADER = "Nats-Stream-Source"
"""The server's header on a message that was copied from another stream; the second word is the sequence there."""


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
        async for batch in self._reader.batches():
            messages, invalid = decoded(batch.messages)
            yield Events(messages, batch.lost, batch.behind, invalid)

    async def stored(self) -> AsyncGenerator[Events, None]:
        """As `StreamReader.stored`."""
        async for batch in self._reader.stored():
            messages, invalid = decoded(batch.messages)
            yield Events(messages, batch.lost, batch.behind, invalid)


def decoded(messages: Sequence[Message]) -> tuple[list[EventMessage], list[InvalidInputError]]:
    """The events of messages, and an error for each that has none."""
    found: list[EventMessage] = []
    invalid: list[InvalidInputError] = []
    for message in messages:
        try:
            event = cloudevents.decode(message.headers, message.data)
        except InvalidInputError as error:
            invalid.append(error)
        else:
            found.append(EventMessage(message.subject, message.sequence, message.arrived, event))
    return found, invalid


async def last_events(bus: Bus) -> list[EventMessage]:
    """The last event of each subject, also if EVENTS no longer has it. Raises BusError.

    `sequence` is that in EVENTS.
    """
    found: list[EventMessage] = []
    async for batch in StreamReader(bus, ANNOUNCED, FROM_START, filters=(ALL_EVENTS,)).stored():
        for message in batch.messages:
            events, _ = decoded([message])
            found += (EventMessage(each.subject, _origin(message), each.arrived, each.event) for each in events)
    return found


def _origin(message: Message) -> int:
    words = (message.headers or {}).get(ORIGIN_HEADER, "").split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
