"""What a server and our streams on it are like, for `tas doctor`."""

import asyncio
import time
from datetime import datetime
from typing import Any, NamedTuple

from bus.buckets import (
    AGENTS,
    ALL,
    BREAKERS,
    DEAD_LETTERS,
    EVENTS,
    OUTCOMES,
    VERDICT_LOG,
    Bucket,
    Stream,
    differences,
    weaknesses,
)
from bus.connection import Bus
from bus.consumers import MOST, allowed_subjects
from bus.errors import STREAM_NOT_FOUND, NobodyListensError, RefusedError, UnavailableError
from bus.rights.roles import is_refusing_earlier
from bus.server import MINIMUM_VERSION
from bus.streams import copies, has_leader, has_majority, late_copies
from bus.trying import Tries, is_late
from tas.diagnosis.bus import BusFacts, WrongStream
from tas.diagnosis.clocks import Offset
from tas.diagnosis.finding import Missing
from tas.values.backoff import Backoff

LOST = {
    AGENTS.stream: "what agents have learned",
    BREAKERS.stream: "a pause, and which breakers have tripped,",
    DEAD_LETTERS.stream: "the events that a subscription gave up",
    EVENTS.stream: "the events of seven days",
    OUTCOMES.stream: "what became of pods in seven days",
    VERDICT_LOG.stream: "the verdicts of a day",
}
"""What no worker can build again, by stream."""

TRIES = Tries(is_late, times=3, wait=Backoff(first=1.0, longest=1.0))
"""So often a server of a cluster is asked about a stream until it says that the stream has a leader, and each copy is
up to date: an election takes some seconds, and while messages come, a copy is behind for a moment now and then."""


class _Told(NamedTuple):
    """What a server said about a stream; `error` is why it said nothing."""

    answer: dict[str, Any]
    clock: Offset | Missing
    error: UnavailableError | None


async def inspect(bus: Bus) -> tuple[BusFacts, Offset | Missing]:
    """The bus without `sync` and `embedded`, and how far the server's clock is ahead of ours. Raises BusError."""
    server = bus.link.server
    tries = TRIES if server.cluster else Tries(times=1)
    told = dict(zip(ALL, await asyncio.gather(*(_told(bus, of, tries) for of in ALL)), strict=True))
    silent = [of.stream for of, each in told.items() if each.error is not None and each.error.code != STREAM_NOT_FOUND]
    for each in told.values():
        # In a cluster the servers of some streams may be lost. What a single server does not answer says nothing.
        if each.error is not None and each.error.code != STREAM_NOT_FOUND and not server.cluster:
            raise each.error
    known = {of: each.answer for of, each in told.items() if each.error is None}
    late: dict[str, list[str]] = {}
    stuck: list[str] = []
    for of, answer in known.items():
        if server.cluster and not has_majority(answer):
            stuck.append(of.stream)
            continue  # nobody knows then which copies are up to date
        for name in late_copies(answer):
            late.setdefault(name, []).append(of.stream)
    facts = BusFacts(
        address=bus.address,
        server=server.id,
        version=server.version,
        needed=MINIMUM_VERSION,
        cluster=server.cluster,
        copies={of.stream: copies(answer) for of, answer in known.items()},
        wrong=[
            WrongStream(of.stream, different, LOST.get(of.stream, ""))
            for of, answer in known.items()
            if (different := "; ".join(differences(of, answer["config"], replicas=1)))
        ],
        absent=[
            of.stream for of, each in told.items() if each.error is not None and each.error.code == STREAM_NOT_FOUND
        ],
        silent=silent,
        stuck=stuck,
        late=late,
        closed=bool(bus.link.loaded.name),
        earlier=await _takes_earlier(bus),
        consumers={of.stream: _places(answer) for of, answer in known.items()},
        room={
            of.stream: (int(answer["state"].get("bytes", 0)), most)
            for of, answer in known.items()
            if isinstance(of, Bucket) and of.history == 1 and (most := int(answer["config"].get("max_bytes", -1))) > 0
        },
        weak={of.stream: list(weak) for of, answer in known.items() if (weak := weaknesses(of, answer["config"]))},
    )
    clocks = [each.clock for each in told.values() if isinstance(each.clock, Offset)]
    none = Missing("no server told us about a stream, and only such an answer has the time")
    return facts, min(clocks, key=lambda clock: clock.doubt, default=none)


async def _takes_earlier(bus: Bus) -> bool | Missing:
    """Whether the server takes credentials of an earlier version. Raises BusError."""
    if not bus.link.loaded.name:
        return False  # nobody shows credentials
    refuses = is_refusing_earlier(await allowed_subjects(bus.link) or ())
    return Missing("servers tell only a reader or an operator") if refuses is None else not refuses


def _places(answer: dict[str, Any]) -> tuple[int, int]:
    """How many consumers a stream has, and how many it may have; a server with another default does not tell it."""
    count = int(answer["state"].get("consumer_count", 0))
    most = int(answer["config"].get("max_consumers", 0))
    return count, most if most > 0 else MOST if count <= MOST else 2 * count + 1


async def _told(bus: Bus, of: Stream | Bucket, tries: Tries) -> _Told:
    """What a server says about a stream. Raises BusError for anything that is not a matter of time."""

    async def once() -> _Told:
        asked = time.time()
        answer = await bus.api(f"STREAM.INFO.{of.stream}")
        return _Told(answer, _offset(answer, asked, time.time()), None)

    try:
        return await tries.of(once, until=lambda told: has_leader(told.answer) and not late_copies(told.answer))
    except NobodyListensError:
        raise
    except UnavailableError as error:
        return _Told({}, Missing(str(error)), error)
    except RefusedError as error:
        if not (isinstance(of, Bucket) and of.optional):
            raise
        # For this user the bucket is as if it were not there.
        return _Told({}, Missing(str(error)), UnavailableError(str(error), code=STREAM_NOT_FOUND))


def _offset(answer: dict[str, Any], asked: float, answered: float) -> Offset | Missing:
    try:
        theirs = datetime.fromisoformat(str(answer.get("ts"))).timestamp()
    except ValueError:
        return Missing("the server does not give its time")
    return Offset(ahead=theirs - (asked + answered) / 2, doubt=(answered - asked) / 2)
