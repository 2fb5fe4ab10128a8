"""The position of the publisher of events: up to which verdict all is announced."""

import msgspec

from bus.buckets import ANNOUNCED, EVENTS
from bus.connection import Bus
from bus.errors import BusError
from bus.records.codec import encode, reader
from tas.errors import InvalidInputError


class AnnouncedUpTo(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which revision of VERDICTS everything is announced: the position of the publisher.

    `epoch` and `log` are the times of creation of VERDICTS and VERDICT_LOG, `sequence` is that in VERDICT_LOG. A
    `revision` of 0 means that it is not known. Until the last verdicts up to `revision` have been compared, `comparing`
    has the epoch, and `epoch` is "": earlier versions compare all of them then. `ends_metrics`: a metric that was stale
    has ended with its node and its policy. In positions of versions that announced no such end it is false.
    """

    epoch: str
    log: str
    sequence: int
    revision: int
    comparing: str = ""
    ends_metrics: bool = False


_POSITION = "tas.announced.verdicts"

_read_position = reader("position of the publisher", AnnouncedUpTo)


async def read_position(bus: Bus) -> tuple[AnnouncedUpTo | None, int]:
    """The stored position, and the sequence that the next write expects. Raises UnavailableError, RefusedError."""
    for stream in (EVENTS, ANNOUNCED):
        for message in await bus.last_messages(stream, _POSITION):
            try:
                position = _read_position(message.data)
            except InvalidInputError:
                position = None
            return position, message.sequence if stream is EVENTS else 0
    return None, 0


async def compared_at(bus: Bus, epoch: str) -> int | None:
    """The revision of VERDICTS at which the publisher compares what all verdicts were then; None if it does not.

    `epoch` is the time of creation of VERDICTS. Whoever goes on after a kill reads the same revisions again. A
    comparison after a gap of the log has no position: the gap itself is announced.
    Raises UnavailableError, RefusedError.
    """
    position, _ = await read_position(bus)
    if position is None or epoch not in (position.epoch, position.comparing):
        return None
    return None if position.ends_metrics and not position.comparing else position.revision


async def write_position(bus: Bus, position: AnnouncedUpTo, *, expected: int) -> int:
    """Stores the position if the last sequence of its subject is `expected`, and returns the new one. Raises BusError.

    A ConflictError means that another publisher is at work.
    """
    headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
    (outcome,) = await bus.publish_each(EVENTS, [(_POSITION, encode(position), headers)])
    if isinstance(outcome, BusError):
        raise outcome
    return outcome
