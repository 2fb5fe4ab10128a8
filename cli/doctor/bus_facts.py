"""Facts from the bus."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from bus.buckets import NODES, SYNCED
from bus.connection import Bus
from bus.errors import NobodyListensError, UnavailableError
from bus.inspection import inspect
from bus.kinds import LEASE_RECORDS, NODE_FACTS, NODE_SAMPLES, POLICY_RECORDS, SOURCE_STATES, synced_of
from cli.doctor.probes import REQUEST_SECONDS, probed
from cli.queries.query import readable
from tas.diagnosis.bus import MONITOR_MEND, BusFacts
from tas.diagnosis.clocks import Offset
from tas.diagnosis.finding import Missing
from tas.diagnosis.policies import StoredPolicy
from tas.errors import without_password
from tas.samples.sample import NodeSamples
from tas.sources.state import SourceState
from workers.process.http_body import whole_body

T = TypeVar("T")

MONITOR_PORT = 8222
MAX_MONITOR_BYTES = 1 << 20


class Stored(NamedTuple):
    """What is stored on the bus.

    Attributes:
        samples: By node.
        nodes: The labels of each node of the list of nodes; without a cluster, of each node with samples.
        held: The sources that a replica of `collect` has.
        cluster: Whether the nodes are those of a Kubernetes API; None: nobody has listed nodes.
    """

    policies: list[StoredPolicy]
    samples: Mapping[str, NodeSamples]
    nodes: Mapping[str, Mapping[str, str] | None]
    sources: Mapping[str, SourceState]
    held: frozenset[str]
    cluster: bool | None


class BusRead(NamedTuple):
    """All facts from the bus, or the same reason for each."""

    bus: BusFacts | Missing
    clock: Offset | Missing
    stored: Stored | Missing


async def read_bus(bus: Bus, *, monitor: str | None, embedded: bool) -> BusRead:
    """Reads the bus. `monitor` is the URL of the server's monitoring port; None: that port of the bus's host."""
    mend = f"start nats-server with --jetstream; give this user the rights of docs/bus.md; is {bus.address} your bus?"
    inspected = await probed(_patient(partial(inspect, bus)), mend=mend)
    if isinstance(inspected, Missing):
        return BusRead(inspected, inspected, inspected)
    facts, clock = inspected
    if not embedded:
        facts = msgspec.structs.replace(facts, sync=await _sync(bus.address, facts.server, monitor))
    return BusRead(
        msgspec.structs.replace(facts, embedded=embedded), clock, await probed(_patient(partial(_stored, bus)))
    )


async def _patient(read: Callable[[], Awaitable[T]]) -> T:
    """What `read` returns, tried again while the server does not answer in time. The caller limits the time."""
    while True:
        try:
            return await read()
        except UnavailableError as error:
            if error.code is not None or isinstance(error, NobodyListensError):
                raise
        await asyncio.sleep(0.1)


async def _stored(bus: Bus) -> Stored:
    policies = [
        StoredPolicy(policy=each.policy, uid=each.uid, created=each.created, problems=each.problems, origin=each.origin)
        for each in (await readable(bus, POLICY_RECORDS)).values()
    ]
    samples = await readable(bus, NODE_SAMPLES)
    facts = await readable(bus, NODE_FACTS)
    synced = (await synced_of(NODES).get(bus, SYNCED)).readable()
    leases = [entry.key for entry in await LEASE_RECORDS.entries(bus)]
    return Stored(
        policies=policies,
        samples=samples,
        nodes={node: each.complete_labels for node, each in facts.items()} or dict.fromkeys(samples),
        sources=await readable(bus, SOURCE_STATES),
        held=frozenset(key.removeprefix("collect.") for key in leases if key.startswith("collect.")),
        cluster=None if synced is None else synced.cluster,
    )


async def _sync(address: str, server: str, monitor: str | None) -> bool | Missing:
    """Whether the server syncs each write, as its monitoring port says."""
    url = monitor or f"http://{urlsplit(address.partition(',')[0]).hostname}:{MONITOR_PORT}"
    shown = without_password(url)
    answer = await probed(_monitored(url))
    if isinstance(answer, Missing):
        reason = f"the monitoring port does not answer at {shown}: {without_password(answer.reason)}"
        return Missing(reason, MONITOR_MEND)
    if monitor is None and answer.get("server_id") != server:
        return Missing(f"the monitoring port at {shown} is that of another server", MONITOR_MEND)
    config = answer.get("config")
    if not isinstance(config, dict):
        return Missing(f"{shown}/jsz has no configuration of JetStream", MONITOR_MEND)
    return bool(config.get("sync_always"))


async def _monitored(url: str) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"{url.rstrip('/')}/jsz", raise_for_status=True) as response,
    ):
        return msgspec.json.decode(await whole_body(response, max_bytes=MAX_MONITOR_BYTES), type=dict[str, Any])
