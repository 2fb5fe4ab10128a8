"""Which nodes are alike for claims of one shape: those with equal rooms (`tas.gpu.room`)."""

from collections.abc import Iterable, Mapping
from itertools import count

from tas.gpu.card_view import NodeCards
from tas.gpu.room import Shape, room_of

UNKNOWN = 0
"""The number of all nodes whose cards are not known."""


class CardRooms:
    """The rooms of nodes as numbers: equal rooms have the same number, and a number never means another room.

    It keeps the cards and the number of each node, and each different room once.
    """

    def __init__(self, nodes: Mapping[str, NodeCards], shape: Shape | None) -> None:
        """`nodes` stays current. Without a shape, or with preferred cards, a node has a room of its own."""
        self._nodes = nodes
        self._shape = shape
        self._known: dict[str, tuple[NodeCards, int]] = {}
        self._numbers: dict[object, int] = {}
        self._next = count(UNKNOWN + 1)

    def alike(self, candidates: Iterable[str]) -> dict[int, list[str]]:
        """The candidates by the number of their room, in their order."""
        self._forget_gone()
        nodes, known = self._nodes, self._known
        found: dict[int, list[str]] = {}
        for node in candidates:
            cards = nodes.get(node)
            if cards is None:
                number = UNKNOWN
            elif (before := known.get(node)) is not None and before[0] is cards:
                number = before[1]
            else:
                number = self._number(node, cards)
            if (others := found.get(number)) is None:
                found[number] = [node]
            else:
                others.append(node)
        return found

    def _number(self, node: str, cards: NodeCards) -> int:
        room: object = cards.version
        if self._shape is not None and not cards.facts.preferred:
            room = room_of(self._shape, cards.hold, cards.inventory, cards.facts)
        number = self._numbers.get(room)
        if number is None:
            number = self._numbers[room] = next(self._next)
        self._known[node] = cards, number
        return number

    def _forget_gone(self) -> None:
        """Forgets all if there are many nodes that are gone, or rooms that no node has any more."""
        if max(len(self._known), len(self._numbers)) > 2 * len(self._nodes) + 100:
            self._known.clear()
            self._numbers.clear()

    def __len__(self) -> int:
        """The number of rooms and nodes that are remembered."""
        return len(self._known) + len(self._numbers)
