"""What the pods of each node request, as `inventory` has stored it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tas.allocation.node import NodeAllocation

AllocationFollower = Callable[[str, NodeAllocation | None], None]
"""Called with a node and its allocation after each change; None: nothing is known of it any more."""


class AllocationView:
    """The allocations of all nodes, kept up to date.

    Attributes:
        nodes: The allocation of each known node; the mapping stays current.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeAllocation] = {}
        self._followers: list[AllocationFollower] = []
        self.nodes: Mapping[str, NodeAllocation] = MappingProxyType(self._nodes)

    def follow(self, follower: AllocationFollower) -> None:
        """Calls `follower` with all nodes, and from now on after each change."""
        self._followers.append(follower)
        for node, allocation in self._nodes.items():
            follower(node, allocation)

    def set_node(self, node: str, allocation: NodeAllocation) -> None:
        """The allocation of a node."""
        self._nodes[node] = allocation
        self._tell(node, allocation)

    def drop_node(self, node: str) -> None:
        """The node is gone, or its allocation cannot be read: then nothing is known of it."""
        if self._nodes.pop(node, None) is not None:
            self._tell(node, None)

    def clear(self) -> None:
        """Forgets all nodes, for a new epoch."""
        for node in tuple(self._nodes):
            self.drop_node(node)

    def _tell(self, node: str, allocation: NodeAllocation | None) -> None:
        for follower in self._followers:
            follower(node, allocation)
