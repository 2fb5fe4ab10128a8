"""Placements: the pods that nodes have been given, until a sample of the node can show them (`podCost` of a rule).

A metric shows a new pod only from the next sample on. Until then each pod of a policy worsens the node's value by the
cost that the policy declares, so that a burst of pods is spread. A pod counts from its binding, as the API server
reports it, and never from a call of the scheduler (facts.md c28).

A cost ends on its own. It counts only while the node's newest sample is fresh and older than the pod. A placement is
forgotten `PRECISION` and `staleAfter` after the binding, so no clock and no missing sample can keep a cost longer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tas.enforcing.pod import PodKey
from tas.policy.policy import Operator, PolicyKey, Rule
from tas.values.quantity import Quantity
from tas.view.deadlines import Deadlines

PRECISION = 1.0
"""Seconds: the time of a binding is cut to whole seconds (facts.md c36). A sample of the same second may be older."""


class Placement(NamedTuple):
    """A pod on a node: its policy, the node, and the time of the binding in seconds since 1970."""

    policy: PolicyKey
    node: str
    time: float


def pods_not_shown(times: Iterable[float], sampled: float) -> int:
    """How many of the pods that were placed at `times` are too new for a sample of the time `sampled`."""
    return sum(sampled < time + PRECISION for time in times)


def with_cost(rule: Rule, value: Quantity, pods: int) -> Quantity:
    """`value` as it will be with so many more pods: greater by the cost of each if low values are preferred, else less.

    The same value for a rule without a cost.
    """
    if rule.pod_cost is None:
        return value
    cost = pods * rule.pod_cost
    return Quantity(value - cost if rule.operator is Operator.GREATER_THAN else value + cost)


class Placements:
    """The placements that may still count. About 570 bytes for each pod, until its deadline."""

    def __init__(self) -> None:
        self._pods: dict[PodKey, Placement] = {}
        self._times: dict[PolicyKey, dict[str, list[float]]] = {}
        self._deadlines: Deadlines[PodKey] = Deadlines()

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, pod: PodKey) -> Placement | None:
        """The placement of a pod, or None."""
        return self._pods.get(pod)

    def nodes(self, policy: PolicyKey) -> Mapping[str, Sequence[float]]:
        """The times of the placements of a policy by node."""
        return self._times.get(policy, {})

    def policies(self, node: str) -> list[PolicyKey]:
        """The policies that have a placement on a node."""
        return [policy for policy, nodes in self._times.items() if node in nodes]

    def add(self, pod: PodKey, placement: Placement, until: float) -> None:
        """Adds a pod that is not known yet; it is due at the time `until`."""
        self._pods[pod] = placement
        self._times.setdefault(placement.policy, {}).setdefault(placement.node, []).append(placement.time)
        self._deadlines.set(pod, until)

    def remove(self, pod: PodKey) -> Placement | None:
        """Removes a pod, and returns its placement; None if it is not known."""
        placement = self._pods.pop(pod, None)
        if placement is None:
            return None
        self._deadlines.discard(pod)
        nodes = self._times[placement.policy]
        times = nodes[placement.node]
        times.remove(placement.time)
        if not times:
            del nodes[placement.node]
            if not nodes:
                del self._times[placement.policy]
        return placement

    def remove_policy(self, policy: PolicyKey) -> None:
        """Removes all pods of a policy."""
        for pod in [pod for pod, placement in self._pods.items() if placement.policy == policy]:
            self.remove(pod)

    def due(self, now: float) -> list[PodKey]:
        """The pods whose deadline is `now` or before; each is returned once, and the caller removes it."""
        return self._deadlines.pop_due(now)
