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
"""The most bytes of the records of those that count: a quarter of what the records of all namespaces may have.

The others have records of 0.5 to 1.1 KiB, without rules; only a ResourceQuota limits their number.
"""

_Age = tuple[float, str]
"""When a policy was created, and its name: two may have one time."""

_Aged = tuple[_Age, PolicyKey]


@dataclass(slots=True)
class _Namespace:
    """The policies with their bytes: those that count, and those beyond, each the oldest first.

    All that count are older than those beyond. `total` is the bytes of those that count.
    """

    policies: dict[PolicyKey, tuple[_Age, int]] = field(default_factory=dict)
    fitting: list[_Aged] = field(default_factory=list)
    beyond: list[_Aged] = field(default_factory=list)
    total: int = 0

    def add(self, key: PolicyKey, age: _Age, size: int) -> None:
        self.policies[key] = (age, size)
        if self.is_beyond(key):
            insort(self.beyond, (age, key))
        else:
            insort(self.fitting, (age, key))
            self.total += size

    def take_out(self, key: PolicyKey) -> None:
        age, size = self.policies[key]
        is_beyond = self.is_beyond(key)
        among = self.beyond if is_beyond else self.fitting
        del among[bisect_left(among, (age, key))]
        del self.policies[key]
        self.total -= 0 if is_beyond else size

    def is_beyond(self, key: PolicyKey) -> bool:
        """Whether a policy, or a new one, is as young as one beyond."""
        return bool(self.beyond) and (self.policies[key][0], key) >= self.beyond[0]

    def settle(self) -> set[PolicyKey]:
        """Takes as many as fit; returns those that count now and did not, or the other way round."""
        changed: set[PolicyKey] = set()
        while self.total > NAMESPACE_BYTES:
            last = self.fitting.pop()
            self.beyond.insert(0, last)
            self.total -= self._size(last)
            changed.add(last[1])
        while self.beyond and self.total + self._size(self.beyond[0]) <= NAMESPACE_BYTES:
            first = self.beyond.pop(0)
            self.fitting.append(first)
            self.total += self._size(first)
            changed.add(first[1])
        return changed

    def _size(self, of: _Aged) -> int:
        return self.policies[of[1]][1]


class PolicyRoom:
    """The policies of all namespaces, and for which of them there is no room."""

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}

    def put(self, key: PolicyKey, created: float, size: int) -> set[PolicyKey]:
        """Notes a policy as it is now; returns others for which there is room and was none, or the other way round."""
        of = self._namespaces.setdefault(key.namespace, _Namespace())
        age = (created, key.name)
        if (known := of.policies.get(key)) == (age, size):
            return set()
        if known is not None:
            of.take_out(key)
        of.add(key, age, size)
        return of.settle() - {key}

    def remove(self, key: PolicyKey) -> set[PolicyKey]:
        """Notes that a policy is gone; returns those for which there is room now."""
        of = self._namespaces.get(key.namespace)
        if of is None or key not in of.policies:
            return set()
        of.take_out(key)
        changed = of.settle()
        if not of.policies:
            del self._namespaces[key.namespace]
        return changed

    def keys(self) -> Iterator[PolicyKey]:
        """All policies."""
        for of in self._namespaces.values():
            yield from of.policies

    def is_refused(self, key: PolicyKey) -> bool:
        """Whether there is no room for a policy."""
        of = self._namespaces.get(key.namespace)
        return of is not None and key in of.policies and of.is_beyond(key)


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
