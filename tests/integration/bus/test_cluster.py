"""A cluster of three servers that keeps three copies, and loses any one of them (facts.md n30, n33)."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from bus import server as embedded
from bus.buckets import NODES
from bus.connection import CALL_SECONDS, Bus
from bus.errors import ConflictError, MisconfiguredError, UnavailableError
from tests.e2e.processes import free_ports
from tests.integration.bus.followers import following
from tests.integration.bus.load import load
from tests.integration.servers import eventually

# Electing a leader takes seconds, and on a busy machine many.
ELECTION_SECONDS = 60.0

NOISE_SECONDS = 5.0

now = time.monotonic

T = TypeVar("T")


class Cluster:
    """Three servers, each of which can be killed and started again."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._ports = free_ports(6)
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports[:3])

    async def start(self, number: int) -> None:
        store = embedded._prepare(self._store / str(number))
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._ports[3:])
        config = f"""
            listen: "127.0.0.1:{self._ports[number]}"
            server_name: "server-{number}"
            jetstream {{ store_dir: "{store}", max_file_store: {4 << 30} }}
            cluster {{ name: "test", listen: "127.0.0.1:{self._ports[3 + number]}", routes: [{routes}] }}
        """
        lock = await embedded._lock(store)
        try:
            self._processes[number] = await embedded._spawn(await embedded.find_binary(), store, lock, config)
        finally:
            os.close(lock)

    async def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        for number in list(self._processes):
            await self.kill(number)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        for number in range(3):
            await cluster.start(number)
        yield cluster
    finally:
        await cluster.stop()


async def answer(ask: Callable[[], Awaitable[T]]) -> T:
    """What is answered in the end: a server that has only just come back, or an election, may leave a question open."""
    answers: list[T] = []

    async def answered() -> bool:
        with suppress(UnavailableError):
            answers.append(await ask())
        return bool(answers)

    await eventually(answered, within=ELECTION_SECONDS)
    return answers[0]


async def leader(bus: Bus) -> int:
    """The number of the server that leads NODES."""
    led = await answer(lambda: bus.api("STREAM.INFO.KV_NODES"))
    return int(led["cluster"]["leader"].removeprefix("server-"))


@pytest.mark.timeout(300)
async def test_the_loss_of_the_leader_loses_nothing(cluster: Cluster) -> None:
    async with Bus.connect(cluster.url, name="test", replicas=3) as bus:
        await asyncio.wait_for(bus.wait_connected(), ELECTION_SECONDS)
        await eventually(lambda: bus.problem is None, within=ELECTION_SECONDS)
        async with load(bus) as running:
            await running.goes_on(within=ELECTION_SECONDS)
            first = await leader(bus)
            await cluster.kill(first)
            await running.goes_on(within=ELECTION_SECONDS)
            await cluster.start(first)
            await running.goes_on(within=ELECTION_SECONDS)
            running.stop()
            await eventually(lambda: running.published <= running.handled, within=ELECTION_SECONDS)
            truth = {entry.key: entry.value for entry in await answer(lambda: bus.entries(NODES))}
            await eventually(lambda: running.follower.view == truth, within=ELECTION_SECONDS)
            assert len(running.follower.epochs) == 1
            revisions = [entry.revision for entry in running.follower.entries]
            assert revisions == sorted(set(revisions))
            assert running.longest < CALL_SECONDS + NOISE_SECONDS


@pytest.mark.timeout(300)
async def test_on_three_replicas_exactly_one_of_two_writers_wins_n7(cluster: Cluster) -> None:
    async with (
        Bus.connect(cluster.url, name="one", replicas=3) as one,
        Bus.connect(cluster.url, name="two", replicas=3) as two,
    ):
        for bus in (one, two):
            await asyncio.wait_for(bus.wait_connected(), ELECTION_SECONDS)
            await eventually(lambda bus=bus: bus.problem is None, within=ELECTION_SECONDS)  # type: ignore[misc]
        won = 0
        for number in range(200):
            outcomes = await asyncio.gather(
                *(bus.put(NODES, f"n{number}", b"", revision=0, read_at=now()) for bus in (one, two)),
                return_exceptions=True,
            )
            if any(isinstance(outcome, UnavailableError) for outcome in outcomes):
                continue  # an election: nobody knows who won
            assert sorted(isinstance(outcome, ConflictError) for outcome in outcomes) == [False, True], outcomes
            won += 1
            if won == 50:
                break
        assert won == 50
        async with following(one, NODES) as follower:
            await follower.caught_up(within=ELECTION_SECONDS)
            assert len(follower.view) >= 50


@pytest.mark.timeout(300)
async def test_fewer_copies_than_wished_are_told(cluster: Cluster) -> None:
    async with Bus.connect(cluster.url, name="one", streams=[NODES]) as one:
        await asyncio.wait_for(one.wait_connected(), ELECTION_SECONDS)
        async with Bus.connect(cluster.url, name="three", streams=[NODES], replicas=3) as three:
            await asyncio.wait_for(three.wait_connected(), ELECTION_SECONDS)
            await eventually(lambda: isinstance(three.problem, MisconfiguredError), within=ELECTION_SECONDS)
            assert "num_replicas is 1, must be 3" in str(three.problem)
            await answer(lambda: three.put(NODES, "a", b"", revision=0, read_at=now()))
