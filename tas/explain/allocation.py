"""What the pods of a node request of what it has: for people."""

from collections.abc import Mapping, Sequence

import msgspec

from tas.allocation.node import RECENT_SECONDS, NodeAllocation
from tas.allocation.pod import CPU, PODS


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a resource a node has, and how much of it is requested: cpu in millicores, others in whole units.

    Attributes:
        capacity: All of it.
        allocatable: What pods can have of it.
        requested: The requests of the pods that have not ended.
        limited: Their limits; a limit below the request, or none, counts as the request.
    """

    capacity: int
    allocatable: int
    requested: int
    limited: int


class NewPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that metrics may not show yet.

    Attributes:
        age_seconds: Since it was placed.
        requests: What it requests, by resource.
    """

    age_seconds: float
    requests: Mapping[str, int]


class AllocationExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The allocation of a node.

    Attributes:
        age_seconds: Since it has changed.
        pods: How many pods there are.
        unreadable: How many of them have a quantity that cannot be read, and are not in the sums.
        resources: Each resource that the node has or its pods request.
        recent: The new pods, the newest first.
    """

    age_seconds: float
    pods: int
    unreadable: int
    resources: Mapping[str, ResourceUse]
    recent: Sequence[NewPod]


def explain_allocation(found: NodeAllocation, written: float, now: float) -> AllocationExplanation:
    """The allocation of a node that was `written` to the bus at this time, in seconds since 1970."""
    return AllocationExplanation(
        age_seconds=max(0.0, now - written),
        pods=found.requested.get(PODS, 0),
        unreadable=found.unreadable,
        resources={
            resource: ResourceUse(
                capacity=found.capacity.get(resource, 0),
                allocatable=found.allocatable.get(resource, 0),
                requested=found.requested.get(resource, 0),
                limited=found.limited.get(resource, 0),
            )
            for resource in sorted({*found.capacity, *found.allocatable, *found.requested, *found.limited}, key=_rank)
        },
        recent=[
            NewPod(age_seconds=max(0.0, now - each.at), requests=dict(each.requests))
            for each in found.recent
            if now - each.at < RECENT_SECONDS
        ],
    )


def _rank(resource: str) -> tuple[bool, bool, str]:
    """The sort key: cpu and memory first, as everywhere."""
    return (resource != CPU, resource != "memory", resource)
