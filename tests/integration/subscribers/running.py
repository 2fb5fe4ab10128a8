"""Runs an example beside the test, which publishes events and stores records."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from bus.buckets import EVENTS
from bus.connection import Bus
from bus.errors import BusError
from bus.record_kind import RecordKind
from bus.subjects import event_subject
from tas.events import cloudevents
from tas.events.data import EventData
from tas.events.event import Cause, event_of
from tests.integration.servers import answered, eventually


@asynccontextmanager
async def running(module: Any, bus: Bus, subscription: str, *arguments: str) -> AsyncIterator[None]:
    """Runs an example, which is subscribed before the body begins."""
    task = asyncio.create_task(module.main((*arguments, "--bus", bus.address)))

    async def is_subscribed() -> bool:
        assert not task.done(), await task
        with suppress(BusError):
            await bus.api(f"CONSUMER.INFO.{EVENTS.stream}.{subscription}")
            return True
        return False

    try:
        await eventually(is_subscribed)
        yield
        assert not task.done(), "the example has ended"
    finally:
        task.cancel()
        await asyncio.wait([task])


async def publish(bus: Bus, data: EventData) -> None:
    """Publishes an event."""
    event = event_of(data, Cause("1", 1), time=time.time())
    message = (event_subject(data), cloudevents.body(event), cloudevents.headers(event))
    (stored,) = await answered(lambda: bus.publish_each(EVENTS, [message]))
    assert isinstance(stored, int), stored


async def store(bus: Bus, kind: RecordKind[str, Any], key: str, record: object | None) -> None:
    """Replaces or deletes a record, whatever is stored."""

    async def write() -> None:
        read_at = time.monotonic()
        revision = (await kind.get(bus, key)).revision
        if record is None:
            await kind.delete(bus, key, revision=revision, read_at=read_at)
        else:
            await kind.put(bus, key, record, revision=revision, read_at=read_at)

    await answered(write)
