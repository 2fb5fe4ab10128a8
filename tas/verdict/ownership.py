"""Which policy owns a label, among the policies of one name in several namespaces: labels of nodes have no namespace.

Ownership is per name and strategy: the label without a prefix belongs to the oldest policy with `deschedule`, and the
labels under the prefix to the oldest with `labeling`, of those that are neither suspended nor dry-run. Older is who was
created earlier, and at equal times whose namespace sorts first. A policy without a time of creation, as from a
directory, counts as older than one with. What the other policies desire does not count.

Without an owner every label stays as it is: if all policies with the strategy are suspended or dry-run, or if a policy
of the name cannot be read, since it can be the owner.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tas.policy.policy import LABEL_PREFIX, Policy, PolicyKey, StrategyType

LABEL_STRATEGIES = (StrategyType.DESCHEDULE, StrategyType.LABELING)
"""The strategies that label nodes."""


class Claim(NamedTuple):
    """What decides whether a policy owns labels.

    Attributes:
        uid: Of the policy.
        created: When the policy was created, in seconds since 1970; None if that is not known.
        strategies: Its strategies with labels; empty if the policy is suspended or dry-run.
    """

    uid: str
    created: float | None
    strategies: frozenset[StrategyType]


def claim_of(policy: Policy, *, uid: str, created: float | None) -> Claim:
    """The claim of a policy. A strategy that is partly unreadable counts: its labels are held."""
    strategies: frozenset[StrategyType] = frozenset()
    if not (policy.suspend or policy.dry_run):
        strategies = frozenset(kind for kind in LABEL_STRATEGIES if (own := policy.strategies.get(kind)) and own.rules)
    return Claim(uid, created, strategies)


def strategy_of(label: str) -> StrategyType:
    """The strategy to which a label in our form belongs."""
    return StrategyType.LABELING if label.startswith(LABEL_PREFIX) else StrategyType.DESCHEDULE


def owner_of(strategy: StrategyType, claims: Mapping[PolicyKey, Claim | None]) -> PolicyKey | None:
    """The owner of a strategy's labels among all policies of one name; None: nobody, so the labels are held.

    The claim of a policy that cannot be read is None.
    """
    owners: list[tuple[float, PolicyKey]] = []
    for key, claim in claims.items():
        if claim is None:
            return None
        if strategy in claim.strategies:
            owners.append((0.0 if claim.created is None else claim.created, key))
    return min(owners)[1] if owners else None


class Claims:
    """The claims of all stored policies, by the policies' names."""

    def __init__(self) -> None:
        self._names: dict[str, dict[PolicyKey, Claim | None]] = {}

    def set(self, key: PolicyKey, claim: Claim | None) -> bool:
        """Stores the claim of a policy, None if it cannot be read; returns whether it has changed."""
        known = self._names.setdefault(key.name, {})
        changed = key not in known or known[key] != claim
        known[key] = claim
        return changed

    def drop(self, key: PolicyKey) -> bool:
        """Forgets a deleted policy; returns whether it was known."""
        known = self._names.get(key.name, {})
        if key not in known:
            return False
        del known[key]
        if not known:
            del self._names[key.name]
        return True

    def clear(self) -> None:
        """Forgets all policies."""
        self._names.clear()

    def named(self, name: str) -> frozenset[PolicyKey]:
        """The policies of a name."""
        return frozenset(self._names.get(name, ()))

    def owns(self, key: PolicyKey, uid: str, strategy: StrategyType) -> bool:
        """Whether the policy with this key and uid owns the labels of a strategy."""
        claim = self._names.get(key.name, {}).get(key)
        return claim is not None and claim.uid == uid and self.owner(key.name, strategy) == key

    def owner(self, name: str, strategy: StrategyType) -> PolicyKey | None:
        """The owner of a strategy's labels, of the policies of a name; None: nobody."""
        return owner_of(strategy, self._names.get(name, {}))
