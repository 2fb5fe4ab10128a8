"""The worker `resources` over any API server."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.events import EventMessage, EventReader
from bus.stream_reader import FROM_START
from bus.subjects import event_subject
from tas.events.data import ResourcePatched
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import running
from tests.kubernetes.world import World
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.resources.worker import PATCH_SECONDS, Resources

__all__ = ["ResourceScenarios", "resources"]

RESOURCE = "telemetry/scheduling"


@asynccontextmanager
async def resources_running(kubeconfig: Path, url: str, *, count: int = 1000) -> AsyncIterator[CollectorRegistry]:
    registry = CollectorRegistry()
    async with resources_worker(kubeconfig, url, count=count, registry=registry):
        yield registry


@asynccontextmanager
async def resources_worker(
    kubeconfig: Path, url: str, *, count: int = 1000, registry: CollectorRegistry | None = None
) -> AsyncIterator[Resources]:
    registry = registry or CollectorRegistry()
    async with (
        Bus.connect(url, name="resources") as bus,
        KubernetesClient.connect(kubeconfig, worker="resources") as client,
    ):
        worker = Resources(bus, client, Reflectors(client), registry=registry, count=count, event_source="/prod")
        async with running(worker):
            await eventually(lambda: worker.unready() is None)
            yield worker


@pytest.fixture
async def resources(kubeconfig: Path, server: Server, world: World) -> AsyncIterator[CollectorRegistry]:
    async with resources_running(kubeconfig, server.url) as registry:
        yield registry


async def status_of(world: World, node: str) -> dict[str, Any]:
    status: dict[str, Any] = (await world.admin.get(f"/api/v1/nodes/{node}"))["status"]
    return status


async def wait_for_resource(world: World, node: str, quantity: str) -> None:
    """Waits until capacity and allocatable of a node are this quantity, written so."""

    async def is_offered() -> bool:
        status = await status_of(world, node)
        return all(status.get(field, {}).get(RESOURCE) == quantity for field in ("capacity", "allocatable"))

    await eventually(is_offered)


async def reset(world: World, node: str, field: str, value: str | None) -> None:
    await world.admin.patch(f"/api/v1/nodes/{node}/status", {"status": {field: {RESOURCE: value}}})


class ResourceScenarios:
    """For subclasses with the fixtures `kubeconfig`, `server`, `bus`, `world` and `resources`."""

    @pytest.mark.real_api
    async def test_a_node_gets_the_resource_and_keeps_the_others(
        self, world: World, resources: CollectorRegistry
    ) -> None:
        node = await world.node("node", colour="blue")
        await world.admin.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": {"cpu": "8"}}})
        await wait_for_resource(world, node, "1k")
        assert (await status_of(world, node))["capacity"]["cpu"] == "8"
        assert (await world.labels(node))["colour"] == "blue"

    @pytest.mark.parametrize("field", ["capacity", "allocatable"])
    @pytest.mark.parametrize("value", [None, "7"])
    async def test_a_resource_that_is_reset_is_restored(
        self, world: World, resources: CollectorRegistry, field: str, value: str | None
    ) -> None:
        node = await world.node()
        await wait_for_resource(world, node, "1k")
        await reset(world, node, field, value)
        await wait_for_resource(world, node, "1k")

    async def test_an_equal_quantity_is_not_patched(self, world: World, kubeconfig: Path, server: Server) -> None:
        node = await world.node()
        for field in ("capacity", "allocatable"):
            await reset(world, node, field, "1000")
        async with resources_running(kubeconfig, server.url):
            other = await world.node("other")
            await wait_for_resource(world, other, "1k")
        found = await world.admin.get(f"/api/v1/nodes/{node}")
        assert found["status"]["capacity"][RESOURCE] == "1k"
        managers = {each["manager"] for each in found["metadata"]["managedFields"]}
        assert "tas-on-nats" not in managers

    async def test_nodes_keep_the_resource_after_the_worker_stops(
        self, world: World, kubeconfig: Path, server: Server
    ) -> None:
        node = await world.node()
        async with resources_running(kubeconfig, server.url, count=5):
            await wait_for_resource(world, node, "5")
        await wait_for_resource(world, node, "5")

    async def test_a_resource_that_is_reset_repeatedly_is_restored_at_intervals(
        self, world: World, resources: CollectorRegistry
    ) -> None:
        node = await world.node()
        await wait_for_resource(world, node, "1k")

        began = time.monotonic()
        for _ in range(3):
            await reset(world, node, "capacity", None)
            await wait_for_resource(world, node, "1k")
        assert time.monotonic() - began >= 2 * PATCH_SECONDS

    @pytest.mark.real_api
    async def test_a_recreated_node_gets_the_resource_again_and_each_is_announced_once(
        self, world: World, bus: Bus, resources: CollectorRegistry, kubeconfig: Path, server: Server
    ) -> None:
        node = await world.node()
        await wait_for_resource(world, node, "1k")
        await wait_for_events(bus, node, count=1)
        await world.admin.delete_node(node)
        await world.node()
        await wait_for_resource(world, node, "1k")
        await wait_for_events(bus, node, count=2)
        async with resources_running(kubeconfig, server.url):
            other = await world.node("other")
            await wait_for_resource(world, other, "1k")
            events = await wait_for_events(bus, node, other, count=3)
        assert [(each.event.subject, each.event.resync) for each in events] == [
            (f"nodes/{node}", False),
            (f"nodes/{node}", False),
            (f"nodes/{other}", False),
        ]
        assert len({each.event.id for each in events}) == 3
        assert {each.event.source for each in events} == {"/prod"}


async def wait_for_events(bus: Bus, *nodes: str, count: int) -> list[EventMessage]:
    """Waits for so many events of the resources of nodes, and returns them."""
    filters = [event_subject(ResourcePatched(node=node, resource=RESOURCE, count=1000)) for node in nodes]
    found: list[EventMessage] = []

    async def are_published() -> bool:
        found.clear()
        async for batch in EventReader(bus, FROM_START, filters=filters).stored():
            found.extend(batch.messages)
        return len(found) >= count

    await eventually(are_published)
    assert len(found) == count
    return found
