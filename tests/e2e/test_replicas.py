"""Two replicas of every worker, as processes, on the real control plane: each is killed once, under load.

Samples of all nodes are published all the time, with changing values for some nodes, and pods are created. After each
kill labels, status and placement follow, and no label is removed without a reason. Both extenders share a port.
"""

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import VERDICTS
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import NODE_VERDICTS
from bus.records.tables import MAX_TABLE_BYTES
from bus.records.verdicts import decode_verdict
from bus.scrapes import publish_scrape
from bus.tables import encoded_tables, publish_tables
from tas.policy.policy import LABEL_PREFIX, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.parts import Part
from tas.samples.sample import Scrape
from tas.samples.table import Column, Reading, TableKey, table_of
from tas.values.quantity import Quantity, parse_quantity
from tests.e2e.processes import REPOSITORY
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import running
from tests.kubernetes.admin import Admin
from tests.kubernetes.enforcement import NodeHistory
from workers.kubernetes.client import KubernetesClient

from .cluster import NODES, POLICY_LABEL, RESOURCE, Cluster, extender
from .processes import free_ports
from .product import lets_pass

POLICY = "replicated"
VIOLATING = "violating"
CARD = f"{LABEL_PREFIX}{POLICY}/card"
LABELS = {POLICY: VIOLATING, CARD: "hot"}

NO_LIMIT = ("--breaker", "100%,1", "--breaker-all", "100%,1", "--flap-budget", "0")
"""The brake admits every node: nearly half of the nodes are labelled, and some of them change all the time."""

STALE_SECONDS = 60
"""Several times longer than a busy bus needs for a sample of each node, one after the other: others must stay fresh."""

SAMPLE_SECONDS = 0.02
"""The time between two samples; every second sample is of a node whose value does not change."""

POD_SECONDS = 0.4
VIOLATED = [f"violated-{number}" for number in range(8)]
"""These violate all the time."""
STALE = [f"stale-{number}" for number in range(8)]
"""These violated, and then have no new samples: their labels stay, and they get no pods."""
MET = [f"met-{number}" for number in range(10)]
CHANGING = [f"changing-{number}" for number in range(20)]
MARKER = "marker"
"""Its value changes after each kill, and its labels must follow."""
ALL = [*VIOLATED, *STALE, *MET, *CHANGING, MARKER]

SPEC: dict[str, Any] = {
    "staleAfter": f"{STALE_SECONDS}s",
    "strategies": {
        "dontschedule": {
            "onStale": "fail",
            "rules": [{"metricname": "health", "operator": "GreaterThan", "target": 0}],
        },
        "deschedule": {"rules": [{"metricname": "health", "operator": "Equals", "target": 2}]},
        "labeling": {"rules": [{"metricname": "health", "operator": "Equals", "target": 2, "labels": ["card=hot"]}]},
    },
}


class Load:
    """Sources and users: publishes samples of every node, and creates pods.

    Attributes:
        as_tables: Whether samples are published as tables.
    """

    def __init__(self, bus: Bus, admin: Admin, namespace: str) -> None:
        self.health: dict[str, int] = dict.fromkeys(VIOLATED, 2) | dict.fromkeys(MET, 0) | {MARKER: 0}
        self.recoveries: dict[str, int] = defaultdict(int)
        self.samples = 0
        self.pods: list[str] = []
        self.as_tables = False
        self.bus = bus
        self._admin = admin
        self._namespace = namespace
        self._chance = random.Random(7)

    async def report(self, node: str, health: int) -> None:
        """Publishes a sample until the bus has stored it."""
        if self.health.get(node) == 2 != health:
            self.recoveries[node] += 1
        self.health[node] = health

        async def published() -> bool:
            # The newest value: another task may have changed it.
            with suppress(BusError):
                await self._publish(node, parse_quantity(str(self.health[node])))
                self.samples += 1
                return True
            return False

        await eventually(published, every=0.05)

    async def _publish(self, node: str, value: Quantity) -> None:
        now = time.time()
        if self.as_tables:
            table = table_of("test", (node,), {"health": Column((value,), Reading(now, now, 0))})
            fits, _ = encoded_tables([(TableKey("test", Part(1, 0)), table)], most=MAX_TABLE_BYTES)
            await publish_tables(self.bus, fits)
        else:
            scrape = Scrape(source="test", measured=now, arrived=now, sequence=0, metrics={"health": value})
            await publish_scrape(self.bus, node, scrape)

    async def samples_on(self, *, changes: bool) -> None:
        """Publishes without end: the steady nodes in turn, and with `changes` every second time a changing node."""
        for number in itertools.count():
            steady = [node for node in self.health if not changes or node not in CHANGING]
            node = steady[(number // 2 if changes else number) % len(steady)]
            if changes and number % 2:
                node = self._chance.choice(CHANGING)
                await self.report(node, self._chance.choice((0, 1, 2)))
            else:
                await self.report(node, self.health[node])
            await asyncio.sleep(SAMPLE_SECONDS)

    async def pods_on(self) -> None:
        for number in itertools.count():
            await self.create_pod(f"load-{number}")
            await asyncio.sleep(POD_SECONDS)

    async def create_pod(self, name: str) -> None:
        container = {"name": "main", "image": "pause", "resources": {"limits": {RESOURCE: "1"}}}
        body = {"metadata": {"name": name, "labels": {POLICY_LABEL: POLICY}}, "spec": {"containers": [container]}}
        await self._admin.create(f"/api/v1/namespaces/{self._namespace}/pods", body)
        self.pods.append(name)

    async def nodes(self) -> dict[str, str | None]:
        """The node of every pod; None: it has none yet."""
        found = await self._admin.get(f"/api/v1/namespaces/{self._namespace}/pods")
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in found["items"]}

    async def is_placed(self, name: str) -> bool:
        pod = await self._admin.get(f"/api/v1/namespaces/{self._namespace}/pods/{name}")
        return bool(pod["spec"].get("nodeName"))


@asynccontextmanager
async def doing(*work: Any) -> AsyncIterator[None]:
    """Runs these tasks during the body; their errors are raised at its end."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[None]:
    """Ready nodes. Afterwards the nodes of all tests are as before."""
    cluster.create_nodes(*ALL)
    yield
    cluster.delete_nodes(*ALL)
    cluster.remove_resource()


@pytest.mark.usefixtures("nodes")
async def test_each_of_two_replicas_is_killed_under_load_and_labels_status_and_placement_are_right(
    cluster: Cluster, admin: Admin, namespace: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    async def each_is_killed(replicas: Replicas, turn: Turn, _load: Load) -> None:
        for number, worker in itertools.product((0, 1), replicas):
            await turn(replicas[worker][number], replicas[worker][number].kill)

    load, waits = await under_load(cluster, admin, namespace, tmp_path, each_is_killed)
    measured(
        f"{len(waits)} kills under load: {load.samples} samples, {len(load.pods)} pods, all placed; the first pod "
        f"after a kill within {max(waits):.1f} s (median {sorted(waits)[len(waits) // 2]:.1f} s)"
    )


Replicas = Mapping[str, Sequence[Replica]]
"""Two replicas of each worker."""

Turn = Callable[[Replica, Callable[[], Any]], Awaitable[None]]
"""Ends a replica by the given call, waits for effects of the other, and starts it again."""


async def under_load(
    cluster: Cluster,
    admin: Admin,
    namespace: str,
    tmp_path: Path,
    play: Callable[[Replicas, Turn, Load], Awaitable[None]],
    *,
    tree: Path = REPOSITORY,
) -> tuple[Load, list[float]]:
    """Two replicas of every worker serve a load while `play` runs, and are right in the end.

    Returns the load, and of each turn the seconds until a pod was placed.
    """
    (port,) = free_ports(1)
    key = PolicyKey(namespace, POLICY)
    async with AsyncExitStack() as stack:
        server = Server(tmp_path / "store")
        await server.start()
        stack.push_async_callback(server.stop)
        replicas = {
            worker: [
                stack.enter_context(replica(f"{worker}-{number}", command, folder=tmp_path, tree=tree))
                for number in (1, 2)
            ]
            for worker, command in commands(admin.kubeconfig, server.url, port).items()
        }
        for each in itertools.chain(*replicas.values()):
            await each.ready()
        client = await stack.enter_async_context(KubernetesClient.connect(admin.kubeconfig, worker="test"))
        history: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        await stack.enter_async_context(running(NodeHistory(client, history)))
        await eventually(lambda: history.keys() >= set(ALL))
        bus = await stack.enter_async_context(Bus.connect(server.url, name="load", streams=()))
        await bus.wait_connected()

        load = Load(bus, admin, namespace)
        await admin.create_policy(namespace, POLICY, **SPEC)
        stack.push_async_callback(admin.delete_policy, namespace, POLICY)
        stale = dict.fromkeys(STALE, 2)
        load.health |= stale
        async with doing(load.samples_on(changes=False)):
            await eventually(lambda: labelled(cluster) == {*VIOLATED, *STALE}, every=0.1)
        for node in STALE:
            del load.health[node]
        stack.enter_context(cluster.scheduler(extender(f"http://127.0.0.1:{port}", names_only=True, httpTimeout="2s")))

        waits: list[float] = []

        async def turn(victim: Replica, end: Callable[[], Any]) -> None:
            waits.append(await ended(victim, end, load, cluster))

        async with doing(load.samples_on(changes=True), load.pods_on()):
            await play(replicas, turn, load)
        turns = len(waits)
        for node in CHANGING:
            await load.report(node, CHANGING.index(node) % 3)

        async with doing(load.samples_on(changes=False)):
            health = load.health | stale
            violating = {node for node, value in health.items() if value == 2}
            await eventually(lambda: labelled(cluster) == violating, every=0.1)
            states = dict.fromkeys(STALE, State.UNKNOWN)
            states |= {node: State.VIOLATED if value else State.MET for node, value in load.health.items()}
            await eventually(lambda: evaluated(bus, key, states), every=0.1)
            violating_now = {node for node, value in load.health.items() if value}
            await eventually(lambda: reported(admin, key, len(violating_now)), every=0.1)
            await eventually(lambda: offered(admin, [*NODES, *ALL]), every=0.1)
            # The scheduler asks either of them. A view may be behind that of the workers above.
            met = {node for node, state in states.items() if state is State.MET}
            for each in replicas["extender"]:
                await eventually(partial(passes_exactly, each, key, met), every=0.1)

            last = [f"last-{number}" for number in range(10)]
            for name in last:
                await load.create_pod(name)

            placed: dict[str, str | None] = {}

            async def all_placed() -> bool:
                """Also one that is not noted: the load may have ended between its creation and the answer."""
                nonlocal placed
                placed = await load.nodes()
                return all(placed.values()) and set(load.pods) <= placed.keys()

            await eventually(all_placed, every=0.1)
        assert not {name: node for name, node in placed.items() if node in {*VIOLATED, *STALE, *NODES}}
        violating_nodes = {node for node, value in load.health.items() if value}
        assert not {name: placed[name] for name in last if placed[name] in violating_nodes}
        for each in itertools.chain(*replicas.values()):
            each.must_run()
        # Before the policy is deleted, since its labels are then removed.
        await eventually(lambda: caught_up(admin, history), every=0.1)
        wrongs = wrong_labels(history, load.recoveries, turns)
    assert not wrongs, "\n".join(wrongs)
    return load, waits


def commands(kubeconfig: Path, url: str, port: int) -> Mapping[str, list[str]]:
    """The command of each worker; `status` is a part of `watch`."""
    cluster = ("--kubeconfig", str(kubeconfig))
    where = ("--listen", f"127.0.0.1:{port}", "--share-listen", "on")
    return {
        "materialize": tas("materialize", bus=url),
        "watch": tas("watch", *cluster, bus=url),
        "evaluate": tas("evaluate", bus=url),
        "labels": tas("labels", *cluster, *NO_LIMIT, bus=url),
        "resources": tas("resources", *cluster, bus=url),
        "extender": tas("extender", *where, bus=url),
    }


async def ended(victim: Replica, end: Callable[[], Any], load: Load, cluster: Cluster) -> float:
    """Ends a replica, waits for effects of the other, and restarts it. Returns the seconds until a pod is placed."""
    began = time.monotonic()
    if (ending := end()) is not None:
        await ending
    pod = f"after-{victim.name}-{len(load.pods)}"
    await load.create_pod(pod)
    health = 2 - load.health[MARKER]
    await load.report(MARKER, health)
    await eventually(lambda: load.is_placed(pod), every=0.02)
    waited = time.monotonic() - began
    await eventually(lambda: (MARKER in labelled(cluster)) == (health == 2), every=0.1)
    victim.start()
    await victim.ready()
    return waited


def labelled(cluster: Cluster) -> set[str]:
    """The nodes with all labels of the policy."""
    found = cluster.api.get("/api/v1/nodes", labelSelector=f"{POLICY}={VIOLATING},{CARD}=hot")["items"]
    return {node["metadata"]["name"] for node in found}


async def evaluated(bus: Bus, key: PolicyKey, states: Mapping[str, State]) -> bool:
    """Whether every verdict has this state of `dontschedule`."""
    for node, state in states.items():
        entry = await answered(partial(bus.get, VERDICTS, NODE_VERDICTS.key(node)))
        if entry is None or entry.value is None:
            return False
        policy = decode_verdict(entry.value).policies.get(key)
        if policy is None or policy.strategies[StrategyType.DONTSCHEDULE].state is not state:
            return False
    return True


async def reported(admin: Admin, key: PolicyKey, violating: int) -> bool:
    """Whether the policy's status has this number of violating nodes."""
    found = await admin.get(f"{admin.policies(key.namespace)}/{key.name}")
    return bool(found.get("status", {}).get("violating") == violating)


async def offered(admin: Admin, names: list[str]) -> bool:
    """Whether every node offers the resource."""
    found = {each["metadata"]["name"]: each["status"] for each in (await admin.get("/api/v1/nodes"))["items"]}
    return all(
        found[name].get(field, {}).get(RESOURCE) == "1k" for name in names for field in ("capacity", "allocatable")
    )


async def passes_exactly(one: Replica, key: PolicyKey, nodes: set[str]) -> bool:
    """Whether this extender passes these nodes, and no others."""
    return await lets_pass(one, key.namespace, key.name, [*NODES, *ALL]) == nodes


async def caught_up(admin: Admin, history: Mapping[str, list[dict[str, str]]]) -> bool:
    """Whether the last state in the history of every node is its current state."""
    found = (await admin.get("/api/v1/nodes"))["items"]
    return all(history[node["metadata"]["name"]][-1] == node["metadata"].get("labels", {}) for node in found)


def wrong_labels(history: Mapping[str, list[dict[str, str]]], recoveries: Mapping[str, int], turns: int) -> list[str]:
    """Every label that was set or removed without a sample as its reason."""
    wrongs = []
    for label in LABELS:
        for node, states in history.items():
            values = [key for key, _ in itertools.groupby(label in state for state in states)]
            if node in {*VIOLATED, *STALE} and values != [False, True]:
                wrongs.append(f"{node} must get {label} and keep the label: {values}")
            if node in {*MET, *NODES} and values != [False]:
                wrongs.append(f"{node} must never get {label}: {values}")
            if node == MARKER and values != [number % 2 == 1 for number in range(turns + 1)]:
                wrongs.append(f"{node} changed {turns} times, and {label} did not follow: {values}")
            removed = sum(not value for value in values[1:])
            if node in CHANGING and removed > recoveries.get(node, 0):
                wrongs.append(
                    f"{node} recovered {recoveries.get(node, 0)} times, and {label} was removed {removed} times"
                )
    return wrongs
