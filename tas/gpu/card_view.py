"""What is known of the GPU cards of each node: its inventory, its policy facts, and its hold.

The inventory and the hold of a node arrive separately. A node is unknown if one is missing or cannot be read, or
if one is of another node of the same name: then no pod that needs cards is placed on it.
"""

from collections.abc import Mapping
from itertools import count
from types import MappingProxyType
from typing import NamedTuple

from tas.gpu.hold import Hold
from tas.gpu.inventory import Inventory
from tas.gpu.policy_facts import PolicyFacts


class NodeCards(NamedTuple):
    """The cards of a node: what there is, what policies say about it, and who has it.

    `version` is another one after each change, so that what follows from the cards can be remembered. `uid` is that of
    the node.
    """

    inventory: Inventory
    facts: PolicyFacts
    hold: Hold
    version: int = 0
    uid: str = ""


class CardView:
    """The cards of all nodes, kept up to date.

    Attributes:
        nodes: The cards of each known node; the mapping stays current.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeCards] = {}
        self._inventories: dict[str, tuple[str, Inventory, PolicyFacts]] = {}
        self._holds: dict[str, tuple[str, Hold]] = {}
        self._versions = count(1)
        self.nodes: Mapping[str, NodeCards] = MappingProxyType(self._nodes)

    def set_inventory(self, node: str, uid: str, inventory: Inventory, facts: PolicyFacts) -> None:
        """The cards of the node with this uid, and what policies say about them."""
        self._inventories[node] = uid, inventory, facts
        self._combine(node)

    def drop_inventory(self, node: str) -> None:
        """The node is gone, or its inventory cannot be read."""
        self._inventories.pop(node, None)
        self._combine(node)

    def set_hold(self, node: str, uid: str, hold: Hold) -> None:
        """Who has the cards of the node with this uid."""
        self._holds[node] = uid, hold
        self._combine(node)

    def drop_hold(self, node: str) -> None:
        """Nobody knows who has the cards of a node."""
        self._holds.pop(node, None)
        self._combine(node)

    def drop_holds(self) -> None:
        """Nobody knows who has which card: a new epoch of the holds has begun."""
        for node in tuple(self._holds):
            self.drop_hold(node)

    def _combine(self, node: str) -> None:
        inventory, hold = self._inventories.get(node), self._holds.get(node)
        if inventory is None or hold is None or inventory[0] != hold[0]:
            self._nodes.pop(node, None)
        else:
            self._nodes[node] = NodeCards(inventory[1], inventory[2], hold[1], next(self._versions), hold[0])
