"""The load of a simulation: nodes, and pods whose real use over time is known beforehand.

The use of a pod depends on the time only, not on the node nor on when the pod was placed: so all algorithms face the
same load. A pod that waits uses nothing meanwhile.
"""

from dataclasses import dataclass

import numpy as np

from lab.simulate.model.default_scores import FloatArray

USES = ("cpu", "memory", "network")
"""What pods use: millicores, bytes, and bytes a second. The network is not requested: nobody declares it."""

MAX_POD_PERIODS = 50_000_000
"""The most pods times periods of a load, each pod while it lives: a simulation takes 50 bytes for each."""

MAX_NODE_PERIODS = 20_000_000
"""The most nodes times periods of a load."""


def excess_of(*, pod_periods: int, node_periods: int) -> str | None:
    """Why a load is too large to be simulated; None if it is not."""
    for what, found, most in (("pods", pod_periods, MAX_POD_PERIODS), ("nodes", node_periods, MAX_NODE_PERIODS)):
        if found > most:
            return f"{what} times periods must be at most {most}: {found}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node: what it has of each resource. All of it is allocatable."""

    name: str
    cpu: float
    memory: float
    network: float
    pods: int = 110


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadPod:
    """A pod.

    Attributes:
        name: Its name, which no other pod has.
        kind: What it is: pods of one kind are replicas of one workload.
        arrives: When it is created, in seconds from the beginning.
        leaves: When it ends, wherever it is.
        cpu: Its request in millicores; 0: none.
        memory: Its request in bytes; 0: none.
        cpu_limit: Its limit in millicores; 0: none. No use is above it.
        memory_limit: Its limit in bytes; 0: none.
        use: What it uses, a row for each of `USES`, in each period from the one in which it arrives.
    """

    name: str
    kind: str
    arrives: float
    leaves: float
    cpu: int
    memory: int
    use: FloatArray
    cpu_limit: int = 0
    memory_limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Nodes and pods, and how long they are watched: `periods` of `period` seconds."""

    name: str
    period: float
    periods: int
    nodes: tuple[Node, ...]
    pods: tuple[LoadPod, ...]

    def sizes(self) -> FloatArray:
        """What nodes have: a row for each of `USES`, a column for each node."""
        return np.array([[getattr(node, use) for node in self.nodes] for use in USES], dtype=np.float64)
