"""How soon a new extender answers."""

import time
from datetime import datetime

from tests.bench import cluster
from tests.bench.rows import Budget, Results, Size, row
from tests.bench.stand import Server, Stand

NAME = "start"
NODES = 15_000
BUDGET = Budget(2.0)


async def measure(stand: Stand) -> Results:
    """Seconds from the start of the process, and from its connection to the bus, beside the same without nodes."""
    empty = await _starts(stand, 0)
    full = await _starts(stand, NODES)
    rows = [
        row(
            f"extender's start to its first answer, {cluster.METRICS} metrics",
            statistic,
            found,
            least,
            unit="s",
            floor_name="without nodes",
            budget=budget,
            size=Size(NODES, "nodes"),
        )
        for statistic, found, least, budget in (
            ("from the process's start", [total for total, _ in full], [total for total, _ in empty], BUDGET),
            ("from its connection", [since for _, since in full], [since for _, since in empty], None),
        )
    ]
    return Results(rows=rows)


async def _starts(stand: Stand, nodes: int) -> list[tuple[float, float]]:
    """For each of several starts: seconds from the process's start, and from its connection."""
    found = []
    async with stand.bus(cluster.node_names(nodes)) as running:
        for _ in range(stand.some(7, 3)):
            with stand.extender(running.server.url, wait=False) as extender:
                total = extender.wait_ready()
                found.append((total, time.time() - _connected_at(extender)))
    return found


def _connected_at(server: Server) -> float:
    return datetime.fromisoformat(server.logged("bus_connected")["time"]).timestamp()
