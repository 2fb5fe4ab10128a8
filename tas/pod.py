"""Pods that name a policy, as far as scheduling by telemetry is concerned: which of them wait for a node."""

import msgspec


class PodKey(msgspec.Struct, frozen=True, order=True):
    """A pod's name in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


ENDED = frozenset({"Succeeded", "Failed"})
"""The phases of a pod that runs no more, and never will."""


def waiting_since(*, created: float, node: str | None, gated: bool, phase: str, deleting: bool) -> float | None:
    """Since when a pod waits for a node, in seconds since 1970; None if it does not.

    It waits from its creation on, without a scheduling gate and as long as the scheduler would still place it:
    whether the scheduler has tried already makes no difference.
    """
    if node is not None or gated or deleting or phase in ENDED:
        return None
    return created
