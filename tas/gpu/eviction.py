"""Which pods of a node are to leave, because policies empty their cards or tiles.

Such a pod gets a label, which tells a descheduler to evict the pod, and loses it when no reason is left. A new pod gets
none of these cards and tiles (`policy_facts`), so an evicted pod does not come back to them.

Absence is no reason to remove the label: a pod that the hold does not have as bound keeps it, and so does a pod with a
card that the node does not name.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tas.enforcing.managers import OWN_MANAGERS
from tas.gpu.assignment import Assignment
from tas.gpu.hold import Hold, Phase
from tas.gpu.inventory import read_inventory
from tas.gpu.names import EVICTION_VALUE, card_name, tile_name
from tas.gpu.policy_facts import PolicyFacts, empties_a_group, read_policy_facts

Reasons = tuple[str, ...]
"""The cards and tiles that a pod is to leave, with their policies, sorted. Empty: the pod may stay."""


class EvictionLabel(NamedTuple):
    """The label of a pod as the API server has it: its value, and the field managers that have set it."""

    value: str
    managers: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether this product has set the label, or the original: only such a label is removed."""
        return self.value == EVICTION_VALUE and not OWN_MANAGERS.isdisjoint(self.managers)

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else uses the key: this value stays."""
        return self.value != EVICTION_VALUE


def evictions(hold: Hold, facts: PolicyFacts) -> dict[str, Reasons]:
    """The uids of the bound pods that are to carry the label, sorted, each with its reasons."""
    if not facts.evicted and not facts.evicted_tiles:
        return {}
    return {
        uid: reasons
        for uid, held in sorted(hold.pods.items())
        if held.phase is Phase.BOUND and (reasons := _reasons(held.assignment, facts))
    }


def label_changes(hold: Hold, facts: PolicyFacts, labels: Mapping[str, EvictionLabel]) -> dict[str, Reasons]:
    """The uids of the bound pods whose label is to change: it is set for reasons, and removed without one.

    `labels` has the pods that carry the label, by uid.
    """
    wanted = evictions(hold, facts)
    changes = {uid: reasons for uid, reasons in wanted.items() if uid not in labels}
    for uid in sorted((labels.keys() & hold.pods.keys()) - wanted.keys()):
        if labels[uid].is_ours and hold.pods[uid].phase is Phase.BOUND:
            changes[uid] = ()
    return changes


def confirmed_changes(
    hold: Hold, node_labels: Mapping[str, str], labels: Mapping[str, EvictionLabel]
) -> dict[str, Reasons]:
    """Those changes that the labels of the node confirm, as the API server has just shown them.

    A label is not removed while a card of the pod is missing in the node's labels, or while a policy empties a PCI
    group and the node names no groups.
    """
    inventory = read_inventory(node_labels, {})
    facts = read_policy_facts(node_labels, inventory.pci_groups)
    cards = frozenset(card.number for card in inventory.cards)
    all_known = bool(inventory.pci_groups) or not empties_a_group(node_labels)
    return {
        uid: reasons
        for uid, reasons in label_changes(hold, facts, labels).items()
        if reasons or (all_known and cards.issuperset(_cards(hold.pods[uid].assignment)))
    }


def _cards(assignment: Assignment) -> Iterable[int]:
    return (share.card for share in assignment.shares())


def _reasons(assignment: Assignment, facts: PolicyFacts) -> Reasons:
    """Why a pod with these cards and tiles is to leave."""
    reasons = set()
    for share in assignment.shares():
        name = card_name(share.card)
        if policies := facts.evicted.get(share.card):
            reasons.add(f"{name} is emptied by {', '.join(policies)}")
        for tile, policies in facts.evicted_tiles.get(share.card, {}).items():
            if tile in share.tiles:
                reasons.add(f"{name}:{tile_name(tile)} is emptied by {', '.join(policies)}")
    return tuple(sorted(reasons))
