"""The status of TASPolicies over the sandbox and a real nats-server."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from sandbox import Sandbox
from tests.integration.servers import eventually
from tests.integration.tables import put_tables
from tests.integration.workers.running import running
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.status_scenarios import Checking, StatusScenarios, status, wait_for_status
from tests.kubernetes.world import STALE_SECONDS, World, deschedule
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.watching.status import PolicyStatus

__all__ = ["status", "world"]


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    async with Sandbox.start() as sandbox:
        yield sandbox.kubeconfig(tmp_path / "kubeconfig")


pytestmark = pytest.mark.usefixtures("quick_status")


class TestStatus(StatusScenarios):
    pass


class LateAnswers(KubernetesClient):
    """A client that holds back the answers to patches until `may` is set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answered = False
        self.may = asyncio.Event()
        self.delivered: set[int] = set()
        """Generations that the watch has delivered and its follower has processed."""

    async def merge_patch(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().merge_patch(*args, **kwargs)
        self.answered = True
        await self.may.wait()
        return answer

    async def watch(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        async for change in super().watch(*args, **kwargs):
            yield change
            self.delivered.add(change.object.metadata.generation)


async def test_an_edit_that_the_watch_delivers_before_the_answer_to_a_patch_is_in_the_status(
    world: World, bus: Bus, kubeconfig: Path
) -> None:
    """The answer is older than the delivered change, and must not replace it."""
    async with LateAnswers.connect(kubeconfig, worker="status") as connected:
        client = cast("LateAnswers", connected)
        worker = PolicyStatus(
            bus, client, Reflectors(client), registry=CollectorRegistry(), default_stale_after=STALE_SECONDS
        )
        async with running(worker):
            namespace, name = await world.namespace(), world.name()
            await world.policy(namespace, name, deschedule())
            await eventually(lambda: client.answered)
            key = await world.policy(namespace, name, deschedule(), suspend=True)
            await eventually(lambda: 2 in client.delivered)
            client.may.set()
            await wait_for_status(world, key, Ready=("False", "Suspended"))


@pytest.mark.usefixtures("quick_status")
async def test_while_nobody_runs_evaluate_a_policy_is_not_ready(world: World, bus: Bus, kubeconfig: Path) -> None:
    lost: set[str] = set()
    async with KubernetesClient.connect(kubeconfig, worker="status") as client:
        worker = PolicyStatus(
            bus,
            client,
            Reflectors(client),
            registry=CollectorRegistry(),
            default_stale_after=STALE_SECONDS,
            lost=lambda: lost,
        )
        async with running(worker):
            key = await world.policy(await world.namespace(), world.name(), deschedule())
            await wait_for_status(world, key, Ready=("True", "InForce"))
            lost.update(("evaluate", "labels"))
            await wait_for_status(world, key, Ready=("False", "NotEvaluated"), Violating=("Unknown", "NotEvaluated"))
            lost.clear()
            await wait_for_status(world, key, Ready=("True", "InForce"))


async def test_a_metric_of_a_table_is_seen(world: World, status: Checking, bus: Bus) -> None:
    key = await world.policy(await world.namespace(), world.name(), deschedule())
    await wait_for_status(world, key, MetricsSeen=("False", "NoFreshSample"))
    await put_tables(bus, {await world.node("one"): {"health": "0"}})
    await wait_for_status(world, key, MetricsSeen=("True", "Fresh"))
