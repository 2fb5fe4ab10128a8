"""What the extender keeps in memory."""

from itertools import islice

import psutil

from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.rows import Budget, Results, Size, row
from tests.bench.stand import FILTER, PRIORITIZE, Stand

NAME = "memory"
NODES = 5000
BUDGET = Budget(150.0)
CANDIDATES = 500
ASKED = 500
"""Pairs of questions: as many answers as the extender remembers."""

MEGABYTE = 1e6


async def measure(stand: Stand) -> Results:
    """Resident bytes of an extender that has answered for a while, beside one on a bus without nodes."""
    empty = await _megabytes(stand, 0)
    full = await _megabytes(stand, NODES)
    return Results(
        rows=[
            row(
                f"extender's memory, {cluster.METRICS} metrics, {cluster.POLICIES} policies",
                "resident",
                [full],
                [empty],
                unit="MB",
                floor_name="without nodes",
                budget=BUDGET,
                size=Size(NODES, "nodes"),
            )
        ]
    )


async def _megabytes(stand: Stand, nodes: int) -> float:
    names = cluster.node_names(nodes)
    async with stand.bus(names) as standing:
        with stand.extender(standing.server.url) as extender, Client(extender.port) as client:
            asked = cluster.node_names(NODES)
            for number, found in enumerate(islice(cluster.lists_of_names(asked, CANDIDATES, seed=0), ASKED)):
                body = cluster.names_only(number, found)
                for verb in (FILTER, PRIORITIZE):
                    client.ask(extender.request(body, verb))
            return float(psutil.Process(extender.process.pid).memory_info().rss / MEGABYTE)
