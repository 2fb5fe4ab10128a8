"""Messages of a stream in order, from a sequence, from a time or from now on, with every gap reported.

An ephemeral pull consumer without acknowledgements: a slow reader requests less, and holds up nobody.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from bus.buckets import NANOSECONDS, Bucket, Stream
from bus.connection import Bus
from bus.entry import StreamMessage
from bus.errors import BusError, UnavailableError
from bus.interruptions import Interruptions
from bus.pull import Message, Pull
from tas.values.backoff import Backoff

log = structlog.get_logger(__name__)

INACTIVE_SECONDS = 10
"""After this time without a request the server deletes the consumer."""

RETRY = Backoff(first=0.1, longest=1.0)
"""The waits after failures to attach."""

ALL_SUBJECTS = (">",)

ORIGIN_HEADER = "Nats-Stream-Source"
"""The server's header on a message that was copied from another stream; the second word is the sequence there."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream no longer has the sequences from `first` to `last`, some of which the reader may have wanted."""

    stream: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that arrived together, in order. `lost` was lost before them, `behind` are still to come.

    A batch without messages and losses says that the reader has everything that was stored when the reader attached.
    """

    messages: Sequence[Message]
    lost: Lost | None = None
    behind: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where to start: after a sequence, at a time (seconds since 1970), or else with the next message.

    `last_per_subject`: first the last message of each subject.
    """

    after: int | None = None
    time: float | None = None
    last_per_subject: bool = False

    def configuration(self) -> dict[str, Any]:
        """The fields of a consumer."""
        if self.after is not None:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.after + 1}
        if self.time is not None:
            text = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            return {"deliver_policy": "by_start_time", "opt_start_time": text}
        return {"deliver_policy": "last_per_subject" if self.last_per_subject else "new"}


FROM_START = Start(after=0)
NEXT = Start()


@dataclass(slots=True)
class _Attachment:
    pull: Pull
    consumer: str
    pending: int
    begin: int
    """The sequence before the first one that the server may deliver."""
    deliveries: int = 0


class StreamReader:
    """Reads one stream, and attaches again after the loss of connection, server or consumer.

    `filters` are subjects with wildcards. Each message is returned once and in order, also after a reattachment.
    """

    def __init__(
        self,
        bus: Bus,
        stream: Stream | Bucket,
        start: Start,
        *,
        filters: Sequence[str] = ALL_SUBJECTS,
        batch: int = 256,
    ) -> None:
        self._bus = bus.readers
        self._of = stream
        self._stream = stream.stream
        self._start = start
        self._filters = tuple(filters)
        self._batch = batch
        self._applied = start.after
        self._interruptions = Interruptions(log, "reader_interrupted", stream=self._stream)

    @property
    def applied(self) -> int | None:
        """The last sequence that was returned; None before the first, unless the start was after a sequence."""
        return self._applied

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """The batches, until cancelled: everything that is stored, and then every new message.

        The first batch without messages comes when the stored messages have been read. Close the generator at the end
        (`contextlib.aclosing`), or its consumer lives on for some seconds.
        """
        failures = 0
        while True:
            await self._bus.wait_usable(self._stream)
            try:
                async with aclosing(self._attached()) as batches:
                    async for batch in batches:
                        failures = 0
                        yield batch
            except BusError as error:
                self._interruptions.note(error, applied=self._applied)
            failures += 1
            await asyncio.sleep(RETRY.after(failures))

    async def stored(self) -> AsyncGenerator[Batch, None]:
        """The batches of what is stored now; ends then. Raises BusError."""
        async with aclosing(self._attached()) as batches:
            async for batch in batches:
                if not batch.messages and batch.lost is None:
                    return
                yield batch

    async def _attached(self) -> AsyncGenerator[Batch, None]:
        """The batches of one consumer. Raises BusError when it has ended."""
        # Before the consumer is created: it delivers what is stored from then on, too.
        newest = await self._newest() if len(self._filters) == 1 else 0
        attachment = await self._attach()
        try:
            lost = await self._lost_before_start()
            if lost is not None:
                self._applied = lost.last
            behind = attachment.pending or int(self._position(attachment) < newest)
            if lost is not None:
                yield Batch((), lost=lost, behind=behind)
            caught_up, was_idle = False, False
            while True:
                if not behind and not caught_up:
                    caught_up = True
                    yield Batch(())
                messages = await (attachment.pull.next() if caught_up else attachment.pull.next_or_none())
                if not messages:
                    # What has expired, or was purged, does not come any more. What the leader has must come.
                    newest = await self._newest()
                    behind = int(self._position(attachment) < newest)
                    if behind and was_idle:
                        raise UnavailableError(f"{self._stream}: the server of {attachment.consumer} lacks {newest}")
                    was_idle = True
                    continue
                was_idle = False
                self._check_deliveries(attachment, messages)
                lost = await self._lost_within(messages)
                self._applied = messages[-1].sequence
                behind = messages[-1].pending or int(self._applied < newest)
                yield Batch(messages, lost=lost, behind=behind)
        finally:
            await attachment.pull.close()
            with suppress(BusError):
                await self._bus.api(f"CONSUMER.DELETE.{self._stream}.{attachment.consumer}")

    async def _attach(self) -> _Attachment:
        start = self._start if self._applied is None else Start(after=self._applied)
        config = {
            "ack_policy": "none",
            "max_deliver": 1,
            "inactive_threshold": INACTIVE_SECONDS * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subjects": list(self._filters),
        } | start.configuration()
        consumer, created = await self._bus.create_consumer(self._stream, config, prefix="reader")
        if self._applied is None and self._start == NEXT:
            # After a loss of the connection it continues from here, also if no message has come until then.
            self._applied = created["delivered"]["stream_seq"]
        pull = Pull(self._bus.link, self._stream, consumer, batch=self._batch)
        await pull.open()
        return _Attachment(pull, consumer, created["num_pending"], created["delivered"]["stream_seq"])

    def _position(self, attachment: _Attachment) -> int:
        """The sequence up to which everything has been delivered, or is before the start."""
        return max(self._applied or 0, attachment.begin)

    async def _newest(self) -> int:
        """The sequence of the newest message that the leader has; 0 without one. Raises BusError.

        The consumer may be on a server whose copy is behind (facts.md n74). And of the last messages of each subject a
        server calls itself idle at each one that was removed since, whatever follows.
        """
        return max([await self._bus.last_sequence(self._of, each) for each in self._filters])

    def _check_deliveries(self, attachment: _Attachment, messages: Sequence[Message]) -> None:
        for message in messages:
            attachment.deliveries += 1
            if message.delivery != attachment.deliveries:
                raise UnavailableError(f"{self._stream}: a message was lost on its way")

    async def _lost_before_start(self) -> Lost | None:
        """What the stream no longer has of what the reader starts with. Raises BusError."""
        if self._applied:
            return await self._lost_after(self._applied)
        if self._start.time is None or self._applied is not None:
            return None
        info = await self._bus.api(f"STREAM.INFO.{self._stream}")
        created, state = info["config"].get("first_seq", 1), info["state"]
        if state["first_seq"] <= created or msgspec.convert(state["first_ts"], datetime).timestamp() < self._start.time:
            return None
        return Lost(self._stream, created, state["first_seq"] - 1)

    async def _lost_within(self, messages: Sequence[Message]) -> Lost | None:
        """The first loss among these messages. Raises BusError."""
        before = self._applied
        for message in messages:
            if before and message.sequence > before + 1 and not self._start.last_per_subject:
                return await self._lost_after(before, until=message.sequence)
            before = message.sequence
        return None

    async def _lost_after(self, sequence: int, *, until: int | None = None) -> Lost | None:
        state = (await self._bus.api(f"STREAM.INFO.{self._stream}"))["state"]
        first = state["first_seq"] if until is None else min(until, state["first_seq"])
        return Lost(self._stream, sequence + 1, first - 1) if first > sequence + 1 else None


def origin(message: Message | StreamMessage) -> int:
    """The sequence of a copied message in the stream from which the server has copied it; 0 if it is no copy."""
    words = (message.headers or {}).get(ORIGIN_HEADER, "").split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
