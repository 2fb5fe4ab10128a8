"""What the whole product uses while a Prometheus writes to it, and what nats-server stores meanwhile.

The floor decompresses and decodes the same requests, and puts the values into one dict.
"""

import asyncio
import time

import psutil

from bus.server import EmbeddedServer
from tas.sources.write_request import decode_series, decode_write_request
from tests.bench import cluster
from tests.bench.e2e.world import World
from tests.bench.polls import MEBIBYTE
from tests.bench.remote_writer import SAMPLES, body_of
from tests.bench.rows import Budget, NotRun, Results, Size, row
from tests.bench.stand import CpuMeter, Stand, cpu_seconds, module
from tests.e2e import binaries
from tests.e2e.processes import free_ports

NAME = "writes"
NODES = 5000
QUICK_NODES = 500
METRICS = 5
PERIOD_SECONDS = 15.0
"""As often as Prometheus writes new values of each node."""

CORES = Budget(0.2)
STORED = Budget(1.0)
"""In MiB a second: what nats-server writes to its files."""

POLICY = {
    "strategies": {
        "dontschedule": {
            "rules": [
                {"metricname": metric, "operator": "GreaterThan", "target": int(cluster.VIOLATING)}
                for metric in cluster.METRIC_NAMES[:METRICS]
            ]
        },
        "scheduleonmetric": {"rules": [{"metricname": cluster.METRIC_NAMES[0], "operator": "LessThan"}]},
    }
}
"""Uses all of the metrics; no written value violates it."""
FLOOR = "decompressed, decoded, one dict"


async def measure(stand: Stand) -> Results:
    """One `tas run all` with a receiver of remote write, on a real control plane."""
    series = f"remote write, {METRICS} metrics, each {PERIOD_SECONDS:g} s"
    found = binaries.find()
    if found is None:
        return Results(not_run=[NotRun(series, binaries.MISSING)])
    nodes = stand.some(NODES, QUICK_NODES)
    with World.start(stand, found) as world:
        world.grow(nodes)
        world.set_policies({cluster.policy_name(0): POLICY})
        (port,) = free_ports(1)
        async with EmbeddedServer.start(stand.subfolder("bus")) as server:
            with (
                world.product(server.url, "--source", f"remote-write=127.0.0.1:{port}") as served,
                stand.process("writer", _writer(port, nodes)),
            ):
                await world.ready(served)
                await world.settled(served)
                pids = {"tas run all": served.processes[0].pid, "nats-server": server.pid}
                meter = CpuMeter(f"{series}, {nodes:,} nodes", pids)
                written = psutil.Process(server.pid).io_counters().write_chars
                cores, floor = [], []
                began = time.monotonic()
                for _ in range(stand.some(4, 2)):
                    cores.append(await _cores(list(pids.values())))
                    floor.append(_floor_seconds(nodes) / PERIOD_SECONDS)
                stored = (psutil.Process(server.pid).io_counters().write_chars - written) / (time.monotonic() - began)
                resident = psutil.Process(served.processes[0].pid).memory_info().rss
                cpu = meter.read()
    size = Size(nodes, "nodes")
    return Results(
        rows=[
            row(series, "cores", cores, floor, unit="cores", floor_name=FLOOR, budget=CORES, size=size),
            row(series, "stored in a second", [stored / MEBIBYTE], unit="MiB", budget=STORED, size=size),
            row(series, "tas run all, resident", [resident / MEBIBYTE], unit="MiB", size=size),
        ],
        cpu=cpu,
    )


def _writer(port: int, nodes: int) -> list[str]:
    url = f"http://127.0.0.1:{port}/api/v1/write"
    return [*module("tests.bench.remote_writer"), url, str(nodes), str(METRICS), str(PERIOD_SECONDS)]


async def _cores(pids: list[int]) -> float:
    began, before = time.monotonic(), sum(map(cpu_seconds, pids))
    await asyncio.sleep(PERIOD_SECONDS)
    return (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - began)


def _floor_seconds(nodes: int) -> float:
    """Processor seconds of the requests of a period, with which nothing is done."""
    names = cluster.node_names(nodes)
    size = SAMPLES // METRICS
    bodies = [body_of(names[start : start + size], METRICS) for start in range(0, nodes, size)]
    values: dict[tuple[str, ...], int] = {}
    began = time.process_time()
    for body in bodies:
        for each in map(decode_series, decode_write_request(body)):
            values[tuple(label.value for label in each.labels)] = each.samples[0].value
    return time.process_time() - began
