"""A cluster of three servers with three copies of each stream, of which one server may be lost (facts.md n30, n33)."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus import connection
from bus import server as embedded
from bus.buckets import BREAKERS, NODES, SAMPLES
from bus.connection import CALL_SECONDS, Bus
from bus.errors import ConflictError, ExpiredError, MisconfiguredError, NoMajorityError, UnavailableError
from bus.rights.access import Access
from bus.rights.operator import Keys
from tests.e2e.processes import free_ports
from tests.integration.bus.followers import following
from tests.integration.bus.limits import WORK_SECONDS
from tests.integration.bus.load import load, write_eventually
from tests.integration.cli.tas import Tas
from tests.integration.lateness import Lateness
from tests.integration.servers import answered, eventually
from workers.roles import ROLES

now = time.monotonic


class Cluster:
    """Three servers; each can be killed and started again. `more` is a part of their configuration."""

    def __init__(self, store: Path, more: str = "") -> None:
        self._store = store
        self._more = more
        self._ports = free_ports(6)
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self._ports[:3]]

    @property
    def url(self) -> str:
        return ",".join(self.urls)

    async def start(self, number: int) -> None:
        store = embedded._prepare(self._store / str(number))
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._ports[3:])
        config = f"""
            listen: "127.0.0.1:{self._ports[number]}"
            server_name: "server-{number}"
            jetstream {{ store_dir: "{store}", max_file_store: {8 << 30} }}
            cluster {{ name: "test", listen: "127.0.0.1:{self._ports[3 + number]}", routes: [{routes}] }}
            {self._more}
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


async def leader(bus: Bus) -> int:
    """The number of the server that leads NODES."""
    names: list[str] = []

    async def elected() -> bool:
        info = await answered(lambda: bus.api("STREAM.INFO.KV_NODES"))
        names[:] = [info["cluster"].get("leader", "")]
        return bool(names[0])

    await eventually(elected)
    return int(names[0].removeprefix("server-"))


@pytest.mark.ci
async def test_the_loss_of_the_leader_loses_nothing(cluster: Cluster, lateness: Lateness) -> None:
    async with Bus.connect(cluster.url, name="test", replicas=3) as bus:
        await eventually(lambda: bus.connected and bus.problem is None)
        async with load(bus) as running:
            await running.continues()
            first = await leader(bus)
            await cluster.kill(first)
            await running.continues()
            await cluster.start(first)
            await running.continues()
            running.stop()
            await eventually(lambda: running.published <= running.handled)
            stored = {entry.key: entry.value for entry in await answered(lambda: bus.entries(NODES))}
            await eventually(lambda: running.follower.view == stored)
            assert len(running.follower.epochs) == 1
            revisions = [entry.revision for entry in running.follower.entries]
            assert revisions == sorted(set(revisions))
            assert running.longest < CALL_SECONDS + WORK_SECONDS + lateness.worst


async def test_on_three_replicas_exactly_one_of_two_writers_wins_facts_n7(cluster: Cluster) -> None:
    async with (
        Bus.connect(cluster.url, name="one", replicas=3) as one,
        Bus.connect(cluster.url, name="two", replicas=3) as two,
    ):
        await eventually(lambda: one.connected and two.connected and one.problem is None and two.problem is None)
        numbers = itertools.count()

        async def one_wins() -> bool:
            key = f"n{next(numbers)}"
            outcomes = await asyncio.gather(
                *(bus.put(NODES, key, b"", revision=0, read_at=now()) for bus in (one, two)),
                return_exceptions=True,
            )
            if any(isinstance(outcome, UnavailableError | ExpiredError) for outcome in outcomes):
                return False  # in an election the outcome is not known; a process that was stopped has not sent both
            assert sorted(isinstance(outcome, ConflictError) for outcome in outcomes) == [False, True], outcomes
            return True

        for _ in range(50):
            await eventually(one_wins)
        async with following(one, NODES) as follower:
            await follower.caught_up()
            assert len(follower.view) >= 50


async def test_a_stream_with_too_few_copies_is_reported_and_used(cluster: Cluster) -> None:
    async with Bus.connect(cluster.url, name="one", streams=[NODES]) as one:
        await eventually(lambda: one.connected)
        async with Bus.connect(cluster.url, name="three", streams=[NODES], replicas=3) as three:
            await eventually(lambda: isinstance(three.problem, MisconfiguredError))
            assert "num_replicas is 1, must be 3" in str(three.problem)
            await write_eventually(three, "a")


@pytest.mark.long
async def test_an_idle_connection_to_a_server_without_a_majority_says_so_and_so_do_commands(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that is left keeps its connections, and a program that asks nothing would never notice."""
    tas = Tas(tmp_path / "home")
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr("bus.link.UNANSWERED_PINGS", 60)  # on a busy machine a server does not answer for seconds
    async with Bus.connect(cluster.urls[2], name="idle", streams=[NODES, SAMPLES], replicas=3) as idle:
        await eventually(lambda: idle.connected and idle.problem is None)
        link = idle.link
        for number in (0, 1):
            await cluster.kill(number)
        await eventually(lambda: idle.unavailable)

        async def names_no_leader() -> bool:
            return not (await answered(lambda: idle.api("STREAM.INFO.SAMPLES")))["cluster"].get("leader")

        await eventually(names_no_leader)  # the server answers again, as if the stream could be used
        await eventually(lambda: isinstance(idle.problem, NoMajorityError))

        async def names_no_epoch() -> bool:
            with pytest.raises(UnavailableError) as caught:
                await idle.epoch(SAMPLES)  # else a view would take the last sequence of that server for the end
            return isinstance(caught.value, NoMajorityError) and "SAMPLES: most servers" in str(caught.value)

        await eventually(names_no_epoch)  # a busy server may give no answer at all
        assert idle.connected
        assert idle.link is link
        for command in (("get", "nodes"), ("publish", "n1", "m=1")):
            done = await tas(*command, "--bus", cluster.urls[2])
            assert done.code == 1
            assert done.err.startswith(f"Error: the bus at {cluster.urls[2]} has no majority now: "), done.err
        with pytest.raises(UnavailableError):
            await idle.publish(SAMPLES, "tas.samples.n1.test", b"{}")
        for number in (0, 1):
            await cluster.start(number)
        await eventually(lambda: idle.problem is None)
        assert idle.link is link, "it was connected all the time"
        await write_eventually(idle, "a")


async def test_a_publisher_is_answered_by_each_server_and_no_answer_is_written_to_a_stream(tmp_path: Path) -> None:
    """Its account is another one than that of the streams, and the leader of a stream is on another server."""
    keys = Keys.new(ROLES)

    def user(role: str, name: str, *tags: str) -> Access:
        file = tmp_path / f"{name}.creds"
        file.write_text(keys.credentials(role, name, tags=tags, now=time.time()))
        return Access(credentials=file)

    cluster = Cluster(tmp_path / "servers", keys.server_configuration(ROLES, revoked={}, now=time.time()))
    try:
        for number in range(3):
            await cluster.start(number)
        keeper = Bus.connect(cluster.url, name="keeper", access=user("keeper", "tas-keeper"), replicas=3)
        reader = Bus.connect(cluster.url, name="reader", streams=(), access=user("reader", "tas-reader"))
        async with keeper as creating, reader as bus:
            await eventually(lambda: creating.connected and creating.problem is None)
            access = user("node", "a", "source:probe")
            for url in cluster.urls:
                async with Bus.connect(url, name="node", streams=(SAMPLES,), access=access) as node:
                    await node.wait_connected()
                    for number in range(50):
                        await node.link.send("tas.samples.a.probe", b"{}", reply=BREAKERS.subject(f"invented{number}"))
                    first = await answered(lambda: node.publish(SAMPLES, "tas.samples.a.probe", b"{}"))
                    await answered(lambda: node.publish_all(SAMPLES, [("tas.samples.a.probe", b"{}")] * 100))
                    last = await answered(lambda: node.publish(SAMPLES, "tas.samples.a.probe", b"{}"))
                    assert last > first
            assert await answered(lambda: bus.keys(BREAKERS, ">")) == []
    finally:
        await cluster.stop()
