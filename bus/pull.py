"""Messages of a durable pull consumer, over one connection, until the first error.

One request for messages is always pending, so each message is delivered at once; nats-py's own `fetch` waits for a full
batch, or does not return.
"""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass, replace

import msgspec

from bus.buckets import NANOSECONDS
from bus.client import Msg, Subscription
from bus.errors import UnavailableError
from bus.link import CALL_SECONDS, NO_RESPONDERS, Delivery, Link, status
from bus.pulse import HEARTBEAT_SECONDS, Pulse

EXPIRES_SECONDS = 3.0
"""When one request for messages expires, and the next one is sent.

Short, because a paused replica with a pending request gets messages, which wait until their acknowledgement is overdue.
"""

BATCH_BYTES = 256 << 10
"""A batch ends with the message that exceeds this size."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream. `arrived` is when the server stored it, seconds since 1970.

    `deliveries` counts the deliveries, this one included; `pending` counts the messages behind this one, and is up to
    date in the last message of a batch; `reply` is the subject for the acknowledgement.
    """

    subject: str
    data: bytes
    sequence: int
    arrived: float
    deliveries: int
    reply: str
    pending: int = 0


class Pull:
    """One attachment to a durable: at most `batch` messages wait here, while as many are being handled.

    A batch of large messages ends after `BATCH_BYTES`: handling is proportional to bytes, and between two batches the
    caller learns how many messages are behind them.
    """

    def __init__(self, link: Link, stream: str, durable: str, *, batch: int) -> None:
        self._link = link
        self._request_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
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
        self._requested = 0
        self._arrival: asyncio.Future[None] | None = None
        self._closing = False

    async def open(self) -> None:
        """Sends the first request for messages. Raises UnavailableError."""
        self._subscription = await self._link.subscribe(self._inbox, self._on_message)
        await self._request_batch()

    async def next(self) -> list[Message]:
        """Waits for messages, and returns at least one and at most a batch.

        Raises UnavailableError if the consumer is deleted, the connection is lost, or heartbeats are missing.
        """
        while not self._waiting:
            self._arrival = asyncio.get_running_loop().create_future()
            try:
                await self._pulse.beat(self._arrival)
            finally:
                self._arrival = None
        return await self.take()

    async def take(self) -> list[Message]:
        """The messages that have arrived, at most a batch."""
        messages: list[Message] = []
        size = 0
        while self._waiting and len(messages) < self._batch and size < BATCH_BYTES:
            messages.append(self._waiting.popleft())
            size += len(messages[-1].data)
        if self._waiting:
            messages[-1] = replace(messages[-1], pending=len(self._waiting) + self._waiting[-1].pending)
        try:
            await self._request_batch()
        except UnavailableError as error:
            self._pulse.end(error)  # the next call raises this; these messages must still be handled
        return messages

    async def close(self) -> None:
        """Ends the subscription; messages that `next` has not returned are lost."""
        self._closing = True
        if self._subscription is not None and not self._link.lost.is_set():
            await self._link.unsubscribe(self._subscription)

    async def drain(self) -> list[Message]:
        """Ends the subscription, and returns the messages that `next` has not returned.

        Also those that were still under way: the server would not deliver them again before their acknowledgement is
        overdue.
        """
        self._closing = True
        if self._subscription is not None and not self._link.lost.is_set():
            await self._link.drain(self._subscription, seconds=CALL_SECONDS)
        rest = list(self._waiting)
        self._waiting.clear()
        return rest

    async def _request_batch(self) -> None:
        if self._requested == 0 and len(self._waiting) < self._batch and not self._closing:
            self._requested = self._batch
            await self._link.send(self._request_subject, self._body, reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        self._pulse.received()
        try:
            if not status(message):
                self._add(message)
            elif not self._pulse.ended:
                self._check_status(message)
            if not self._pulse.ended:
                await self._request_batch()
        except Exception as error:  # noqa: BLE001 - `next` raises it
            self._pulse.end(error)

    def _add(self, message: Msg) -> None:
        delivery = Delivery.of(message.reply)
        self._requested = max(0, self._requested - 1)
        self._waiting.append(
            Message(
                subject=message.subject,
                data=message.data,
                sequence=delivery.sequence,
                arrived=delivery.nanoseconds / NANOSECONDS,
                deliveries=delivery.deliveries,
                reply=message.reply,
                pending=delivery.pending,
            )
        )
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _check_status(self, message: Msg) -> None:
        what = status(message)
        if what == "100":  # a heartbeat
            return
        if what in ("404", "408"):  # the request has expired
            self._requested = 0
            return
        # 409 has a description: the consumer was deleted, has another leader, or has too many requests.
        reason = "the consumer is missing" if what == NO_RESPONDERS else (message.headers or {}).get("Description", "")
        raise UnavailableError(f"{self._request_subject}: {what} {reason}")
