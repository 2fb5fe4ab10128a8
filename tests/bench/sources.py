"""What one poll of a source costs `collect`: request, parsing, and publishing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from tas.sources.custom_metrics import GROUP
from tas.sources.result import scrapes
from tests.bench import cluster
from tests.bench.rows import Results, Row, Size, row
from tests.bench.stand import START_SECONDS, Stand, module
from tests.bench.telemetry import VERSION
from tests.e2e.processes import free_ports
from workers.collect.sources.base import Source
from workers.collect.sources.config import ConfigFile
from workers.collect.sources.custom_metrics import CustomMetrics
from workers.collect.sources.prometheus import Prometheus
from workers.kubernetes.client import KubernetesClient
from workers.samples.publisher import MAX_CONCURRENT, SamplePublisher

NAME = "sources"
NODES = 15_000
METRICS = (1, 5)


async def measure(stand: Stand) -> Results:
    """Processor time of a poll, for each of its metrics, by source and number of metrics; every value is new."""
    results = Results()
    async with stand.bus(()) as running, _played(stand) as url, _sources(stand, url) as sources:
        for name, (source, path) in sources.items():
            for count in METRICS:
                poll = _Poll(running.bus, source, f"{url}{path}", cluster.METRIC_NAMES[:count])
                results.rows.append(await _row(stand, f"a poll of {name}, {count} metrics at once", poll))
    return results


async def _row(stand: Stand, series: str, poll: "_Poll") -> Row:
    await poll.ours()  # so connections are open and code paths are warm
    ours, floor = [], []
    for _ in range(stand.rounds):
        ours.append(await _processor_ms(poll.ours) / poll.count)
        floor.append(await _processor_ms(poll.floor) / poll.count)
    return row(
        series,
        "processor, each metric",
        ours,
        floor,
        unit="ms",
        floor_name="json.loads, publishing",
        size=Size(NODES, "nodes"),
    )


class _Poll:
    """One poll as in `collect`, and the least that it could take."""

    def __init__(self, bus: Bus, source: Source, url: str, metrics: tuple[str, ...]) -> None:
        self.count = len(metrics)
        self._bus = bus
        self._source = source
        self._urls = [f"{url}{metric}" for metric in metrics]
        self._metrics = frozenset(metrics)
        self._publisher = SamplePublisher(bus, source.name)
        self._messages: list[tuple[str, bytes]] = []

    async def ours(self) -> None:
        requested_at = time.time()
        result = await self._source.read(self._metrics)
        published = await self._publisher.publish(result.samples, requested_at=requested_at)
        if (len(result.samples), published) != (self.count * NODES, NODES):
            raise RuntimeError(f"{len(result.samples)} values in {published} messages")
        if not self._messages:
            self._messages = [
                (samples_subject(node, self._source.name), encode_samples(scrape))
                for node, scrape in scrapes(result.samples, source=self._source.name, requested_at=requested_at)
            ]

    async def floor(self) -> None:
        async with aiohttp.ClientSession() as session:
            for url in self._urls:
                async with session.get(url) as response:
                    json.loads(await response.read())
        for start in range(0, len(self._messages), MAX_CONCURRENT):
            await self._bus.publish_all(SAMPLES, self._messages[start : start + MAX_CONCURRENT])


async def _processor_ms(action: Callable[[], Awaitable[None]]) -> float:
    began = time.process_time()
    await action()
    return (time.process_time() - began) * 1000


@asynccontextmanager
async def _played(stand: Stand) -> AsyncIterator[str]:
    """The URL of a server that answers for both sources, in a process of its own."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [*module("tests.bench.telemetry"), "--listen", f"127.0.0.1:{port}", "--nodes", str(NODES)]
    with stand.process("telemetry", command) as process:
        async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
            while True:
                process.must_run()
                try:
                    async with session.get(f"{url}/apis/{GROUP}"):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        yield url


@asynccontextmanager
async def _sources(stand: Stand, url: str) -> AsyncIterator[dict[str, tuple[Source, str]]]:
    """Each polled source, and the path of a request to it."""
    kubeconfig = stand.subfolder("kubeconfig") / "config"
    named = {"cluster": "bench", "user": "bench"}
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "bench",
                "contexts": [{"name": "bench", "context": named}],
                "clusters": [{"name": "bench", "cluster": {"server": url}}],
                "users": [{"name": "bench", "user": {}}],
            }
        )
    )
    async with KubernetesClient.connect(kubeconfig, worker="bench") as client:
        prometheus = Prometheus("prometheus", url, ConfigFile.load(None))
        try:
            yield {
                "the custom metrics API": (
                    CustomMetrics("custom-metrics", client),
                    f"/apis/{GROUP}/{VERSION}/nodes/*/",
                ),
                "Prometheus": (prometheus, "/api/v1/query?query="),
            }
        finally:
            await prometheus.close()
