"""Workers that run inside a test, and the records on the bus."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from bus.buckets import NODES, POLICIES, SAMPLES, SAMPLES_CONSUMER, SYNCED, Bucket, Stream
from bus.connection import Bus, Epoch, RawEntry
from bus.errors import CONSUMER_NOT_FOUND, RefusedError
from bus.kinds import NODE_SAMPLES
from bus.records.nodes import decode_node_samples
from bus.records.policies import PolicyRecord, decode_policy
from bus.records.synced import Synced, decode_synced
from bus.subjects import parse_policy_key
from tas.samples.sample import NodeSamples
from tests.integration.servers import answered, eventually


class Runs(Protocol):
    """A worker, or a part of one."""

    async def run(self) -> None: ...


@asynccontextmanager
async def running(worker: Runs) -> AsyncIterator[None]:
    """Runs a worker while the body runs; fails if the worker has ended by itself."""
    task = asyncio.create_task(worker.run())
    try:
        yield
        assert not task.done(), f"{worker} ended: {task}"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def entry_on(bus: Bus, bucket: Bucket, key: str) -> RawEntry | None:
    return await answered(lambda: bus.get(bucket, key))


async def epoch_on(bus: Bus, of: Stream | Bucket) -> Epoch:
    return await answered(lambda: bus.epoch(of))


async def put(bus: Bus, bucket: Bucket, key: str, value: bytes | None) -> int:
    """Writes a key whatever is stored (None deletes it), and returns its revision."""

    async def write() -> int:
        stored, read_at = await bus.get(bucket, key), time.monotonic()
        revision = 0 if stored is None else stored.revision
        if value is None:
            return await bus.delete(bucket, key, revision=revision, read_at=read_at)
        return await bus.put(bucket, key, value, revision=revision, read_at=read_at)

    return await answered(write)


async def policies_on(bus: Bus) -> dict[str, PolicyRecord]:
    """The records in POLICIES, by `namespace/name`."""
    records = {}
    for entry in await answered(lambda: bus.entries(POLICIES)):
        if entry.key != SYNCED:
            assert entry.value is not None
            key = parse_policy_key(entry.key)
            records[str(key)] = decode_policy(key, entry.value)
    return records


async def policy_names(bus: Bus) -> set[str]:
    """The names of the policies in POLICIES, without their namespaces."""
    return {key.partition("/")[2] for key in await policies_on(bus)}


async def synced_on(bus: Bus, bucket: Bucket) -> Synced | None:
    """The record `_synced` of a bucket."""
    entry = await entry_on(bus, bucket, SYNCED)
    return None if entry is None or entry.value is None else decode_synced(entry.value)


async def samples_on(bus: Bus, node: str) -> NodeSamples | None:
    """A node's samples in NODES; None without any."""
    entry = await entry_on(bus, NODES, NODE_SAMPLES.key(node))
    return None if entry is None or entry.value is None else decode_node_samples(entry.value).samples


async def consumer_state(bus: Bus) -> dict[str, Any] | None:
    """The state of the consumer of materialize; None before a replica has created it."""
    try:
        return await answered(lambda: bus.api(f"CONSUMER.INFO.{SAMPLES.stream}.{SAMPLES_CONSUMER}"))
    except RefusedError as error:
        if error.code != CONSUMER_NOT_FOUND:
            raise
        return None


async def both_wait_for_messages(bus: Bus) -> bool:
    """Whether two replicas of materialize have asked for messages: the next messages go to both."""
    state = await consumer_state(bus)
    return state is not None and bool(state["num_waiting"] == 2)


async def all_handled(bus: Bus) -> None:
    """Waits until all messages that are on SAMPLES now were delivered to a replica of materialize and acknowledged."""
    last = (await epoch_on(bus, SAMPLES)).last_sequence

    async def handled() -> bool:
        state = await consumer_state(bus)
        return state is not None and bool(state["delivered"]["stream_seq"] >= last and state["num_ack_pending"] == 0)

    await eventually(handled, every=0.02)
