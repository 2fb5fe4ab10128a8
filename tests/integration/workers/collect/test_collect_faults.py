"""Two replicas of `collect` as processes: after any fault of one, exactly one polls a source."""

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bus.connection import Bus
from bus.kinds import LEASE_RECORDS
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.collecting import World, polled
from tests.sandbox import Sandbox

SOURCE = "custom-metrics"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["node-1"]) as sandbox:
        sandbox.metrics.set("load", "node-1", "1")
        yield sandbox


@pytest.fixture
async def world(bus: Bus) -> World:
    world = World(bus)
    await world.use("load")
    await world.listed()
    return world


@pytest.fixture
def replicas(server: Server, sandbox: Sandbox, tmp_path: Path) -> Iterator[list[Replica]]:
    kubeconfig = sandbox.kubeconfig(tmp_path / "kubeconfig")
    command = tas("collect", "--kubeconfig", str(kubeconfig), "--period", "200ms", bus=server.url)
    with ExitStack() as stack:
        yield [stack.enter_context(replica(f"collect-{name}", command, folder=tmp_path)) for name in "ab"]


async def holder(world: World, replicas: list[Replica]) -> Replica:
    """The replica that is the holder in the state of the source."""
    found: list[Replica] = []

    async def is_known() -> bool:
        state = await world.state(SOURCE)
        if state is not None:
            found[:] = [each for each in replicas if state.holder.endswith(f"-{each.pid}")]
        return bool(found)

    await polled(is_known)
    return found[0]


def has_lost_its_lease(one: Replica) -> bool:
    """Whether a replica, or the bus, was once too slow for a renewal: then the other one may take over."""
    return any(event["event"] == "source_lease_lost" for event in one.events())


async def taken_over(world: World, first: Replica, replicas: list[Replica]) -> None:
    """Waits until a replica other than `first` polls and publishes."""

    async def another() -> bool:
        return await holder(world, replicas) is not first

    await polled(another)
    await world.comes("node-1", SOURCE)


async def test_one_of_two_replicas_polls(world: World, sandbox: Sandbox, replicas: list[Replica]) -> None:
    for each in replicas:
        await each.ready()
    await world.comes("node-1", SOURCE)
    polling = await holder(world, replicas)
    began, before = time.monotonic(), len(sandbox.calls)
    await eventually(lambda: len(sandbox.calls) > before + 20)
    # Two replicas would poll twice as often as the period of one.
    assert time.monotonic() - began > 20 * 0.2 * 0.75
    assert await holder(world, replicas) is polling or has_lost_its_lease(polling)


@pytest.mark.parametrize("fate", ["killed", "paused"])
async def test_when_the_lease_holder_stops_the_other_replica_takes_over(
    world: World, sandbox: Sandbox, replicas: list[Replica], fate: str
) -> None:
    for each in replicas:
        await each.ready()
    await world.comes("node-1", SOURCE)
    first = await holder(world, replicas)
    if fate == "killed":
        first.kill()
    else:
        first.pause()
    await taken_over(world, first, replicas)
    if fate == "paused":
        second = await holder(world, replicas)
        first.resume()
        sandbox.metrics.set("load", "node-1", "2")
        await world.has("node-1", SOURCE, {"load": 2})
        for _ in range(5):  # the replica that continues late does not take the lease back
            await world.comes("node-1", SOURCE)
            assert await holder(world, replicas) is second or has_lost_its_lease(second)
    for each in replicas:
        if each is not first or fate == "paused":
            each.must_run()


async def test_an_orderly_stop_releases_the_lease_at_once(world: World, replicas: list[Replica]) -> None:
    for each in replicas:
        await each.ready()
    await world.comes("node-1", SOURCE)
    first = await holder(world, replicas)
    os.kill(first.pid, signal.SIGTERM)
    await eventually(lambda: first.ended)
    entry = await answered(lambda: LEASE_RECORDS.get(world.bus, f"collect.{SOURCE}"))  # before its time is over
    lease = entry.readable()
    assert lease is None or not lease.holder.endswith(f"-{first.pid}")
    await taken_over(world, first, replicas)


async def test_polling_continues_after_a_restart_of_the_bus(
    world: World, server: Server, replicas: list[Replica]
) -> None:
    for each in replicas:
        await each.ready()
    await world.comes("node-1", SOURCE)
    await server.restart()
    await world.bus.wait_connected()
    await world.comes("node-1", SOURCE)
    for each in replicas:
        each.must_run()


async def test_a_paused_bus_loses_some_polls_and_nothing_else(
    world: World, server: Server, replicas: list[Replica]
) -> None:
    for each in replicas:
        await each.ready()
    await world.comes("node-1", SOURCE)
    server.pause()
    try:
        await eventually(
            lambda: any(event["event"] == "source_lease_lost" for each in replicas for event in each.events()),
            every=0.05,
        )
    finally:
        server.resume()
    await world.comes("node-1", SOURCE)
    for each in replicas:
        each.must_run()
