"""What telemetry's own answers cost while agents are asked, in a process of their own as they run by default."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tas.agents.builtin import BUILTIN
from tests.bench import agents, cluster
from tests.bench.asker import Asked
from tests.bench.client import Client
from tests.bench.load import PODS, Pair
from tests.bench.measure import Rounds, interleaved
from tests.bench.rows import Budget, Of, Results, quantile_rows, row
from tests.bench.stand import CpuMeter, Server, Stand, module
from tests.e2e.processes import Process

NAME = "beside"
NODES = 500
RATE = 200.0
"""Requests a second to all agents together: ten agents for each of 20 pods."""

START_SECONDS = 30.0
WITHIN = {"p99": Budget(1.25, Of.RATIO)}
"""The noise: two rounds of the same pair alone differ as much."""


async def measure(stand: Stand) -> Results:
    """The pair of calls for a pod, in turns without and with requests to the agents; each turn is a round."""
    names = cluster.node_names(NODES)
    results = Results()
    alone: Rounds = []
    beside: Rounds = []
    again: Rounds = []
    asked: list[Asked] = []
    file = agents.entries_file(stand.subfolder("beside"))
    async with stand.bus(names) as running:
        await agents.fill(running.bus, names)
        with (
            stand.extender(running.server.url) as extender,
            agents.served(stand, running.server.url, file) as asking,
            stand.echo() as echo,
            Client(extender.port) as ours,
            Client(echo.port) as floor,
        ):
            await asyncio.to_thread(asking.wait_ready)
            pair = Pair(ours, extender, floor, echo, names)
            pids = {"extender": extender.process.pid, "agents": asking.process.pid}
            for _ in range(stand.rounds):
                alone += await _round(stand, pair)
                async with _asked(stand, asking, asked):
                    meter = CpuMeter("ten agents asked", pids)
                    beside += await _round(stand, pair)
                    results.cpu = meter.read()
                again += await _round(stand, pair)
    series = f"filter + prioritize, {NODES} nodes"
    name = f"{series}, while ten agents answer {RATE:,.0f} requests/s"
    results.rows += quantile_rows(name, beside, alone, floor_name="alone", budgets=WITHIN)
    results.rows += quantile_rows(f"{series}, alone, the round after", again, alone, floor_name="alone")
    rates = [each.rate for each in asked]
    results.rows.append(
        row("load of ten agents", "answers", rates, [RATE] * len(rates), unit="/s", floor_name="target")
    )
    return results


async def _round(stand: Stand, pair: Pair) -> Rounds:
    times = await interleaved({"pair": pair.seconds}, rounds=1, repetitions=stand.some(600, 300), period=1 / PODS)
    return times["pair"]


@asynccontextmanager
async def _asked(stand: Stand, server: Server, asked: list[Asked]) -> AsyncIterator[None]:
    """All agents are asked within the body; how often goes to `asked`."""
    command = [*module("tests.bench.asker"), str(server.port), str(RATE), str(NODES), *BUILTIN]
    with stand.process("asker", command) as asker:
        await _begun(asker)
        yield
        asker.must_run()
        asker.stop()
        asked.append(msgspec.json.decode(_lines(asker.log)[-1], type=Asked))


async def _begun(asker: Process) -> None:
    async with asyncio.timeout(START_SECONDS):
        while not _lines(asker.log):
            asker.must_run()
            await asyncio.sleep(0.02)


def _lines(log: Path) -> list[bytes]:
    return log.read_bytes().splitlines()
