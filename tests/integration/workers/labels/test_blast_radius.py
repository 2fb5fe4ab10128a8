"""How many nodes a wrong poll labels before the breaker trips: none. With real workers, the sandbox and nats-server."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import BREAKERS, OUTSTANDING_KEY
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import BREAKER_RECORDS, NODE_TABLES, NODE_VERDICTS, OUTSTANDING
from cli.pause import TRIES, _reset
from lab.sandbox.resources import NODES
from tas.enforcing.brake import BrakeSettings
from tas.enforcing.label_rate import Rate
from tas.verdict.outstanding import HOLD_SECONDS, Announcement
from tests.integration.bus.limits import long_limits
from tests.integration.servers import Server, answered, eventually
from tests.integration.tables import put_tables, tables
from tests.integration.workers.running import running
from tests.kubernetes.label_fixtures import labels_running, world
from tests.kubernetes.label_scenarios import VIOLATING, has
from tests.kubernetes.world import STALE_SECONDS, World, deschedule
from tests.sandbox import Sandbox
from workers.evaluate.worker import Evaluate
from workers.following.followed_view import FollowedView
from workers.following.records import Records
from workers.labels.brake_loop import BrakeLoop

__all__ = ["long_limits", "world"]

pytestmark = pytest.mark.usefixtures("long_limits")

WELL, SICK = {"health": "0"}, {"health": "1"}


@asynccontextmanager
async def evaluating(url: str) -> AsyncIterator[Evaluate]:
    async with Bus.connect(url, name="evaluate") as bus:
        view = FollowedView(bus, default_stale_after=STALE_SECONDS, verdicts=True)
        worker = Evaluate(bus, view, registry=CollectorRegistry())
        async with running(worker):
            await eventually(lambda: worker.unready() is None)
            yield worker


async def nodes_of(world: World, count: int) -> list[str]:
    return list(await asyncio.gather(*(world.node(f"node-{number}") for number in range(count))))


async def have_verdicts(world: World, count: int) -> None:
    async def are_there() -> bool:
        return len(await answered(partial(NODE_VERDICTS.entries, world.bus))) == count

    await eventually(are_there)


async def tripped(world: World, name: str) -> int:
    """Waits for the trip, and returns how many nodes wanted a label."""
    wanted = 0

    async def is_tripped() -> bool:
        nonlocal wanted
        breaker = (await answered(partial(BREAKER_RECORDS.get, world.bus, name))).readable()
        wanted = 0 if breaker is None or breaker.trip is None else breaker.trip.wanted
        return wanted > 0

    await eventually(is_tripped)
    return wanted


class Cluster(NamedTuple):
    """A simulated cluster and its bus. `holds` has an entry for each time at which a replica held nodes back."""

    sandbox: Sandbox
    world: World
    kubeconfig: Path
    url: str
    holds: list[str]

    def labelled(self, name: str) -> int:
        """How many nodes have the label."""
        return sum(name in node["metadata"].get("labels", {}) for node in self.sandbox.cluster.store.items(NODES))


@pytest.fixture
def cluster(
    sandbox: Sandbox, world: World, kubeconfig: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    for module in (
        "labels.brake_loop",
        "evaluate.announcing",
        "labels.breaker_records",
    ):  # however slow this machine is
        monkeypatch.setattr(f"workers.{module}.HOLD_SECONDS", 600.0)
    monkeypatch.setattr("tas.verdict.outstanding.HOLD_SECONDS", 600.0)
    monkeypatch.setattr("tas.verdict.pending.GIVE_UP_SECONDS", 600.0)
    holds: list[str] = []
    hold = BrakeLoop._hold

    def counted(loop: BrakeLoop) -> None:
        holds.append("hold")
        hold(loop)

    monkeypatch.setattr(BrakeLoop, "_hold", counted)
    return Cluster(sandbox, world, kubeconfig, server.url, holds)


def store_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are stored one after the other."""
    write, lock = Records.write_one, asyncio.Lock()

    async def slowly(records: Records[Any, Any], key: Any, what: Any) -> int:
        async with lock:
            await asyncio.sleep(0.003)
            return await write(records, key, what)

    monkeypatch.setattr(Records, "write_one", slowly)


async def poll(world: World, nodes: Sequence[str], *, apart: float = 0.0) -> None:
    """Stores the tables of a poll in which every node is sick, some time apart."""
    for key, table in tables(dict.fromkeys(nodes, SICK), source="test", sequence=2):
        revision = (await NODE_TABLES.get(world.bus, key)).revision
        await NODE_TABLES.put(world.bus, key, table, revision=revision, read_at=time.monotonic())
        await asyncio.sleep(apart)


class Schedule(NamedTuple):
    """A poll of so many nodes, its parts so many seconds apart; replicas of each worker; whether `evaluate` is slow."""

    nodes: int
    apart: float = 0.0
    replicas: int = 1
    is_slow: bool = False


SCHEDULES = {
    "300 nodes": Schedule(300),
    "two replicas": Schedule(60, replicas=2),
    "parts of a poll apart": Schedule(60, apart=0.3),
    "slow": Schedule(100, is_slow=True),
    "all together": Schedule(60, apart=0.3, replicas=2, is_slow=True),
}


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(each, marks=[pytest.mark.ci] if each.nodes > 100 else [], id=name)
        for name, each in SCHEDULES.items()
    ],
)
async def test_a_poll_that_turns_all_nodes_trips_the_breaker_before_the_first_label(
    cluster: Cluster, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.reconcile.lease_first.HOLD_BACK_SECONDS", 0.0)  # all replicas act at once
    world, name = cluster.world, cluster.world.name()
    nodes = await nodes_of(world, schedule.nodes)
    await world.policy(await world.namespace(), name, deschedule())
    await put_tables(world.bus, dict.fromkeys(nodes, WELL))
    async with AsyncExitStack() as stack:
        for _ in range(schedule.replicas):
            await stack.enter_async_context(evaluating(cluster.url))
            await stack.enter_async_context(labels_running(cluster.kubeconfig, cluster.url))
        await have_verdicts(world, schedule.nodes)
        if schedule.is_slow:
            store_slowly(monkeypatch)
        # The time between two polls is longer than that within a poll.
        await asyncio.sleep(3 * schedule.apart)
        await poll(world, nodes, apart=schedule.apart)
        wanted = await tripped(world, name)
    assert cluster.labelled(name) == 0
    assert wanted > schedule.nodes * 0.3
    assert cluster.holds, "no verdict was outstanding: this has not met its case"


async def test_a_new_policy_that_concerns_all_nodes_trips_before_the_first_label_also_after_a_reset(
    cluster: Cluster,
) -> None:
    world, name = cluster.world, cluster.world.name()
    nodes, namespace = await nodes_of(world, 60), await world.namespace()
    await put_tables(world.bus, dict.fromkeys(nodes, SICK))
    async with evaluating(cluster.url):
        async with labels_running(cluster.kubeconfig, cluster.url):
            await have_verdicts(world, 60)
            await world.policy(namespace, name, deschedule())
            await tripped(world, name)
            assert cluster.labelled(name) == 0
            assert await TRIES.of(lambda: _reset(world.bus, name)) == 0
            await tripped(world, name)
            assert cluster.labelled(name) == 0
        await answered(partial(BREAKER_RECORDS.get, world.bus, name))
        assert await TRIES.of(lambda: _reset(world.bus, name)) == 0  # while no replica runs
        async with labels_running(cluster.kubeconfig, cluster.url):
            await tripped(world, name)
            assert cluster.labelled(name) == 0


async def test_one_node_gets_its_label_at_once_while_nothing_is_outstanding(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.integration.tables.PARTS", 1)  # of several, it would wait for the others of its poll
    world, name = cluster.world, cluster.world.name()
    nodes = await nodes_of(world, 12)
    await world.policy(await world.namespace(), name, deschedule())
    await put_tables(world.bus, dict.fromkeys(nodes, WELL))
    async with evaluating(cluster.url), labels_running(cluster.kubeconfig, cluster.url) as labels:
        await have_verdicts(world, 12)
        await labels.idle()
        cluster.holds.clear()
        for number, node in enumerate(nodes[:3]):
            await put_tables(world.bus, dict.fromkeys(nodes, WELL) | {node: SICK}, sequence=2 * number + 2)
            await eventually(has(world, node, name, VIOLATING))
            await put_tables(world.bus, dict.fromkeys(nodes, WELL), sequence=2 * number + 3)
            await eventually(has(world, node, name, None))
        assert cluster.holds == []
        assert (await answered(partial(OUTSTANDING.get, world.bus, OUTSTANDING_KEY))).revision == 0


async def test_a_node_waits_for_announced_verdicts_only_as_long_as_the_bound(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something announces outstanding verdicts again and again, and never ends: it keeps no label away."""
    monkeypatch.setattr("workers.labels.brake_loop.HOLD_SECONDS", HOLD_SECONDS)  # that of the product
    world, name = cluster.world, cluster.world.name()
    (node,) = await nodes_of(world, 1)
    announced = asyncio.Event()

    async def announce() -> None:
        while True:
            entry = await answered(partial(OUTSTANDING.get, world.bus, OUTSTANDING_KEY))
            record = {"stranger": Announcement(since=time.time())}
            with suppress(BusError):  # evaluate writes it, too
                await OUTSTANDING.put(
                    world.bus, OUTSTANDING_KEY, record, revision=entry.revision, read_at=time.monotonic()
                )
                announced.set()
            await asyncio.sleep(0.05)

    async with labels_running(cluster.kubeconfig, cluster.url):
        announcing = asyncio.create_task(announce())
        try:
            await announced.wait()
            async with evaluating(cluster.url):
                began = time.monotonic()
                await world.policy(await world.namespace(), name, deschedule())
                await put_tables(world.bus, {node: SICK})
                await eventually(has(world, node, name, VIOLATING))
                assert time.monotonic() - began >= HOLD_SECONDS
                assert cluster.holds, "the node has not waited"
                assert not announcing.done()
        finally:
            announcing.cancel()


async def test_no_more_nodes_than_the_rate_get_their_first_label_and_the_others_are_counted(cluster: Cluster) -> None:
    count, rate = 12, Rate(per_minute=2, burst=5)
    world, name = cluster.world, cluster.world.name()
    nodes = await nodes_of(world, count)
    await put_tables(world.bus, dict.fromkeys(nodes, SICK))
    brake = BrakeSettings(policy=None, over_all=None, label_rate=rate, label_rate_all=None)
    async with evaluating(cluster.url), labels_running(cluster.kubeconfig, cluster.url, brake=brake) as labels:
        began = time.monotonic()
        await world.policy(await world.namespace(), name, deschedule())

        async def all_have_or_wait() -> bool:
            return cluster.labelled(name) + labels.worker.waiting_labels().get(name, 0) == count

        await eventually(all_have_or_wait)
        labelled = cluster.labelled(name)
        assert rate.burst <= labelled <= rate.burst + rate.per_minute * (time.monotonic() - began) / 60
        # What needs its label no more does not wait, and the API server never sees it.
        await put_tables(world.bus, dict.fromkeys(nodes, WELL), sequence=2)
        await eventually(lambda: cluster.labelled(name) == 0 and labels.worker.waiting_labels() == {})


async def test_a_node_that_waits_for_its_turn_is_not_admitted_anew_at_each_patch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each patch of a label is another version of the node, and many labels of the node wait at that time."""
    monkeypatch.setattr("tests.integration.tables.PARTS", 1)
    world, policies = cluster.world, 40
    (node,) = await nodes_of(world, 1)
    namespace, name = await world.namespace(), world.name()
    await put_tables(world.bus, {node: SICK})
    for number in range(policies):
        await world.policy(namespace, f"{name}-{number}", deschedule())
    first = (await world.bus.epoch(BREAKERS)).last_sequence
    brake = BrakeSettings(label_rate=None, label_rate_all=Rate(240, 5))
    async with evaluating(cluster.url), labels_running(cluster.kubeconfig, cluster.url, brake=brake) as labels:
        await eventually(lambda: all(cluster.labelled(f"{name}-{number}") for number in range(policies)))
        patches = labels.count("tas_label_patches_total", result="patched")
    written = (await world.bus.epoch(BREAKERS)).last_sequence - first
    assert patches >= 5, "the labels came at once: this has not met its case"
    assert written <= 4 * policies
