"""One run: pods that wait, a scheduler that starts, and what each process spent until the last pod was bound."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import monotonic

from tests.bench.e2e.bindings import Bindings
from tests.bench.e2e.world import WITHIN, Polled, Served, World, scheduler_metrics
from tests.bench.stand import cpu_seconds
from tests.e2e.processes import free_ports
from tests.integration.servers import eventually

POLL_SECONDS = 0.05
LARGEST_WAIT = 900.0
POLLED_SECONDS = 1.0
VIOLATING = 0.1
"""The share of the polled nodes that violate the policy."""

STALLED_SECONDS = 120.0
"""After which a scheduler that binds nothing more has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What answers the scheduler.

    Attributes:
        name: For the table.
        ours: The product; else the fixed answer.
        extender: Whether the scheduler has an extender at all.
        tls: Whether they talk HTTPS, with certificates on both sides.
        apart: Whether each worker is a process of its own.
        names_only: The scheduler's `nodeCacheCapable`.
        same: Whether the fixed answer has the form and the size of the product's answers.
        cards: Whether the pods request GPU cards. Then the product is `gpu` and `inventory`, and `gpu` binds. Behind
            the fixed answer the scheduler binds.
        polled: Whether the product itself polls the values of all nodes each second; else a source publishes them.
    """

    name: str
    ours: bool = False
    extender: bool = True
    tls: bool = False
    apart: bool = False
    names_only: bool = True
    same: bool = False
    cards: bool = False
    polled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run found.

    Attributes:
        rate: Pods bound in a second, from the first binding to the last.
        cpu: Processor milliseconds for each pod, by process.
        stages: Milliseconds for each pod or request, by what the scheduler and the extender report about themselves.
    """

    rate: float
    cpu: Mapping[str, float]
    stages: Mapping[str, float]


async def measure(world: World, variant: Variant, *, pods: int) -> Run:
    """Creates the pods, then starts the scheduler, and deletes the pods afterwards."""
    async with AsyncExitStack() as stack:
        server, source = await stack.enter_async_context(world.source())
        extenders, rejected = [], set[str]()
        by_policy = variant.ours and not variant.cards
        if variant.cards:
            world.add_cards()
        polled = _polled(world, stack) if variant.polled else None
        served = await _started(world, variant, server.url, stack, polled) if variant.extender else None
        reporting = source.start() if polled is None else polled.process
        if served is not None:
            entry = world.cards_entry(served, binds=variant.ours) if variant.cards else None
            extenders = [entry or world.entry(served, names_only=variant.names_only)]
            if by_policy:
                rejected = await world.settled(served)
                if not rejected:
                    raise RuntimeError("the policy rejects no node")
        stack.push_async_callback(world.delete_pods)
        world.create_pods(pods, managed=variant.extender, cards=variant.cards)
        if served is not None and by_policy:
            await eventually(
                lambda: served.samples()["tas_watch_writes_total{operation=put,resource=pods}"] >= pods, within=WITHIN
            )
        (port,) = free_ports(1)
        bindings = Bindings(world.plane.audit.path)
        stack.callback(bindings.close)
        scheduler = stack.enter_context(world.plane.scheduler(extenders, port=port))
        processes = [*world.plane.started, *(served.processes if served else ()), reporting]
        pids = {process.name: process.pid for process in processes if process.is_running}
        pids = {("kube-scheduler" if pid == scheduler.pid else name): pid for name, pid in pids.items()}
        pids["nats-server"] = server.pid
        first, before = await _until_bound(bindings, 1), _cpu(pids)
        await _until_bound(bindings, pods)
        after = _cpu(pids)
        own = world.plane.client(port)
        stages = _scheduler_stages(scheduler_metrics(own))
        own.close()
        if served is not None and variant.ours:
            stages |= _extender_stages(served.samples())
        placed = world.placements()
        if len(placed) != pods or not all(placed):
            raise RuntimeError(f"{sum(map(bool, placed))} of {len(placed)} pods have a node, expected {pods}")
        if wrong := rejected.intersection(placed):
            raise RuntimeError(f"{len(wrong)} nodes that the policy rejects have pods")
        times = sorted(bindings.times)
        return Run(
            rate=(pods - 1) / (times[-1] - times[0]),
            cpu={name: (after[name] - before[name]) / (pods - first) * 1000 for name in pids},
            stages=stages,
        )


def _polled(world: World, stack: AsyncExitStack) -> Polled:
    """What the product polls: a server that has values of all nodes, some of which violate the policy."""
    polled = stack.enter_context(world.polled())
    polled.heat(world.names[:: round(1 / VIOLATING)])
    return polled


async def _started(world: World, variant: Variant, url: str, stack: AsyncExitStack, polled: Polled | None) -> Served:
    """What answers the scheduler, ready to do so."""
    if not variant.ours:
        served = stack.enter_context(world.floor(tls=variant.tls, same=variant.same))
        await world.listening(served)
        return served
    if variant.cards:
        served = stack.enter_context(world.cards_product(url, tls=variant.tls))
    else:
        flags = () if polled is None else polled.flags(POLLED_SECONDS)
        served = stack.enter_context(world.product(url, *flags, tls=variant.tls, apart=variant.apart))
    await world.ready(served)
    return served


async def _until_bound(bindings: Bindings, count: int) -> int:
    """Waits for so many bindings, and returns how many there are."""
    found, since = 0, monotonic()
    while (now := bindings.read()) < count:
        if now > found:
            found, since = now, monotonic()
        if monotonic() - since > STALLED_SECONDS:
            raise TimeoutError(f"{now} of {count} pods are bound, and no other for {STALLED_SECONDS:g} s")
        await asyncio.sleep(POLL_SECONDS)
    return now


def _cpu(pids: Mapping[str, int]) -> dict[str, float]:
    return {name: cpu_seconds(pid) for name, pid in pids.items()}


POINTS = "scheduler_framework_extension_point_duration_seconds"
ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds"
REQUESTS = "tas_extender_request_seconds"


def _scheduler_stages(found: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds for each attempt: the whole algorithm, and the plugins in it.

    The scheduler has no metric of its extenders (1.36): their calls are nearly all of the difference.
    """
    attempts, seconds = found[f"{ALGORITHM}_count{{}}"], found[f"{ALGORITHM}_sum{{}}"]
    in_algorithm = ("PreFilter", "Filter", "PreScore", "Score", "ScoreExtensionNormalize")
    plugins = sum(
        value
        for name, value in found.items()
        if name.startswith(f"{POINTS}_sum{{") and any(f"extension_point={point}," in name for point in in_algorithm)
    )
    return {
        "scheduler: algorithm": seconds / attempts * 1000,
        "scheduler: plugins": plugins / attempts * 1000,
        "scheduler: extender, and the rest": (seconds - plugins) / attempts * 1000,
    }


def _extender_stages(found: Mapping[str, float]) -> dict[str, float]:
    stages = {}
    for verb in ("filter", "prioritize"):
        labels = f"{{path=/scheduler,verb={verb}}}"
        count = found[f"{REQUESTS}_count{labels}"]
        stages[f"extender: {verb}"] = found[f"{REQUESTS}_sum{labels}"] / count * 1000 if count else 0.0
    return stages
