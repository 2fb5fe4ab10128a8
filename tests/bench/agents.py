"""Agents: the time of filter and prioritize of each one beside the echo, all of them in one process."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import orjson

from bus.buckets import NODES
from bus.connection import Bus
from bus.kinds import NODE_ALLOCATION, NODE_SAMPLES
from bus.records.nodes import encode_node_samples
from tas.agents.builtin import BUILTIN
from tas.agents.file import AgentVerb, verbs_of
from tas.allocation.node import NodeAllocation
from tas.values.quantity import parse_quantity
from tests.bench import cluster
from tests.bench.client import Client, Request
from tests.bench.cluster import STALE_AFTER
from tests.bench.measure import Timed, interleaved
from tests.bench.rows import Budget, Of, Results, Row, Size, both, quantile_rows
from tests.bench.stand import Server, Stand, product

NAME = "agents"
SIZES = (500, 5000)
LISTS = 16
CORES, BYTES = 16, 64 * 2**30
WITHIN = both(Budget(5.0, Of.RATIO))
PIGEON = "pigeon-holing"
PIGEON_WITHIN = {"p50": Budget(50.0)}

EQUAL = frozenset({"foo", "rl-priority"})
"""The agents for which all of these nodes are equal: one has seen no pod."""

BY_REQUESTS = frozenset({"safe-overload"})
"""An agent with an expensive formula in which the requests of the pod are."""

OTHERS = 300

CHANGE_SECONDS = 10.0
"""How often a source has new values of each node."""

OPTIONS: dict[str, dict[str, Any]] = {
    "peaks": {"options": {"default": {"k1": -91.5, "k2": -0.07}}},
    "by-consolidation": {"agent": PIGEON, "options": {"objective": "CONSOLIDATE"}},
    "from-percentiles": {"agent": "safe-overload", "options": {"mode": "empirical"}},
}
"""The entries that say more than a name."""


ENTRIES: Mapping[str, dict[str, Any]] = {name: {} for name in BUILTIN} | OPTIONS


async def measure(stand: Stand) -> Results:
    """Each agent and verb, all that an agent reads known of every node."""
    names = cluster.node_names(max(SIZES))
    file = entries_file(stand.subfolder("agents"))
    verbs = {name: verbs_of(BUILTIN[entry.get("agent", name)]) for name, entry in ENTRIES.items()}
    rows = []
    for size in SIZES:  # in a cluster of so many nodes: some agents read all of them
        async with stand.bus(names[:size]) as running:
            await fill(running.bus, names[:size])
            with served(stand, running.server.url, file) as agents, stand.echo() as echo:
                await asyncio.to_thread(agents.wait_ready)
                for name, found in verbs.items():
                    rows += await _rows(stand, agents, echo, names[:size], agent=name, verbs=sorted(found))
                if size > min(SIZES):
                    continue
                async with changing(running.bus, names[:size]):
                    for name, found in verbs.items():
                        rows += await _rows(
                            stand, agents, echo, names[:size], agent=name, verbs=sorted(found), changes=True
                        )
    return Results(rows=rows)


@asynccontextmanager
async def changing(bus: Bus, names: Sequence[str]) -> AsyncIterator[None]:
    """Changes all values of one node after another, each every `CHANGE_SECONDS`."""
    chance = random.Random(2)
    loop = asyncio.get_running_loop()

    async def change() -> None:
        began = loop.time()
        for number, name in enumerate(cycle(names), start=1):
            await _write_samples(bus, name, chance)
            await asyncio.sleep(max(began + number * CHANGE_SECONDS / len(names) - loop.time(), 0.0))

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled(), task.exception()


def entries_file(folder: Path) -> Path:
    """A file of agents with all of them."""
    file = folder / "agents.yaml"
    file.write_bytes(orjson.dumps({"agents": ENTRIES}))  # JSON is YAML
    return file


@contextmanager
def served(stand: Stand, url: str, file: Path) -> Iterator[Server]:
    """`tas run agents` with the agents of the file, in a process of its own."""
    command = [*product("agents", url), "--agents", str(file), "--stale-after", STALE_AFTER]
    with stand.serving("agents", command, "/foo/filter") as server:
        yield server


async def fill(bus: Bus, names: Sequence[str]) -> None:
    """Samples and allocations of every node, beside the metrics that the stand has written."""
    chance = random.Random(1)
    for part in range(0, len(names), 500):
        await asyncio.gather(*(_fill_node(bus, name, chance) for name in names[part : part + 500]))


async def _fill_node(bus: Bus, name: str, chance: random.Random) -> None:
    used = await _write_samples(bus, name, chance)
    has = {"cpu": 1000 * CORES, "memory": BYTES, "pods": 110}
    requests = {"cpu": int(used * 1000 * CORES), "memory": int(used * BYTES), "pods": 30}
    allocation = NodeAllocation(
        uid=f"uid-{name}",
        capacity=has,
        allocatable=has,
        requested=requests,
        limited={resource: 2 * amount for resource, amount in requests.items()},
    )
    await NODE_ALLOCATION.put(bus, name, allocation, revision=0, read_at=time.monotonic())


async def _write_samples(bus: Bus, name: str, chance: random.Random) -> float:
    """Writes new samples of a node, and returns the used part of it."""
    used, deviation = chance.uniform(0.1, 0.8), chance.uniform(0.01, 0.15)
    values = {"congestion-factor": f"{chance.uniform(0, 100):.1f}"}
    for resource, size in (("cpu", CORES), ("memory", BYTES)):
        values |= {f"{resource}:mean:5m": f"{used * size:.3f}", f"{resource}:std:5m": f"{deviation * size:.3f}"}
        for percentile in (50, 70, 90, 95, 99):
            values[f"{resource}:p{percentile}:5m"] = f"{(used + deviation * (percentile - 50) / 25) * size:.3f}"
    now = time.time()
    metrics = cluster.metrics(chance) | {metric: parse_quantity(value) for metric, value in values.items()}
    data = encode_node_samples((cluster.scrape(metrics, now),))
    key, read_at = NODE_SAMPLES.key(name), time.monotonic()
    before = await bus.get(NODES, key)
    assert before is not None, f"the bus has no samples of {name}"
    await bus.put(NODES, key, data, revision=before.revision, read_at=read_at)
    return used


def _asking(client: Client, requests: Iterator[Request]) -> Timed:
    return lambda: client.seconds(next(requests))


async def _rows(
    stand: Stand,
    agents: Server,
    echo: Server,
    names: list[str],
    *,
    agent: str,
    verbs: Sequence[AgentVerb],
    changes: bool = False,
) -> list[Row]:
    size, suffix = len(names), ", while nodes change" if changes else ""
    lists = islice(cluster.lists_of_names(names, size, seed=size), LISTS)
    bodies = [cluster.requesting(number, found) for number, found in enumerate(lists)]
    echoed = cycle([echo.request(body) for body in bodies])
    repetitions = stand.some(20, 8) if size > 1000 else stand.some(100, 25)
    # More different requests than are remembered, if each of them is of all nodes.
    others = [
        cluster.requesting(number, orjson.loads(bodies[number % LISTS])["NodeNames"], more=number)
        for number in range(OTHERS if agent in BY_REQUESTS and not changes else 0)
    ]
    with Client(agents.port) as ours, Client(echo.port) as floor:
        calls: dict[str, Timed] = {"echo": lambda: floor.seconds(next(echoed))}
        for verb in verbs:
            calls[f"{verb} of names by {agent}{suffix}"] = _asking(
                ours, cycle([agents.request(body, f"/{agent}/{verb}") for body in bodies])
            )
            if others:
                calls[f"{verb} by {agent}, each pod with other requests"] = _asking(
                    ours, cycle([agents.request(body, f"/{agent}/{verb}") for body in others])
                )
        if agent not in EQUAL:
            ours.ask(agents.request(bodies[0], f"/{agent}/{AgentVerb.PRIORITIZE}"))
            scores = {each["Score"] for each in orjson.loads(ours.body)}
            assert len(scores) > 1, f"{agent} gives all nodes {scores}: it knows nothing of them"
        times = await interleaved(calls, rounds=stand.rounds, repetitions=repetitions)
    rows = []
    for series in (series for series in times if series != "echo"):
        budgets = WITHIN if size == min(SIZES) else PIGEON_WITHIN if agent == PIGEON else None
        sized = Size(size, "names")
        rows += quantile_rows(series, times[series], times["echo"], floor_name="echo", budgets=budgets, size=sized)
    return rows
