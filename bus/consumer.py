"""A shared durable consumer: each message of a stream goes to one of several replicas until it is acknowledged."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog

from bus.attachment import keep_attached
from bus.buckets import NANOSECONDS, Stream
from bus.connection import Bus
from bus.errors import CONSUMER_NOT_FOUND, BusError, MisconfiguredError, none_if
from bus.interruptions import Interruptions
from bus.pull import BATCH_BYTES, Message, Pull
from tas.values.backoff import Backoff
from tas.values.throttle import Throttle

__all__ = ["Message", "SharedConsumer"]

log = structlog.get_logger(__name__)

MAX_ACK_PENDING = 4096
"""Unacknowledged messages of all replicas together; far more than one batch (facts.md n17, n18)."""

REDELIVERY = Backoff(first=0.1, longest=5.0)
"""The delays after which the server delivers a rejected message again."""

_ACK = b"+ACK"
_NAK = b"-NAK"


class SharedConsumer:
    """A durable pull consumer with explicit acknowledgement, created whenever it is missing.

    `handler` gets messages as soon as they arrive: at least one, at most `batch`, and of large ones about as many as
    have `batch_bytes`. When `handler` returns, its effects must be stored: then the batch is acknowledged. If `handler`
    raises a BusError, the batch is delivered again after a delay; any other exception is a bug and ends `run`. A
    message that can never be handled must be reported by `handler`, and is acknowledged.
    """

    def __init__(
        self,
        bus: Bus,
        stream: Stream,
        durable: str,
        handler: Callable[[Sequence[Message]], Awaitable[None]],
        *,
        batch: int = 256,
        batch_bytes: int = BATCH_BYTES,
        ack_wait_seconds: float = 10.0,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._durable = durable
        self._handler = handler
        self._batch = batch
        self._batch_bytes = batch_bytes
        self._ack_wait_seconds = ack_wait_seconds
        self._interruptions = Interruptions(log, "consumer_interrupted", durable=durable)
        self._nacks = Throttle()

    async def run(self) -> None:
        """Consumes until cancelled; then first finishes the current batch, within `ack_wait_seconds`."""
        await keep_attached(self._bus, self._stream.stream, self._consume, on_failure=self._interruptions.note)

    async def _consume(self) -> None:
        """Consumes over one attachment until it fails. Raises BusError."""
        await self._ensure()
        pull = Pull(
            self._bus.link, self._stream.stream, self._durable, batch=self._batch, batch_bytes=self._batch_bytes
        )
        try:
            await pull.open()
            while True:
                await self._finish(pull, await pull.next())
        finally:
            for message in await pull.drain():
                pull.answer(message, _NAK)  # another replica can have it at once
            await pull.send_answers()

    async def _finish(self, pull: Pull, messages: Sequence[Message]) -> None:
        """Handles and acknowledges a batch; a cancellation takes effect after that."""
        self._bus.backlogs[self._stream.name] = messages[-1].pending
        task = asyncio.ensure_future(self._handler(messages))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([task], timeout=self._ack_wait_seconds)
            finally:  # also after a second cancellation
                task.cancel()
            await asyncio.wait([task])
            self._settle(pull, messages, task)
            raise
        except Exception:  # noqa: BLE001, S110 - the task has the handler's error
            pass
        self._settle(pull, messages, task)
        if not isinstance(error := task.exception(), BusError | None):
            raise error

    def _settle(self, pull: Pull, messages: Sequence[Message], task: "asyncio.Future[None]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            for message in messages:
                pull.answer(message, _ACK)
        elif isinstance(error, BusError):
            suppressed = self._nacks.admit(type(error).__name__, time.monotonic())
            if suppressed is not None:
                about = {"durable": self._durable, "messages": len(messages), "error": str(error)}
                log.warning("batch_nacked", **about, suppressed=suppressed)
            for message in messages:
                delay = REDELIVERY.after(message.deliveries)
                pull.answer(message, _NAK + b" " + msgspec.json.encode({"delay": int(delay * NANOSECONDS)}))

    async def _ensure(self) -> None:
        """Creates the durable if it is missing. Raises BusError."""
        stream = self._stream.stream
        config: dict[str, Any] = {
            "durable_name": self._durable,
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait_seconds * NANOSECONDS),
            "max_ack_pending": max(MAX_ACK_PENDING, 4 * self._batch),
            "max_deliver": -1,
            "deliver_policy": "all",
        }
        answer = await none_if(CONSUMER_NOT_FOUND, self._bus.api(f"CONSUMER.INFO.{stream}.{self._durable}"))
        if answer is None:
            answer = await self._bus.write_durable(stream, self._durable, config, action="create")
            log.info("consumer_created", stream=stream, durable=self._durable)
        actual = answer["config"]
        wrong = [
            f"{field} is {actual.get(field)}, must be {needed}"
            for field, needed in (config | {"deliver_subject": None, "filter_subject": None}).items()
            if actual.get(field) != needed
        ]
        what = f"consumer {stream}/{self._durable}"
        self._bus.report(what, MisconfiguredError(f"{what}: {'; '.join(wrong)}") if wrong else None)
