"""The samples of a node as the leader has them: its own record and its rows, or nothing if any of them is not known."""

import asyncio
import time
from collections import Counter

import pytest

from bus.buckets import NODES, Bucket
from bus.connection import Bus, RawEntry
from bus.kinds import NODE_FACTS, NODE_SAMPLES
from bus.records.codec import encode, time_of
from bus.records.nodes import NodeFacts, encode_node_samples
from bus.records.tables import encode_stored_table
from bus.subjects import node_table_key
from tas.samples.parts import Part
from tas.samples.sample import NodeSamples, Scrape
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import NANO, Quantity
from tests.integration.bus.limits import long_limits
from tests.integration.servers import Server, answered
from tests.integration.workers.running import put
from workers.following.node_samples import NodeSamplesReads

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

POLL, OTHER = TableKey("poll", Part(1, 0)), TableKey("other", Part(1, 0))
NAMES = [f"n-{number}" for number in range(50)]


def table(source: str, measured: float, value: int) -> bytes:
    column = Column((Quantity(value * NANO),) * len(NAMES), Reading(measured, measured, 1))
    return encode_stored_table(Table(source, tuple(NAMES), {"load": column}))


def values(samples: NodeSamples | None) -> dict[str, float] | None:
    """The value of `load` of each source."""
    return None if samples is None else {scrape.source: scrape.metrics["load"] / NANO for scrape in samples}


async def test_a_node_has_its_own_samples_and_those_of_every_table(bus: Bus) -> None:
    now = time.time()
    own = Scrape(source="poll", measured=now, arrived=now, sequence=1, metrics={"load": Quantity(1 * NANO)})
    reads = NodeSamplesReads(bus)
    assert (await answered(lambda: reads.read("n-1")))[:3] == ((), True, 0)
    await put(bus, NODES, node_table_key(POLL), table("poll", now - 1, 2))
    last = await put(bus, NODES, node_table_key(OTHER), table("other", now, 3))
    found = await answered(lambda: reads.read("n-1"))
    assert (values(found.samples), found.revision) == ({"poll": 2, "other": 3}, last)
    assert (await answered(lambda: reads.read("unknown"))).samples == ()
    await put(bus, NODES, NODE_SAMPLES.key("n-1"), encode_node_samples((own,)))
    assert values((await answered(lambda: reads.read("n-1"))).samples) == {"poll": 1, "other": 3}
    for created, counting in ((now, {"poll": 1, "other": 3}), (now + 1, {})):
        facts = NodeFacts(uid="u", labels={}, created=time_of(created))
        await put(bus, NODES, NODE_FACTS.key("n-1"), encode(facts))
        found = await answered(lambda: reads.read("n-1"))
        assert (values(found.samples), found.facts.readable()) == (counting, facts)


@pytest.mark.parametrize("key", [node_table_key(OTHER), NODE_SAMPLES.key("n-1")])
async def test_of_a_node_with_an_invalid_record_nothing_is_known(bus: Bus, key: str) -> None:
    await put(bus, NODES, node_table_key(POLL), table("poll", time.time(), 2))
    await put(bus, NODES, key, b"{}")
    reads = NodeSamplesReads(bus)
    found = await answered(lambda: reads.read("n-1"))
    assert found.samples is None  # no evidence
    assert values(found.readable) == {"poll": 2}  # what commands show
    await put(bus, NODES, key, None)  # a deleted table has no value that counts
    assert values((await answered(lambda: reads.read("n-1"))).samples) == {"poll": 2}


async def test_many_nodes_share_the_reads_of_a_table(server: Server) -> None:
    read: Counter[str] = Counter()

    class CountingBus(Bus):
        async def get(self, bucket: Bucket, key: str) -> RawEntry | None:
            read[key] += 1
            return await super().get(bucket, key)

    async with CountingBus.connect(server.url, name="counting") as bus:
        await bus.wait_connected()
        await put(bus, NODES, node_table_key(POLL), table("poll", time.time(), 2))
        reads = NodeSamplesReads(bus)
        found = await asyncio.gather(*(reads.read(node) for node in NAMES))
        assert [values(each.samples) for each in found] == [{"poll": 2}] * len(NAMES)
    assert read[node_table_key(POLL)] <= 3
