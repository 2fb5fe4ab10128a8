"""Publishing samples on a real bus: of many nodes, and without a connection."""

import time
from contextlib import suppress
from functools import partial
from math import inf

import pytest

from bus.buckets import SAMPLES, TABLES
from bus.connection import Bus
from bus.errors import BusError, UnavailableError
from bus.tables import received_table
from tas.sources.result import Sample
from tas.sources.tables import Publish
from tas.values.quantity import NANO, Quantity
from tests.integration.bus.limits import long_limits
from tests.integration.servers import Server, all_answered, answered, eventually
from workers.samples.publisher import MAX_CONCURRENT, SamplePublisher

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


@pytest.mark.usefixtures("long_limits")
@pytest.mark.parametrize("form", list(Publish))
async def test_the_same_values_are_published_again_after_a_while(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, form: Publish
) -> None:
    """The bus may have been wiped meanwhile."""
    now = time.time()
    publisher = SamplePublisher(bus, "s", form=form)
    found = []
    for seconds in (inf, inf, 0.0):
        monkeypatch.setattr("workers.samples.publisher.REPEAT_SECONDS", seconds)
        found.append(await publisher.publish(samples(1, measured=now, nodes=1), requested_at=now))
    assert found == [1, 0, 1]


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


async def table_nodes(bus: Bus) -> list[int]:
    """The number of nodes of each part's last table."""
    messages = await answered(lambda: bus.last_messages(TABLES, "tas.tables.s.*"))
    tables = [received_table(message).table for message in messages]
    return [len(table.nodes) for table in tables if table is not None]


@pytest.mark.usefixtures("long_limits")
@pytest.mark.parametrize(("nodes", "parts"), [(1000, 1), (5000, 8)])
async def test_as_tables_a_poll_of_many_nodes_is_few_messages(bus: Bus, nodes: int, parts: int) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s", form=Publish.TABLES)
    first = samples(1, measured=now, nodes=nodes)
    assert await publisher.publish(first, requested_at=now) == parts
    assert sum(await table_nodes(bus)) == nodes
    assert (await stored(bus))["messages"] == 0
    assert await publisher.publish(first, requested_at=now) == 0
    changed = (*first[1:], *samples(2, measured=now, nodes=1)[:1])
    assert await publisher.publish(changed, requested_at=now) == 1  # only the part of the node
    fewer = samples(1, measured=now + 1, nodes=10)
    await publisher.publish(fewer, requested_at=now)
    assert publisher._parts == parts  # a source that has fewer nodes for a while keeps its parts


@pytest.mark.usefixtures("long_limits")
async def test_what_does_not_fit_into_tables_is_published_by_node(bus: Bus) -> None:
    """Where the server takes only small messages."""
    bus.max_value_bytes = 24 << 10
    now = time.time()
    long_names = tuple(
        Sample(node=f"{'n' * 60}-{number}", metric="load", value=Quantity(number), measured=now)
        for number in range(8_000)
    )
    publisher = SamplePublisher(bus, "s", form=Publish.TABLES)
    await answered(lambda: publisher.publish(long_names, requested_at=now))
    by_node = (await stored(bus))["num_subjects"]
    assert by_node > 0
    assert by_node + sum(await table_nodes(bus)) == len(long_names)


@pytest.mark.usefixtures("long_limits")
async def test_a_poll_that_tables_refuse_is_published_by_node_and_tables_are_tried_again(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    publisher = SamplePublisher(bus, "s", form=Publish.TABLES)

    async def poll(value: int) -> int:
        return await answered(
            lambda: publisher.publish(samples(value, measured=now + value, nodes=3), requested_at=now)
        )

    config = (await answered(lambda: bus.api("STREAM.INFO.TABLES")))["config"]
    await answered(lambda: bus.api("STREAM.UPDATE.TABLES", config | {"max_msg_size": 1}))
    assert await poll(1) == 3
    assert "message size exceeds maximum allowed" in publisher.without_tables
    await answered(lambda: bus.api("STREAM.UPDATE.TABLES", config))
    assert await poll(2) == 3  # not asked again with each poll
    monkeypatch.setattr(publisher, "_refused_until", time.monotonic())
    assert await poll(3) == 1
    assert publisher.without_tables == ""

    await answered(lambda: bus.api("STREAM.DELETE.TABLES"))
    assert await poll(4) == 3
    assert "tas.tables.s.1-0: nobody listens" in publisher.without_tables
    await eventually(partial(_exists, bus))  # this connection has created it again
    assert await poll(5) == 1
    assert publisher.without_tables == ""


async def _exists(bus: Bus) -> bool:
    with suppress(BusError):
        await bus.api("STREAM.INFO.TABLES")
        return True
    return False
