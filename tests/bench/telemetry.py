"""A simulated custom metrics API and Prometheus: new values of every node for each request.

`python -m tests.bench.telemetry --listen HOST:PORT --nodes N [--crossing SHARE]`. A PUT of /hot with a list of names
replaces the nodes whose values in Prometheus exceed each target. With --crossing others do so for one request each:
from one request to the next, SHARE of all nodes cross a target in one direction or the other.
"""

import argparse
import asyncio
import random
import time

import orjson
import uvloop
from aiohttp import web

from tas.sources.custom_metrics import GROUP
from tests.bench import cluster
from workers.http.address import Address

VERSION = "v1beta1"

MEASURED = "2026-01-01T00:00:00Z"
"""One time for all metrics, so that they are one message."""

USUAL = 90.0
"""Values of Prometheus lie between 0 and this."""

HOT = cluster.VALUES - 1
"""The value of a node that exceeds every target."""


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


def _vector(nodes: list[str], hot: set[str]) -> object:
    now = round(time.time(), 3)
    result = [
        {
            "metric": {"__name__": "node_load1", "instance": f"{node}:9100", "job": "node-exporter"},
            "value": [now, f"{HOT if node in hot else random.uniform(0, USUAL):.4f}"],
        }
        for node in nodes
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


async def _serve(address: Address, nodes: list[str], crossing: float) -> None:
    hot: set[str] = set()
    for_one = round(len(nodes) * crossing / 2)  # those of the request before return

    async def answer(request: web.Request) -> web.Response:
        if request.path == f"/apis/{GROUP}":
            answer = _group()
        elif request.path.startswith("/apis/"):
            answer = _values(request.path.rpartition("/")[2], nodes)
        else:
            answer = _vector(nodes, hot.union(random.sample(nodes, for_one)) if for_one else hot)
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    async def heat(request: web.Request) -> web.Response:
        nonlocal hot
        hot = set(orjson.loads(await request.read()))
        return web.Response()

    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.put("/hot", heat), web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address.host, address.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=Address.parse, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--crossing", type=float, default=0.0)
    asked = parser.parse_args()
    uvloop.run(_serve(asked.listen, cluster.node_names(asked.nodes), asked.crossing))
