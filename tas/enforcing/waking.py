"""Waking: when a node recovers, a changed annotation makes the scheduler try waiting pods again.

A node has *recovered* for a policy when the policy rejected the node (`tas.policy.rules.rejecting_states`) and does not
reject it any more: because of a sample, an edit of the policy, or a label with which `nodeSelector` stops to match.

The scheduler retries a rejected pod when an annotation of a node changes (facts.md c29), otherwise only after minutes.
So a recovered node is annotated with the revision of its verdict. The wake is repeated a few times while a pod waits,
each time with another value: the first wake may come before an extender has applied the change.

Many nodes can recover at once, for example when a source recovers or a policy is edited. Then they are annotated one
after the other: the first may be enough for the pod, or the pod may wait for another reason.
"""

import re
from collections.abc import Collection, Mapping

import msgspec

from tas.policy.policy import PolicyKey, StrategyType
from tas.verdict.verdict import PolicyVerdict

ANNOTATION = "telemetry.intel.com/recovered"

REPEATS = (1.0, 2.0, 4.0, 8.0)
"""Seconds after the first wake at which it is repeated while a pod waits; fewer if the first wake was late."""

TURN_SECONDS = 0.02
"""Time between the first wakes of two nodes that recover for one policy: 50 a second."""

FLUSH_SECONDS = 300.0
"""After this time kube-scheduler tries a pod again by itself, so no wake is due later."""

_VALUE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,3}))?")


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The recovery of a node from some policies.

    Attributes:
        revision: The revision of the verdict with the recovery.
        at: When the verdict was received, monotonic seconds.
        policies: The policies that rejected the node before.
        turn: When the first wake is due: at or after `at`.
        sent: The number of wakes so far.
    """

    revision: int
    at: float
    policies: frozenset[PolicyKey]
    turn: float
    sent: int = 0

    @property
    def value(self) -> str:
        """The value of the annotation: the revision, and the number of the repetition, if any."""
        return f"{self.revision}.{self.sent}" if self.sent else str(self.revision)

    @property
    def due(self) -> float | None:
        """When the next wake is due; None after the last."""
        late = self.turn - self.at  # extenders have had this time to apply the change
        if late >= FLUSH_SECONDS:
            return None
        times = [self.turn, *(self.turn + after for after in REPEATS if after > late)]
        return times[self.sent] if self.sent < len(times) else None


def rejecting(policies: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[PolicyKey]:
    """The policies that reject the node."""
    return frozenset(
        key
        for key, policy in policies.items()
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None and strategy.rejects
    )


def recovered(before: Collection[PolicyKey], after: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[PolicyKey]:
    """The policies of `before` (from `rejecting`) that do not reject the node any more or are deleted."""
    return frozenset(before) - rejecting(after)


def is_sent(annotation: str | None, recovery: Recovery) -> bool:
    """Whether the node's annotation already has this or a later value."""
    found = _VALUE.fullmatch(annotation or "")
    if found is None:
        return False
    return (int(found[1]), int(found[2] or 0)) >= (recovery.revision, recovery.sent)


def just_recovered(policies: Mapping[PolicyKey, PolicyVerdict], *, now: float) -> frozenset[PolicyKey]:
    """Policies that do not reject the node, since a recent change of state. `now` is in seconds since 1970."""
    return frozenset(
        key
        for key, policy in policies.items()
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None
        and not strategy.rejects
        and now - strategy.changed <= REPEATS[-1]
    )


class Waiting:
    """The pods that wait for a node, by their policy."""

    def __init__(self) -> None:
        self._policies: dict[str, PolicyKey] = {}
        self._pods: dict[PolicyKey, set[str]] = {}

    def set(self, pod: str, policy: PolicyKey) -> None:
        """Adds a waiting pod under a unique name."""
        self.drop(pod)
        self._policies[pod] = policy
        self._pods.setdefault(policy, set()).add(pod)

    def drop(self, pod: str) -> None:
        """Removes a pod; an unknown pod is fine."""
        policy = self._policies.pop(pod, None)
        if policy is not None:
            self._pods[policy].discard(pod)
            if not self._pods[policy]:
                del self._pods[policy]

    def clear(self) -> None:
        """Removes all pods."""
        self._policies.clear()
        self._pods.clear()

    def any_for(self, policies: Collection[PolicyKey]) -> bool:
        """Whether a pod of any of `policies` waits."""
        return any(policy in self._pods for policy in policies)


class Recoveries:
    """The recoveries of all nodes, and when their wakes are due. Times are monotonic seconds."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._rejecting: dict[str, frozenset[PolicyKey]] = {}  # outlives a wiped bus
        self._pending: dict[str, Recovery] = {}
        self._turns: dict[PolicyKey, float] = {}  # when the next node's first wake is due

    def take_in_verdict(
        self, node: str, revision: int, policies: Mapping[PolicyKey, PolicyVerdict], *, at: float, now: float
    ) -> None:
        """Applies a node's verdict; `at` is monotonic, `now` in seconds since 1970."""
        rejecting_now = rejecting(policies)
        before = self._rejecting.get(node)
        recovered_now = just_recovered(policies, now=now) if before is None else recovered(before, policies)
        self._rejecting[node] = rejecting_now
        pending = self._pending.get(node)
        still_recovered = frozenset() if pending is None else pending.policies - rejecting_now
        if recovered_now:
            all_recovered = recovered_now | still_recovered
            self._pending[node] = Recovery(
                revision=revision, at=at, policies=all_recovered, turn=self._turn(all_recovered, at)
            )
        elif pending is not None and still_recovered:
            self._pending[node] = msgspec.structs.replace(pending, policies=still_recovered)
        elif pending is not None:
            del self._pending[node]

    def _turn(self, policies: Collection[PolicyKey], at: float) -> float:
        """When the first wake of a node that recovers now is due; reserves this time if a pod waits."""
        self._turns = {policy: turn for policy, turn in self._turns.items() if turn > at}
        awaited = [policy for policy in policies if self._waiting.any_for([policy])]
        turn = min((self._turns.get(policy, at) for policy in awaited), default=at)
        for policy in awaited if turn < at + FLUSH_SECONDS else ():
            self._turns[policy] = self._turns.get(policy, at) + TURN_SECONDS
        return turn

    def forget(self, node: str) -> None:
        """Forgets a deleted node."""
        self._rejecting.pop(node, None)
        self._pending.pop(node, None)

    def next(self, node: str) -> float | None:
        """When the next wake of the node is due, or None."""
        pending = self._pending.get(node)
        return None if pending is None else pending.due

    def due(self, node: str, annotation: str | None, *, at: float) -> Recovery | None:
        """The wake that is due for a node with this annotation; None if no pod waits for it."""
        while (recovery := self._pending.get(node)) is not None:
            if recovery.due is None:
                del self._pending[node]
                return None
            if recovery.due > at:
                return None
            if self._waiting.any_for(recovery.policies) and not is_sent(annotation, recovery):
                return recovery
            self.mark_sent(node, recovery)
        return None

    def mark_sent(self, node: str, recovery: Recovery) -> None:
        """Notes that a wake was sent or is not needed."""
        if self._pending.get(node) == recovery:
            self._pending[node] = msgspec.structs.replace(recovery, sent=recovery.sent + 1)
