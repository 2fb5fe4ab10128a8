"""A shared durable: several replicas take from one stream, each message to one of them until it is acknowledged."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from bus.buckets import NANOSECONDS, Stream
from bus.connection import Bus
from bus.errors import CONSUMER_NOT_FOUND, BusError, MisconfiguredError, RefusedError, UnavailableError
from bus.pull import Message, Pull

__all__ = ["Message", "SharedConsumer"]

log = structlog.get_logger(__name__)

MAX_ACK_PENDING = 4096
"""Messages that all replicas together may have in hand; far above what one batch takes (n17, n18)."""

NAK_SECONDS = (0.1, 5.0)
"""The first and the longest delay after which a message that was given back comes again."""

RETRY_SECONDS = (0.1, 1.0)
"""The first and the longest wait after a failure to attach."""

STEADY_SECONDS = 2.0
"""An attachment that held so long had nothing wrong with it: the next one is made without waiting."""

_ACK = b"+ACK"
_NAK = b"-NAK"


class SharedConsumer:
    """A durable pull consumer with explicit acknowledgement, created when missing and again when deleted under us.

    `handler` gets what has arrived (at least one message, at most `batch`), as soon as it is there, and returns when
    its effects stand: only then everything in the batch is acknowledged. If it raises a BusError the batch is given
    back with a delay; any other exception is a bug and ends `run`. A message that can never be handled is acknowledged
    like any other: the handler reports it and returns.
    """

    def __init__(
        self,
        bus: Bus,
        stream: Stream,
        durable: str,
        handler: Callable[[Sequence[Message]], Awaitable[None]],
        *,
        batch: int = 256,
        ack_wait_seconds: float = 10.0,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._durable = durable
        self._handler = handler
        self._batch = batch
        self._ack_wait_seconds = ack_wait_seconds

    async def run(self) -> None:
        """Consumes until cancelled; on cancellation the batch in hand is finished first, within `ack_wait_seconds`."""
        loop = asyncio.get_running_loop()
        wait, longest = RETRY_SECONDS
        while True:
            await self._bus.wait_connected()
            began = loop.time()
            try:
                await self._consume()
            except BusError as error:
                log.info("consumer_interrupted", durable=self._durable, error=str(error))
            if loop.time() - began > STEADY_SECONDS:
                wait, _ = RETRY_SECONDS
            else:
                await asyncio.sleep(wait)
                wait = min(2 * wait, longest)

    async def _consume(self) -> None:
        """Consumes over one attachment to its end, which is always an error."""
        await self._ensure()
        pull = Pull(self._bus.link, self._stream.stream, self._durable, batch=self._batch)
        try:
            await pull.open()
            while True:
                await self._finish(await pull.next())
        finally:
            for message in await pull.close():
                await self._answer(message, _NAK)  # others may have it at once

    async def _finish(self, messages: Sequence[Message]) -> None:
        """Handles a batch and answers for it; when cancelled, it is finished first."""
        task = asyncio.ensure_future(self._handler(messages))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([task], timeout=self._ack_wait_seconds)
            finally:  # cancelled once more, the batch is not left running alone
                task.cancel()
            await asyncio.wait([task])
            await self._answer_for(messages, task)
            raise
        except Exception:  # noqa: BLE001, S110 - what the handler raised is in the task
            pass
        await self._answer_for(messages, task)
        if not isinstance(error := task.exception(), BusError | None):
            raise error

    async def _answer_for(self, messages: Sequence[Message], task: "asyncio.Future[None]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            for message in messages:
                await self._answer(message, _ACK)
        elif isinstance(error, BusError):
            log.warning("batch_given_back", durable=self._durable, messages=len(messages), error=str(error))
            first, longest = NAK_SECONDS
            for message in messages:
                delay = min(first * 2 ** min(message.deliveries - 1, 10), longest)
                await self._answer(message, _NAK + b" " + msgspec.json.encode({"delay": int(delay * NANOSECONDS)}))

    async def _answer(self, message: Message, answer: bytes) -> None:
        # Without a connection there is no answer, and the message comes again: handling it twice is harmless.
        with suppress(UnavailableError):
            await self._bus.link.send(message.reply, answer)

    async def _ensure(self) -> None:
        """Creates the durable if it is missing. Raises BusError."""
        stream = self._stream.stream
        wished: dict[str, Any] = {
            "durable_name": self._durable,
            "name": self._durable,
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait_seconds * NANOSECONDS),
            "max_ack_pending": max(MAX_ACK_PENDING, 4 * self._batch),
            "max_deliver": -1,
            "deliver_policy": "all",
        }
        try:
            answer = await self._bus.api(f"CONSUMER.INFO.{stream}.{self._durable}")
        except RefusedError as error:
            if error.code != CONSUMER_NOT_FOUND:
                raise
            answer = await self._bus.api(
                f"CONSUMER.CREATE.{stream}.{self._durable}",
                {"stream_name": stream, "config": wished, "action": "create"},
            )
            log.info("consumer_created", stream=stream, durable=self._durable)
        actual = answer["config"]
        wrong = [
            f"{field} is {actual.get(field)}, needed is {needed}"
            for field, needed in (wished | {"deliver_subject": None, "filter_subject": None}).items()
            if actual.get(field) != needed
        ]
        what = f"consumer {stream}/{self._durable}"
        self._bus.report(what, MisconfiguredError(f"{what}: {'; '.join(wrong)}") if wrong else None)
