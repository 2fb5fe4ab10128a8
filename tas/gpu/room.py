"""The room of a node: all of its cards on which it depends whether claims of one shape fit.

Many nodes of a cluster are alike: empty, full, or with pods of the same templates. A claim that fits on one of them
fits on all others with an equal room, so a request about thousands of nodes needs a decision for each different room
only.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tas.gpu.assigning import usable_cards
from tas.gpu.claim import Claim, SingleNuma
from tas.gpu.hold import NOT_USED, Hold
from tas.gpu.inventory import Inventory
from tas.gpu.policy_facts import PolicyFacts
from tas.gpu.search import free_amount


class Shape(NamedTuple):
    """What a claim asks for, without its amounts.

    Attributes:
        resources: Of each card.
        node_resources: Of the node as a whole.
        allow: The only cards that may be used; None: all.
        deny: Cards that must not be used.
    """

    resources: tuple[str, ...]
    node_resources: tuple[str, ...]
    allow: frozenset[int] | None
    deny: frozenset[int]


def shape_of(claim: Claim) -> Shape | None:
    """The shape of a claim; None if it also matters which card is which: with links and NUMA nodes."""
    if claim.linked or claim.single_numa is not SingleNuma.NOTHING:
        return None
    return Shape(claim.resources, tuple(claim.node_amounts), claim.allow, claim.deny)


def room_of(shape: Shape, hold: Hold, inventory: Inventory, facts: PolicyFacts) -> object:
    """What decides whether and how well claims of a shape fit on a node; nodes with equal rooms are alike for them.

    The free amounts of each card that the claims may use, in any order; those of the node; for scores, what all cards
    have and what is in use. A pod that already has cards of the node is a matter of its own, and so are preferred
    cards, which change a score.
    """
    resources = shape.resources
    free = Counter(
        tuple([free_amount(resource, card, hold.cards.get(card.number, NOT_USED), facts) for resource in resources])
        for card in usable_cards(inventory, facts, allow=shape.allow, deny=shape.deny)
    )
    node = tuple([inventory.node.get(each, 0) - hold.node.get(each, 0) for each in shape.node_resources])
    capacity = _sums(resources, [card.capacity for card in inventory.cards])
    used = _sums(resources, [hold.cards[card.number].amounts for card in inventory.cards if card.number in hold.cards])
    return tuple(sorted(free.items())), node, capacity, used


def _sums(resources: Sequence[str], amounts: Sequence[Mapping[str, int]]) -> tuple[int, ...]:
    return tuple([sum([each.get(resource, 0) for each in amounts]) for resource in resources])
