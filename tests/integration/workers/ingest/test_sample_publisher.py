"""Publishing samples on a real bus: of many nodes, and without a connection."""

import time
from contextlib import suppress
from functools import partial

import pytest

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError, UnavailableError
from tas.sources.result import Sample
from tas.values.quantity import NANO, Quantity
from tests.integration.bus.limits import long_limits
from tests.integration.servers import Server, all_answered, answered, eventually
from workers.ingest.sample_publisher import MAX_CONCURRENT, SamplePublisher

__all__ = ["long_limits"]

NODES = 2 * MAX_CONCURRENT + 7


def samples(value: int, *, measured: float, nodes: int = NODES) -> tuple[Sample, ...]:
    """Two metrics of every node."""
    return tuple(
        Sample(node=f"node-{number}.example", metric=metric, value=Quantity(value * NANO), measured=measured)
        for metric in ("load", "heat")
        for number in range(nodes)
    )


async def stored(bus: Bus) -> dict[str, int]:
    """How many messages there are, and of how many subjects."""
    state: dict[str, int] = (await answered(lambda: bus.api("STREAM.INFO.SAMPLES")))["state"]
    return state


@pytest.mark.usefixtures("long_limits")
async def test_each_node_gets_one_message_for_all_metrics(bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    await answered(lambda: publisher.publish(samples(1, measured=now), requested_at=now))
    assert (await stored(bus))["messages"] == NODES
    messages = await answered(lambda: bus.last_messages(SAMPLES, "tas.samples.*.s"))
    assert {message.subject for message in messages} == {
        f"tas.samples.node-{number}_example.s" for number in range(NODES)
    }
    assert all(b'"load":"1"' in message.data and b'"heat":"1"' in message.data for message in messages)


@pytest.mark.usefixtures("long_limits")
async def test_only_new_scrapes_are_published_again(bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    first = samples(1, measured=now)
    await answered(lambda: publisher.publish(first, requested_at=now))
    assert await publisher.publish(first, requested_at=now) == 0
    before = (await stored(bus))["messages"]
    changed = samples(2, measured=now, nodes=3) + tuple(each for each in first if each.node > "node-2.example")
    await answered(lambda: publisher.publish(changed, requested_at=now))
    assert (await stored(bus))["messages"] == before + 3


async def test_unpublished_scrapes_are_published_with_the_next_poll(server: Server, bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    server.pause()
    with pytest.raises(UnavailableError):
        await publisher.publish(samples(1, measured=now), requested_at=now)
    server.resume()

    async def taken() -> bool:
        with suppress(BusError):
            await publisher.publish(samples(1, measured=now), requested_at=now)
            return (await stored(bus))["num_subjects"] == NODES
        return False

    await eventually(taken)


async def test_concurrent_publishers_lose_nothing(bus: Bus) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s")
    await all_answered(
        partial(publisher.publish, samples(value, measured=now + value), requested_at=now) for value in range(3)
    )
    counted = await stored(bus)
    assert counted["num_subjects"] == NODES
    assert counted["messages"] >= 3 * NODES  # more only if an answer came too late
