"""At twice the load that the machine can handle: how old answers are, and that none is older than is said."""

import asyncio
import json

import aiohttp
import psutil

from tests.bench.rows import Budget, Results, Row, Size
from tests.bench.stand import START_SECONDS, Stand, module
from tests.e2e.processes import Process
from tests.hold import PERIOD, POLICY, Held, Holder, changing_prometheus
from tests.integration.cli.tas import demo_policy, policy_folder

NAME = "hold"
SECONDS = 600
QUICK_SECONDS = 60


async def measure(stand: Stand) -> Results:
    """Ten minutes at twice the nodes at which the source is behind by more than its period."""
    policies = policy_folder(stand.subfolder("hold"), demo_policy(POLICY))
    async with changing_prometheus() as prometheus, aiohttp.ClientSession() as session:
        command = [
            *(*module("cli"), "run", "all", "--bus", "embedded", "--policies", str(policies)),
            *("--period", f"{PERIOD * 1000:.0f}ms", "--publish", "tables", "--source", f"prometheus={prometheus.url}"),
            *("--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", "--log-format", "json"),
        ]
        with stand.process("hold", command) as process:
            extender, health = [
                await _logged_url(process, event) for event in ("extender_listening", "health_listening")
            ]
            memory = psutil.Process(process.pid).memory_info
            holder = Holder(session, prometheus, extender=extender, health=health, memory=lambda: memory().rss)
            held = await holder.hold(stand.some(SECONDS, QUICK_SECONDS))
            polls = await holder.recover()
    return Results(rows=_rows(held, polls))


def _rows(held: Held, polls: int) -> list[Row]:
    series, size = "filter at twice the load", Size(held.nodes, "nodes")
    figures = (
        ("answers older than said", len(held.wrong), "answers", Budget(0)),
        ("answers compared", held.answers, "answers", None),
        ("longest said age", held.longest, "s", None),
        ("longest said time behind", held.behind, "s", None),
        ("polls until all is current", polls, "polls", Budget(3)),
        ("memory, second half by first", max(held.memory[5:]) / max(held.memory[:5]), "ratio", Budget(1.25)),
    )
    return [
        Row(series=series, statistic=statistic, unit=unit, measured=float(measured), budget=budget, size=size)
        for statistic, measured, unit, budget in figures
    ]


async def _logged_url(process: Process, event: str) -> str:
    """The URL in the first line of the log with this event."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            process.must_run()
            for line in process.log.read_text().splitlines():
                if line.startswith("{") and (found := json.loads(line))["event"] == event:
                    return str(found["url"])
            await asyncio.sleep(0.05)
