"""Workers run inside a test, and what they wrote."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bus.buckets import NODES, POLICIES, SYNCED, Bucket
from bus.connection import Bus
from bus.errors import UnavailableError
from bus.records.nodes import decode_node_samples
from bus.records.policies import PolicyRecord, decode_policy
from bus.records.synced import Synced, decode_synced
from bus.subjects import node_metrics_key, parse_policy_key
from tas.samples.sample import NodeSamples
from workers.process.runtime import Worker


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Runs a worker as long as the body does; it must not have ended by itself."""
    task = asyncio.create_task(worker.run())
    try:
        yield
        assert not task.done(), f"{worker.name} ended: {task}"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def policies_on(bus: Bus) -> dict[str, PolicyRecord]:
    """What stands in POLICIES, by `namespace/name`."""
    records = {}
    for entry in await bus.entries(POLICIES):
        if entry.key != SYNCED:
            assert entry.value is not None
            key = parse_policy_key(entry.key)
            records[str(key)] = decode_policy(key, entry.value)
    return records


async def policy_names(bus: Bus) -> set[str]:
    """The names of the policies that stand, without their namespaces; empty while the bus does not answer."""
    with suppress(UnavailableError):
        return {key.partition("/")[2] for key in await policies_on(bus)}
    return set()


async def synced_on(bus: Bus, bucket: Bucket) -> Synced | None:
    """What `_synced` says."""
    entry = await bus.get(bucket, SYNCED)
    return None if entry is None or entry.value is None else decode_synced(entry.value)


async def samples_on(bus: Bus, node: str) -> NodeSamples | None:
    """What stands of a node's samples; None if nothing does."""
    entry = await bus.get(NODES, node_metrics_key(node))
    return None if entry is None or entry.value is None else decode_node_samples(entry.value)
