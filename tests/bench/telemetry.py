"""A simulated custom metrics API and Prometheus: new values of every node for each request.

`python -m tests.bench.telemetry --listen HOST:PORT --nodes N`.
"""

import asyncio
import random
import sys
import time

import orjson
import uvloop
from aiohttp import web

from tas.sources.custom_metrics import GROUP
from tests.bench import cluster
from workers.process.address import Address

VERSION = "v1beta1"

MEASURED = "2026-01-01T00:00:00Z"
"""One time for all metrics, so that they are one message."""


def _group() -> object:
    return {"kind": "APIGroup", "name": GROUP, "versions": [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}]}


def _values(metric: str, nodes: list[str]) -> object:
    items = [
        {
            "describedObject": {"kind": "Node", "name": node, "apiVersion": "/v1"},
            "metricName": metric,
            "timestamp": MEASURED,
            "value": f"{random.randrange(10**9)}m",  # so many that no node gets the same value twice
            "selector": None,
        }
        for node in nodes
    ]
    return {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}


def _vector(nodes: list[str]) -> object:
    now = round(time.time(), 3)
    result = [
        {
            "metric": {"__name__": "node_load1", "instance": f"{node}:9100", "job": "node-exporter"},
            "value": [now, f"{random.uniform(0, 10):.4f}"],
        }
        for node in nodes
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


async def _serve(address: Address, nodes: list[str]) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == f"/apis/{GROUP}":
            answer = _group()
        elif request.path.startswith("/apis/"):
            answer = _values(request.path.rpartition("/")[2], nodes)
        else:
            answer = _vector(nodes)
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address.host, address.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Address.parse(sys.argv[2]), cluster.node_names(int(sys.argv[4]))))
