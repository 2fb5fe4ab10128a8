"""What comes little by little becomes few tables, and no value is lost."""

import time

import pytest

from bus.buckets import TABLES
from bus.connection import Bus
from bus.stream_reader import Start, StreamReader
from bus.tables import received_table
from tas.sources.result import Sample
from tas.sources.tables import Publish
from tas.values.quantity import NANO, Quantity
from tests.integration.bus.limits import long_limits
from tests.integration.servers import answered
from workers.samples.publisher import GATHER_SECONDS, GatheredPublisher, SamplePublisher

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

Values = dict[tuple[str, float], int]
"""The value of each node and time."""


@pytest.fixture
async def publisher(bus: Bus) -> GatheredPublisher:
    return GatheredPublisher(SamplePublisher(bus, "s", form=Publish.TABLES))


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


async def test_each_value_of_a_node_is_published_in_the_order_of_time(bus: Bus, publisher: GatheredPublisher) -> None:
    now = round(time.time(), 3)
    values = [sample(0, 2, now - 5), sample(0, 3, None), sample(0, 1, now - 10), sample(1, 7, None)]
    assert await publisher.publish(values, requested_at=now) == 3
    assert await publisher.publish([], requested_at=now) == 0
    assert await answered(lambda: published(bus)) == [
        {("node-0", now - 10): 1, ("node-1", now): 7},
        {("node-0", now - 5): 2},
        {("node-0", now): 3},
    ]


async def test_two_publications_have_a_pause_between_them(publisher: GatheredPublisher) -> None:
    now = round(time.time(), 3)
    await publisher.publish([sample(0, 1, now)], requested_at=now)
    ended = time.monotonic()
    await publisher.publish([sample(0, 2, now + 1)], requested_at=now)
    assert time.monotonic() - ended >= GATHER_SECONDS * 0.99  # the clocks may differ a little


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
