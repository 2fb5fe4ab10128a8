"""What was last announced about each thing: the memory of the publisher, read from the stream of events itself."""

from collections.abc import Iterator
from typing import NamedTuple

from tas.events.data import (
    BreakerReset,
    Data,
    LabelRemoved,
    LabelsResumed,
    MetricEnded,
    MetricFresh,
    PolicyRemoved,
    SourceBack,
    ViolationEnded,
)
from tas.events.event import Event

Thing = tuple[str, ...]
"""A channel and the names of its data: the events of one thing share a subject."""

ENDS = (
    ViolationEnded,
    MetricFresh,
    MetricEnded,
    LabelRemoved,
    SourceBack,
    PolicyRemoved,
    BreakerReset,
    LabelsResumed,
)
"""The data of events after which nothing is left to end: most things of a large cluster were deleted long ago."""


def thing_of(data: Data) -> Thing:
    """What the data is about."""
    return (data.CHANNEL, *data.names)


class Announcement(NamedTuple):
    """The last event of a thing, and its sequence in the stream (0: the stream no longer has it).

    Without an event it is of a type that only a later version knows.
    """

    event: Event | None
    sequence: int


class Announcements:
    """The last event of each thing."""

    def __init__(self) -> None:
        self._last: dict[Thing, Announcement] = {}
        self._of_node: dict[tuple[str, str], set[Thing]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def add(self, event: Event, sequence: int) -> None:
        """Notes the last event of a thing."""
        thing = thing_of(event.data)
        self._last[thing] = Announcement(event, sequence)
        if "node" in event.data.NAMES:
            self._of_node.setdefault((thing[0], thing[1]), set()).add(thing)

    def note_lost(self, thing: Thing) -> None:
        """Notes that the stream has no event of the thing any more."""
        if thing in self._last:
            self._last[thing] = self._last[thing]._replace(sequence=0)

    def note_unknown(self, thing: Thing, sequence: int) -> None:
        """Notes that nothing is known of the last event of a thing but its sequence."""
        self._last[thing] = Announcement(None, sequence)

    def sequence(self, thing: Thing) -> int:
        """The sequence that the next event of the thing must expect."""
        last = self._last.get(thing)
        return 0 if last is None else last.sequence

    def last(self, thing: Thing) -> Event | None:
        """The last event of a thing; None if there is none, or if it is not known."""
        last = self._last.get(thing)
        return None if last is None else last.event

    def of_node(self, channel: str, node: str) -> Iterator[Event]:
        """The last event of each thing of a node in a channel, in the order of their names."""
        for thing in sorted(self._of_node.get((channel, node), ())):
            if (event := self._last[thing].event) is not None:
                yield event

    def names(self, channel: str) -> list[tuple[str, ...]]:
        """The names of each thing of a channel whose last event may need an end."""
        return [thing[1:] for thing, last in self._last.items() if thing[0] == channel and _is_open(last)]

    def nodes(self, channel: str) -> set[str]:
        """The nodes with such a thing, in a channel whose names begin with the node."""
        return {names[0] for names in self.names(channel)}


def _is_open(last: Announcement) -> bool:
    return last.event is not None and not isinstance(last.event.data, ENDS)
