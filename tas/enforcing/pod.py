"""Pods that name a policy, and which of them wait for a node."""

import msgspec


class PodKey(msgspec.Struct, frozen=True, order=True):
    """A pod's name in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


ENDED = frozenset({"Succeeded", "Failed"})
"""The phases of a pod that has ended for ever."""


def waiting_since(*, created: float, node: str | None, gated: bool, phase: str, deleting: bool) -> float | None:
    """Since when a pod waits for a node, in seconds since 1970; None if it does not.

    A pod waits from its creation until it has a node, is deleted or has ended, except while it has a scheduling gate.
    It makes no difference whether the scheduler has tried the pod yet.
    """
    if node is not None or gated or deleting or phase in ENDED:
        return None
    return created
