"""Waking: a pod that every node was refused to is tried again when a node recovers, by a real change of that node.

A node has *recovered* for a policy when the policy rejected it (`tas.rules.rejecting_states`) and does not any more, be
it by a sample, by an edit of the policy, or by a label that takes the node out of it.

The scheduler retries a rejected pod when an annotation of a node changes (extender-protocol.md c29), and else after
minutes. So a node that has recovered is annotated with the revision of its verdict, and again a few times while a pod
still waits: the first may come before an extender has applied the change, and an equal value wakes nobody.

Many nodes may recover at once, as when a source comes back or a policy is edited. They take turns then: the first may
be all that a pod needs, and for a pod that something else keeps away all of them are patched in vain.
"""

import re
from collections.abc import Collection, Mapping

import msgspec

from tas.policy import PolicyKey, StrategyType
from tas.verdict import PolicyVerdict

ANNOTATION = "telemetry.intel.com/recovered"

REPEATS = (1.0, 2.0, 4.0, 8.0)
"""Seconds after the first word at which it is said again, while a pod still waits; fewer the later its turn came."""

TURN_SECONDS = 0.02
"""Between the first words of two nodes that recover for one policy: 50 a second."""

FLUSH_SECONDS = 300.0
"""After so long kube-scheduler tries a pod again by itself: a turn that would come later is none."""

_VALUE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,3}))?")


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A node is not rejected any more by some policies.

    Attributes:
        revision: Of the verdict that says so.
        at: When it was seen, on any clock that does not go back, in seconds.
        policies: Those that rejected it.
        turn: When it is said first: no sooner than `at`.
        said: How often the time has come to say it.
    """

    revision: int
    at: float
    policies: frozenset[PolicyKey]
    turn: float
    said: int = 0

    @property
    def value(self) -> str:
        """What to say now: the revision, and from the first repetition on its number."""
        return f"{self.revision}.{self.said}" if self.said else str(self.revision)

    @property
    def due(self) -> float | None:
        """When to say it next; None if it has been said often enough."""
        late = self.turn - self.at  # by so much less an extender may still be behind
        if late >= FLUSH_SECONDS:
            return None
        times = [self.turn, *(self.turn + after for after in REPEATS if after > late)]
        return times[self.said] if self.said < len(times) else None


def rejecting(policies: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[PolicyKey]:
    """The policies that reject the node."""
    return frozenset(
        key
        for key, policy in policies.items()
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None and strategy.rejects
    )


def recovered(before: Collection[PolicyKey], after: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[PolicyKey]:
    """Those of `before` (what `rejecting` said) that do not reject the node any more, also because they are gone."""
    return frozenset(before) - rejecting(after)


def is_said(standing: str | None, recovery: Recovery) -> bool:
    """Whether the annotation that stands says as much or more: then nobody is woken by saying it."""
    found = _VALUE.fullmatch(standing or "")
    if found is None:
        return False
    return (int(found[1]), int(found[2] or 0)) >= (recovery.revision, recovery.said)


def just_recovered(policies: Mapping[PolicyKey, PolicyVerdict], *, now: float) -> frozenset[PolicyKey]:
    """Policies that may have recovered before anybody here looked: not rejecting, and of late. `now` since 1970."""
    return frozenset(
        key
        for key, policy in policies.items()
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None
        and not strategy.rejects
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
        self._rejecting: dict[str, frozenset[PolicyKey]] = {}  # outlives a wiped bus
        self._standing: dict[str, Recovery] = {}
        self._turns: dict[PolicyKey, float] = {}  # when the next node may have its own

    def judged(
        self, node: str, revision: int, policies: Mapping[PolicyKey, PolicyVerdict], *, at: float, now: float
    ) -> None:
        """Takes in a node's verdict; `at` is the time as here, `now` that since 1970."""
        rejecting_now = rejecting(policies)
        before = self._rejecting.get(node)
        gone = just_recovered(policies, now=now) if before is None else recovered(before, policies)
        self._rejecting[node] = rejecting_now
        standing = self._standing.get(node)
        still = frozenset() if standing is None else standing.policies - rejecting_now
        if gone:
            policies_now = gone | still
            self._standing[node] = Recovery(
                revision=revision, at=at, policies=policies_now, turn=self._turn(policies_now, at)
            )
        elif standing is not None and still:
            self._standing[node] = msgspec.structs.replace(standing, policies=still)
        elif standing is not None:
            del self._standing[node]

    def _turn(self, policies: Collection[PolicyKey], at: float) -> float:
        """When a node that recovers now may say so first; its turn is taken by that, if somebody waits to hear it."""
        self._turns = {policy: turn for policy, turn in self._turns.items() if turn > at}
        awaited = [policy for policy in policies if self._waiting.any_for([policy])]
        turn = min((self._turns.get(policy, at) for policy in awaited), default=at)
        for policy in awaited if turn < at + FLUSH_SECONDS else ():
            self._turns[policy] = max(self._turns.get(policy, at), turn) + TURN_SECONDS
        return turn

    def forget(self, node: str) -> None:
        """The node is no more."""
        self._rejecting.pop(node, None)
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
