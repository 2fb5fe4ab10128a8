"""What processes keep in memory."""

import asyncio
from itertools import islice

import psutil

from bus.buckets import VERDICTS
from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.rows import Budget, Results, Row, Size, row
from tests.bench.stand import FILTER, PRIORITIZE, Server, Stand, product
from tests.e2e.processes import Process

NAME = "memory"
SIZES = (1000, 5000, 15_000)
BUDGETED = 5000
BUDGET = Budget(150.0)
CANDIDATES = 500
REQUESTS = 500
"""Pairs of requests: as many answers as the extender remembers."""

MEGABYTE = 1e6
EVALUATED_SECONDS = 300.0
RETRY_SECONDS = 0.2


async def measure(stand: Stand) -> Results:
    """Resident bytes: of an extender after many answers, of `evaluate` with a verdict of every node."""
    rows: list[Row] = []
    for name, megabytes, sizes in (
        ("extender", _extender, SIZES),
        ("materialize", _materialize, SIZES[:2]),
        ("evaluate", _evaluate, SIZES),
    ):
        empty = await megabytes(stand, 0)
        rows += [_row(name, size, await megabytes(stand, size), empty) for size in sizes]
    return Results(rows=rows)


def _row(name: str, size: int, found: float, empty: float) -> Row:
    return row(
        f"{name}'s memory, {cluster.METRICS} metrics, {cluster.POLICIES} policies",
        "resident",
        [found],
        [empty],
        unit="MB",
        floor_name="without nodes",
        budget=BUDGET if (name, size) == ("extender", BUDGETED) else None,
        size=Size(size, "nodes"),
    )


async def _extender(stand: Stand, nodes: int) -> float:
    async with stand.bus(cluster.node_names(nodes)) as running:
        with stand.extender(running.server.url) as extender, Client(extender.port) as client:
            requested = cluster.node_names(BUDGETED)
            for number, found in enumerate(islice(cluster.lists_of_names(requested, CANDIDATES, seed=0), REQUESTS)):
                body = cluster.names_only(number, found)
                for verb in (FILTER, PRIORITIZE):
                    client.ask(extender.request(body, verb))
            return _resident(extender.process)


async def _materialize(stand: Stand, nodes: int) -> float:
    async with stand.bus(cluster.node_names(nodes)) as running:
        with stand.process("materialize", product("materialize", running.server.url)) as materialize:
            server = Server(process=materialize, port=0, path="", began=0.0)
            async with asyncio.timeout(EVALUATED_SECONDS):
                while b"health_listening" not in materialize.log.read_bytes():
                    materialize.must_run()
                    await asyncio.sleep(RETRY_SECONDS)
                while server.metric('tas_worker_ready{worker="materialize"}') != 1:
                    materialize.must_run()
                    await asyncio.sleep(RETRY_SECONDS)
            return _resident(materialize)


async def _evaluate(stand: Stand, nodes: int) -> float:
    async with stand.bus(cluster.node_names(nodes)) as running:
        first = (await running.bus.epoch(VERDICTS)).last_sequence
        with stand.process("evaluate", product("evaluate", running.server.url)) as evaluate:
            async with asyncio.timeout(EVALUATED_SECONDS):
                while b"nodes_evaluated" not in evaluate.log.read_bytes():
                    evaluate.must_run()
                    await asyncio.sleep(RETRY_SECONDS)
                while (await running.bus.epoch(VERDICTS)).last_sequence - first < nodes:
                    evaluate.must_run()
                    await asyncio.sleep(RETRY_SECONDS)
            return _resident(evaluate)


def _resident(process: Process) -> float:
    return float(psutil.Process(process.pid).memory_info().rss / MEGABYTE)
