"""Places the pods of a load by an algorithm, and counts what comes of it."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from math import floor, fsum, inf

import numpy as np
import numpy.typing as npt

from lab.simulate.model.algorithms import Algorithm
from lab.simulate.model.cluster import Cluster, counted_request, request_of
from lab.simulate.model.default_scores import FloatArray, IntArray, balanced_allocation, fits, least_allocated
from lab.simulate.model.load import USES, Load, LoadPod

OVERLOAD = 0.9
"""The use of a resource, as a part of what the node has, above which the node is overloaded."""

RETRY = 60.0
"""Seconds after which waiting pods are tried again; kube-scheduler tries them after changes, or after 5 minutes."""

DESCHEDULE = 300.0
"""Seconds between two passes of the descheduler, each of which moves at most one pod from each violating node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a simulation. Minutes are those of nodes: two nodes for one minute are two minutes.

    Attributes:
        arrived: The number of pods.
        placed: Those that got a node.
        refused: Those that ended without one.
        waiting: Those that still wait at the end, and never had a node.
        moves: How often a pod was moved.
        waited: Minutes that pods waited.
        overload: Minutes in which a node used more than `OVERLOAD` of any resource.
        overload_of: The same for each of `USES`.
        unserved: Core-hours that pods wanted and their nodes did not have.
        spread: The mean over time of the standard deviation of the use of cpu between nodes, as a part of the node.
        peak: The part of a node's cpu that is used by all but the busiest 1 % of the nodes and minutes.
    """

    arrived: int
    placed: int
    refused: int
    waiting: int
    moves: int
    waited: float
    overload: float
    overload_of: dict[str, float]
    unserved: float
    spread: float
    peak: float


def simulate(load: Load, algorithm: Algorithm, *, seed: int) -> Result:
    """Places the pods by an algorithm, which must be new. `seed` chooses among nodes with equal scores."""
    run = _Run(load, algorithm, seed)
    return run.result()


class _Run:
    def __init__(self, load: Load, algorithm: Algorithm, seed: int) -> None:
        self._load = load
        self._algorithm = algorithm
        self._seed = seed
        self._cluster = Cluster(load)
        self._pods = sorted(load.pods, key=lambda pod: (pod.arrives, pod.name))
        self._end = load.periods * load.period
        # A pod that lives to the end does not end.
        self._leaves = [inf if pod.leaves >= self._end else pod.leaves for pod in self._pods]
        self._node_of = np.full(len(load.pods), -1, dtype=np.int64)
        self._newest: list[list[int]] = [[] for _ in load.nodes]
        self._ever = np.zeros(len(load.pods), dtype=np.bool_)
        self._waiting: deque[tuple[int, float]] = deque()
        self._ends: list[tuple[float, int]] = []
        self._arrivals = deque(range(len(self._pods)))
        self._use, self._base, self._last = _flat(self._pods, load.period)
        self._ties = np.array([_number(node.name) for node in load.nodes], dtype=np.uint64)
        self._refused = self._moves = 0
        self._waited = 0.0

    def result(self) -> Result:
        """Runs all periods."""
        used = np.array([self._used_in(period) for period in self._periods()])
        parts = used / self._cluster.sizes
        over = parts > OVERLOAD
        minutes, hours = self._load.period / 60, self._load.period / 3600
        unplaced = [(at, since) for at, since in self._waiting if not self._ever[at]]
        return Result(
            arrived=len(self._load.pods),
            placed=int(self._ever.sum()),
            refused=self._refused,
            waiting=len(unplaced),
            moves=self._moves,
            waited=(self._waited + sum(self._end - since for _, since in self._waiting)) / 60,
            overload=float(over.any(axis=1).sum() * minutes),
            overload_of={name: float(over[:, row].sum() * minutes) for row, name in enumerate(USES)},
            unserved=fsum(np.maximum(used[:, 0] - self._cluster.sizes[0], 0.0).ravel().tolist()) / 1000 * hours,
            spread=float(np.sort(parts[:, 0], axis=1).std(axis=1).mean()),
            peak=float(np.percentile(parts[:, 0], 99)),
        )

    def _periods(self) -> Iterator[int]:
        """Each period, at its beginning: after the pods that have ended, before those that arrive in it."""
        period = self._load.period
        for number in range(self._load.periods):
            now = number * period
            self._end_pods(now)
            yield number
            if self._is_due(DESCHEDULE, now):
                self._deschedule(now)
            if self._is_due(RETRY, now):
                self._retry(now)
            while self._arrivals and self._pods[self._arrivals[0]].arrives < now + period:
                at = self._arrivals.popleft()
                arrives = self._pods[at].arrives
                self._end_pods(arrives)
                if not self._place(at, arrives):
                    self._waiting.append((at, arrives))
        self._expire(self._end)

    def _is_due(self, every: float, now: float) -> bool:
        return now > 0 and floor(now / every) > floor((now - self._load.period) / every)

    def _used_in(self, period: int) -> FloatArray:
        """Measures the nodes."""
        running = np.flatnonzero(self._node_of >= 0)
        at = np.minimum(self._base[running] + period, self._last[running])
        nodes, count = self._node_of[running], len(self._load.nodes)
        used = np.array([np.bincount(nodes, weights=row[at], minlength=count) for row in self._use])
        self._cluster.series.add(used)
        return used

    def _place(self, at: int, now: float) -> bool:
        """Whether a node was found for a pod."""
        pod, cluster = self._pods[at], self._cluster
        request = request_of(pod)
        feasible = fits(request, cluster.requested, cluster.allocatable) & (cluster.pods < cluster.most_pods)
        chosen = np.flatnonzero(feasible)
        if len(chosen):
            chosen = chosen[self._algorithm.passes(pod, cluster, chosen, now)]
        if not len(chosen):
            return False
        node = self._best(pod, request, chosen, now)
        cluster.place(pod, node, now)
        self._algorithm.observe_placed(pod, cluster.names[node], now)
        self._node_of[at] = node
        self._newest[node].append(at)
        self._ever[at] = True
        heappush(self._ends, (self._leaves[at], at))
        return True

    def _best(self, pod: LoadPod, request: IntArray, chosen: IntArray, now: float) -> int:
        """The node with the highest sum of scores; among equal ones the seed decides, in any order of the nodes."""
        cluster = self._cluster
        requested, counted = cluster.requested[:, chosen], cluster.counted[:, chosen]
        allocatable = cluster.allocatable[:, chosen]
        scores = least_allocated(counted + counted_request(request)[:, None], allocatable)
        scores = scores + balanced_allocation(request, requested, allocatable)
        scores = scores + self._algorithm.points(pod, cluster, chosen, now)
        best = chosen[scores == scores.max()]
        return int(best[_mixed(self._ties[best] ^ np.uint64(_number(f"{self._seed}/{pod.name}"))).argmax()])

    def _end_pods(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, at = heappop(self._ends)
            if self._node_of[at] >= 0:  # an evicted pod that waits has an end, too
                self._remove(at)

    def _remove(self, at: int) -> None:
        node = int(self._node_of[at])
        self._cluster.remove(self._pods[at], node)
        self._newest[node].remove(at)
        self._node_of[at] = -1

    def _retry(self, now: float) -> None:
        """Tries the pods that wait, the oldest first."""
        self._expire(now)
        for _ in range(len(self._waiting)):
            at, since = self._waiting.popleft()
            if self._place(at, now):
                self._waited += now - since
            else:
                self._waiting.append((at, since))

    def _expire(self, now: float) -> None:
        """Forgets the waiting pods that have ended."""
        for _ in range(len(self._waiting)):
            at, since = self._waiting.popleft()
            leaves = self._leaves[at]
            if leaves > now:
                self._waiting.append((at, since))
                continue
            self._waited += leaves - since
            self._refused += not self._ever[at]

    def _deschedule(self, now: float) -> None:
        """Moves the newest pod of each violating node: it has lost the least."""
        evicted = [
            (self._newest[node][-1], node) for node in self._algorithm.violating(self._cluster) if self._newest[node]
        ]
        for at, _ in evicted:
            self._remove(at)
        for at, node in evicted:
            if not self._place(at, now):
                self._waiting.append((at, now))
            self._moves += self._node_of[at] != node


def _flat(pods: Sequence[LoadPod], period: float) -> tuple[FloatArray, IntArray, IntArray]:
    """The use of all pods in one row, where period 0 of each pod would be, and where its last period is."""
    lengths = np.array([pod.use.shape[1] for pod in pods], dtype=np.int64)
    first = np.array([floor(pod.arrives / period) for pod in pods], dtype=np.int64)
    ends = np.cumsum(lengths)
    use = np.concatenate([pod.use for pod in pods], axis=1) if pods else np.zeros((len(USES), 0))
    return use, ends - lengths - first, ends - 1


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Other numbers in an order that has nothing to do with the given one (splitmix64)."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return result
