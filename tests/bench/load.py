"""The cost of a pod's two requests while samples arrive."""

import os
from collections.abc import Iterator
from itertools import cycle, islice

import orjson

from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.measure import interleaved
from tests.bench.rows import Budget, Results, quantile_rows
from tests.bench.stand import FILTER, PRIORITIZE, CpuMeter, Server, Stand
from tests.bench.traffic import traffic

NAME = "load"
NODES = 5000
CANDIDATES = 500
RATE = 1700.0
BUDGETS = {"p50": Budget(1.5), "p99": Budget(4.0)}
LISTS = 32

PODS = 200.0
"""Pods a second: about as many as a scheduler with an extender places."""


async def measure(stand: Stand) -> Results:
    """Filter, then prioritize of the passed nodes, idle and under load, beside the echo of the same two bodies."""
    names = cluster.node_names(NODES)
    results = Results()
    async with stand.bus(names) as running:
        with (
            stand.extender(running.server.url) as extender,
            stand.echo() as echo,
            Client(extender.port) as ours,
            Client(echo.port) as floor,
        ):
            pair = Pair(ours, extender, floor, echo, names)
            calls = {"pair": pair.seconds, "echo": pair.echo_seconds}
            repetitions = stand.some(600, 300)
            idle = await interleaved(calls, rounds=stand.rounds, repetitions=repetitions, period=1 / PODS)
            during = f"{RATE:,.0f} messages/s"
            async with traffic(stand, running, rate=RATE, nodes=NODES, extender=extender) as flow:
                pids = {"extender": extender.process.pid, "echo": echo.process.pid, "client": os.getpid()}
                meter = CpuMeter("the pair under load", flow.pids | pids)
                loaded = await interleaved(calls, rounds=stand.rounds, repetitions=repetitions, period=1 / PODS)
                results.cpu += meter.read()
    size = f"{CANDIDATES} of {NODES:,} nodes"
    results.rows += quantile_rows(f"filter + prioritize, {size}, idle", idle["pair"], idle["echo"], floor_name="echo")
    results.rows += quantile_rows(
        f"filter + prioritize, {size}, {during}",
        loaded["pair"],
        loaded["echo"],
        floor_name="echo under load",
        budgets=BUDGETS,
    )
    results.rows += quantile_rows(
        f"filter + prioritize, {size}, {during}", loaded["pair"], idle["pair"], floor_name="idle"
    )
    results.rows += flow.rows
    return results


class Pair:
    """The requests of a scheduler for one pod: filter, then prioritize of the nodes that passed."""

    def __init__(self, ours: Client, extender: Server, floor: Client, echo: Server, names: list[str]) -> None:
        self._ours, self._extender, self._floor, self._echo = ours, extender, floor, echo
        lists = islice(cluster.lists_of_names(names, CANDIDATES, seed=NODES), LISTS)
        self._bodies: Iterator[tuple[int, bytes]] = cycle(
            (number, cluster.names_only(number, found)) for number, found in enumerate(lists)
        )
        self._asked: tuple[bytes, bytes] = (b"", b"")

    def seconds(self) -> float:
        """Both requests, without the client's work in between."""
        number, body = next(self._bodies)
        request = self._extender.request(body, FILTER)
        filtering = self._ours.seconds(request)
        passed = orjson.loads(self._ours.body)["NodeNames"]
        later = cluster.names_only(number, passed)
        self._asked = (body, later)
        return filtering + self._ours.seconds(self._extender.request(later, PRIORITIZE))

    def echo_seconds(self) -> float:
        """The same two bodies to the echo."""
        return sum(self._floor.seconds(self._echo.request(body)) for body in self._asked)
