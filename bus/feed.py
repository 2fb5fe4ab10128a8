"""A bucket's entries as they stand and change, over one connection and up to the first irregularity.

An ordered consumer: ephemeral, pushed, without acknowledgements (ADR-17). Every message must follow the one before;
where it does not, or where the server falls silent, the feed has ended, and `bus.watch` opens the next one.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.buckets import NANOSECONDS, Bucket
from bus.entry import Entry, Epoch, is_marker
from bus.errors import BusError, UnavailableError
from bus.link import CALL_SECONDS, Delivery, Link, status
from bus.pulse import HEARTBEAT_SECONDS, Pulse

REMOVE_SECONDS = 0.5
"""How long taking a consumer away may take: it goes by itself, too."""

INACTIVE_SECONDS = 5
"""After which the server removes a consumer that nobody listens to: whatever befalls us, none is left behind."""

TURN_SECONDS = 0.001
"""How long entries are handled until others have their turn."""

BURST_SECONDS = 0.05
"""How long a burst may last before its reader is told of what has come so far."""


class Feed:
    """One attachment: `release` begins it, and `beat` raises when it is over.

    Attributes:
        epoch: The life of the stream, with the last sequence it had when the feed was opened.
        fresh: Whether it begins with the last entry of every key, rather than after a sequence.
    """

    def __init__(self, link: Link, bucket: Bucket, name: str, keys: str) -> None:
        self.epoch = Epoch(created="", last_sequence=0)
        self.fresh = True
        self._link = link
        self._bucket = bucket
        self._filter = bucket.subject(keys)
        self._filtered = keys != ">"
        self._consumer = f"{name}-{secrets.token_hex(6)}"
        self._subscription: Subscription | None = None
        self._held: list[Msg] | None = []
        self._place = 0
        self._pending = 0
        self._applied = 0
        self._told_at = 0.0
        self._turn_at = 0.0
        self._pulse = Pulse(link, f"the consumer of {bucket.name}")
        self._on_entry: Callable[[Entry], None] = _ignore
        self._on_batch: Callable[[], None] = _nothing
        self._reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls,
        link: Link,
        bucket: Bucket,
        *,
        name: str,
        keys: str = ">",
        after: Callable[[Epoch], int | None] | None = None,
    ) -> "Feed":
        """Attaches; nothing is handed on before `release`.

        `after` is asked, with the present life of the stream, for the last sequence that is known already: None to
        begin with the last entry of every key. `name` begins the consumer's name. `keys` is a pattern of the keys that
        are wanted, with NATS's wildcards.

        Raises:
            UnavailableError: within a few seconds, also if the stream is replaced meanwhile.
        """
        feed = cls(link, bucket, name, keys)
        try:
            await feed._attach(after)
        except BaseException:
            await feed.close()
            raise
        return feed

    @property
    def applied(self) -> int:
        """The last sequence that was handed on, or that needs not be: nothing before it is missing."""
        return self._applied

    @property
    def is_caught_up(self) -> bool:
        """Whether all that stood in the stream when the feed was opened has been handed on."""
        return self._reached.done()

    async def release(self, on_entry: Callable[[Entry], None], on_batch: Callable[[], None] | None = None) -> None:
        """From now on entries are handed on, in order, and after each burst of them `on_batch` is called."""
        assert self._held is not None, "released twice"
        held, self._held = self._held, None
        self._on_entry = on_entry
        self._on_batch = on_batch or _nothing
        questions = [reply for message in held if (reply := self._take(message))]
        if self._applied >= self.epoch.last_sequence:
            self._reach()
        self._tell()
        for reply in questions:
            await self._answer(reply)

    async def caught_up(self) -> None:
        """Waits until all that stood there has been handed on. Raises UnavailableError if the feed ends before."""
        while not self._reached.done():
            await self._pulse.beat(self._reached)

    async def beat(self) -> None:
        """Waits for one heartbeat's time.

        Raises:
            UnavailableError: if the feed has ended.
            Exception: what `on_entry` or `on_batch` raised.
        """
        await self._pulse.beat()

    async def close(self) -> None:
        """Ends it, and takes its consumer away if the connection still stands."""
        if self._subscription is not None and not self._link.lost.is_set():
            await self._link.unsubscribe(self._subscription)
            await self.remove(self._link)

    async def remove(self, link: Link) -> None:
        """Takes the consumer away, over a later connection if need be; what is left the server removes by itself."""
        with suppress(BusError):
            await link.api(f"CONSUMER.DELETE.{self._bucket.stream}.{self._consumer}", seconds=REMOVE_SECONDS)

    async def _attach(self, after: Callable[[Epoch], int | None] | None) -> None:
        epoch, messages = await self._look()
        start = None if after is None else after(epoch)
        self.fresh = start is None
        self.epoch = epoch
        self._applied = start or 0
        deliver_to = f"{self._link.inbox}.{self._consumer}"
        self._subscription = await self._link.subscribe(deliver_to, self._on_message)
        config = {
            "name": self._consumer,
            "deliver_subject": deliver_to,
            "filter_subject": self._filter,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_SECONDS * NANOSECONDS),
            "inactive_threshold": INACTIVE_SECONDS * NANOSECONDS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if start is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start + 1}
        stream = self._bucket.stream
        created = await self._link.api(
            f"CONSUMER.CREATE.{stream}.{self._consumer}.{self._filter}",
            {"stream_name": stream, "config": config},
            seconds=CALL_SECONDS,
        )
        # Between the first look and this the stream may have been replaced: then its entries belong to another life.
        now, _ = await self._look()
        if now.created != epoch.created or now.last_sequence < epoch.last_sequence:
            raise UnavailableError(f"{stream} was replaced just now")
        self._pending = created["num_pending"]
        if self._pending == 0 and (messages == 0 or self._filtered):
            self._applied = max(self._applied, epoch.last_sequence)

    async def _look(self) -> tuple[Epoch, int]:
        answer = await self._link.api(f"STREAM.INFO.{self._bucket.stream}", seconds=CALL_SECONDS)
        state = answer["state"]
        return Epoch(created=answer["created"], last_sequence=state["last_seq"]), state["messages"]

    async def _on_message(self, message: Msg) -> None:
        if self._held is not None:
            self._held.append(message)
            return
        reply = self._take(message)
        if reply:
            await self._answer(reply)
        # The client hands on what has come without ever giving way, and nobody else, not even a ping, has a turn.
        now = asyncio.get_running_loop().time()
        if now - self._turn_at > TURN_SECONDS:
            await asyncio.sleep(0)
            self._turn_at = asyncio.get_running_loop().time()

    async def _answer(self, reply: str) -> None:
        with suppress(UnavailableError):
            await self._link.send(reply, b"")

    def _take(self, message: Msg) -> str:
        """Handles one message, and returns where the server wants to be told so."""
        if self._pulse.ended:
            return ""
        self._pulse.heard()
        try:
            if status(message):
                return self._take_status(message)
            self._take_entry(message)
        except Exception as error:  # noqa: BLE001 - a bug of the reader: it is raised where the feed is awaited
            self._pulse.end(error)
        return ""

    def _take_entry(self, message: Msg) -> None:
        delivery = Delivery.of(message.reply)
        if delivery.place != self._place + 1:
            self._end(f"{delivery.place - self._place - 1} entries were lost on the way")
            return
        self._place = delivery.place
        self._pending = delivery.pending
        self._on_entry(
            Entry(
                key=self._bucket.key(message.subject),
                value=None if is_marker(message.headers) else message.data,
                revision=delivery.sequence,
                created=delivery.nanoseconds / NANOSECONDS,
            )
        )
        self._applied = delivery.sequence
        if self._filtered and delivery.pending == 0:  # what comes after it in the stream is not wanted
            self._applied = max(self._applied, self.epoch.last_sequence)
        reached = self._applied >= self.epoch.last_sequence and not self._reached.done()
        if reached:
            self._reach()
        now = asyncio.get_running_loop().time()
        if reached or delivery.pending == 0 or now - self._told_at > BURST_SECONDS:
            self._told_at = now
            self._on_batch()

    def _take_status(self, message: Msg) -> str:
        headers = message.headers or {}
        last_place = headers.get("Nats-Last-Consumer")
        if last_place is None:  # a question of flow control, asked behind what it counts
            return message.reply
        if int(last_place) != self._place:
            self._end(f"{int(last_place) - self._place} entries were lost on the way")
        elif not self._reached.done() and self._pending == 0:
            # Idle, yet the last sequence was never seen: its message is gone (expired, or purged).
            self._applied = max(self._applied, self.epoch.last_sequence)
            self._reach()
            self._on_batch()
        return headers.get("Nats-Consumer-Stalled", "")

    def _tell(self) -> None:
        try:
            self._on_batch()
        except Exception as error:  # noqa: BLE001 - as above
            self._pulse.end(error)

    def _reach(self) -> None:
        if not self._reached.done():
            self._reached.set_result(None)

    def _end(self, why: str) -> None:
        self._pulse.end(UnavailableError(f"{self._bucket.name}: {why}"))


def _ignore(_entry: Entry) -> None:
    pass


def _nothing() -> None:
    pass
