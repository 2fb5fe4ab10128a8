"""A public event with the attributes of CloudEvents 1.0."""

from typing import NamedTuple, get_args

import msgspec

from tas.events.data import Data, EventData, Gap, Unknown
from tas.policy.policy import LABEL_PREFIX

TYPE_PREFIX = LABEL_PREFIX
"""Every type begins with the prefix that the labels of TAS have, too."""

SOURCE = "/telemetry-aware-scheduling"
"""The attribute `source`, unless an operator names the cluster."""


def source_of(cluster: str) -> str:
    """The attribute `source` of the events of a cluster, a DNS subdomain; empty: without a name."""
    return f"{SOURCE}/{cluster}" if cluster else SOURCE


DATA_TYPES: dict[str, type[Data]] = {
    f"{TYPE_PREFIX}{data.TYPE}": data for data in get_args(EventData) if data is not Unknown
}
"""The data of each type of event, by the attribute `type`."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event. `subject` names the object, such as `nodes/node-1`.

    `id` is the same for every repetition of one transition. `time` is when the transition happened, in seconds since
    1970. `resync`: the event only restates what is, after a wipe of the bus or at the first start; an automation that
    acts on transitions must skip it.
    """

    id: str
    type: str
    source: str
    subject: str
    time: float
    resync: bool = False
    data: EventData


MAX_DIGITS = 20
"""The most digits of a revision: the server counts with 64 bits. Python reads no number of more than 4,300."""


class Cause(NamedTuple):
    """What caused an event: a revision of a record, in an epoch of the bus (microseconds since 1970, as text)."""

    epoch: str
    revision: int


def event_of(data: EventData, cause: Cause, *, time: float, resync: bool = False, source: str = SOURCE) -> Event:
    """The event of this data. Its id follows from the cause and from what the event is about."""
    return Event(
        id="/".join((cause.epoch, str(cause.revision), data.TYPE, *data.names)),
        type=f"{TYPE_PREFIX}{data.TYPE}",
        source=source,
        subject=data.about,
        time=time,
        resync=resync,
        data=data,
    )


def cause_of(event: Event) -> Cause | None:
    """The cause of an event by its id; None for an id of another form."""
    epoch, _, rest = event.id.partition("/")
    revision = rest.partition("/")[0]
    is_number = revision.isascii() and revision.isdecimal() and len(revision) <= MAX_DIGITS
    return Cause(epoch, int(revision)) if epoch.isdecimal() and is_number else None


def lost_event(stream: str, first: int, last: int, *, now: float) -> Event:
    """The gap that a reader reports: the stream no longer has the sequences from `first` to `last`."""
    return event_of(Gap(stream=stream, first=first, last=last), Cause(str(first), last), time=now)
