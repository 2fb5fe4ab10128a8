"""GPU cards: the time of filter and prioritize beside the echo, and of a bind beyond its calls of the API server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, cycle, islice
from typing import Any

import aiohttp
import orjson

from bus.connection import Bus
from bus.server import EmbeddedServer
from tas.enforcing.pod import PodKey
from tas.gpu.assigning import assign
from tas.gpu.assignment import Assignment
from tas.gpu.claim import Options
from tas.gpu.hold import EMPTY, Held, Hold, Phase, add
from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.measure import Timed, interleaved
from tests.bench.rows import Budget, Of, Results, Row, Size, quantile_rows, row
from tests.bench.stand import FILTER, PRIORITIZE, Server, Stand, product
from tests.integration.workers.gpu.gpu import NAMESPACE, Gpus, add_records, complete
from tests.sandbox import Sandbox
from tests.unit.tas.gpu import notation

NAME = "cards"
SIZES = (500, 5000)
NODE = "N(0..7) i160 mc8000 mem128 t32"
"""Eight cards with four tiles; 20 containers may share a card."""

USED = "A{i1 mc50 mem1}"
"""What each of the pods has that are on a node already."""

PODS = 20
"""So many of them are on every other node."""

LISTS = 32
WORKLOADS = 8
"""The different claims of pods that were asked for before: so few that `gpu` remembers them beside the new ones."""
FILTER_BUDGET = {statistic: Budget(5.0, Of.RATIO) for statistic in ("p50", "p99")}

CLAIMS = (1, 10, 100)
"""How many pods have cards of a node when it gets one more."""

BIND_BUDGET = Budget(99.0, least=True)
BIND_SECONDS = "0.02"


async def measure(stand: Stand) -> Results:
    """Filter and prioritize of nodes that are partly in use, and binds on nodes with few and many claims."""
    return Results(rows=[*await _answers(stand), *await _binds(stand)])


def filled(pods: int) -> Hold:
    """The hold of a node on which so many pods have cards."""
    node, hold = notation.Node(NODE), EMPTY
    for number in range(pods):
        claim = notation.claim(USED)
        found = assign(hold, node.inventory, node.facts, claim, Options())
        assert isinstance(found, Assignment), found
        key = PodKey(NAMESPACE, f"used-{number}")
        hold = add(hold, claim.uid, Held(pod=key, assignment=found, phase=Phase.BOUND))
    return hold


@asynccontextmanager
async def served(stand: Stand, nodes: Sequence[tuple[str, Hold]]) -> AsyncIterator[tuple[Server, Gpus]]:
    """`tas run gpu` with a bus that has these nodes, and a sandbox without pods."""
    folder = stand.subfolder("cards")
    async with (
        EmbeddedServer.start(folder) as server,
        Bus.connect(server.url, name="bench") as bus,
        Sandbox.start() as sandbox,
    ):
        await bus.wait_connected()
        for part in range(0, len(nodes), 100):
            await asyncio.gather(*(add_records(bus, name, NODE, hold) for name, hold in nodes[part : part + 100]))
        await complete(bus)
        kubeconfig = sandbox.kubeconfig(folder / "kubeconfig")
        command = [*product("gpu", server.url), "--kubeconfig", str(kubeconfig)]
        with stand.serving("gpu", command, FILTER) as gpu:
            # The sandbox answers on this event loop.
            await asyncio.to_thread(gpu.wait_ready)
            yield gpu, Gpus(sandbox, bus, kubeconfig)


def pod(number: int, claim: int) -> dict[str, Any]:
    """A pod as the scheduler sends it, with a claim for one card: another one for each number of a claim."""
    memory, millicores = divmod(claim, 500)
    amounts = {
        "gpu.intel.com/i915": "1",
        "gpu.intel.com/millicores": str(100 + millicores),
        "gpu.intel.com/memory.max": str(1 + memory),
    }
    head = {"name": f"pod-{number}", "namespace": NAMESPACE, "uid": f"uid-of-pod-{number}"}
    return {"metadata": head, "spec": {"containers": [{"name": "main", "resources": {"requests": amounts}}]}}


async def _answers(stand: Stand) -> list[Row]:
    rows = []
    names = cluster.node_names(max(SIZES))
    used = filled(PODS)
    nodes = [(name, used if number % 2 else EMPTY) for number, name in enumerate(names)]
    async with served(stand, nodes) as (gpu, _):
        with stand.echo() as echo:
            for size in SIZES:
                rows += await _answers_of(stand, gpu, echo, names, size)
    return rows


async def _answers_of(stand: Stand, gpu: Server, echo: Server, names: list[str], size: int) -> list[Row]:
    lists = list(islice(cluster.lists_of_names(names, size, seed=size), LISTS))
    numbers = count()

    def bodies(claims: range) -> list[bytes]:
        return [
            orjson.dumps({"Pod": pod(next(numbers), each), "Nodes": None, "NodeNames": lists[each % LISTS]})
            for each in claims
        ]

    same = bodies(range(WORKLOADS))
    # As many different claims as are asked for; a claim that was asked before is remembered.
    repetitions = stand.some(50, 15) if size > 1000 else stand.some(200, 40)
    new = iter(bodies(range(WORKLOADS, WORKLOADS + stand.rounds * repetitions + 1)))
    echoed = cycle([echo.request(body) for body in same])
    filtered = cycle([gpu.request(body, FILTER) for body in same])
    scored = cycle([gpu.request(body, PRIORITIZE) for body in same])
    with Client(gpu.port) as ours, Client(echo.port) as floor:
        calls: dict[str, Timed] = {
            "echo": lambda: floor.seconds(next(echoed)),
            "filter of nodes with cards, claims asked before": lambda: ours.seconds(next(filtered)),
            "filter of nodes with cards, a new claim": lambda: ours.seconds(gpu.request(next(new), FILTER)),
            "prioritize of nodes with cards": lambda: ours.seconds(next(scored)),
        }
        times = await interleaved(calls, rounds=stand.rounds, repetitions=repetitions)
    rows = []
    for series in (series for series in times if series != "echo"):
        budgets = FILTER_BUDGET if size == min(SIZES) and series.startswith("filter") else None
        sized = Size(size, "nodes")
        rows += quantile_rows(series, times[series], times["echo"], floor_name="echo", budgets=budgets, size=sized)
    return rows


async def _binds(stand: Stand) -> list[Row]:
    """The mean of binds in each round, and the share of all that were quick, by the product's own histogram."""
    rows = []
    for claims in CLAIMS:
        used, binds = filled(claims - 1), stand.some(30, 10)
        names = cluster.node_names(stand.rounds * binds)
        async with served(stand, [(name, used) for name in names]) as (gpu, world):
            means, quick = await _bind_all(stand, gpu, world, names, binds)
        sized = Size(claims, "claims of the node")
        rows.append(row("a bind without the calls of the API server", "mean", means, unit="ms", size=sized))
        series = "binds that took 20 ms or less, without the calls of the API server"
        rows.append(row(series, "share", [quick], unit="%", budget=BIND_BUDGET, size=sized))
    return rows


async def _bind_all(stand: Stand, gpu: Server, world: Gpus, names: list[str], binds: int) -> tuple[list[float], float]:
    means = []
    left = iter(names)
    metric = "tas_gpu_bind_seconds"
    async with aiohttp.ClientSession() as session:
        for _ in range(stand.rounds):
            before = await _metric(gpu, f"{metric}_sum")
            for node in islice(left, binds):
                created = world.add_pod(f"on-{node}", USED)["metadata"]
                head = {"PodName": created["name"], "PodNamespace": NAMESPACE, "PodUID": created["uid"]}
                url = f"http://127.0.0.1:{gpu.port}/scheduler/bind"
                async with session.post(url, json=head | {"Node": node}) as answer:
                    found = await answer.json()
                if answer.status != 200 or found["Error"]:
                    raise RuntimeError(f"the pod for {node} was not bound: {answer.status}, {found}")
            means.append((await _metric(gpu, f"{metric}_sum") - before) / binds * 1000)
        quick = await _metric(gpu, f'{metric}_bucket{{le="{BIND_SECONDS}"}}')
        return means, quick / await _metric(gpu, f"{metric}_count") * 100


async def _metric(gpu: Server, name: str) -> float:
    return await asyncio.to_thread(gpu.metric, name)
