"""The GPU cards of a node in NODES, and who has them in HOLDS."""

from collections.abc import Mapping
from functools import cached_property

import msgspec

from bus.records.codec import reader
from tas.errors import InvalidInputError
from tas.gpu.hold import Held, Hold, HoldError, hold_of
from tas.gpu.inventory import Inventory
from tas.gpu.names import MAX_CARDS, MAX_TILES, TILES
from tas.gpu.policy_facts import PolicyFacts


class NodeInventory(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `<node>.inventory` in NODES.

    Attributes:
        uid: Of the node.
        inventory: The cards, and the problems of the labels and amounts that describe them.
        facts: What policies say about the cards, and the problems of their labels.
    """

    uid: str
    inventory: Inventory
    facts: PolicyFacts = PolicyFacts()


class NodeHold(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Value of `<node>` in HOLDS.

    Attributes:
        uid: Of the node.
        pods: What each pod has, by its uid.
    """

    uid: str
    pods: Mapping[str, Held] = {}

    @cached_property
    def hold(self) -> Hold:
        """The hold with its sums, which take longer than the decoding of the pods. Raises HoldError."""
        return hold_of(self.pods)


_read_inventory = reader("inventory of a node", NodeInventory)
_read_hold = reader("hold of a node", NodeHold)


def decode_inventory(data: bytes) -> NodeInventory:
    """The value of `<node>.inventory` in NODES. Raises InvalidInputError."""
    found = _read_inventory(data)
    cards = found.inventory.cards
    numbers = [card.number for card in cards[: MAX_CARDS + 1]]
    if len(numbers) > MAX_CARDS:
        raise InvalidInputError("inventory of a node", "cards", len(cards), f"must be at most {MAX_CARDS}")
    if numbers != sorted(set(numbers)):
        raise InvalidInputError("inventory of a node", "cards", numbers, "must be in ascending order, each once")
    tiles = max((card.capacity.get(TILES, 0) for card in cards), default=0)
    if tiles > MAX_TILES:
        raise InvalidInputError("inventory of a node", TILES, tiles, f"must be at most {MAX_TILES} of each card")
    return found


def decode_hold(data: bytes) -> NodeHold:
    """The value of `<node>` in HOLDS. Raises InvalidInputError, also if the pods cannot have their cards together."""
    found = _read_hold(data)
    try:
        found.hold  # noqa: B018 - remembered
    except HoldError as error:
        raise InvalidInputError("hold of a node", "pods", len(found.pods), str(error)) from error
    return found
