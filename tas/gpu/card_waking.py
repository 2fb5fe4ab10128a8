"""Waking pods that wait for cards: which node is annotated, and when, so that the scheduler tries the pods again.

The scheduler tries the pods again when a pod that used cards is deleted, but then `gpu` may not know yet that the cards
are free. After the change of a policy's label it is the same, and a reservation that ends changes nothing that the
scheduler watches. So while a pod waits for cards, a node gets an annotation with a new value after its inventory or its
hold has changed on the bus, where `gpu` reads them too. The times are those of `tas.enforcing.waking`:

- at once when a pod has lost cards of a node, or the cards of a node or what policies say about them have changed; and
  again after 1.5, 3 and 6 s, since a `gpu` may be behind;
- 5 s after a pod begins to wait, or a node becomes known; then less and less often, at last every minute.
"""

from collections.abc import Collection, Set
from math import inf
from typing import NamedTuple

from tas.enforcing.pod import UNSCHEDULABLE
from tas.enforcing.waking import QUICK, NodeWakes
from tas.gpu.inventory import Inventory
from tas.gpu.policy_facts import PolicyFacts
from tas.gpu.refusal import TEXTS


def waits_for_cards(*, reason: str, message: str) -> bool:
    """Whether a pod waits for cards, by the reason and the message of its condition `PodScheduled` that is False.

    A pod that lacks only another resource does not wait for cards, nor does a pod that every node refuses for ever.
    """
    return reason == UNSCHEDULABLE and any(text in message for text in TEXTS.values())


class _Node(NamedTuple):
    """A node whose cards and hold are known. `holders` are the uids of the pods that have cards."""

    uid: str
    inventory: Inventory
    facts: PolicyFacts
    holders: Set[str]


class CardWakes(NodeWakes[_Node]):
    """The pods that wait for cards, and the nodes.

    It holds the uid of each waiting pod, and for each node what the caller holds anyway.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pods: set[str] = set()
        self._freed_at = -inf

    @property
    def waiting(self) -> int:
        """The number of pods that wait for cards."""
        return len(self._pods)

    def set_pods(self, waiting: Collection[str], *, at: float) -> None:
        """Notes the uids of all pods that wait."""
        for uid in self._pods.difference(waiting):
            self.drop_pod(uid)
        for uid in waiting:
            self.set_pod(uid, at=at)

    def set_pod(self, uid: str, *, at: float) -> None:
        """Notes that a pod waits."""
        if uid in self._pods:
            return
        self._pods.add(uid)
        # The cards may have been free between the rejection of the pod and the news of the rejection.
        if at - self._freed_at <= sum(QUICK):
            self._at_once(at)
        else:
            self.soon(at)

    def drop_pod(self, uid: str) -> None:
        """Notes that a pod does not wait; an unknown pod is fine."""
        self._pods.discard(uid)

    def set_node(
        self, name: str, uid: str, inventory: Inventory, facts: PolicyFacts, holders: Set[str], *, at: float
    ) -> None:
        """Applies the cards and the hold of a node as they are on the bus."""
        before, node = self._nodes.get(name), _Node(uid, inventory, facts, holders)
        self._nodes[name] = node
        if before is None or before.uid != uid:
            if self._pods:
                self.soon(at)
            return
        if before.holders <= holders and before.inventory == inventory and before.facts == facts:
            return
        self._freed_at = at
        self._nodes.move_to_end(name, last=False)
        if self._pods:
            self._at_once(at)

    def drop_nodes(self) -> None:
        """Forgets all nodes: a new epoch of the bus brings them again."""
        self._nodes.clear()
