"""Which pods of a node are to leave, because policies empty their cards or tiles.

Such a pod gets a label, which tells a descheduler to evict the pod, and loses it when no reason is left. A new pod gets
none of these cards and tiles (`policy_facts`), so an evicted pod does not come back to them.
"""

from tas.devices.assignment import Assignment
from tas.devices.hold import Hold, Phase
from tas.devices.names import card_name, tile_name
from tas.devices.policy_facts import PolicyFacts


def evictions(hold: Hold, facts: PolicyFacts) -> dict[str, tuple[str, ...]]:
    """The uids of the bound pods that are to carry the label, sorted, each with its reasons."""
    if not facts.evicted and not facts.evicted_tiles:
        return {}
    return {
        uid: reasons
        for uid, held in sorted(hold.pods.items())
        if held.phase is Phase.BOUND and (reasons := _reasons(held.assignment, facts))
    }


def _reasons(assignment: Assignment, facts: PolicyFacts) -> tuple[str, ...]:
    """The cards and tiles that the pod is to leave, with their policies, sorted."""
    reasons = set()
    for share in assignment.shares():
        name = card_name(share.card)
        if policies := facts.evicted.get(share.card):
            reasons.add(f"{name} is emptied by {', '.join(policies)}")
        for tile, policies in facts.evicted_tiles.get(share.card, {}).items():
            if tile in share.tiles:
                reasons.add(f"{name}:{tile_name(tile)} is emptied by {', '.join(policies)}")
    return tuple(sorted(reasons))
