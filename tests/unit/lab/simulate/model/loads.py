"""Small loads that a test writes by hand."""

import numpy as np

from lab.simulate.model.load import Load, LoadPod, Node

GIB = 1 << 30


def node(name: str, *, cpu: float = 4000, memory: float = 16 * GIB, network: float = 1e9) -> Node:
    return Node(name=name, cpu=cpu, memory=memory, network=network)


def pod(
    name: str,
    *,
    cpu: int = 500,
    memory: int = GIB,
    uses: float | None = None,
    arrives: float = 0.0,
    leaves: float = 3600.0,
) -> LoadPod:
    """A pod that uses the same all the time: `uses` millicores, or what it requests."""
    use = [cpu if uses is None else uses, memory, 0.0]
    return LoadPod(
        name=name, kind="work", arrives=arrives, leaves=leaves, cpu=cpu, memory=memory, use=np.array([use]).T.copy()
    )


def load(nodes: list[Node], pods: list[LoadPod], *, minutes: int = 60) -> Load:
    return Load(name="test", period=60.0, periods=minutes, nodes=tuple(nodes), pods=tuple(pods))
