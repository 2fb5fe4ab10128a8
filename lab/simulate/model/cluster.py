"""The nodes of a simulation while pods come and go, and what agents see of them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from lab.simulate.model.default_scores import RESOURCES, UNREQUESTED, FloatArray, IntArray
from lab.simulate.model.load import Load, LoadPod
from lab.simulate.model.series import Series
from tas.agents.agent import ContainerDemand, Needs, PodDemand
from tas.agents.columns import SHOWN_SECONDS


class Cluster:
    """The requests of the pods on each node, and the measured use of the nodes.

    Attributes:
        names: The nodes.
        sizes: What they have, a row for each of `lab.simulate.model.load.USES`.
        allocatable: What pods may request: a row for each of `RESOURCES`.
        requested: What the pods request, as sums.
        limited: Their limits, as sums; a pod without a limit, or with one below its request, counts with its request.
        counted: As `requested`, with `UNREQUESTED` for pods without a request.
        pods: The number of pods on each node.
        most_pods: How many pods each node may have.
        series: What was measured.
    """

    def __init__(self, load: Load) -> None:
        self.names = tuple(node.name for node in load.nodes)
        self.sizes = load.sizes()
        self.allocatable: IntArray = self.sizes[: len(RESOURCES)].astype(np.int64)
        self.requested: IntArray = np.zeros_like(self.allocatable)
        self.limited: IntArray = np.zeros_like(self.allocatable)
        self.counted: IntArray = np.zeros_like(self.allocatable)
        self.pods: IntArray = np.zeros(len(self.names), dtype=np.int64)
        self.most_pods: IntArray = np.array([node.pods for node in load.nodes], dtype=np.int64)
        self.series = Series(self.sizes, load.period, load.periods)
        self._new: dict[str, tuple[float, int, IntArray]] = {}  # by pod, in the order of time

    def place(self, pod: LoadPod, node: int, now: float) -> None:
        """Adds a pod to a node."""
        self._add(pod, node, 1)
        self._new[pod.name] = (now, node, request_of(pod))

    def remove(self, pod: LoadPod, node: int) -> None:
        """Removes a pod from a node."""
        self._add(pod, node, -1)
        self._new.pop(pod.name, None)

    def placed(self, resource: str) -> FloatArray:
        """The requests of the pods that are too new for the newest measurement."""
        measured = self.series.measured
        while self._new and measured is not None:
            oldest = next(iter(self._new))
            if self._new[oldest][0] > measured - SHOWN_SECONDS:
                break
            del self._new[oldest]
        placed = np.zeros(len(self.names))
        if resource in RESOURCES:
            row = RESOURCES.index(resource)
            for _, node, request in self._new.values():
                placed[node] += request[row]
        return placed

    def _add(self, pod: LoadPod, node: int, sign: int) -> None:
        request = request_of(pod)
        self.requested[:, node] += sign * request
        self.limited[:, node] += sign * np.maximum(request, [pod.cpu_limit, pod.memory_limit])
        self.counted[:, node] += sign * counted_request(request)
        self.pods[node] += sign


def request_of(pod: LoadPod) -> IntArray:
    """What a pod requests, by `RESOURCES`."""
    return np.array([pod.cpu, pod.memory], dtype=np.int64)


def counted_request(request: IntArray) -> IntArray:
    """The same, with `UNREQUESTED` for what is not requested."""
    return np.where(request == 0, UNREQUESTED, request)


def simulated_demand(pod: LoadPod, *, amounts: bool = True) -> PodDemand:
    """The pod as agents see it: with one container; without `amounts` as one that does not need them sees it."""
    who = PodDemand(namespace="default", name=pod.name, uid=pod.name, labels={"app": pod.kind})
    if not amounts:
        return who
    requests = {name: float(amount) for name, amount in (("cpu", pod.cpu), ("memory", pod.memory)) if amount}
    limits = {name: float(amount) for name, amount in (("cpu", pod.cpu_limit), ("memory", pod.memory_limit)) if amount}
    return replace(
        who, requests=requests, limits=limits, containers=(ContainerDemand(requests=requests, limits=limits),)
    )


class ClusterColumns:
    """Some nodes of a cluster as columns for an agent, which raise ValueError for what its needs do not name."""

    def __init__(self, cluster: Cluster, chosen: IntArray, now: float, needs: Needs) -> None:
        self._cluster = cluster
        self._chosen = chosen
        self._needs = needs
        self.now = now

    @cached_property
    def names(self) -> Sequence[str]:
        """The nodes."""
        return tuple(self._cluster.names[at] for at in self._chosen.tolist())

    @property
    def cluster(self) -> "ClusterColumns":
        """All nodes."""
        if not self._needs.whole_cluster:
            raise ValueError("reads the whole cluster, which its needs do not name")
        return ClusterColumns(self._cluster, np.arange(len(self._cluster.names)), self.now, self._needs)

    def metric(self, name: str) -> FloatArray:
        """The newest values of a metric."""
        self._check_metric(name)
        return self._column(self._cluster.series.column(name))

    def capacity(self, resource: str) -> FloatArray:
        """What nodes have."""
        return self.allocatable(resource)

    def allocatable(self, resource: str) -> FloatArray:
        """What pods may request."""
        self._check_allocations("allocatable")
        return self._amounts(self._cluster.allocatable, self._cluster.most_pods, resource)

    def requested(self, resource: str) -> FloatArray:
        """What pods request."""
        self._check_allocations("requested")
        return self._amounts(self._cluster.requested, self._cluster.pods, resource)

    def limited(self, resource: str) -> FloatArray:
        """The limits of pods."""
        self._check_allocations("limited")
        return self._amounts(self._cluster.limited, self._cluster.pods, resource)

    def placed(self, resource: str, metric: str) -> FloatArray:
        """What pods request that the metric does not show yet."""
        self._check_metric(metric)
        self._check_allocations("placed")
        return self._column(self._cluster.placed(resource))

    def derived(self, key: Hashable, compute: Callable[["ClusterColumns"], FloatArray]) -> FloatArray:
        """What the computation returns: nothing is kept."""
        del key
        return compute(self)

    def _check_metric(self, name: str) -> None:
        if name not in self._needs.metrics:
            raise ValueError(f"reads the metric {name}, which its needs do not name")

    def _check_allocations(self, what: str) -> None:
        if not self._needs.allocations:
            raise ValueError(f"reads what is {what} of nodes, which its needs do not name")

    def _amounts(self, of_resources: IntArray, pods: IntArray, resource: str) -> FloatArray:
        if resource == "pods":
            return self._column(pods)
        if resource in RESOURCES:
            return self._column(of_resources[RESOURCES.index(resource)])
        return np.zeros(len(self._chosen))

    def _column(self, values: FloatArray | IntArray) -> FloatArray:
        column: FloatArray = values[self._chosen].astype(np.float64)
        return column
