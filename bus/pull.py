"""Messages of a durable pull consumer, over one connection, until the first error.

nats-py's own `fetch` waits for a full batch, or does not return.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from bus.buckets import NANOSECONDS
from bus.client import Msg, Subscription
from bus.errors import UnavailableError
from bus.link import CALL_SECONDS, Delivery, Link, status
from bus.pulse import Pulse
from bus.requests import Pace, Requests

ANSWER_SECONDS = 0.02
"""How long answers are gathered."""

PACE = Pace(seconds=0.025, messages=4, fastest=500)
"""Four messages together cost about half of what four single ones cost. The label of a node may follow its sample by
50 ms; at 1,500 messages a second an answer may follow its sample by 10 ms (docs/background/performance.md)."""

BATCH_BYTES = 256 << 10
"""A batch ends with the message that exceeds this size."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream. `arrived` is when the server stored it, seconds since 1970.

    `deliveries` counts the deliveries, this one included; `delivery` counts those of the consumer; `pending` counts the
    messages behind this one, and is up to date in the last message of a batch; `reply` is the subject for the
    acknowledgement.
    """

    subject: str
    data: bytes
    sequence: int
    arrived: float
    deliveries: int
    reply: str
    pending: int = 0
    delivery: int = 0
    headers: Mapping[str, str] | None = None

    @property
    def receipt(self) -> "Message":
        """What an acknowledgement needs: the message without its content."""
        return replace(self, data=b"", headers=None)


class Pull:
    """One attachment to a durable: at most `batch` messages wait here, while as many are being handled.

    A batch of large messages ends after `batch_bytes`: handling is proportional to bytes, and between two batches the
    caller learns how many messages are behind them.
    """

    def __init__(self, link: Link, stream: str, durable: str, *, batch: int, batch_bytes: int = BATCH_BYTES) -> None:
        self._link = link
        self._inbox = f"{link.inbox}.{durable}-{secrets.token_hex(6)}"
        self._batch = batch
        self._batch_bytes = batch_bytes
        self._pulse = Pulse(link, f"the consumer {durable}")
        self._requests = Requests(
            link,
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}",
            self._inbox,
            batch=batch,
            pace=PACE,
            end=self._pulse.end,
            is_room=lambda: len(self._waiting) < batch,
            before=self.send_answers,
        )
        self._answers: list[tuple[str, bytes]] = []
        self._answering: asyncio.Future[None] | None = None
        self._subscription: Subscription | None = None
        self._waiting: deque[Message] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._awaits_idle = False

    async def open(self) -> None:
        """Sends the first request for messages. Raises UnavailableError."""
        self._subscription = await self._link.subscribe(self._inbox, self._on_message)
        self._requests.start()

    async def next(self) -> list[Message]:
        """Waits for messages, and returns at least one and at most a batch.

        Raises UnavailableError if the consumer is deleted, the connection is lost, or heartbeats are missing.
        """
        while not self._waiting:
            await self._arrived()
        return self.take()

    async def next_or_none(self) -> list[Message]:
        """As `next`, but returns no messages once the server has none left: what it had may have expired since."""
        self._awaits_idle = True
        while not self._waiting and self._awaits_idle:
            await self._arrived()
        self._awaits_idle = False
        return self.take()

    async def _arrived(self) -> None:
        """Waits for a message, or for what `next_or_none` waits for; may return before. Raises UnavailableError."""
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._pulse.beat(self._arrival)
        finally:
            self._arrival = None

    def take(self) -> list[Message]:
        """The messages that have arrived, at most a batch."""
        messages: list[Message] = []
        size = 0
        while self._waiting and len(messages) < self._batch and size < self._batch_bytes:
            messages.append(self._waiting.popleft())
            size += len(messages[-1].data)
        if self._waiting:
            messages[-1] = replace(messages[-1], pending=len(self._waiting) + self._waiting[-1].pending)
        self._requests.resume()
        return messages

    def answer(self, message: Message, answer: bytes) -> None:
        """Sends the answer to a message soon, together with others.

        Without a connection nothing is answered, and the server delivers again.
        """
        self._answers.append((message.reply, answer))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.ensure_future(self.send_answers(after=ANSWER_SECONDS))

    async def send_answers(self, *, after: float = 0.0) -> None:
        """Sends the answers that are given within `after` seconds."""
        if after:
            await asyncio.sleep(after)
        answers, self._answers = self._answers, []
        with suppress(UnavailableError):
            for reply, answer in answers:
                await self._link.send(reply, answer)

    async def close(self) -> None:
        """Ends the subscription; messages that `next` has not returned are lost."""
        self._requests.stop()
        if self._subscription is not None and not self._link.lost.is_set():
            await self._link.unsubscribe(self._subscription)

    async def drain(self) -> list[Message]:
        """Ends the subscription, and returns the messages that `next` has not returned.

        Also those that were still under way: the server would not deliver them again before their acknowledgement is
        overdue.
        """
        self._requests.stop()
        if self._subscription is not None and not self._link.lost.is_set():
            await self._link.drain(self._subscription, seconds=CALL_SECONDS)
        rest = list(self._waiting)
        self._waiting.clear()
        return rest

    async def _on_message(self, message: Msg) -> None:
        self._pulse.received()
        try:
            if not status(message):
                self._add(message)
                self._requests.received()
            elif not self._pulse.ended and self._requests.received_status(message) and self._awaits_idle:
                self._awaits_idle = False
                self._wake()
        except Exception as error:  # noqa: BLE001 - `next` raises it
            self._pulse.end(error)

    def _add(self, message: Msg) -> None:
        delivery = Delivery.of(message.reply)
        self._waiting.append(
            Message(
                subject=message.subject,
                data=message.data,
                sequence=delivery.sequence,
                arrived=delivery.nanoseconds / NANOSECONDS,
                deliveries=delivery.deliveries,
                reply=message.reply,
                pending=delivery.pending,
                delivery=delivery.consumer_sequence,
                headers=message.headers,
            )
        )
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
