"""What the pods of each node request, as `inventory` has stored it."""

from collections.abc import Mapping
from types import MappingProxyType

from tas.allocation.node import NodeAllocation


class AllocationView:
    """The allocations of all nodes, kept up to date.

    Attributes:
        nodes: The allocation of each known node; the mapping stays current.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeAllocation] = {}
        self.nodes: Mapping[str, NodeAllocation] = MappingProxyType(self._nodes)

    def set_node(self, node: str, allocation: NodeAllocation) -> None:
        """The allocation of a node."""
        self._nodes[node] = allocation

    def drop_node(self, node: str) -> None:
        """The node is gone, or its allocation cannot be read: then nothing is known of it."""
        self._nodes.pop(node, None)

    def clear(self) -> None:
        """Forgets all nodes, for a new epoch."""
        self._nodes.clear()
