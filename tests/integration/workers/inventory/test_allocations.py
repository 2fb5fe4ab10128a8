"""The allocations that `inventory` stores, with a real nats-server and the sandbox, as an extension sees them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import HOLDS, NODES
from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION
from lab.sandbox.resources import NODES as NODE_OBJECTS
from lab.sandbox.resources import PODS, Object
from tas.allocation.node import NodeAllocation
from tas.allocation.pod import PodResources, PodTotals, pod_totals
from tas.extension import NodeView
from tas.view.view import View
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import entry_on, running
from tests.sandbox import Sandbox
from workers.following.followed_allocations import FollowedAllocations
from workers.inventory import pods_on_nodes
from workers.inventory.worker import Inventory
from workers.kubernetes import client
from workers.kubernetes.client import KubernetesClient

BURST = 100


def pod_of(name: str, node: str, cpu: str = "100m") -> Object:
    resources = {"requests": {"cpu": cpu, "memory": "1Mi"}, "limits": {"memory": "2Mi"}}
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "pause", "resources": resources}]}
    return {"metadata": {"name": name}, "spec": spec}


class World:
    def __init__(self, sandbox: Sandbox, bus: Bus, nodes: NodeView, registry: CollectorRegistry) -> None:
        self.sandbox = sandbox
        self.bus = bus
        self._seen = nodes.allocations()
        self.registry = registry

    def add_pod(self, name: str, node: str, cpu: str = "100m") -> None:
        self.sandbox.cluster.create(PODS, "default", pod_of(name, node, cpu), manager="test")

    def seen(self, node: str) -> NodeAllocation:
        return self._seen.get(node) or NodeAllocation(uid="")

    async def sees(self, node: str, pods: int, cpu: int) -> None:
        def is_seen() -> bool:
            requested = self.seen(node).requested
            return (requested.get("pods"), requested.get("cpu", 0)) == (pods, cpu)

        await eventually(is_seen)

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


def registry_names(registry: CollectorRegistry) -> set[str]:
    """The second words of the names of all metrics."""
    return {family.name.split("_")[1] for family in registry.collect()}


@asynccontextmanager
async def world(
    server: Server, bus: Bus, tmp_path: Path, sandbox: Sandbox, *, allocations: bool = True
) -> AsyncIterator[World]:
    nodes, registry = NodeView(View()), CollectorRegistry()
    seen = World(sandbox, bus, nodes, registry)
    assert nodes.followed_allocations is not None
    followed = FollowedAllocations(bus, nodes.followed_allocations)
    async with KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as connected:
        worker = Inventory(
            bus,
            connected,
            registry=registry,
            card_metrics=0,
            new_bus_wait=0.0,
            forget_seconds=0.2,
            cards=False,
            allocations=allocations,
        )
        async with running(worker), running(followed):
            yield seen


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["a", "b"]) as sandbox:
        yield sandbox


async def test_the_requests_of_the_pods_of_each_node_are_known(
    server: Server, bus: Bus, tmp_path: Path, sandbox: Sandbox
) -> None:
    async with world(server, bus, tmp_path, sandbox) as seen:
        await seen.sees("a", 0, 0)
        assert seen.seen("a").capacity == seen.seen("a").allocatable
        assert seen.seen("a").capacity["cpu"] > 0

        writes = seen.metric("tas_allocation_writes_total")
        for number in range(BURST):
            seen.add_pod(f"burst-{number}", "a")
        seen.add_pod("other", "b", "1")
        await seen.sees("a", BURST, 100 * BURST)
        assert seen.metric("tas_allocation_writes_total") - writes < BURST / 4  # a burst costs few writes
        assert seen.seen("a").limited["memory"] == 2 * 2**20 * BURST
        entry = await entry_on(bus, NODES, "a.allocation")
        assert entry is not None
        assert entry.value is not None
        assert len(entry.value) < 10_000

        for number in range(1, BURST):
            seen.sandbox.cluster.delete(PODS, "default", f"burst-{number}")
        seen.sandbox.cluster.patch(
            PODS, "default", "other", {"status": {"phase": "Succeeded"}}, manager="kubelet", status=True
        )
        await seen.sees("a", 1, 100)
        await seen.sees("b", 0, 0)
        # Who needs no cards does not pay for them.
        assert await answered(partial(bus.entries, HOLDS)) == []
        assert registry_names(seen.registry) == {"allocation"}

        with capture_logs() as logs:
            seen.add_pod("bad", "b", "much")
            await seen.sees("b", 1, 0)
            assert seen.seen("b").unreadable == 1
        (warning,) = [each for each in logs if each["event"] == "requests_of_pod_unreadable"]
        assert warning["pod"] == "default/bad"
        assert "spec.containers[0].resources.requests.cpu" in warning["error"]
        assert "much" in warning["error"]


async def test_no_turn_of_the_loop_grows_with_the_number_of_pods(
    server: Server, bus: Bus, tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a probe gets no answer, and another replica takes the lease, while 150,000 pods are read."""
    monkeypatch.setattr(client, "READ_AT_ONCE", 10)
    in_turn: list[int] = [0]

    async def count_turns() -> None:
        while True:
            in_turn.append(0)
            await asyncio.sleep(0)

    def counted(pod: PodResources) -> PodTotals:
        in_turn[-1] += 1
        return pod_totals(pod)

    monkeypatch.setattr(pods_on_nodes, "pod_totals", counted)
    turns = asyncio.create_task(count_turns())
    for number in range(BURST):  # all of them are one page of the list
        sandbox.cluster.create(PODS, "default", pod_of(f"pod-{number}", "a"), manager="test")
    async with world(server, bus, tmp_path, sandbox) as seen:
        await seen.sees("a", BURST, 100 * BURST)
    turns.cancel()
    assert (sum(in_turn), max(in_turn)) == (BURST, 10)


async def test_only_the_end_of_a_node_ends_its_allocation(
    server: Server, bus: Bus, tmp_path: Path, sandbox: Sandbox
) -> None:
    """Neither a list that fails, nor a wipe of the bus; and after both what changed meanwhile is known."""
    async with world(server, bus, tmp_path, sandbox) as seen:
        seen.add_pod("first", "a")
        await seen.sees("a", 1, 100)
        before = seen.seen("a").uid

        sandbox.cut_watches()
        sandbox.faults.answer(503, times=4, which=lambda call: call.verb in {"list", "watch"})
        seen.add_pod("second", "a")
        sandbox.forget_history()
        await eventually(lambda: sandbox.faults.waiting == 0)
        await seen.sees("a", 2, 200)

        writes = seen.metric("tas_allocation_writes_total")
        await server.restart(wiped=True)
        await eventually(lambda: seen.metric("tas_allocation_writes_total") >= writes + 2)
        await seen.sees("a", 2, 200)

        sandbox.cluster.delete(NODE_OBJECTS, "", "b")

        async def is_forgotten() -> bool:
            stored = await answered(partial(NODE_ALLOCATION.get, bus, "b"))
            return not stored.present

        await eventually(is_forgotten)
        await eventually(lambda: seen.seen("b").uid == "")
        assert seen.seen("a").uid == before


async def test_without_the_setting_no_allocation_of_before_stays(
    server: Server, bus: Bus, tmp_path: Path, sandbox: Sandbox
) -> None:
    """Agents would go on with it, however old it is. With the setting again, all is as before."""
    async with world(server, bus, tmp_path, sandbox) as seen:
        await seen.sees("a", 0, 0)
        await seen.sees("b", 0, 0)
    with capture_logs() as logs:
        async with world(server, bus, tmp_path, sandbox, allocations=False) as seen:
            await eventually(lambda: any(line["event"] == "allocations_deleted" for line in logs))
            await eventually(lambda: {seen.seen(node).uid for node in "ab"} == {""})

            async def nothing_is_left() -> bool:
                return await answered(partial(NODE_ALLOCATION.listed, bus)) == []

            await eventually(nothing_is_left)  # no tombstone either
    deleted = [line for line in logs if line["event"] == "allocations_deleted"]
    assert sum(line["nodes"] for line in deleted) == 2
    assert {line["log_level"] for line in deleted} == {"warning"}
    async with world(server, bus, tmp_path, sandbox) as seen:
        await seen.sees("a", 0, 0)
        await seen.sees("b", 0, 0)
