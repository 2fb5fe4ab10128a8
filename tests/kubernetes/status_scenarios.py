"""The status of TASPolicies over any API server."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from tas.policy.policy import PolicyKey
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import running
from tests.kubernetes.world import STALE_SECONDS, World, deschedule, labeling, rule
from workers.kubernetes.client import KubernetesClient
from workers.watching import status as module
from workers.watching.status import PolicyStatus

__all__ = ["StatusScenarios", "status"]


@asynccontextmanager
async def status_running(kubeconfig: Path, url: str) -> AsyncIterator[CollectorRegistry]:
    registry = CollectorRegistry()
    async with (
        Bus.connect(url, name="status") as bus,
        KubernetesClient.connect(kubeconfig, worker="status") as client,
    ):
        await bus.wait_connected()
        async with running(PolicyStatus(bus, client, registry=registry, default_stale_after=STALE_SECONDS)):
            yield registry


@pytest.fixture
async def status(kubeconfig: Path, server: Server, world: World) -> AsyncIterator[CollectorRegistry]:
    """One replica, on a bus where none was before."""
    async with status_running(kubeconfig, server.url) as registry:
        yield registry


def patched(registry: CollectorRegistry) -> float:
    return registry.get_sample_value("tas_policy_status_patches_total", {"result": "patched"}) or 0.0


async def status_of(world: World, key: PolicyKey) -> dict[str, Any]:
    found = await world.admin.get(f"{world.admin.policies(key.namespace)}/{key.name}")
    status: dict[str, Any] = found.get("status", {})
    return status


async def conditions(world: World, key: PolicyKey) -> dict[str, tuple[str, str]]:
    found = (await status_of(world, key)).get("conditions", [])
    return {each["type"]: (each["status"], each["reason"]) for each in found}


async def says(world: World, key: PolicyKey, **expected: tuple[str, str]) -> None:
    async def so() -> bool:
        return expected.items() <= (await conditions(world, key)).items()

    await eventually(so, within=2 * module.PATCH_SECONDS + 60, every=0.05)


class StatusScenarios:
    """For subclasses with the fixtures `kubeconfig`, `server`, `bus`, `world` and `status`."""

    async def test_a_status_has_the_state_of_the_policy(self, world: World, status: CollectorRegistry) -> None:
        one, two = await world.node("one"), await world.node("two")
        key = await world.policy(
            await world.namespace(), world.name(), deschedule() | {"strategy_unavailable": {"rules": []}}
        )
        await says(world, key, Ready=("True", "PartlyIgnored"), MetricsSeen=("False", "NoFreshSample"))
        assert (await conditions(world, key))["Violating"] == ("Unknown", "NoVerdict")
        await world.sample(one, health=1)
        await world.sample(two, health=0)
        await world.judge(one, two)
        await says(world, key, MetricsSeen=("True", "Fresh"), Violating=("True", "NodesViolate"))
        found = await status_of(world, key)
        assert found["violating"] == 1
        assert found["violatingNodes"] == [one]
        assert found["observedGeneration"] == 1
        assert found["strategies"] == [{"name": "deschedule", "violated": 1, "met": 1, "unknown": 0}]
        assert [each["field"] for each in found["problems"]] == ["spec.strategies.strategy_unavailable"]

    async def test_an_edit_is_reported_with_its_generation(self, world: World, status: CollectorRegistry) -> None:
        namespace, name = await world.namespace(), world.name()
        key = await world.policy(namespace, name, deschedule())
        await says(world, key, Ready=("True", "InForce"))
        await world.policy(namespace, name, deschedule(), suspend=True)
        await says(world, key, Ready=("False", "Suspended"))
        assert (await status_of(world, key))["observedGeneration"] == 2

    async def test_facts_D39_both_policies_of_one_name_report_the_shared_label(
        self, world: World, status: CollectorRegistry
    ) -> None:
        name = world.name()
        here = await world.policy(await world.namespace("a"), name, labeling(rule("health", 1, "Equals", "card=0")))
        there = await world.policy(await world.namespace("b"), name, labeling(rule("health", 1, "Equals", "card=1")))
        for key, other in ((here, there), (there, here)):
            await says(world, key, Ready=("True", "PartlyIgnored"))
            (problem,) = (await status_of(world, key))["problems"]
            assert str(other) in problem["reason"]

    async def test_an_unchanged_status_is_not_patched(self, world: World, status: CollectorRegistry) -> None:
        node = await world.node()
        key = await world.policy(await world.namespace(), world.name(), deschedule())
        await world.sample(node, health=1)
        await world.judge(node)
        await says(world, key, Violating=("True", "NodesViolate"), MetricsSeen=("True", "Fresh"))
        before = patched(status)
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > module.PATCH_SECONDS + 1, every=0.1)
        assert patched(status) == before

    async def test_a_policy_is_patched_at_intervals_by_any_number_of_replicas(
        self, world: World, status: CollectorRegistry, kubeconfig: Path, server: Server
    ) -> None:
        node = await world.node()
        key = await world.policy(await world.namespace(), world.name(), deschedule())
        await says(world, key, Ready=("True", "InForce"))
        async with status_running(kubeconfig, server.url) as second:
            began = time.monotonic()
            before = patched(status)
            health = 0
            while time.monotonic() - began < module.PATCH_SECONDS - 1:
                health = 1 - health
                await world.sample(node, health=health)
                await world.judge(node)
            await world.sample(node, health=1)
            await world.judge(node)
            await says(world, key, Violating=("True", "NodesViolate"))
            patches = patched(status) + patched(second) - before
            assert patches <= 1 + (time.monotonic() - began) // module.PATCH_SECONDS
