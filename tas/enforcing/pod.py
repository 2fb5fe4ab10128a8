"""Pods that name a policy: which wait for their policy, since when a pod is bound, and which need filter."""

from typing import NamedTuple

import msgspec

from tas.policy.rules import rejection_prefix
from tas.samples.sample import FUTURE_TOLERANCE


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


class Unscheduled(NamedTuple):
    """The condition `PodScheduled` of a pod while it is False: its reason, its message, and since when."""

    reason: str
    message: str
    since: float


class BoundSince(NamedTuple):
    """Since when a pod is bound, in seconds since 1970. `is_seen`: at the latest, as it was seen with its node then."""

    since: float
    is_seen: bool = False


def binding_of(
    node: str | None,
    phase: str,
    *,
    scheduled: float | None,
    started: float | None,
    earliest: float | None,
    now: float,
) -> BoundSince | None:
    """The binding of a pod that is seen `now`; None if it is not bound, or has ended.

    No time is earlier than what is proven: an earlier one would end the costs of a pod (`podCost`) that no sample can
    show yet. A time of the future is as none.

    Args:
        node: The node of the pod, if any.
        phase: The phase of the pod.
        scheduled: Since when the condition `PodScheduled` is True, cut to whole seconds (facts.md c36).
        started: When the kubelet has seen the pod, soon after its binding (`startTime`). It counts while the condition
            is False, or is missing: whoever sets the node need not set the condition (facts.md c63).
        earliest: When the pod was certainly not bound yet: it was created, or refused by the scheduler.
        now: Seconds since 1970.
    """
    if node is None or phase in ENDED:
        return None
    known = next((at for at in (scheduled, started) if at is not None and at <= now + FUTURE_TOLERANCE), None)
    if earliest is None or earliest > now + FUTURE_TOLERANCE:
        earliest = 0.0
    return BoundSince(max(now, earliest), is_seen=True) if known is None else BoundSince(max(known, earliest))


def waiting_since(
    policy: str, refusal: Unscheduled | None, *, node: str | None, phase: str, deleting: bool
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


def needs_filter(refusal: Unscheduled | None, *, node: str | None, deleting: bool) -> bool:
    """Whether the scheduler must have asked filter about a pod, or must ask now.

    It must have asked about a pod that has a node, and must ask about one that it has not tried yet, or tries again
    after an error. A pod that fits no node may wait without a request, since filter is asked last (facts.md c13), and
    so may a gated one.
    """
    if node is not None:
        return True
    return not deleting and (refusal is None or refusal.reason == SCHEDULER_ERROR)
