"""Waking: which node is annotated, and when, so that the scheduler tries rejected pods again.

The scheduler tries a pod that an extender rejected again when a node changes (facts.md c29), otherwise only after
minutes. A sample and an edit of a policy are no such changes. So while a pod waits for its policy
(`tas.enforcing.pod`), a node that this policy passes gets an annotation with a new value, which is a *wake*:

- at once when a node *recovers* for the policy: the policy rejected the node and does not any more. It is repeated
  after 1.5, 3 and 6 s, since an extender may be behind;
- 5 s after other news: a pod that begins to wait, or the first verdict of a node, as after a start or a wiped bus;
- less and less often while a pod waits, at last every minute: for whatever was missed.

The scheduler tries all rejected pods again, whichever node changes. So one schedule serves all policies, and any node
that passes will do: the nodes that recovered last come first, then the others in turn.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from tas.enforcing.pod import PodKey
from tas.policy.policy import PolicyKey, StrategyType
from tas.verdict.verdict import PolicyVerdict

ANNOTATION = "telemetry.intel.com/recovered"

SPACING = 1.5
"""The least number of seconds between two wakes: 40 a minute in the whole cluster."""

QUICK = (1.5, 1.5, 3.0)
"""The seconds from a wake at once to the repetitions that follow."""

SOON = 5.0
"""The seconds from news that are no recovery to the wake. After as many seconds it is repeated, until the scheduler has
examined all nodes: it examines only some at a time (facts.md c21)."""

LATER = (10.0, 15.0, 15.0, 15.0)
"""The seconds to the repetitions after that."""

LAST = 60.0
"""The seconds between any further repetitions."""


def rejecting(policies: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[PolicyKey]:
    """The policies that reject the node (`tas.policy.rules.rejecting_states`)."""
    return frozenset(
        key
        for key, policy in policies.items()
        if (strategy := policy.strategies.get(StrategyType.DONTSCHEDULE)) is not None and strategy.rejects
    )


def attempts(nodes: int) -> int:
    """How often the scheduler must try a pod until it has examined each of so many nodes (facts.md c21)."""
    size = max(100, nodes * max(5, 50 - nodes // 125) // 100)
    return max(1, -(-nodes // size))


def pause(number: int, nodes: int) -> float:
    """The seconds from the wake with this number to the next one; a wake at once has the number 0."""
    if number < len(QUICK):
        return QUICK[number]
    number -= len(QUICK)
    if number < attempts(nodes):
        return SOON
    number -= attempts(nodes)
    return LATER[number] if number < len(LATER) else LAST


class Node(NamedTuple):
    """A node as its verdict has it: its uid, and the policies that reject it. Every other policy passes it."""

    uid: str
    rejecting: frozenset[PolicyKey]


class Wake(NamedTuple):
    """A node that is to be annotated."""

    node: str
    uid: str


class _HasUid(Protocol):
    @property
    def uid(self) -> str: ...


N = TypeVar("N", bound=_HasUid)


class NodeWakes(Generic[N]):
    """The nodes, and when the next wake is due. Times are monotonic seconds.

    A subclass knows who waits (`waiting`), fills `_nodes`, says with `_may_help` which node may help a pod, and with
    `_at_once` and `soon` that something happened.

    Attributes:
        due: When `take` must be called; None: not before something changes.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._nodes: OrderedDict[str, N] = OrderedDict()  # the next one to be annotated first
        self._number = 0  # of the wake that is due
        self._not_before = 0.0

    @property
    def waiting(self) -> int:
        """The number of pods that wait."""
        raise NotImplementedError

    def drop_node(self, name: str) -> None:
        """Forgets a node; an unknown one is fine."""
        self._nodes.pop(name, None)

    def soon(self, at: float) -> None:
        """Has a wake due within `SOON`, and its repetitions begin again: something changed that may help a pod."""
        self._begin(at + SOON, len(QUICK))

    def take(self, at: float) -> Wake | None:
        """The node to annotate now, if a wake is due, a pod waits and there is a node that may help such a pod."""
        if self.due is None or self.due > at:
            return None
        if not self.waiting:
            self.due = None
            return None
        self.due = at + pause(self._number, len(self._nodes))
        self._number += 1
        for name, node in self._nodes.items():
            if self._may_help(node):
                self._not_before = at + SPACING
                self._nodes.move_to_end(name)
                return Wake(name, node.uid)
        return None

    def _may_help(self, node: N) -> bool:
        """Whether a wake by this node may help a pod that waits."""
        return True

    def _at_once(self, at: float) -> None:
        """Has a wake due now, or `SPACING` after the last one."""
        self._begin(max(at, self._not_before), 0)

    def _begin(self, due: float, number: int) -> None:
        """Begins the schedule with this number, unless it is not as far, and never postpones a wake."""
        if self.due is None:
            self.due, self._number = due, number
        self.due, self._number = min(self.due, due), min(self._number, number)


class Wakes(NodeWakes[Node]):
    """The pods that wait for their policy, and the nodes.

    It holds a number of seconds for each policy that recovered lately, the policy of each waiting pod, and for each
    node the policies that reject it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pods: dict[PodKey, tuple[PolicyKey, float]] = {}
        self._awaited: Counter[PolicyKey] = Counter()
        self._recovered: dict[PolicyKey, float] = {}

    @property
    def waiting(self) -> int:
        """The number of pods that wait for their policy."""
        return len(self._pods)

    def set_pod(self, pod: PodKey, policy: PolicyKey, since: float, *, at: float) -> None:
        """Notes that a pod waits for its policy, `since` seconds since 1970."""
        if self._pods.get(pod) == (policy, since):
            return
        self.drop_pod(pod)
        self._pods[pod] = policy, since
        self._awaited[policy] += 1
        # The recovery may have come between the rejection of the pod and the news of the rejection.
        if at - self._recovered.get(policy, -inf) <= sum(QUICK):
            self._at_once(at)
        else:
            self.soon(at)

    def drop_pod(self, pod: PodKey) -> None:
        """Notes that a pod does not wait; an unknown pod is fine."""
        waited = self._pods.pop(pod, None)
        if waited is not None:
            self._awaited[waited[0]] -= 1
            if not self._awaited[waited[0]]:
                del self._awaited[waited[0]]  # nobody waits for this policy

    def drop_pods(self) -> None:
        """Forgets all pods."""
        self._pods.clear()
        self._awaited.clear()

    def set_node(self, name: str, uid: str, policies: Mapping[PolicyKey, PolicyVerdict], *, at: float) -> None:
        """Applies the verdict of a node."""
        before, node = self._nodes.get(name), Node(uid, rejecting(policies))
        self._nodes[name] = node
        if before is None or before.uid != uid:
            if self._may_help(node):
                self.soon(at)
            return
        recovered = before.rejecting - node.rejecting
        if not recovered:
            return
        self._recovered = {key: since for key, since in self._recovered.items() if at - since <= sum(QUICK)}
        self._recovered |= dict.fromkeys(recovered, at)
        self._nodes.move_to_end(name, last=False)
        if not self._awaited.keys().isdisjoint(recovered):
            self._at_once(at)

    def _may_help(self, node: Node) -> bool:
        return not self._awaited.keys() <= node.rejecting
