"""The metrics APIs of the sandbox, as a client over HTTP sees them."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.contract.kubernetes.client import Client
from tests.sandbox import Sandbox

CUSTOM = "/apis/custom.metrics.k8s.io"
USAGE = "/apis/metrics.k8s.io/v1beta1"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["node-1"]) as sandbox:
        yield sandbox


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        yield Client(session, sandbox.url)


async def test_discovery_lists_versions_and_metrics(sandbox: Sandbox, client: Client) -> None:
    sandbox.metrics.set("load", "node-1", "1")
    groups = {group["name"] for group in (await client.get("/apis")).ok()["groups"]}
    assert {"custom.metrics.k8s.io", "metrics.k8s.io", "telemetry.intel.com"} <= groups
    group = (await client.get(CUSTOM)).ok()
    assert [each["version"] for each in group["versions"]] == ["v1beta2", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1beta2"
    listed = (await client.get(f"{CUSTOM}/v1beta1")).ok()
    assert [each["name"] for each in listed["resources"]] == ["nodes/load"]
    sandbox.metrics.versions = ["v1beta1"]
    assert (await client.get(f"{CUSTOM}/v1beta2")).status == 404
    sandbox.metrics.versions, sandbox.metrics.usage_is_served = [], False
    for path in (CUSTOM, f"{CUSTOM}/v1beta1/nodes/*/load", f"{USAGE}/nodes"):
        assert (await client.get(path)).status == 404


@pytest.mark.parametrize("star", ["*", "%2A"])
async def test_the_two_versions_have_different_fields_for_metric_and_window(
    sandbox: Sandbox, client: Client, star: str
) -> None:
    sandbox.metrics.set("load", "node-1", "1500m", timestamp="2026-01-01T00:00:00Z", window=60)
    node = {"kind": "Node", "name": "node-1", "apiVersion": "/v1"}
    common = {"describedObject": node, "timestamp": "2026-01-01T00:00:00Z", "value": "1500m"}
    first = (await client.get(f"{CUSTOM}/v1beta1/nodes/{star}/load")).ok()
    assert first["items"] == [common | {"metricName": "load", "window": 60, "selector": None}]
    second = (await client.get(f"{CUSTOM}/v1beta2/nodes/{star}/load")).ok()
    assert second["items"] == [common | {"metric": {"name": "load", "selector": None}, "windowSeconds": 60}]
    sandbox.metrics.forget("load", "node-1")
    assert (await client.get(f"{CUSTOM}/v1beta2/nodes/{star}/load")).ok()["items"] == []
    sandbox.metrics.forget("load")
    (await client.get(f"{CUSTOM}/v1beta2/nodes/{star}/load")).failed(404, "NotFound")


async def test_usage_of_nodes_has_the_form_of_metrics_server(sandbox: Sandbox, client: Client) -> None:
    sandbox.metrics.use("node-1", cpu="250m", memory="2Gi")
    listed = (await client.get(f"{USAGE}/nodes")).ok()
    assert listed["kind"] == "NodeMetricsList"
    (item,) = listed["items"]
    assert (item["metadata"]["name"], item["usage"]) == ("node-1", {"cpu": "250m", "memory": "2Gi"})


async def test_an_answer_can_be_replaced(sandbox: Sandbox, client: Client) -> None:
    sandbox.metrics.set("load", "node-1", "1")
    sandbox.metrics.answer_with(b"<html>", to="/load", content_type="text/html")
    answer = await client.get(f"{CUSTOM}/v1beta1/nodes/*/load")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html")
    sandbox.metrics.answer_with(None, to="/load")
    assert (await client.get(f"{CUSTOM}/v1beta1/nodes/*/load")).ok()["kind"] == "MetricValueList"
