"""`collect` with the sources of Kubernetes and any API server, from fixtures `client`, `bus` and `adapter`."""

import json
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta

import pytest

from bus.connection import Bus
from tests.integration.workers.collecting import World, collecting
from tests.sandbox import Metrics
from workers.collect.sources.custom_metrics import CustomMetrics
from workers.collect.sources.metrics_server import MetricsServer
from workers.kubernetes.client import KubernetesClient

NODE = "node-1"


def answer(metric: str, *values: tuple[str, str, str | None]) -> bytes:
    """An answer of the custom metrics API (v1beta2), with these values: node, value, and time or None."""
    items = [
        {
            "describedObject": {"kind": "Node", "name": node},
            "metric": {"name": metric},
            "timestamp": at,
            "value": value,
        }
        for node, value, at in values
    ]
    return json.dumps({"kind": "MetricValueList", "items": items}).encode()


class Adapter(ABC):
    """An adapter that serves metrics through the API server.

    Attributes:
        metrics: The metrics. Only `serve` sets its `versions`.
    """

    metrics: Metrics

    @abstractmethod
    async def serve(self, *versions: str, usage: bool = False) -> None:
        """Serves these versions of the custom metrics API, the preferred first, and with `usage` the metrics API."""


@pytest.fixture
async def metrics_world(bus: Bus) -> World:
    """A complete list of policies, without any policy."""
    world = World(bus)
    await world.listed()
    return world


@pytest.mark.real_api
class CollectScenarios:
    """For subclasses with the fixtures `client`, `bus` and `adapter`."""

    async def test_the_served_version_is_polled_also_after_it_changes(
        self, bus: Bus, metrics_world: World, adapter: Adapter, client: KubernetesClient
    ) -> None:
        await adapter.serve("v1beta1")
        adapter.metrics.set("load", NODE, "1500m", window=30)
        await metrics_world.use("load")
        async with collecting(bus, CustomMetrics("custom-metrics", client)):
            await metrics_world.has(NODE, "custom-metrics", {"load": 1.5})
            scrape = await metrics_world.scrape(NODE, "custom-metrics")
            assert scrape is not None
            assert scrape.window == 30
            await adapter.serve("v1beta2")
            adapter.metrics.set("load", NODE, "2")
            await metrics_world.has(NODE, "custom-metrics", {"load": 2})
            await adapter.serve()
            await metrics_world.problem("custom-metrics", "the cluster serves no custom metrics API")
            await adapter.serve("v1beta2", "v1beta1")
            adapter.metrics.set("load", NODE, "3")
            await metrics_world.has(NODE, "custom-metrics", {"load": 3})

    async def test_an_unknown_metric_is_reported_and_the_others_are_published(
        self, bus: Bus, metrics_world: World, adapter: Adapter, client: KubernetesClient
    ) -> None:
        await adapter.serve("v1beta2", "v1beta1")
        adapter.metrics.set("load", NODE, "1")
        await metrics_world.use("load", "heat")
        async with collecting(bus, CustomMetrics("custom-metrics", client)):
            await metrics_world.has(NODE, "custom-metrics", {"load": 1})
            await metrics_world.misses("custom-metrics", "heat", "does not know it (404)")
            adapter.metrics.set("heat", NODE, "7")
            await metrics_world.has(NODE, "custom-metrics", {"load": 1, "heat": 7})

    async def test_an_invalid_response_is_reported_and_the_other_metrics_are_published(
        self, bus: Bus, metrics_world: World, adapter: Adapter, client: KubernetesClient
    ) -> None:
        await adapter.serve("v1beta1")
        adapter.metrics.set("load", NODE, "1")
        adapter.metrics.set("heat", NODE, "7")
        adapter.metrics.answer_with(b"<html>please log in</html>", to="/heat", content_type="text/html")
        await metrics_world.use("load", "heat")
        async with collecting(bus, CustomMetrics("custom-metrics", client)):
            await metrics_world.has(NODE, "custom-metrics", {"load": 1})
            await metrics_world.misses("custom-metrics", "heat", "please log in")
            adapter.metrics.answer_with(None, to="/heat")
            await metrics_world.has(NODE, "custom-metrics", {"load": 1, "heat": 7})

    async def test_a_value_twice_and_a_value_of_a_clock_that_is_ahead_are_refused_alone(
        self, bus: Bus, metrics_world: World, adapter: Adapter, client: KubernetesClient
    ) -> None:
        await adapter.serve("v1beta2")
        for node in (NODE, "node-2"):
            adapter.metrics.set("load", node, "1")
        ahead = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
        values = [(NODE, "7", None), ("node-2", "7", ahead), ("node-3", "7", None), (NODE, "8", None)]
        adapter.metrics.answer_with(answer("heat", *values), to="/heat")
        await metrics_world.use("load", "heat")
        async with collecting(bus, CustomMetrics("custom-metrics", client)):
            await metrics_world.has("node-3", "custom-metrics", {"heat": 7})
            await metrics_world.refuses("custom-metrics", "duplicate", f"heat of {NODE}: value = '8'")
            await metrics_world.refuses("custom-metrics", "time", "must be at most 10 s ahead")
            for node in (NODE, "node-2"):
                await metrics_world.has(node, "custom-metrics", {"load": 1})
            adapter.metrics.set("heat", NODE, "7")
            adapter.metrics.answer_with(None, to="/heat")
            await metrics_world.has(NODE, "custom-metrics", {"load": 1, "heat": 7})

    async def test_cores_and_bytes_come_from_the_metrics_api(
        self, bus: Bus, metrics_world: World, adapter: Adapter, client: KubernetesClient
    ) -> None:
        await adapter.serve(usage=True)
        adapter.metrics.use(NODE, cpu="250m", memory="2Gi", window="15.5s")
        await metrics_world.use("cpu", "memory")
        async with collecting(bus, MetricsServer("metrics-server", client)):
            await metrics_world.has(NODE, "metrics-server", {"cpu": 0.25, "memory": 2 << 30})
            await adapter.serve()
            await metrics_world.problem("metrics-server", "the cluster serves no metrics API")
