"""Pods that name a policy: which wait for their policy, since when a pod is bound, and which need filter."""

from typing import NamedTuple

import msgspec

from tas.policy.rules import rejection_prefix


class PodKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """A pod's name in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


ENDED = frozenset({"Succeeded", "Failed"})
"""The phases of a pod that has ended for ever."""

UNSCHEDULABLE = "Unschedulable"
"""The reason of `PodScheduled` if no node fits the pod; after an error it is `SCHEDULER_ERROR`."""

SCHEDULER_ERROR = "SchedulerError"
"""The reason of `PodScheduled` after an error, also one of an extender that is not `ignorable` (facts.md c18)."""


class Refusal(NamedTuple):
    """The condition `PodScheduled` of a pod while it is False: its reason, its message, and since when."""

    reason: str
    message: str
    since: float


def bound_since(node: str | None, phase: str, scheduled: float | None, created: float | None) -> float | None:
    """Since when a pod is bound to its node, in seconds since 1970; None if it is not bound, or has ended.

    `scheduled` is since when the condition `PodScheduled` is True, cut to whole seconds (facts.md c36). A pod without
    this condition was created with its node.
    """
    if node is None or phase in ENDED:
        return None
    return created if scheduled is None else scheduled


def waiting_since(
    policy: str, refusal: Refusal | None, *, node: str | None, phase: str, deleting: bool
) -> float | None:
    """Since when a pod waits for its policy to pass a node, in seconds since 1970; None if it does not.

    A pod waits for its policy after the scheduler has tried the pod and found no node, and the policy rejected at least
    one of them (facts.md c20, c33). So a pod that the scheduler has not tried yet does not wait for its policy, nor
    does a pod that only lacks a resource, or a pod of a scheduler without the extender. After an error of the extender
    the scheduler tries the pod again by itself (facts.md c18).
    """
    if node is not None or deleting or phase in ENDED or refusal is None:
        return None
    if refusal.reason != UNSCHEDULABLE or rejection_prefix(policy) not in refusal.message:
        return None
    return refusal.since


def needs_filter(refusal: Refusal | None, *, node: str | None, deleting: bool) -> bool:
    """Whether the scheduler must have asked filter about a pod, or must ask now.

    It must have asked about a pod that has a node, and must ask about one that it has not tried yet, or tries again
    after an error. A pod that fits no node may wait without a request, since filter is asked last (facts.md c13), and
    so may a gated one.
    """
    if node is not None:
        return True
    return not deleting and (refusal is None or refusal.reason == SCHEDULER_ERROR)
