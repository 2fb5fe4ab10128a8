"""Loads made from a seed: services that stay and jobs that come and go, whose requests are often wrong.

In every load, half of the workloads use much less than they request, a fifth about as much, and the others more. What
differs is how the use changes:

- `steady`: hardly at all.
- `diurnal`: as a day and a night; a third of the workloads work at night.
- `bursty`: calm, with bursts of minutes in which a pod uses many times as much.
- `mixed`: each workload is one of these.

Half of the workloads have limits: twice their requests, or what they use at most if that is more.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, floor, pi

import numpy as np

from lab.simulate.model.default_scores import FloatArray
from lab.simulate.model.load import Load, LoadPod, Node, excess_of

PERIOD = 30.0
"""Seconds between two measurements of the nodes."""

FILL = 0.7
"""How much of the allocatable cpu is requested at most, and how much of the memory: so that pods fit."""

REAL = 0.5
"""The mean of the real use of cpu, as a part of the capacity: there is room enough, if it is used well."""

SERVICES = 0.4
"""The part of the pods that stay to the end."""

JOB_HOURS = 2.0
"""The mean life of the other pods."""

GIB = float(1 << 30)


class Shape(StrEnum):
    """How the use of pods changes."""

    STEADY = "steady"
    DIURNAL = "diurnal"
    BURSTY = "bursty"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class _Workload:
    """What the replicas of a workload have in common."""

    cpu: float
    memory: float
    cpu_ratio: float
    memory_ratio: float
    network: float
    shape: Shape
    night: bool
    limited: bool


def excess_of_made(*, nodes: int, pods: int, hours: float) -> str | None:
    """Why `synthetic_load` must not be called with these: as `lab.simulate.model.load.excess_of`."""
    periods = _periods(hours)
    return excess_of(pod_periods=pods * periods, node_periods=nodes * periods)


def synthetic_load(shape: Shape, *, seed: int, nodes: int, pods: int, hours: float) -> Load:
    """A load of this shape; equal arguments give equal loads.

    A quarter of the nodes has half the size of the others.
    """
    random = np.random.default_rng([seed, *shape.encode()])
    cluster = tuple(_node(number) for number in range(nodes))
    periods = _periods(hours)
    workloads = [_workload(random, shape) for _ in range(max(1, pods // 12))]
    made = [_pod(random, number, workloads, periods) for number in range(pods)]
    limited = {_kind(at) for at, workload in enumerate(workloads) if workload.limited}
    return Load(
        name=shape.value,
        period=PERIOD,
        periods=periods,
        nodes=cluster,
        pods=tuple(sorted(_scaled(made, cluster, periods, limited), key=lambda pod: (pod.arrives, pod.name))),
    )


def _periods(hours: float) -> int:
    return max(1, round(hours * 3600 / PERIOD))


def _node(number: int) -> Node:
    size = 0.5 if number % 4 == 3 else 1.0
    return Node(name=f"node-{number:03}", cpu=16_000 * size, memory=64 * GIB * size, network=1.25e9 * size)


def _workload(random: np.random.Generator, shape: Shape) -> _Workload:
    drawn = random.uniform()
    low, high = (0.1, 0.5) if drawn < 0.5 else (0.7, 1.1) if drawn < 0.7 else (1.5, 3.5)
    own = shape if shape is not Shape.MIXED else Shape(random.choice(["steady", "diurnal", "bursty"]))
    return _Workload(
        cpu=random.lognormal(0.0, 0.8),
        memory=random.lognormal(0.0, 0.8),
        cpu_ratio=random.uniform(low, high),
        memory_ratio=random.uniform(0.3, 1.1),
        network=random.uniform(2e7, 1.2e8) if random.uniform() < 0.15 else random.uniform(1e5, 1e7),
        shape=own,
        night=bool(random.uniform() < 1 / 3),
        limited=bool(random.uniform() < 0.5),
    )


def _pod(random: np.random.Generator, number: int, workloads: list[_Workload], periods: int) -> LoadPod:
    end = periods * PERIOD
    at = int(random.integers(len(workloads)))
    workload = workloads[at]
    if random.uniform() < SERVICES:
        arrives, leaves = random.uniform(0, min(3600.0, end / 4)), end
    else:
        arrives = random.uniform(0, end)
        leaves = min(end, arrives + max(5 * 60.0, random.exponential(JOB_HOURS * 3600)))
    first, last = floor(arrives / PERIOD), ceil(leaves / PERIOD)
    busy = _course(random, workload, first, last + 1 - first)
    memory = np.minimum(1.0, 0.7 + 0.3 * np.linspace(0.0, 1.0, len(busy)) + 0.02 * random.standard_normal(len(busy)))
    return LoadPod(
        name=f"pod-{number:05}",
        kind=_kind(at),
        arrives=round(arrives, 3),
        leaves=round(leaves, 3),
        cpu=round(workload.cpu * 1000),
        memory=round(workload.memory * 4 * GIB),
        use=np.array(
            [
                busy * workload.cpu_ratio * workload.cpu * 1000,
                memory * workload.memory_ratio * workload.memory * 4 * GIB,
                busy * workload.network,
            ]
        ),
    )


def _kind(number: int) -> str:
    return f"workload-{number:03}"


def _course(random: np.random.Generator, workload: _Workload, first: int, count: int) -> FloatArray:
    """The use of a pod in each period, 1 on average over a day."""
    noise = 1.0 + 0.1 * random.standard_normal(count)
    busy: FloatArray = np.ones(count)
    if workload.shape is Shape.DIURNAL:
        hours = (first + np.arange(count)) * PERIOD / 3600
        busy = 1.0 + 0.8 * np.sin(2 * pi * (hours / 24 + (0.5 if workload.night else 0.0)))
    elif workload.shape is Shape.BURSTY:
        busy = np.full(count, 0.5)
        bursts = random.poisson(count * PERIOD / 3600)  # one an hour
        for begin in random.integers(0, count, bursts):
            length = int(random.uniform(5 * 60, 20 * 60) / PERIOD)
            busy[begin : begin + length] = random.uniform(2.0, 4.0)
    return np.maximum(busy * noise, 0.01)


def _scaled(pods: list[LoadPod], nodes: tuple[Node, ...], periods: int, limited: set[str]) -> list[LoadPod]:
    """The pods with requests that fill the cluster to `FILL` at most, and a real use of `REAL` on average.

    The kinds in `limited` have limits.
    """
    requested, used = np.zeros((2, periods + 1)), np.zeros(periods + 1)
    for pod in pods:
        first = floor(pod.arrives / PERIOD)
        length = min(pod.use.shape[1], periods + 1 - first)
        requested[:, first : first + length] += [[pod.cpu], [pod.memory]]
        used[first : first + length] += pod.use[0, :length]
    cpu, memory = sum(node.cpu for node in nodes), sum(node.memory for node in nodes)
    to_cpu, to_memory = FILL * cpu / requested[0].max(), FILL * memory / requested[1].max()
    to_use = REAL * cpu / used[used > 0].mean()
    cpu_most, memory_most = (
        int(min(sizes) / 2) for sizes in zip(*((node.cpu, node.memory) for node in nodes), strict=True)
    )
    scale = np.array([[to_use], [to_memory], [1.0]])
    scaled = []
    for pod in pods:
        requests = (
            max(1, min(round(pod.cpu * to_cpu), cpu_most)),
            max(1, min(round(pod.memory * to_memory), memory_most)),
        )
        use = pod.use * scale
        limits = (max(2 * request, ceil(most)) for request, most in zip(requests, use.max(axis=1)[:2], strict=True))
        cpu_limit, memory_limit = limits if pod.kind in limited else (0, 0)
        scaled.append(
            replace(pod, cpu=requests[0], memory=requests[1], use=use, cpu_limit=cpu_limit, memory_limit=memory_limit)
        )
    return scaled
