"""Messages of a durable pull consumer as they come, over one connection and up to the first irregularity.

One request for messages is always outstanding, so a message comes as soon as it is there; nats-py's own `fetch` waits
for a full batch, or does not return at all.
"""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.buckets import NANOSECONDS
from bus.errors import UnavailableError
from bus.link import NO_RESPONDERS, Delivery, Link, status
from bus.pulse import HEARTBEAT_SECONDS, Pulse

EXPIRES_SECONDS = 3.0
"""How long one request for messages stands; after that the next one is sent.

Short, because the request of a replica that is paused goes on drawing messages, each of which is then handled by
nobody until its acknowledgement is overdue.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream. `arrived` is the server's time of it, seconds since 1970.

    `deliveries` counts how often it has been handed out, this time included; `reply` is where it is acknowledged.
    """

    subject: str
    data: bytes
    sequence: int
    arrived: float
    deliveries: int
    reply: str


class Pull:
    """One attachment to a durable: at most `batch` messages wait here, and as many are handled meanwhile."""

    def __init__(self, link: Link, stream: str, durable: str, *, batch: int) -> None:
        self._link = link
        self._request = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._inbox = f"{link.inbox}.{durable}-{secrets.token_hex(6)}"
        self._batch = batch
        self._body = msgspec.json.encode(
            {
                "batch": batch,
                "expires": int(EXPIRES_SECONDS * NANOSECONDS),
                "idle_heartbeat": int(HEARTBEAT_SECONDS * NANOSECONDS),
            }
        )
        self._pulse = Pulse(link, f"the consumer {durable}")
        self._subscription: Subscription | None = None
        self._waiting: deque[Message] = deque()
        self._owed = 0
        self._came: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Begins to ask for messages. Raises UnavailableError."""
        self._subscription = await self._link.subscribe(self._inbox, self._on_message)
        await self._ask()

    async def next(self) -> list[Message]:
        """What has come, at least one message and at most a batch; waits for it.

        Raises:
            UnavailableError: if this attachment is over: the consumer deleted, the connection lost, the server silent.
        """
        while not self._waiting:
            self._came = asyncio.get_running_loop().create_future()
            try:
                await self._pulse.beat(self._came)
            finally:
                self._came = None
        messages = [self._waiting.popleft() for _ in range(min(self._batch, len(self._waiting)))]
        try:
            await self._ask()
        except UnavailableError as error:
            self._pulse.end(error)  # the next call says so; what has come is still to be handled
        return messages

    async def close(self) -> list[Message]:
        """Asks for no more, and returns what has come and was not handed on."""
        if self._subscription is not None and not self._link.lost.is_set():
            await self._link.unsubscribe(self._subscription)
        left = list(self._waiting)
        self._waiting.clear()
        return left

    async def _ask(self) -> None:
        if self._owed == 0 and len(self._waiting) < self._batch:
            self._owed = self._batch
            await self._link.send(self._request, self._body, reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        if self._pulse.ended:
            return
        self._pulse.heard()
        try:
            if status(message):
                self._take_status(message)
            else:
                self._take(message)
            await self._ask()
        except Exception as error:  # noqa: BLE001 - raised where the messages are awaited
            self._pulse.end(error)

    def _take(self, message: Msg) -> None:
        delivery = Delivery.of(message.reply)
        self._owed = max(0, self._owed - 1)
        self._waiting.append(
            Message(
                subject=message.subject,
                data=message.data,
                sequence=delivery.sequence,
                arrived=delivery.nanoseconds / NANOSECONDS,
                deliveries=delivery.deliveries,
                reply=message.reply,
            )
        )
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def _take_status(self, message: Msg) -> None:
        what = status(message)
        if what == "100":  # a heartbeat
            return
        if what in ("404", "408"):  # the request has had its time
            self._owed = 0
            return
        # 409 says, in words, that the consumer was deleted, has another leader, or has too many who wait.
        reason = "it is gone" if what == NO_RESPONDERS else (message.headers or {}).get("Description", "")
        raise UnavailableError(f"{self._request}: {what} {reason}")
