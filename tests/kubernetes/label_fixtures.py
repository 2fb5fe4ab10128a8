"""Fixtures of the label scenarios, from `kubeconfig` of an API server with the CRD, and `bus`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import running
from tests.kubernetes.admin import Admin
from tests.kubernetes.world import STALE_SECONDS, World
from workers.enforcing.labels import Labels
from workers.kubernetes.client import KubernetesClient

__all__ = ["Running", "labels", "labels_running", "world"]


class Running:
    """A running worker."""

    def __init__(self, worker: Labels, registry: CollectorRegistry) -> None:
        self.worker = worker
        self._registry = registry

    def count(self, metric: str, **labels: str) -> float:
        return self._registry.get_sample_value(metric, labels) or 0.0


@asynccontextmanager
async def labels_running(kubeconfig: Path, url: str, *, wait: bool = True) -> AsyncIterator[Running]:
    """A replica with a bus and a client of its own; ready, unless it is not waited for."""
    registry = CollectorRegistry()
    async with (
        Bus.connect(url, name="labels") as bus,
        KubernetesClient.connect(kubeconfig, worker="labels") as client,
    ):
        worker = Labels(bus, client, registry=registry, default_stale_after=STALE_SECONDS)
        async with running(worker):
            if wait:
                await eventually(lambda: worker.unready() is None)
            yield Running(worker, registry)


@pytest.fixture
async def world(kubeconfig: Path, bus: Bus) -> AsyncIterator[World]:
    """A bus with complete lists and no other entries."""
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
