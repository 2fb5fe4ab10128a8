"""Every use of a bus at the same time, with a record of confirmed writes and of the time of each call."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from bus.buckets import NODES, SAMPLES
from bus.connection import Bus
from bus.consumer import Message, SharedConsumer
from bus.errors import BusError, ConflictError, UnavailableError
from tests.integration.bus.followers import Follower, following
from tests.integration.servers import eventually

KEYS = [f"n{number}.metrics" for number in range(50)]


class Load:
    """A writer, a publisher, a shared consumer and a watch.

    Attributes:
        written: The last confirmed revision of each key.
        published: The sequences of confirmed messages.
        handled: The sequences that the consumer's handler finished.
        longest: Seconds that the longest single call took.
        failures: The errors of calls, by class name.
        succeeded: The number of calls without an error.
    """

    def __init__(self, bus: Bus, follower: Follower) -> None:
        self.bus = bus
        self.follower = follower
        self.written: dict[str, int] = {}
        self.published: set[int] = set()
        self.handled: set[int] = set()
        self.longest = 0.0
        self.failures: dict[str, int] = {}
        self.succeeded = 0
        self._stopping = False

    async def write(self) -> None:
        for number in itertools.count():
            if self._stopping:
                return
            key = KEYS[number % len(KEYS)]
            await self._one(self._write(key, str(number).encode()))

    async def _write(self, key: str, value: bytes) -> None:
        read_at = time.monotonic()
        with self._timed():
            entry = await self.bus.get(NODES, key)
        revision = 0 if entry is None else entry.revision
        with self._timed():
            self.written[key] = await self.bus.put(NODES, key, value, revision=revision, read_at=read_at)

    async def publish(self) -> None:
        while not self._stopping:
            await self._one(self._publish())

    async def _publish(self) -> None:
        with self._timed():
            self.published.add(await self.bus.publish(SAMPLES, "tas.samples.a.machine", b"{}"))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.longest = max(self.longest, time.monotonic() - began)

    async def _one(self, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
            self.succeeded += 1
        except BusError as error:
            name = type(error).__name__
            self.failures[name] = self.failures.get(name, 0) + 1
        await asyncio.sleep(0.002)

    async def handle(self, messages: Sequence[Message]) -> None:
        self.handled.update(message.sequence for message in messages)

    async def continues(self) -> None:
        """Waits until everything works: writes, publishing, the consumer and the watch."""
        calls, handled, entries = self.succeeded, len(self.handled), len(self.follower.entries)
        await eventually(
            lambda: (
                self.succeeded > calls + 10
                and len(self.handled) > handled
                and len(self.follower.entries) > entries
                and self.follower.watch.status.caught_up
            )
        )

    def stop(self) -> None:
        self._stopping = True


@asynccontextmanager
async def load(bus: Bus) -> AsyncIterator[Load]:
    """Uses the bus while the body runs, and returns when every call has ended."""
    async with following(bus, NODES) as follower:
        running = Load(bus, follower)
        consumer = asyncio.create_task(SharedConsumer(bus, SAMPLES, "load", running.handle, ack_wait_seconds=2).run())
        callers = [asyncio.create_task(running.write()), asyncio.create_task(running.publish())]
        try:
            yield running
        finally:
            running.stop()
            await asyncio.gather(*callers)
            consumer.cancel()
            await asyncio.wait([consumer])


async def write_eventually(bus: Bus, key: str) -> None:
    """Creates an empty entry of NODES, once the bus is available."""

    async def written() -> bool:
        try:
            await bus.put(NODES, key, b"", revision=0, read_at=time.monotonic())
        except UnavailableError:
            return False
        except ConflictError:
            return True  # by an earlier attempt, whose answer was lost
        return True

    await eventually(written)
