"""What a source gave, as it comes onto a real bus: of a cluster of many nodes, and where the bus is not there."""

import asyncio
import time
from contextlib import suppress

import pytest

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError, UnavailableError
from tas.quantity import NANO, Quantity
from tas.sources.reading import Reading
from tests.integration.servers import Server, eventually
from workers.sample_publisher import AT_ONCE, SamplePublisher

NODES = 2 * AT_ONCE + 7


def readings(value: int, *, measured: float, nodes: int = NODES) -> tuple[Reading, ...]:
    """Two metrics of every node."""
    return tuple(
        Reading(node=f"node-{number}.example", metric=metric, value=Quantity(value * NANO), measured=measured)
        for metric in ("load", "heat")
        for number in range(nodes)
    )


async def stored(bus: Bus) -> dict[str, int]:
    """How many messages there are, and of how many subjects."""
    state: dict[str, int] = (await bus.api("STREAM.INFO.SAMPLES"))["state"]
    return state


async def test_each_node_gets_one_message_for_all_metrics(bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    assert await publisher.publish(readings(1, measured=now), asked=now) == NODES
    messages = await bus.last_messages(SAMPLES, "tas.samples.*.s")
    assert {message.subject for message in messages} == {
        f"tas.samples.node-{number}_example.s" for number in range(NODES)
    }
    assert all(b'"load":"1"' in message.data and b'"heat":"1"' in message.data for message in messages)


async def test_only_what_is_new_is_said_again(bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    first = readings(1, measured=now)
    await publisher.publish(first, asked=now)
    assert await publisher.publish(first, asked=now) == 0
    changed = readings(2, measured=now, nodes=3) + tuple(each for each in first if each.node > "node-2.example")
    assert await publisher.publish(changed, asked=now) == 3


async def test_what_the_bus_did_not_take_is_said_with_the_next_look(server: Server, bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    server.pause()
    with pytest.raises(UnavailableError):
        await publisher.publish(readings(1, measured=now), asked=now)
    server.resume()

    async def taken() -> bool:
        with suppress(BusError):
            await publisher.publish(readings(1, measured=now), asked=now)
            return (await stored(bus))["num_subjects"] == NODES
        return False

    await eventually(taken, within=60.0)


async def test_several_at_once_lose_nothing(bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    await asyncio.gather(*(publisher.publish(readings(value, measured=now + value), asked=now) for value in range(3)))
    counted = await stored(bus)
    assert (counted["num_subjects"], counted["messages"]) == (NODES, 3 * NODES)
