"""The allocation of a node: what it has, what its pods request, and which pods are new on it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from tas.allocation.pod import CPU, PODS, PodTotals, summed

RECENT_SECONDS = 900.0
"""How long a pod is new on its node: metrics of longer windows are not corrected."""

MAX_RECENT = 110
"""The most new pods of a node that are listed, the newest: by default a kubelet takes no more pods."""

MAX_RESOURCES = 64
"""The most resources of a node beside `ALWAYS`, the first by name. A record must stay small, whatever pods request."""

MAX_RECENT_BYTES = 16 << 10
"""The most bytes of all new pods of a node in a record, as `recent_bytes` counts them: so many of 110 pods with cpu,
memory and ephemeral storage."""

ALWAYS = frozenset({CPU, "memory", "ephemeral-storage", PODS})
"""The resources that count on every node. Others count if the node has them: else no pod can use them there."""


class Recent(msgspec.Struct, frozen=True, array_like=True):
    """A pod that is new on the node.

    Attributes:
        at: When it was placed, in seconds since 1970.
        requests: Pairs of resource and amount.
    """

    at: float
    requests: tuple[tuple[str, int], ...] = ()


class NodeAllocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What kubectl describe calls the allocated resources of a node. cpu in millicores, others in whole units.

    It has the resources in `ALWAYS`, and at most `MAX_RESOURCES` others that the node has.

    Attributes:
        uid: Of the node.
        capacity: `status.capacity`.
        allocatable: `status.allocatable`.
        requested: The sums of the requests of the pods that have not ended; `pods` is the number of these pods.
        limited: The sums of their limits; of a pod without a limit, or with one below its request, the request.
        unreadable: How many of these pods have a quantity that cannot be read; the other sums are without them.
        recent: The newest of the new pods that can be read, the newest first: at most `MAX_RECENT` pods and
            `MAX_RECENT_BYTES`.
    """

    uid: str
    capacity: Mapping[str, int] = {}
    allocatable: Mapping[str, int] = {}
    requested: Mapping[str, int] = {}
    limited: Mapping[str, int] = {}
    unreadable: int = 0
    recent: tuple[Recent, ...] = ()


class PlacedPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod on a node that has not ended.

    Attributes:
        totals: What it requests; None if that cannot be read.
        placed_at: When it was placed, in seconds since 1970; None if that is not known.
    """

    totals: PodTotals | None
    placed_at: float | None = None


def allocated(
    uid: str, capacity: Mapping[str, int], allocatable: Mapping[str, int], pods: Iterable[PlacedPod], now: float
) -> NodeAllocation:
    """The allocation of a node with these pods at the time `now`; a pod of the far future is not new, either."""
    pods = list(pods)
    counted = ALWAYS | set(sorted({*capacity, *allocatable} - ALWAYS)[:MAX_RESOURCES])
    readable = [pod.totals for pod in pods if pod.totals is not None]
    recent = [
        Recent(pod.placed_at, tuple(each for each in pod.totals.requests if each[0] in counted))
        for pod in pods
        if pod.totals is not None and pod.placed_at is not None and abs(now - pod.placed_at) < RECENT_SECONDS
    ]
    recent.sort(key=lambda each: (-each.at, each.requests))
    return NodeAllocation(
        uid=uid,
        capacity=_of(counted, capacity),
        allocatable=_of(counted, allocatable),
        requested=_of(counted, summed(each.requests for each in readable) | {PODS: len(pods)}),
        limited=_of(counted, summed(each.bounds() for each in readable)),
        unreadable=len(pods) - len(readable),
        recent=tuple(_newest(recent)),
    )


def _of(counted: Collection[str], amounts: Mapping[str, int]) -> dict[str, int]:
    return {resource: amount for resource, amount in sorted(amounts.items()) if resource in counted}


def _newest(recent: Sequence[Recent]) -> Iterator[Recent]:
    """As many as a record has room for, of new pods with the newest first."""
    size = 0
    for each in recent[:MAX_RECENT]:
        size += recent_bytes(each)
        if size > MAX_RECENT_BYTES:
            return
        yield each


def recent_bytes(recent: Recent) -> int:
    """How many bytes a new pod takes in a record, at most: names, numbers of 20 digits, and what is between them."""
    return 24 + sum(len(resource.encode()) + 26 for resource, _ in recent.requests)


def is_same(before: NodeAllocation, after: NodeAllocation) -> bool:
    """Whether the two differ only in pods that are not new any more: then there is nothing to write."""
    if msgspec.structs.replace(before, recent=()) != msgspec.structs.replace(after, recent=()):
        return False
    return before.recent[: len(after.recent)] == after.recent


def in_flight(recent: Iterable[Recent], resource: str, since: float) -> int:
    """The requests of the pods that were placed after `since`."""
    return sum(amount for each in recent if each.at > since for name, amount in each.requests if name == resource)
