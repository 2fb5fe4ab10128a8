"""A simulated Prometheus that writes: new values of every node in each period, in requests of 500 samples.

`python -m tests.bench.remote_writer URL NODES METRICS SECONDS` writes until it is ended. A request has all metrics of
some nodes, as Prometheus sends what it scrapes, and the requests of a period are spread evenly over it.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from itertools import cycle

import aiohttp
import uvloop

from tests.bench import cluster
from tests.bench.telemetry import USUAL
from tests.sources.writing import HEADERS, body, series

SAMPLES = 500
"""Of a request, as Prometheus sends them by default."""


async def _write(url: str, nodes: int, metrics: int, period: float) -> None:
    names, size = cluster.node_names(nodes), SAMPLES // metrics
    requests = [names[start : start + size] for start in range(0, nodes, size)]
    due = time.monotonic()
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        for some in cycle(requests):
            await _send(session, url, body_of(some, metrics))
            due = max(due + period / len(requests), time.monotonic() - period)
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def body_of(nodes: Sequence[str], metrics: int) -> bytes:
    """A request with new values of these nodes, measured now; none violates a rule."""
    now = round(time.time() * 1000)
    return body(
        series(metric, (random.uniform(0, USUAL), now), instance=f"{node}:9100", job="node-exporter")
        for node in nodes
        for metric in cluster.METRIC_NAMES[:metrics]
    )


async def _send(session: aiohttp.ClientSession, url: str, content: bytes) -> None:
    """Sends a request until it is accepted, as Prometheus does."""
    while True:
        try:
            async with session.post(url, data=content) as response:
                if response.ok:
                    return
        except aiohttp.ClientError:
            pass  # the receiver does not listen yet
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    uvloop.run(_write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
