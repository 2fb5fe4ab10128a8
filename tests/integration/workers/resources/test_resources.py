"""The worker `resources` over the sandbox and a real nats-server, also while things go wrong."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.integration.servers import Server, eventually
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.resource_scenarios import ResourceScenarios, resources, resources_worker, wait_for_resource
from tests.kubernetes.world import World
from tests.sandbox import Call, Sandbox

__all__ = ["resources", "world"]


class TestResources(ResourceScenarios):
    pass


@pytest.mark.parametrize("status", [404, 409, 429, 500])
async def test_a_patch_that_the_api_server_rejects_is_sent_again(
    sandbox: Sandbox, world: World, resources: CollectorRegistry, status: int
) -> None:
    sandbox.faults.answer(
        status, times=2, which=lambda call: call.verb == "patch" and call.resource == "nodes", retry_after=1
    )
    node = await world.node()
    await wait_for_resource(world, node, "1k")
    assert sandbox.faults.waiting == 0


async def test_a_patch_whose_reads_are_too_old_is_not_sent(
    sandbox: Sandbox, world: World, resources: CollectorRegistry
) -> None:
    sandbox.faults.delay(2.2, which=lambda call: call.verb == "get" and call.user_agent == "tas-on-nats/resources")
    expired: list[float] = []

    def note(call: Call) -> bool:
        if call.verb == "patch" and call.user_agent == "tas-on-nats/resources":
            expired.append(resources.get_sample_value("tas_node_resource_patches_total", {"result": "conflict"}) or 0)
        return False

    sandbox.faults.answer(500, which=note)
    node = await world.node()
    await wait_for_resource(world, node, "1k")
    assert expired[0] >= 1  # before the first patch was sent, what was read before the delay had expired


async def test_a_node_whose_status_the_api_server_refuses_is_a_concern(
    sandbox: Sandbox, kubeconfig: Path, server: Server, world: World
) -> None:
    """The worker is ready, and the resource is nowhere."""
    refused = sandbox.faults.answer(403, times=1000, which=lambda call: call.verb == "patch")
    node = await world.node()
    async with resources_worker(kubeconfig, server.url) as worker:
        await eventually(lambda: list(worker.concerns()) != [])
        (concern,) = worker.concerns()
        assert concern.startswith(f"1 node cannot be written, as {node}: ")
        assert worker.unready() is None
        refused.times = 1
        await wait_for_resource(world, node, "1k")
        await eventually(lambda: list(worker.concerns()) == [])


async def test_nodes_that_fail_for_one_cause_are_few_log_lines(
    sandbox: Sandbox, kubeconfig: Path, server: Server, world: World
) -> None:
    """While the API server was away, there was a line for each node of the cluster in each minute."""
    for number in range(20):
        sandbox.add_node(f"node-{number}.example")
    sandbox.faults.answer(500, times=10**6, which=lambda call: call.verb == "patch")
    with capture_logs() as lines:
        async with resources_worker(kubeconfig, server.url) as worker:
            await eventually(lambda: any(said.startswith("20 nodes cannot be written") for said in worker.concerns()))
    failed = [line for line in lines if line["event"] == "node_resource_failed"]
    assert 1 <= len(failed) < 10, failed  # the first node, and the others of each 10 s: one a node would be 20 or more
