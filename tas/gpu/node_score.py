"""The score of a node for a pod that needs GPU cards: by how full the node is, and by preferred cards.

A score depends only on its own node, so it is the same whichever other candidates a request has.
"""

from tas.gpu.assigning import assign
from tas.gpu.assignment import Assignment
from tas.gpu.card_score import CardScore
from tas.gpu.claim import Claim, Options
from tas.gpu.hold import NOT_USED, Hold
from tas.gpu.inventory import Inventory
from tas.gpu.policy_facts import PolicyFacts
from tas.scoring.score import MAX_SCORE

PREFERENCE = 3
"""The part of a score that only preferred cards give. The rest is for how full the node is."""


def card_score(
    hold: Hold, inventory: Inventory, facts: PolicyFacts, claim: Claim, options: Options, *, by: CardScore
) -> int:
    """The score of a node on which the claim fits: from 0 to 10.

    `pack` and `spread` give up to 7, by the fullest of the requested resources once the pod is on the node. Preferred
    cards give the other 3, in proportion to the containers that get one; with `prefer` they give all 10.
    A claim without cards scores 0 on every node.
    """
    if not claim.units:
        return 0
    most = PREFERENCE if by is not CardScore.PREFER else MAX_SCORE
    preferred = _preferred(hold, inventory, facts, claim, options, most=most) if facts.preferred else 0
    if by is CardScore.PREFER:
        return preferred
    full = _fullness(hold, inventory, claim, MAX_SCORE - PREFERENCE)
    return preferred + (full if by is CardScore.PACK else MAX_SCORE - PREFERENCE - full)


def _fullness(hold: Hold, inventory: Inventory, claim: Claim, most: int) -> int:
    """How full the fullest of the claim's resources is with the claim: from 0 to `most`, rounded half up."""
    uses = [hold.cards.get(card.number, NOT_USED).amounts for card in inventory.cards]
    fullest = 0
    for index, resource in enumerate(claim.resources):
        capacity = sum(card.capacity.get(resource, 0) for card in inventory.cards)
        used = sum(use.get(resource, 0) for use in uses)
        if claim.uid not in hold.pods:
            used += sum(unit.cards * unit.needs[index] for unit in claim.units)
        if capacity:
            fullest = max(fullest, (2 * most * min(used, capacity) + capacity) // (2 * capacity))
    return fullest


def _preferred(
    hold: Hold, inventory: Inventory, facts: PolicyFacts, claim: Claim, options: Options, *, most: int
) -> int:
    """The share of `most` for the containers that get a preferred card, rounded half up."""
    found = assign(hold, inventory, facts, claim, options)
    if not isinstance(found, Assignment):
        return 0
    containers = [slot for slot in found.slots if slot.shares]
    preferred = sum(any(share.card in facts.preferred for share in slot.shares) for slot in containers)
    return (2 * most * preferred + len(containers)) // (2 * len(containers)) if containers else 0
