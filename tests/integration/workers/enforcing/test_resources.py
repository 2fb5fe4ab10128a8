"""The worker `resources` over the sandbox and a real nats-server, also while things go wrong."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from sandbox import Sandbox
from tests.integration.servers import eventually
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.resource_scenarios import ResourceScenarios, offers, resources
from tests.kubernetes.world import World

__all__ = ["resources", "world"]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start() as sandbox:
        yield sandbox


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    return sandbox.kubeconfig(tmp_path / "kubeconfig")


class TestResources(ResourceScenarios):
    pass


@pytest.mark.parametrize("status", [404, 409, 429, 500])
async def test_what_the_api_server_does_not_take_now_is_not_lost(
    sandbox: Sandbox, world: World, resources: CollectorRegistry, status: int
) -> None:
    sandbox.faults.answer(
        status, times=2, which=lambda call: call.verb == "patch" and call.resource == "nodes", retry_after=1
    )
    node = await world.node()
    await offers(world, node, "1k")
    assert sandbox.faults.waiting == 0


async def test_what_was_read_too_long_ago_is_not_sent(
    sandbox: Sandbox, world: World, resources: CollectorRegistry
) -> None:
    sandbox.faults.delay(2.2, which=lambda call: call.verb == "get" and call.user_agent == "tas-on-nats/resources")
    node = await world.node()

    def refused() -> bool:
        return resources.get_sample_value("tas_node_resource_patches_total", {"result": "conflict"}) == 1

    await eventually(refused)
    assert not sandbox.count(which=lambda call: call.user_agent == "tas-on-nats/resources")[("patch", "nodes")]
    await offers(world, node, "1k")
