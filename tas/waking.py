"""Waking: a pod that every node rejected is tried again when a node recovers, by a real change of that node.

The scheduler retries a rejected pod when an annotation of a node changes (extender-protocol.md c29), and else after
minutes. So a node that has left *violated* is annotated with the revision of its verdict, and again a few times while
a pod still waits: the first may come before an extender has applied the change, and an equal value wakes nobody.
"""

import re
from collections.abc import Collection, Mapping

import msgspec

from tas.policy import PolicyKey, StrategyType
from tas.rules import State
from tas.verdict import PolicyVerdict

ANNOTATION = "telemetry.intel.com/recovered"

REPEATS = (1.0, 2.0, 4.0, 8.0)
"""Seconds after the recovery at which it is said again, while a pod still waits."""

_VALUE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,3}))?")


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A node has left *violated* for some policies.

    Attributes:
        revision: Of the verdict that says so.
        at: When it was seen, on any clock that does not go back, in seconds.
        policies: Those whose `dontschedule` it does not violate any more.
        said: How often the time has come to say it.
    """

    revision: int
    at: float
    policies: frozenset[PolicyKey]
    said: int = 0

    @property
    def value(self) -> str:
        """What to say now: the revision, and from the first repetition on its number."""
        return f"{self.revision}.{self.said}" if self.said else str(self.revision)

    @property
    def due(self) -> float | None:
        """When to say it next; None if it has been said often enough."""
        if self.said > len(REPEATS):
            return None
        return self.at if self.said == 0 else self.at + REPEATS[self.said - 1]


def violated(policies: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[PolicyKey]:
    """The policies whose `dontschedule` is violated."""
    return frozenset(key for key, policy in policies.items() if _state(policy) is State.VIOLATED)


def recovered(before: Collection[PolicyKey], after: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[PolicyKey]:
    """Those of `before` (what `violated` said) that are not violated any more, also because they are gone."""
    return frozenset(before) - violated(after)


def is_said(standing: str | None, recovery: Recovery) -> bool:
    """Whether the annotation that stands says as much or more: then nobody is woken by saying it."""
    found = _VALUE.fullmatch(standing or "")
    if found is None:
        return False
    return (int(found[1]), int(found[2] or 0)) >= (recovery.revision, recovery.said)


def just_recovered(policies: Mapping[PolicyKey, PolicyVerdict], *, now: float) -> frozenset[PolicyKey]:
    """Policies that may have recovered before anybody here looked: not violated, and of late. `now` since 1970."""
    return frozenset(
        key
        for key, policy in policies.items()
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None
        and strategy.state is not State.VIOLATED
        and now - strategy.changed <= REPEATS[-1]
    )


class Waiting:
    """The pods that wait for a node, by the policy that they name."""

    def __init__(self) -> None:
        self._policies: dict[str, PolicyKey] = {}
        self._pods: dict[PolicyKey, set[str]] = {}

    def set(self, pod: str, policy: PolicyKey) -> None:
        """A pod, by any name that is its own, waits."""
        self.drop(pod)
        self._policies[pod] = policy
        self._pods.setdefault(policy, set()).add(pod)

    def drop(self, pod: str) -> None:
        """It does not wait; unknown ones are fine."""
        policy = self._policies.pop(pod, None)
        if policy is not None:
            self._pods[policy].discard(pod)
            if not self._pods[policy]:
                del self._pods[policy]

    def clear(self) -> None:
        """Nobody is known to wait."""
        self._policies.clear()
        self._pods.clear()

    def any_for(self, policies: Collection[PolicyKey]) -> bool:
        """Whether a pod of any of them waits."""
        return any(policy in self._pods for policy in policies)


class Recoveries:
    """What every node has recovered from, and when to say so. Times are on a clock that does not go back."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._violated: dict[str, frozenset[PolicyKey]] = {}  # outlives a wiped bus
        self._standing: dict[str, Recovery] = {}

    def judged(
        self, node: str, revision: int, policies: Mapping[PolicyKey, PolicyVerdict], *, at: float, now: float
    ) -> None:
        """Takes in a node's verdict; `at` is the time as here, `now` that since 1970."""
        now_violated = violated(policies)
        before = self._violated.get(node)
        gone = just_recovered(policies, now=now) if before is None else recovered(before, policies)
        self._violated[node] = now_violated
        standing = self._standing.get(node)
        still = frozenset() if standing is None else standing.policies - now_violated
        if gone:
            self._standing[node] = Recovery(revision=revision, at=at, policies=gone | still)
        elif standing is not None and still:
            self._standing[node] = msgspec.structs.replace(standing, policies=still)
        elif standing is not None:
            del self._standing[node]

    def forget(self, node: str) -> None:
        """The node is no more."""
        self._violated.pop(node, None)
        self._standing.pop(node, None)

    def next(self, node: str) -> float | None:
        """When to look at the node again."""
        standing = self._standing.get(node)
        return None if standing is None else standing.due

    def due(self, node: str, standing: str | None, *, at: float) -> Recovery | None:
        """What to say of the node now, where its annotation is `standing`: nothing if nobody waits to hear it."""
        while (recovery := self._standing.get(node)) is not None:
            if recovery.due is None:
                del self._standing[node]
                return None
            if recovery.due > at:
                return None
            if self._waiting.any_for(recovery.policies) and not is_said(standing, recovery):
                return recovery
            self.said(node, recovery)
        return None

    def said(self, node: str, recovery: Recovery) -> None:
        """It stands on the node, or need not."""
        if self._standing.get(node) == recovery:
            self._standing[node] = msgspec.structs.replace(recovery, said=recovery.said + 1)


def _state(policy: PolicyVerdict) -> State | None:
    strategy = policy.strategies.get(StrategyType.DONTSCHEDULE)
    return None if strategy is None else strategy.state
