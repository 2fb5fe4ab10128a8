"""Many small requests become few tables, and none of their values is lost."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from bus.buckets import TABLES
from bus.connection import Bus
from bus.errors import BusError
from bus.stream_reader import Start, StreamReader
from bus.tables import received_table
from tas.sources.result import Sample
from tas.sources.tables import Publish
from tas.values.quantity import NANO, Quantity
from tests.integration.bus.limits import long_limits
from tests.integration.servers import Server, answered
from tests.integration.workers.running import running
from workers.ingest.gathered_publisher import GatheredPublisher
from workers.ingest.sample_publisher import SamplePublisher

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

Values = dict[tuple[str, float], int]
"""The value of each node and time."""


@pytest.fixture
async def publisher(bus: Bus) -> AsyncIterator[GatheredPublisher]:
    publisher = GatheredPublisher(SamplePublisher(bus, "s", form=Publish.TABLES))
    with suppress(BusError):
        await bus.wait_usable(TABLES.stream)
    async with running(publisher):
        yield publisher


def sample(node: int, value: int, measured: float | None) -> Sample:
    return Sample(node=f"node-{node}", metric="load", value=Quantity(value * NANO), measured=measured)


async def published(bus: Bus) -> list[Values]:
    """The values of each message on TABLES."""
    found: list[Values] = []
    reader = StreamReader(bus, TABLES, Start(after=0))
    async for batch in reader.stored():
        for message in batch.messages:
            _, table, refused = received_table(message)
            assert table is not None
            assert not refused.counts
            column = table.columns["load"]
            found.append(
                {
                    (node, column.at(row).measured): value // NANO
                    for row, (node, value) in enumerate(zip(table.nodes, column.values, strict=True))
                    if value is not None
                }
            )
    return found


async def test_requests_that_come_together_are_one_message(bus: Bus, publisher: GatheredPublisher) -> None:
    now = round(time.time(), 3)
    requests = [[sample(node, node, now) for node in range(first, first + 10)] for first in range(0, 500, 10)]
    counts = await asyncio.gather(*(publisher.publish(each, requested_at=now) for each in requests))
    (values,) = await answered(lambda: published(bus))
    assert values == {(f"node-{node}", now): node for node in range(500)}
    assert sorted(counts) == [0] * 49 + [1]


async def test_each_value_of_a_node_is_published_in_the_order_of_time(bus: Bus, publisher: GatheredPublisher) -> None:
    now = round(time.time(), 3)
    requests = [[sample(0, 2, now - 5), sample(0, 3, now)], [sample(0, 1, now - 10), sample(1, 7, now)], []]
    await asyncio.gather(*(publisher.publish(each, requested_at=now) for each in requests))
    assert await answered(lambda: published(bus)) == [
        {("node-0", now - 10): 1, ("node-1", now): 7},
        {("node-0", now - 5): 2},
        {("node-0", now): 3},
    ]


async def test_a_value_without_a_time_was_measured_when_it_was_requested(
    bus: Bus, publisher: GatheredPublisher
) -> None:
    now = round(time.time(), 3)
    await asyncio.gather(*(publisher.publish([sample(n, n, None)], requested_at=now - n) for n in range(3)))
    (values,) = await answered(lambda: published(bus))
    assert values == {("node-0", now): 0, ("node-1", now - 1): 1, ("node-2", now - 2): 2}


async def test_a_sender_that_leaves_takes_nothing_away(bus: Bus, publisher: GatheredPublisher) -> None:
    now = round(time.time(), 3)
    first = asyncio.create_task(publisher.publish([sample(0, 1, now)], requested_at=now))
    second = asyncio.create_task(publisher.publish([sample(1, 2, now)], requested_at=now))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()
    (values,) = await answered(lambda: published(bus))
    assert values == {("node-0", now): 1, ("node-1", now): 2}


async def test_all_who_wait_learn_that_the_bus_has_stored_nothing(
    bus: Bus, server: Server, publisher: GatheredPublisher
) -> None:
    now = round(time.time(), 3)
    await server.stop()
    answers = await asyncio.gather(
        *(publisher.publish([sample(node, 1, now)], requested_at=now) for node in range(3)), return_exceptions=True
    )
    assert all(isinstance(each, BusError) for each in answers)
    await server.start()
    await answered(lambda: publisher.publish([sample(9, 1, now)], requested_at=now))
    assert {("node-9", now): 1} in await answered(lambda: published(bus))


async def test_a_source_that_becomes_known_little_by_little_has_parts_that_hold_all_nodes(
    bus: Bus, publisher: GatheredPublisher
) -> None:
    now = round(time.time(), 3)
    for first in range(0, 2500, 500):
        await publisher.publish([sample(node, 1, now) for node in range(first, first + 500)], requested_at=now)
    messages = await answered(lambda: bus.last_messages(TABLES, "tas.tables.s.*"))
    parts = [message.subject.rpartition(".")[2] for message in messages]
    assert {part for part in parts if part.startswith("4-")} == {"4-0", "4-1", "4-2", "4-3"}
    assert all(len(each) <= 500 for each in await answered(lambda: published(bus)))
