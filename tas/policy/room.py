"""How much room the policies of one namespace may take, so that its authors leave some for other namespaces.

The API server limits a policy, but not how many a namespace has, unless a ResourceQuota does. Of each namespace the
oldest policies count, as far as there is room: all replicas agree, and a policy does not lose its place to a new one.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tas.policy.policy import PolicyKey, StrategyType

NAMESPACE_BYTES = 8 << 20
"""The most bytes of the policies of a namespace that count: a quarter of the room of the records of all policies.

The others have records of 0.5 to 1.1 KiB, without rules; only a ResourceQuota limits their number.
"""


class _Place(NamedTuple):
    """Where a policy is among those of its namespace: two may have been created at one time."""

    created: float
    key: PolicyKey


@dataclass(slots=True)
class _Namespace:
    """The policies that count, with their bytes, and of the others only the oldest: the younger ones are refused, too.

    Of `refused` 0 bytes mean that it is not known which policy is next, and how large it is.
    """

    places: list[_Place] = field(default_factory=list)  # of those that count, the oldest first
    sizes: dict[PolicyKey, tuple[_Place, int]] = field(default_factory=dict)
    total: int = 0
    refused: tuple[_Place, int] | None = None

    def take_out(self, key: PolicyKey) -> None:
        if (known := self.sizes.pop(key, None)) is not None:
            del self.places[bisect_left(self.places, known[0])]
            self.total -= known[1]

    def put(self, place: _Place, size: int) -> set[PolicyKey]:
        self.take_out(place.key)
        insort(self.places, place)
        self.sizes[place.key] = (place, size)
        self.total += size
        if self.refused is not None and self.refused[0] == place:
            self.refused = (place, 0)
        displaced: set[PolicyKey] = set()
        while self.total > NAMESPACE_BYTES:
            youngest = self.places[-1]
            self.refused = self.sizes[youngest.key]
            self.take_out(youngest.key)
            displaced.add(youngest.key)
        return displaced


class PolicyRoom:
    """Which policies of each namespace count. After a complete list of all, in any order, it is exact.

    Nothing is kept of a policy without room but the oldest of a namespace. So once there is room again, a new list has
    to say for which one.
    """

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}

    def is_refused(self, key: PolicyKey, created: float) -> bool:
        """Whether there is no room for a policy, whatever its size: older ones take it."""
        of = self._namespaces.get(key.namespace)
        return of is not None and of.refused is not None and _Place(created, key) > of.refused[0]

    def put(self, key: PolicyKey, created: float, size: int) -> set[PolicyKey]:
        """Takes a policy that is not refused, as it is now; returns those that do not count any more or not at all."""
        return self._namespaces.setdefault(key.namespace, _Namespace()).put(_Place(created, key), size)

    def remove(self, key: PolicyKey) -> None:
        """Notes that a policy is gone."""
        of = self._namespaces.get(key.namespace, _Namespace())
        of.take_out(key)
        if of.refused is not None and of.refused[0].key == key:
            of.refused = (of.refused[0], 0)
        if not of.places and of.refused is None:
            self._namespaces.pop(key.namespace, None)

    def has_room_again(self, namespace: str) -> bool:
        """Whether a policy without room may count now."""
        of = self._namespaces.get(namespace)
        return of is not None and of.refused is not None and of.total + of.refused[1] <= NAMESPACE_BYTES

    def counting(self) -> Iterator[PolicyKey]:
        """The policies that count, of each namespace the oldest first; `put` may be called meanwhile."""
        for of in self._namespaces.values():
            for place in tuple(of.places):
                if place.key in of.sizes:
                    yield place.key


class WithoutRoom(NamedTuple):
    """The spec of a policy for which there is no room: its rules are unknown, so its labels are held.

    `strategies` has the names of its strategies. `tas.policy.manifest` reads it as any other spec.
    """

    strategies: tuple[str, ...]
    reason: str


def without_room(key: PolicyKey, spec: object) -> WithoutRoom:
    """What is kept of the decoded spec of a policy for which there is no room."""
    strategies = spec.get("strategies") if isinstance(spec, dict) else None
    kinds = [kind.value for kind in StrategyType if isinstance(strategies, dict) and kind.value in strategies]
    reason = (
        f"has no effect: the policies of a namespace have room for {NAMESPACE_BYTES} bytes together, and older ones of "
        f"{key.namespace} take it: delete some, or make them smaller"
    )
    return WithoutRoom(tuple(kinds), reason)
