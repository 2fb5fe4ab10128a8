"""A durable consumer of one holder, whose messages are held as long as it takes, and acknowledged one by one.

Unlike `SharedConsumer`, a message may be held for hours: while it is held, the server is asked to wait.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from time import time
from typing import Any

import structlog

from bus.attachment import keep_attached
from bus.buckets import ABSENT_SECONDS, NANOSECONDS, Stream
from bus.connection import Bus
from bus.errors import (
    CONSUMER_EXISTS,
    CONSUMER_NOT_FOUND,
    BusError,
    MisconfiguredError,
    NoPlaceError,
    UnavailableError,
    none_if,
)
from bus.interruptions import Interruptions
from bus.pull import Message, Pull

__all__ = ["Deliveries", "Message"]

log = structlog.get_logger(__name__)

ACK_WAIT_SECONDS = 30.0
"""When a message of a holder that was killed is delivered again."""

PROGRESS_SECONDS = 8.0
"""How often the server is asked to wait for the messages that are held."""

FIRST_SECONDS = 600.0
"""A new consumer begins with the messages of so many seconds: none is lost while a wiped bus is filled again."""

MAX_DONE = 16384
"""How many sequences of acknowledged messages are remembered, in case an acknowledgement was lost."""

_ACK = b"+ACK"
_NAK = b"-NAK"
_PROGRESS = b"+WPI"


class Deliveries:
    """Gives the messages of a stream to `take`, in order; `finish` acknowledges. One holder at a time.

    Attributes:
        behind: How many messages wait on the bus; at most some seconds old, also while nothing is delivered.
    """

    def __init__(
        self,
        bus: Bus,
        stream: Stream,
        holder: str,
        places: Sequence[str],
        take: Callable[[Sequence[Message]], None],
        *,
        filter_subject: str,
        capacity: int,
        on_missed: Callable[[int], None],
    ) -> None:
        """At most `capacity` messages of `filter_subject` are held.

        `places` are the names that the durables of all holders may have: the description of a durable names its holder.
        `on_missed` gets the number of messages of any subject that the stream dropped before it delivered them.
        """
        self._bus = bus
        self._stream = stream
        self._holder = holder
        self._what = f"consumer of {holder} on {stream.stream}"
        self._places = places
        self._durable = places[0]
        self._take = take
        self._filter = filter_subject
        self._capacity = capacity
        self._on_missed = on_missed
        self._held: dict[int, Message] = {}
        self._done: OrderedDict[int, None] = OrderedDict()
        self._delivered = 0
        self._epoch = ""
        self._interruptions = Interruptions(log, "consumer_interrupted", holder=holder)
        self.behind = 0

    def __len__(self) -> int:
        """How many messages are held."""
        return len(self._held)

    def oldest(self) -> float | None:
        """When the oldest message that is held arrived on the bus, seconds since 1970."""
        return min((message.arrived for message in self._held.values()), default=None)

    async def run(self) -> None:
        """Delivers until cancelled. Then the messages that are held go back to the stream."""
        try:
            await keep_attached(self._bus, self._stream.stream, self._attached, on_failure=self._interruptions.note)
        finally:
            await self._send(list(self._held.values()), _NAK)  # another replica can have them at once
            self._held.clear()
            self._bus.report(self._what, None)

    async def finish(self, messages: Iterable[Message]) -> None:
        """Acknowledges messages: they are not delivered again."""
        finished = [self._held.pop(message.sequence, message) for message in messages]
        for message in finished:
            self._done[message.sequence] = None
        while len(self._done) > MAX_DONE:
            self._done.popitem(last=False)
        await self._send(finished, _ACK)

    async def _attached(self) -> None:
        """Delivers over one attachment until it fails. Raises BusError."""
        await self._ensure()
        pull = Pull(self._bus.link, self._stream.stream, self._durable, batch=min(256, self._capacity))
        keep = asyncio.create_task(self._keep())
        try:
            await pull.open()
            while True:
                await self._receive(await pull.next())
        finally:
            keep.cancel()
            await asyncio.wait([keep])
            await self._send(await pull.drain(), _NAK)

    async def _receive(self, messages: Sequence[Message]) -> None:
        """Takes the messages that are new; the acknowledgement of others was lost, or they are still held."""
        self.behind = messages[-1].pending
        following = [message.sequence for message in messages if message.sequence > self._delivered]
        if following:
            with suppress(BusError):  # the count matters less than the messages
                await self._count_missed(until=following[0])
            self._delivered = following[-1]
        unfinished = [message for message in messages if message.sequence not in self._done]
        await self._send([message for message in messages if message.sequence in self._done], _ACK)
        new = [message for message in unfinished if message.sequence not in self._held]
        # Without their content: one message may have a mebibyte, and thousands are held while a holder waits.
        self._held.update({message.sequence: message.receipt for message in unfinished})
        if new:
            self._take(new)

    async def _count_missed(self, *, until: int) -> None:
        """Counts what the stream dropped between the last delivered message and `until`. Raises BusError."""
        delivered = self._delivered
        if not delivered or until == delivered + 1:
            return
        answer = await self._bus.api(f"STREAM.INFO.{self._stream.stream}")
        first = min(answer["state"]["first_seq"], until)
        if answer["created"] == self._epoch and delivered + 1 < first:
            self._on_missed(first - delivered - 1)

    async def _keep(self) -> None:
        """Asks the server to wait for what is held."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            await self._send(list(self._held.values()), _PROGRESS)
            with suppress(BusError):
                await self._note_pending()

    async def _note_pending(self) -> None:
        """Notes what waits. If nothing does, what follows are other subjects. Raises BusError."""
        stream = await self._bus.api(f"STREAM.INFO.{self._stream.stream}")
        consumer = await self._bus.api(f"CONSUMER.INFO.{self._stream.stream}.{self._durable}")
        self.behind = consumer["num_pending"]
        if not self.behind:
            self._delivered = max(self._delivered, stream["state"]["last_seq"])

    async def _send(self, messages: Iterable[Message], answer: bytes) -> None:
        # Without a connection nothing is acknowledged, and the server delivers again: `_receive` knows what is done.
        with suppress(UnavailableError):
            for message in messages:
                await self._bus.link.send(message.reply, answer)

    async def _ensure(self) -> None:
        """Finds the durable, or creates it in a free place. Raises BusError."""
        epoch = (await self._bus.api(f"STREAM.INFO.{self._stream.stream}"))["created"]
        if epoch != self._epoch:  # sequences of another life of the stream say nothing about this one (facts.md n34)
            self._epoch, self._delivered = epoch, 0
        required: dict[str, Any] = {
            "description": self._holder,
            "ack_policy": "explicit",
            "ack_wait": int(ACK_WAIT_SECONDS * NANOSECONDS),
            "max_ack_pending": self._capacity,
            "max_deliver": -1,
            "filter_subject": self._filter,
        }
        answer = await self._find()
        while answer is None:
            answer = await self._create(required) or await self._find()
        actual = answer["config"]
        wrong = [
            f"{field} is {actual.get(field)}, must be {needed}"
            for field, needed in (required | {"deliver_subject": None}).items()
            if actual.get(field) != needed
        ]
        error = MisconfiguredError(f"{self._what} ({self._durable}): {'; '.join(wrong)}")
        self._bus.report(self._what, error if wrong else None)

    async def _find(self) -> dict[str, Any] | None:
        """What the server says of the durable; else None, and `_durable` is a free name. Raises BusError."""
        free = []
        for name in sorted(self._places, key=lambda each: each != self._durable):
            answer = await none_if(CONSUMER_NOT_FOUND, self._bus.api(f"CONSUMER.INFO.{self._stream.stream}.{name}"))
            if answer is None:
                free.append(name)
            elif answer["config"].get("description") == self._holder:
                self._durable = name
                self._delivered = max(self._delivered, answer["ack_floor"]["stream_seq"])
                return answer
        if not free:
            crowded = NoPlaceError(
                f"{self._stream.stream} has {len(self._places)} durable consumers such as {self._durable}, and none is "
                f"of {self._holder}: tas bus mend DIR removes those that nobody uses; on an open bus: nats consumer rm "
                f"{self._stream.stream} NAME"
            )
            self._bus.report(self._what, crowded)
            raise crowded
        self._durable = secrets.choice(free)
        return None

    async def _create(self, required: Mapping[str, Any]) -> dict[str, Any] | None:
        """Creates the durable; None if another holder has its name meanwhile. Raises BusError."""
        begin = datetime.fromtimestamp(time() - FIRST_SECONDS, UTC).isoformat().replace("+00:00", "Z")
        config = {
            **required,
            "deliver_policy": "by_start_time",
            "opt_start_time": begin,
            "inactive_threshold": int(ABSENT_SECONDS * NANOSECONDS),
        }
        stream, name = self._stream.stream, self._durable
        answer = await none_if(CONSUMER_EXISTS, self._bus.write_durable(stream, name, config, action="create"))
        if answer is not None:
            log.info("consumer_created", stream=stream, durable=name, holder=self._holder)
        return answer
