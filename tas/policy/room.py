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


@dataclass(slots=True)
class _Namespace:
    """The policies with their bytes, and those that count, the oldest first; all others are younger.

    `total` is the bytes of those that count, `oldest` the oldest of the others.
    """

    policies: dict[PolicyKey, tuple[_Age, int]] = field(default_factory=dict)
    fitting: list[tuple[_Age, PolicyKey]] = field(default_factory=list)
    beyond: set[PolicyKey] = field(default_factory=set)
    oldest: PolicyKey | None = None
    total: int = 0

    def add(self, key: PolicyKey, age: _Age, size: int) -> None:
        self.policies[key] = (age, size)
        if self.oldest is None or age < self.policies[self.oldest][0]:
            insort(self.fitting, (age, key))
            self.total += size
        else:
            self.beyond.add(key)

    def take_out(self, key: PolicyKey) -> None:
        age, size = self.policies[key]
        if key not in self.beyond:
            del self.fitting[bisect_left(self.fitting, (age, key))]
            self.total -= size
        else:
            self._take_from_beyond(key)
        del self.policies[key]

    def settle(self) -> set[PolicyKey]:
        """Takes as many as fit; returns those that count now and did not, or the other way round."""
        changed: set[PolicyKey] = set()
        while self.total > NAMESPACE_BYTES:
            _, self.oldest = self.fitting.pop()
            self.total -= self.policies[self.oldest][1]
            self.beyond.add(self.oldest)
            changed.add(self.oldest)
        while (key := self.oldest) is not None and self.total + self.policies[key][1] <= NAMESPACE_BYTES:
            self._take_from_beyond(key)
            self.fitting.append((self.policies[key][0], key))
            self.total += self.policies[key][1]
            changed.add(key)
        return changed

    def _take_from_beyond(self, key: PolicyKey) -> None:
        self.beyond.discard(key)
        if key == self.oldest:
            self.oldest = min(self.beyond, key=lambda key: self.policies[key][0], default=None)


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
        return of is not None and key in of.beyond


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
