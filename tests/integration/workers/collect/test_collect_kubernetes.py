"""`collect` with the sources of Kubernetes, over HTTP from the sandbox, also with invalid responses."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bus.connection import Bus
from tests.integration.servers import eventually
from tests.integration.workers.collecting import World, collecting, polled
from tests.kubernetes.collect_scenarios import Adapter, CollectScenarios, metrics_world
from tests.sandbox import Call, Drop, Sandbox
from workers.collect.sources.base import Turns
from workers.collect.sources.custom_metrics import MAX_ANSWER_BYTES, CustomMetrics
from workers.collect.sources.metrics_server import MetricsServer
from workers.kubernetes.client import KubernetesClient

__all__ = ["metrics_world"]

GROUP = "/apis/custom.metrics.k8s.io"
NODES = ["node-1", "node-2.example.com"]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=NODES) as sandbox:
        yield sandbox


@pytest.fixture
async def client(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[KubernetesClient]:
    kubeconfig = sandbox.kubeconfig(tmp_path / "kubeconfig")
    async with KubernetesClient.connect(kubeconfig, worker="collect") as client:
        yield client


@pytest.fixture
async def world(bus: Bus) -> World:
    world = World(bus)
    await world.listed()
    return world


@pytest.fixture
def source(client: KubernetesClient) -> CustomMetrics:
    return CustomMetrics("custom-metrics", client)


@pytest.fixture
async def collected(bus: Bus, world: World, sandbox: Sandbox, source: CustomMetrics) -> AsyncIterator[None]:
    """Collects two metrics of the custom metrics API: `good`, and `bad`, whose answers a test changes."""
    for metric in ("good", "bad"):
        sandbox.metrics.set(metric, "node-1", "1500m")
    await world.use("good", "bad")
    async with collecting(bus, source):
        await world.has("node-1", "custom-metrics", {"good": 1.5, "bad": 1.5})
        yield


class Served(Adapter):
    """The metrics APIs of the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.metrics = sandbox.metrics

    async def serve(self, *versions: str, usage: bool = False) -> None:
        self.metrics.versions = list(versions)
        self.metrics.usage_is_served = usage


class TestCollect(CollectScenarios):
    @pytest.fixture
    def adapter(self, sandbox: Sandbox) -> Adapter:
        return Served(sandbox)


async def test_values_of_both_versions_are_published(
    bus: Bus, world: World, sandbox: Sandbox, client: KubernetesClient
) -> None:
    for version in ("v1beta1", "v1beta2"):
        sandbox.metrics.versions = [version]
        source = CustomMetrics(f"of-{version}", client)
        sandbox.metrics.set("load", "node-1", "1500m", window=30)
        measured = round(time.time()) - 60
        sandbox.metrics.set("load", "node-2.example.com", "7", timestamp=text(measured))
        await world.use("load")
        async with collecting(bus, source):
            await world.has("node-1", source.name, {"load": 1.5})
            await world.has("node-2.example.com", source.name, {"load": 7})
        first, second = [await world.scrape(node, source.name) for node in NODES]
        assert first is not None
        assert second is not None
        assert (first.window, second.window) == (30, None)
        assert second.measured == measured
        assert f"{GROUP}/{version}/nodes/*/load" in {call.path for call in sandbox.calls}


async def test_only_metrics_of_policies_are_requested(
    bus: Bus, world: World, sandbox: Sandbox, source: CustomMetrics
) -> None:
    for metric in ("load", "heat", "unused"):
        sandbox.metrics.set(metric, "node-1", "1")
    async with collecting(bus, source):

        async def idle() -> bool:
            state = await world.state("custom-metrics")
            return state is not None and not state.metrics

        await polled(idle)
        assert sandbox.calls == []  # not even discovery
        await world.use("load", "heat")
        await world.has("node-1", "custom-metrics", {"load": 1, "heat": 1})
        paths = {call.path for call in sandbox.calls}
        assert paths == {GROUP, f"{GROUP}/v1beta2/nodes/*/load", f"{GROUP}/v1beta2/nodes/*/heat"}
        await world.use()
        await polled(idle)
        before = len(sandbox.calls)
        await world.use("heat", policy="q")  # the first request after that shows that there was none in between
        await eventually(lambda: any(map(of_nodes, sandbox.calls[before:])))
        assert next(filter(of_nodes, sandbox.calls[before:])).path.endswith("/heat")


async def test_a_change_of_the_preferred_version_is_followed(
    bus: Bus, world: World, sandbox: Sandbox, source: CustomMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.collect.sources.custom_metrics.DISCOVER_SECONDS", 0.2)
    sandbox.metrics.versions = ["v1beta1"]
    sandbox.metrics.set("load", "node-1", "1")
    await world.use("load")
    async with collecting(bus, source):
        await world.has("node-1", "custom-metrics", {"load": 1})
        sandbox.metrics.versions = ["v1beta2", "v1beta1"]
        await eventually(lambda: any("v1beta2" in call.path for call in sandbox.calls))
        # While discovery fails, the last preferred version is used.
        sandbox.faults.answer(500, times=10**6, which=lambda call: call.path == GROUP)
        await world.comes("node-1", "custom-metrics")


async def test_an_unknown_metric_is_missing_until_the_api_has_it(
    bus: Bus, world: World, sandbox: Sandbox, source: CustomMetrics
) -> None:
    sandbox.metrics.set("load", "node-1", "1")
    await world.use("load", "heat")
    async with collecting(bus, source):
        await world.has("node-1", "custom-metrics", {"load": 1})
        await world.misses("custom-metrics", "heat", "does not know it (404)")
        assert not (await world.problem("custom-metrics", "")).problem
        sandbox.metrics.set("heat", "node-2", "3")
        sandbox.metrics.forget("heat", "node-2")
        await world.misses("custom-metrics", "heat", "has no value of it for any node")
        sandbox.metrics.set("heat", "node-1", "3")
        await world.has("node-1", "custom-metrics", {"load": 1, "heat": 3})
        await world.misses("custom-metrics", "heat", "")


LIST = '{"kind": "MetricValueList", "items": [%s]}'
ITEM = {
    "describedObject": {"kind": "Node", "name": "node-1"},
    "metric": {"name": "bad"},
    "timestamp": None,
    "value": "7",
}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html><body>Please log in</body></html>", "<html>"),
        (b"", "body = ''"),
        (b'{"kind": "MetricValueList", "items": [{"describedObject"', "truncated"),
        (b'{"kind": "Status", "status": "Failure"}', "must be MetricValueList"),
        (b"[]", "Expected `object`"),
        (b'{"kind": "MetricValueList", "items": {}}', "Expected `array | null`"),
        (b"\xff\xfe" * 1000, "bad"),
        (b"[" * 100_000, "bad"),
        (b'{"kind": "MetricValueList", "items": null}', "has no value of it for any node"),
        (b"[" + b" " * (10 << 20) + b"]", f"more than {MAX_ANSWER_BYTES} bytes"),
    ],
    ids=["html", "empty", "truncated", "status", "array", "items", "binary", "deep", "no items", "10 MB"],
)
@pytest.mark.usefixtures("collected")
async def test_an_invalid_response_affects_only_its_metric(
    world: World, sandbox: Sandbox, body: bytes, message: str
) -> None:
    sandbox.metrics.answer_with(body, to="/bad")
    await world.misses("custom-metrics", "bad", message)
    await world.has("node-1", "custom-metrics", {"good": 1.5})
    await world.comes("node-1", "custom-metrics")
    sandbox.metrics.answer_with(None, to="/bad")
    await world.has("node-1", "custom-metrics", {"good": 1.5, "bad": 1.5})


@pytest.mark.parametrize(
    ("changes", "why", "message"),
    [
        ({"describedObject": {"kind": "Pod", "name": "web"}}, "node", "describedObject.kind = 'Pod'"),
        ({"describedObject": {"kind": "Node", "name": "Web_1"}}, "node", "'Web_1'"),
        ({"describedObject": {"kind": "Node"}}, "node", "node = ''"),
        ({"describedObject": None}, "shape", "items"),
        ({"value": "NaN"}, "value", "'NaN'"),
        ({"value": 7}, "shape", "items"),
        ({"value": "1e400"}, "value", "beyond"),
        ({"timestamp": "yesterday"}, "time", "'yesterday'"),
        ({"timestamp": "2026-01-01T00:00:00"}, "time", "zone"),
        ({"timestamp": "1970-01-01T00:00:00Z"}, "time", "at most 3600 s ago"),
        ({"timestamp": "2999-01-01T00:00:00Z"}, "time", "ahead"),
        ({"metric": {"name": "other"}}, "metric", "must be bad, the requested metric"),
    ],
)
@pytest.mark.usefixtures("collected")
async def test_a_bad_value_is_refused_alone(
    world: World, sandbox: Sandbox, changes: dict[str, object], why: str, message: str
) -> None:
    good = ITEM | {"describedObject": {"kind": "Node", "name": "node-3"}}
    sandbox.metrics.answer_with((LIST % f"{json.dumps(ITEM | changes)}, {json.dumps(good)}").encode(), to="/bad")
    await world.has("node-3", "custom-metrics", {"bad": 7})
    await world.refuses("custom-metrics", why, message)
    await world.has("node-1", "custom-metrics", {"good": 1.5})


def of_bad(call: Call) -> bool:
    return call.path.endswith("/bad")


def of_nodes(call: Call) -> bool:
    return "/nodes/" in call.path


@pytest.mark.parametrize(("status", "message"), [(500, "(500)"), (503, "(503)"), (403, "(403)"), (400, "(400)")])
@pytest.mark.usefixtures("collected")
async def test_a_failing_metric_is_reported_and_the_others_are_published(
    world: World, sandbox: Sandbox, status: int, message: str
) -> None:
    sandbox.faults.answer(status, times=10**6, which=of_bad)
    await world.misses("custom-metrics", "bad", message)
    await world.comes("node-1", "custom-metrics")
    sandbox.faults.clear()
    await world.has("node-1", "custom-metrics", {"good": 1.5, "bad": 1.5})


@pytest.mark.parametrize(("status", "message"), [(500, "(500)"), (503, "(503)"), (403, "(403)"), (404, "(404)")])
@pytest.mark.usefixtures("collected")
async def test_a_failing_source_is_reported_and_recovers(
    world: World, sandbox: Sandbox, status: int, message: str
) -> None:
    sandbox.faults.answer(status, times=10**6, which=of_nodes)
    await world.problem("custom-metrics", message)
    sandbox.faults.clear()
    await world.comes("node-1", "custom-metrics")
    await world.problem("custom-metrics", "")


@pytest.mark.parametrize("drop", list(Drop))
@pytest.mark.usefixtures("collected")
async def test_a_truncated_response_is_reported(world: World, sandbox: Sandbox, drop: Drop) -> None:
    sandbox.faults.drop(drop, times=10**6, which=of_bad)
    await world.misses("custom-metrics", "bad", sandbox.url)
    await world.comes("node-1", "custom-metrics")


@pytest.mark.usefixtures("collected")
async def test_429_delays_the_next_poll_by_its_retry_after(world: World, sandbox: Sandbox) -> None:
    times: list[float] = []

    def note(call: Call) -> bool:
        if of_nodes(call):
            times.append(time.monotonic())
        return False

    def is_between_polls() -> bool:
        calls = list(filter(of_nodes, sandbox.calls))
        return len(calls) % 2 == 0 and all(call.answered for call in calls)

    # Else one of the two metrics of a poll would get the value, and the other one the refusal of the API server.
    await eventually(is_between_polls)
    sandbox.faults.answer(500, which=note)
    with capture_logs() as logs:
        sandbox.faults.answer(429, times=2, which=of_nodes, retry_after=2)
        await eventually(lambda: len(times) > 2)
    (failed,) = [line["error"] for line in logs if line["event"] == "source_failed"]
    assert "429" in failed
    assert times[2] - times[1] > 1.5
    await world.comes("node-1", "custom-metrics")


@pytest.mark.usefixtures("collected")
async def test_a_metric_that_times_out_is_skipped_for_a_while(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.collect.sources.custom_metrics.METRIC_SECONDS", 0.3)
    sandbox.faults.delay(3600, times=10**6, which=of_bad)
    await world.misses("custom-metrics", "bad", "no answer within 0.3 s")
    before = len(sandbox.calls)
    await eventually(lambda: len(sandbox.calls) > before + 15)
    asked = sandbox.calls[before:]
    assert sum(map(of_bad, asked)) < len(asked) / 3
    sandbox.faults.clear()
    await world.has("node-1", "custom-metrics", {"good": 1.5, "bad": 1.5})


async def test_a_metric_without_a_slot_is_requested_first_in_the_next_poll(
    bus: Bus, world: World, sandbox: Sandbox, source: CustomMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_turns", Turns(1))
    monkeypatch.setattr("workers.collect.sources.custom_metrics.TURN_SECONDS", 0.2)
    for metric in ("good", "bad"):
        sandbox.metrics.set(metric, "node-1", "1500m")
    sandbox.faults.delay(3600, times=10**6, which=of_bad)  # the first in the alphabet takes the whole time
    await world.use("good", "bad")
    async with collecting(bus, source):
        await world.has("node-1", "custom-metrics", {"good": 1.5})


@pytest.mark.usefixtures("collected")
async def test_a_hanging_server_is_reported_and_recovers(
    world: World, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.collect.sources.custom_metrics.METRIC_SECONDS", 0.3)
    sandbox.faults.delay(3600, times=10**6)
    await world.problem("custom-metrics", "no answer within 0.3 s")
    sandbox.faults.clear()
    await world.comes("node-1", "custom-metrics")


@pytest.mark.usefixtures("collected")
async def test_a_slow_server_within_the_limit_is_no_failure(world: World, sandbox: Sandbox) -> None:
    sandbox.faults.delay(1.0, times=10**6, which=of_nodes)
    await world.comes("node-1", "custom-metrics")
    await world.comes("node-1", "custom-metrics")
    state = await world.problem("custom-metrics", "")
    assert state.failures == 0


async def test_a_hanging_custom_metrics_api_does_not_affect_metrics_server(
    bus: Bus, world: World, sandbox: Sandbox, source: CustomMetrics, client: KubernetesClient
) -> None:
    sandbox.metrics.set("load", "node-1", "1")
    sandbox.metrics.use("node-1", cpu="250m", memory="2Gi")
    sandbox.faults.delay(3600, times=10**6, which=lambda call: "custom" in call.path)
    await world.use("load", "cpu", "memory")
    async with collecting(bus, source, MetricsServer("metrics-server", client)):
        await world.has("node-1", "metrics-server", {"cpu": 0.25, "memory": 2 << 30})
        for _ in range(3):
            await world.comes("node-1", "metrics-server")
        await world.misses("metrics-server", "load", "has only cpu and memory")
        await world.problem("custom-metrics", "no answer within")


async def test_metrics_server_is_polled_only_for_its_own_metrics(
    bus: Bus, world: World, sandbox: Sandbox, client: KubernetesClient
) -> None:
    sandbox.metrics.use("node-1", cpu="123456789n", memory="1024Ki", timestamp=text(time.time()), window="15.02s")
    await world.use("load")
    async with collecting(bus, MetricsServer("metrics-server", client)):
        await world.misses("metrics-server", "load", "has only cpu and memory")
        assert sandbox.calls == []
        await world.use("cpu", policy="q")
        await world.has("node-1", "metrics-server", {"cpu": 0.123456789})
        scrape = await world.scrape("node-1", "metrics-server")
        assert scrape is not None
        assert scrape.window == 15.02


@pytest.mark.parametrize(
    "answer",
    [
        (b"<html>", "<html>"),
        (b'{"kind": "PodMetricsList"}', "must be NodeMetricsList"),
        (b"", "body = ''"),
        (b" " * (17 << 20), "more than"),
        (None, "serves no metrics API"),
    ],
    ids=["html", "pods", "empty", "17 MB", "not served"],
)
async def test_invalid_responses_of_metrics_server_are_reported_and_it_recovers(
    bus: Bus, world: World, sandbox: Sandbox, client: KubernetesClient, answer: tuple[bytes | None, str]
) -> None:
    body, message = answer
    sandbox.metrics.use("node-1", cpu="1", memory="1Ki")
    await world.use("cpu", "memory")
    async with collecting(bus, MetricsServer("metrics-server", client)):
        await world.has("node-1", "metrics-server", {"cpu": 1, "memory": 1024})
        sandbox.metrics.usage_is_served = body is not None
        sandbox.metrics.answer_with(body, to="/nodes")
        await world.problem("metrics-server", message)
        sandbox.metrics.answer_with(None, to="/nodes")
        sandbox.metrics.usage_is_served = True
        await world.comes("node-1", "metrics-server")
        await world.problem("metrics-server", "")


async def test_a_bad_item_of_metrics_server_is_refused_alone(
    bus: Bus, world: World, sandbox: Sandbox, client: KubernetesClient
) -> None:
    good = {"metadata": {"name": "node-1"}, "usage": {"cpu": "1", "memory": "NaN"}, "window": "soon"}
    twice = {"metadata": {"name": "node-2"}, "usage": {"cpu": "1"}}
    items = [good, {"metadata": {"name": "node-3"}}, twice, twice, good | {"timestamp": "?"}]
    sandbox.metrics.answer_with(json.dumps({"kind": "NodeMetricsList", "items": items}).encode(), to="/nodes")
    await world.use("cpu", "memory")
    async with collecting(bus, MetricsServer("metrics-server", client)):
        await world.has("node-1", "metrics-server", {"cpu": 1})
        for why, message in [("value", "'NaN'"), ("shape", "node-3"), ("duplicate", "cpu of node-2"), ("time", "'?'")]:
            await world.refuses("metrics-server", why, message)
        assert await world.scrape("node-2", "metrics-server") is None


def text(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
