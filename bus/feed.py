"""The stored entries of a bucket and then its changes, over one connection, until the first gap.

An ordered consumer: ephemeral, without acknowledgements (ADR-17). The server pushes each entry at once; with a pace,
the feed requests entries together instead (`bus.requests`). If a message is missing, or the server sends nothing any
more, the feed ends, and `bus.watch` opens the next one.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf

from bus import consumers
from bus.asking import ask_each
from bus.buckets import NANOSECONDS, Bucket
from bus.client import Msg, Subscription
from bus.entry import Epoch, RawEntry, is_tombstone, replaced_revision
from bus.errors import MESSAGE_NOT_FOUND, BusError, UnavailableError, none_if
from bus.link import CALL_SECONDS, Delivery, Link, status
from bus.pulse import HEARTBEAT_SECONDS, Pulse
from bus.requests import Pace, Requests
from tas.values.nouns import counted

REMOVE_SECONDS = 0.5
"""How long the deletion of a consumer may take: without it the server deletes the consumer later."""

INACTIVE_SECONDS = 5
"""After this time the server deletes a consumer without a subscription, so that a crash leaves none behind."""

YIELD_SECONDS = 0.001
"""How long entries are handled until other tasks may run."""

BATCH_SECONDS = 0.05
"""`on_batch` is called at least this often while many entries arrive."""

REQUESTED_ENTRIES = 1000
"""How many entries one request of a paced feed may get."""


class Feed:
    """One attachment: `release` starts the delivery, and `beat` raises when the feed has ended.

    Attributes:
        epoch: The epoch of the stream, with its last sequence when the feed was opened.
        from_start: Whether the feed first delivers the last entry of every key, or only changes after a sequence.
        applied: The last sequence up to which all wanted entries have been delivered.
    """

    def __init__(self, link: Link, bucket: Bucket, name: str, keys: Collection[str], pace: float) -> None:
        self.epoch = Epoch(created="", last_sequence=0)
        self.from_start = True
        self._link = link
        self._bucket = bucket
        self._filters = [bucket.subject(each) for each in sorted(keys)]
        self._prefix = name
        self._consumer = ""
        self._pace = pace
        self._subscription: Subscription | None = None
        self._held: deque[Msg] | None = deque()
        self._consumer_sequence = 0
        self._pending = 0
        self._newest = 0
        self.applied = 0
        self._reported_at = 0.0
        self._yielded_at = 0.0
        self._pulse = Pulse(link, f"the consumer of {bucket.name}")
        self._on_entry: Callable[[RawEntry], None] = lambda _: None
        self._on_batch: Callable[[], None] = lambda: None
        self._caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox = f"{link.inbox}.{name}-{secrets.token_hex(6)}"
        self._requests: Requests | None = None

    @classmethod
    async def open(
        cls,
        link: Link,
        bucket: Bucket,
        *,
        name: str,
        keys: Collection[str] = (">",),
        after: Callable[[Epoch], int | None] | None = None,
        pace: float = 0.0,
    ) -> "Feed":
        """Attaches to the bucket; no entry is delivered before `release`.

        `after` gets the current epoch and returns the last sequence that the caller knows, or None to get the last
        entry of every key. `name` is the prefix of the consumer's name. `keys` are patterns with NATS wildcards. With
        a `pace`, in seconds and shorter than a heartbeat, an entry that follows another one may arrive so much later,
        together with others: each delivery costs this process and the server more than an entry does.
        Raises UnavailableError within a few seconds, also if the stream is replaced meanwhile.
        """
        feed = cls(link, bucket, name, keys, pace)
        try:
            await feed._attach(after)
        except BaseException:
            await feed.close()
            raise
        return feed

    @property
    def is_caught_up(self) -> bool:
        """Whether the entries that were stored when the feed was opened have been delivered.

        Except those of keys that were written again before their delivery: their new entries may come later.
        """
        return self._caught_up.done()

    async def release(self, on_entry: Callable[[RawEntry], None], on_batch: Callable[[], None] | None = None) -> None:
        """Starts the delivery of entries, in order; `on_batch` is called after each burst of entries."""
        assert self._held is not None, "released twice"
        self._on_entry = on_entry
        self._on_batch = on_batch or self._on_batch
        if self.applied >= self.epoch.last_sequence:
            self._set_caught_up()  # before the heartbeats that are held: nothing is missing then
        while self._held:  # what arrives meanwhile comes after these
            await self._take_in(self._held.popleft())
        self._held = None
        self._report_batch()
        if self._requests is not None:
            self._requests.start()

    async def caught_up(self) -> None:
        """Waits until `is_caught_up`. Raises UnavailableError if the feed ends before."""
        while not self._caught_up.done():
            await self.beat()

    async def beat(self) -> None:
        """Waits for the time of one heartbeat, or until `is_caught_up` becomes true.

        Raises UnavailableError if the feed has ended. Raises what `on_entry` or `on_batch` raised.
        """
        await (self._pulse.beat() if self._caught_up.done() else self._pulse.beat(self._caught_up))

    async def close(self) -> None:
        """Ends the feed, and deletes its consumer if the connection is not lost.

        Raises what `on_entry` or `on_batch` raised, also if the caller was cancelled before `beat` could, or is now.
        """
        if self._requests is not None:
            self._requests.stop()
        try:
            if self._subscription is not None and not self._link.lost.is_set():
                await self._link.unsubscribe(self._subscription)
                await self.remove(self._link)
        finally:
            if self._pulse.failure is not None and not isinstance(self._pulse.failure, BusError):
                raise self._pulse.failure

    async def remove(self, link: Link) -> None:
        """Deletes the consumer, over this or a later connection; otherwise the server deletes it after a while."""
        if self._consumer:
            with suppress(BusError):
                await link.api(f"CONSUMER.DELETE.{self._bucket.stream}.{self._consumer}", seconds=REMOVE_SECONDS)

    async def _attach(self, after: Callable[[Epoch], int | None] | None) -> None:
        epoch = await self._stream_epoch()
        start = None if after is None else after(epoch)
        self.from_start = start is None
        self.epoch = epoch
        self.applied = start or 0
        self._subscription = await self._link.subscribe(self._inbox, self._on_message)
        config: dict[str, object] = {
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "max_deliver": 1,
            "inactive_threshold": INACTIVE_SECONDS * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if not self._pace:
            config |= {
                "deliver_subject": self._inbox,
                "flow_control": True,
                "idle_heartbeat": int(HEARTBEAT_SECONDS * NANOSECONDS),
            }
        if start is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start + 1}
        stream = self._bucket.stream
        single = self._filters[0] if len(self._filters) == 1 else ""
        config |= {"filter_subject": single} if single else {"filter_subjects": self._filters}
        self._consumer, created = await consumers.create(
            self._link, stream, config, prefix=self._prefix, filter_subject=single
        )
        self._pending = created["num_pending"]
        # If the stream was replaced since the first request, the consumer delivers entries of another epoch.
        now = await self._stream_epoch()
        if now.created != epoch.created or now.last_sequence < epoch.last_sequence:
            raise UnavailableError(f"{stream} was replaced while a consumer was created")
        self._newest = max(await ask_each(self._newest_of, self._filters))
        if self._pace:
            self._requests = Requests(
                self._link,
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self._consumer}",
                self._inbox,
                batch=REQUESTED_ENTRIES,
                pace=Pace(self._pace, messages=inf),
                end=self._pulse.end,
            )
        self._skip_others()

    async def _newest_of(self, subject: str) -> int:
        """The sequence of the newest entry that the leader has; 0 without one."""
        verb, body = f"STREAM.MSG.GET.{self._bucket.stream}", {"last_by_subj": subject}
        answer = await none_if(MESSAGE_NOT_FOUND, self._link.api(verb, body, seconds=CALL_SECONDS))
        return 0 if answer is None else int(answer["message"]["seq"])

    async def _stream_epoch(self) -> Epoch:
        """The epoch, by the leader."""
        return Epoch.of(await self._link.api(f"STREAM.INFO.{self._bucket.stream}", seconds=CALL_SECONDS))

    def _skip_others(self) -> None:
        """After the last wanted entry: what follows it in the stream has other keys, was purged, or has expired."""
        if self._pending == 0 and self.applied >= self._newest:
            self.applied = max(self.applied, self.epoch.last_sequence)

    async def _on_message(self, message: Msg) -> None:
        if self._held is None:
            await self._take_in(message)
        else:
            self._held.append(message)

    async def _take_in(self, message: Msg) -> None:
        reply = self._receive(message)
        if reply:
            await self._reply(reply)
        # All received messages come here without a pause; other tasks, even the ping of the client, have to run, too.
        now = asyncio.get_running_loop().time()
        if now - self._yielded_at > YIELD_SECONDS:
            await asyncio.sleep(0)
            self._yielded_at = asyncio.get_running_loop().time()

    async def _reply(self, reply: str) -> None:
        with suppress(UnavailableError):
            await self._link.send(reply, b"")

    def _receive(self, message: Msg) -> str:
        """Handles one message, and returns the subject at which the server expects a reply, or an empty string."""
        if self._pulse.ended:
            return ""
        self._pulse.received()
        try:
            if not status(message):
                self._receive_entry(message)
            elif self._requests is None:
                return self._receive_status(message)
            elif self._requests.received_status(message):
                self._note_idle()
        except Exception as error:  # noqa: BLE001 - `beat` raises it
            self._pulse.end(error)
        return ""

    def _receive_entry(self, message: Msg) -> None:
        delivery = Delivery.of(message.reply)
        if delivery.consumer_sequence != self._consumer_sequence + 1:
            self._end(_lost(delivery.consumer_sequence - self._consumer_sequence - 1))
            return
        self._consumer_sequence = delivery.consumer_sequence
        self._pending = delivery.pending
        if self._requests is not None:
            self._requests.received()
        self._on_entry(
            RawEntry(
                key=self._bucket.key(message.subject),
                value=None if is_tombstone(message.headers) else message.data,
                revision=delivery.sequence,
                created=delivery.nanoseconds / NANOSECONDS,
                previous=replaced_revision(message.headers),
            )
        )
        self.applied = delivery.sequence
        self._skip_others()
        reached = self.applied >= self.epoch.last_sequence and not self._caught_up.done()
        if reached:
            self._set_caught_up()
        now = asyncio.get_running_loop().time()
        if reached or delivery.pending == 0 or now - self._reported_at > BATCH_SECONDS:
            self._reported_at = now
            self._on_batch()

    def _receive_status(self, message: Msg) -> str:
        headers = message.headers or {}
        last_consumer_sequence = headers.get("Nats-Last-Consumer")
        if last_consumer_sequence is None:  # a flow control request; the server waits for the reply
            return message.reply
        if int(last_consumer_sequence) != self._consumer_sequence:
            self._end(_lost(int(last_consumer_sequence) - self._consumer_sequence))
        else:
            self._note_idle()
        return headers.get("Nats-Consumer-Stalled", "")

    def _note_idle(self) -> None:
        """Ends the feed if the server has no more entries, but the leader had.

        A server that has just got its copy of the stream, or a part of it, never delivers what it had not then
        (facts.md n74). It gets messages in their order: who has the newest one has all. Or that one was purged since.
        """
        if not self._caught_up.done() and self._pending == 0:
            self._end(f"this server has not all entries yet: {self._newest} is missing after {self.applied}")

    def _report_batch(self) -> None:
        try:
            self._on_batch()
        except Exception as error:  # noqa: BLE001 - `beat` raises it
            self._pulse.end(error)

    def _set_caught_up(self) -> None:
        if not self._caught_up.done():
            self._caught_up.set_result(None)

    def _end(self, why: str) -> None:
        self._pulse.end(UnavailableError(f"{self._bucket.name}: {why}"))


def _lost(number: int) -> str:
    return f"{counted(number, 'entry was', 'entries were')} lost"
