"""Fixtures of the label scenarios, from `kubeconfig` of an API server with the CRD, and `bus`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import PODS, POLICIES, VERDICTS
from bus.connection import Bus
from tas.enforcing.brake import DEFAULTS, BrakeSettings
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import running
from tests.kubernetes.admin import Admin
from tests.kubernetes.world import STALE_SECONDS, World
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.labels.worker import Labels

__all__ = ["Running", "labels", "labels_running", "world"]


class Running:
    """A running worker."""

    def __init__(self, worker: Labels, registry: CollectorRegistry, bus: Bus) -> None:
        self.worker = worker
        self._registry = registry
        self._bus = bus

    async def caught_up(self) -> None:
        """Waits until the worker has received all that its buckets store."""
        worker = self.worker
        for bucket, watch in (
            (VERDICTS, worker._inputs.verdicts),
            (POLICIES, worker._inputs.policies),
            (PODS, worker._waking._pod_watch),
        ):
            last = (await answered(partial(self._bus.epoch, bucket))).last_sequence
            await eventually(lambda watch=watch, last=last: watch.status.applied >= last)  # type: ignore[misc]

    async def idle(self) -> None:
        """Waits until no node is being reconciled or due: a patch is counted after its effect can be seen."""
        queue, loop = self.worker._queue, asyncio.get_running_loop()

        def is_idle() -> bool:
            due = queue._due.next()
            return not queue._busy and (due is None or due > loop.time())

        await eventually(is_idle)

    def count(self, metric: str, **labels: str) -> float:
        return self._registry.get_sample_value(metric, labels) or 0.0


@asynccontextmanager
async def labels_running(
    kubeconfig: Path, url: str, *, wait: bool = True, overwrite: tuple[str, ...] = (), brake: BrakeSettings = DEFAULTS
) -> AsyncIterator[Running]:
    """A replica with its own bus connection and client; ready if `wait`."""
    registry = CollectorRegistry()
    async with (
        Bus.connect(url, name="labels") as bus,
        KubernetesClient.connect(kubeconfig, worker="labels") as client,
    ):
        worker = Labels(
            bus,
            client,
            Reflectors(client),
            registry=registry,
            default_stale_after=STALE_SECONDS,
            overwrite=overwrite,
            brake=brake,
        )
        async with running(worker):
            if wait:
                await eventually(lambda: worker.unready() is None)
            yield Running(worker, registry, bus)


@pytest.fixture
async def world(kubeconfig: Path, bus: Bus) -> AsyncIterator[World]:
    """A bus whose lists are complete and empty."""
    async with Admin.connect(kubeconfig) as admin:
        world = World(admin, bus)
        await world.begin()
        yield world
        await world.end()


@pytest.fixture
async def labels(kubeconfig: Path, server: Server, world: World) -> AsyncIterator[Running]:
    """One replica, ready."""
    async with labels_running(kubeconfig, server.url) as labels:
        yield labels
