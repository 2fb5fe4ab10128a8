"""Which policies a node's verdict has room for: a verdict is one message of the bus, whose size is limited.

All verdicts have the same policies, whatever the state of a node is: the size of a policy is its largest possible one,
before the verdict is compressed.
Older policies go first, as for the ownership of labels (`tas.verdict.ownership`), so no new policy displaces an older
one. A policy that is left out changes no label: `labels` removes no label that a policy of the API server may own.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

import msgspec

from tas.policy.policy import Policy, PolicyKey, Problem, Strategy, StrategyType
from tas.verdict.verdict import VERDICT_STRATEGIES, deschedule_label, labeling_prefix

NODE_BYTES = 1024
"""The most bytes of a verdict without its policies."""

_POLICY_BYTES = 130
_STRATEGY_BYTES = 256
_LABEL_BYTES = 110
_LIST_ITEM_BYTES = 3
"""The names of fields, the punctuation, times, states and numbers; `test_size.py` compares these with the encoding."""


class PolicySize(NamedTuple):
    """The most bytes that a policy adds to a verdict, and when it was created (seconds since 1970, or None)."""

    key: PolicyKey
    created: float | None
    bytes: int


def policy_size(policy: Policy, *, uid: str, created: float | None) -> PolicySize:
    """The size of a policy in the verdict of any node, at most."""
    texts = (policy.key.namespace, policy.key.name, uid)
    size = _POLICY_BYTES + sum(len(msgspec.json.encode(text)) for text in texts)
    for kind in VERDICT_STRATEGIES:
        strategy = policy.strategies.get(kind)
        if strategy is not None:
            size += _STRATEGY_BYTES + _labels_bytes(policy.key, strategy)
            if kind is not StrategyType.DONTSCHEDULE:
                size += sum(_LIST_ITEM_BYTES + len(rule.metric) + 1 + len(rule.source or "") for rule in strategy.rules)
    return PolicySize(policy.key, created, size)


def _labels_bytes(key: PolicyKey, strategy: Strategy) -> int:
    if strategy.type is StrategyType.DESCHEDULE:
        return _LABEL_BYTES + len(deschedule_label(key) or "")
    prefix = len(labeling_prefix(key))
    return sum(_LABEL_BYTES + prefix + len(name) + len(value) for rule in strategy.rules for name, value in rule.labels)


class VerdictRoom:
    """The policies, and those for which verdicts have no room: each that does not fit beside older ones.

    A policy without a time of creation counts as older than one with, and at equal times the namespace decides. There
    may be thousands: a change orders only the policy that has changed.
    """

    def __init__(self) -> None:
        self._policies: dict[PolicyKey, PolicySize] = {}
        self._by_age: list[_Aged] = []  # the oldest first
        self._bytes = 0
        self._found: tuple[int, frozenset[PolicyKey]] = (-1, frozenset())

    def put(self, size: PolicySize) -> None:
        """Applies a policy."""
        if self._policies.get(size.key) == size:
            return
        self.remove(size.key)
        self._policies[size.key] = size
        insort(self._by_age, _aged(size))
        self._bytes += size.bytes

    def remove(self, key: PolicyKey) -> None:
        """Applies that a policy is gone."""
        self._found = -1, frozenset()
        if (known := self._policies.pop(key, None)) is not None:
            del self._by_age[bisect_left(self._by_age, _aged(known))]
            self._bytes -= known.bytes

    def clear(self) -> None:
        """Forgets all policies."""
        self._policies, self._by_age, self._bytes, self._found = {}, [], 0, (-1, frozenset())

    def size_of(self, key: PolicyKey) -> int:
        """The bytes of a policy that was put."""
        return self._policies[key].bytes

    def left_out(self, limit: int) -> frozenset[PolicyKey]:
        """The policies for which a verdict of at most `limit` bytes has no room."""
        if self._found[0] != limit:
            self._found = limit, self._find(limit - NODE_BYTES)
        return self._found[1]

    def _find(self, room: int) -> frozenset[PolicyKey]:
        if self._bytes <= room:
            return frozenset()
        left: list[PolicyKey] = []
        for _, key, size in self._by_age:
            if size <= room:
                room -= size
            else:
                left.append(key)
        return frozenset(left)


_Aged = tuple[float, PolicyKey, int]


def _aged(size: PolicySize) -> _Aged:
    return size.created or 0.0, size.key, size.bytes


def no_room(size: PolicySize, limit: int) -> Problem:
    """The problem of a policy that is left out of verdicts of at most `limit` bytes."""
    value = f"up to {size.bytes} bytes in the verdict of a node"
    reason = (
        f"a verdict has at most {limit} bytes, and beside the older policies no room for this one: it changes no label,"
        " and no node counts as violating; filter and prioritize use it"
    )
    return Problem(field="spec", value=value, reason=reason, refused=False)
