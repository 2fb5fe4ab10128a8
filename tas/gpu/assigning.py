"""Which cards of a node a pod gets: a function of what is there, who has it, what policies say, and the claim.

1. Only cards count that no policy disables and no wish of the pod excludes.
2. `search` finds cards for all containers: first for those of `gas-same-gpu`, then for the others in the order of the
   spec.
3. Tiles are chosen last, so that no container takes the tile of another one's link: first the tile of the link, then
   preferred tiles, then the lowest.

The same values always give the same result. The amounts that a claim needs of the node as a whole are checked as well.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.errors import line_of
from tas.gpu.amounts import amount_text
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.claim import Claim, Options, SingleNuma, Unit
from tas.gpu.hold import NOT_USED, Hold
from tas.gpu.inventory import Card, Inventory
from tas.gpu.names import ALLOW, CARDS, DENY, GPU_NUMBERS, NUMA_MAP, TILES, XE_LINKS
from tas.gpu.policy_facts import PolicyFacts
from tas.gpu.refusal import Cause, Refusal
from tas.gpu.search import NO_LINK, Chosen, DeadEnd, Search, free_amount, free_tiles
from tas.values.nouns import counted


def assign(
    hold: Hold, inventory: Inventory, facts: PolicyFacts, claim: Claim, options: Options
) -> Assignment | Refusal:
    """What the claim gets of the node, or why it gets nothing. A pod that the hold has keeps what it has.

    The caller adds the result to the hold. A refusal is never permanent: what the node has may change.
    """
    held = hold.pods.get(claim.uid)
    if held is not None:
        return held.assignment
    reason = _missing(hold, inventory, claim)
    if reason:
        return _refused(reason)
    usable = usable_cards(inventory, facts, allow=claim.allow, deny=claim.deny)
    search = Search(hold, inventory, facts, claim, options, cards=usable)
    chosen = search.run() if claim.units else []
    if chosen is None:
        return _refusal(search, inventory, facts, claim, options)
    return _assignment(hold, facts, claim, chosen)


class Fit(NamedTuple):
    """Whether a claim fits on a node, and how many steps of search are left for the next node.

    `exhausted`: not known, because no steps are left.
    """

    fits: bool
    steps: int
    exhausted: bool = False


STEP_COMPARISONS = 50
"""How many comparisons of a unit with a card count as a step: they take the longest if a claim has many units.

So 10,000 steps take half a second at most, whatever the claim is.
"""


def fits(hold: Hold, inventory: Inventory, facts: PolicyFacts, claim: Claim, options: Options) -> bool:
    """Whether `assign` finds an assignment."""
    return fits_within(hold, inventory, facts, claim, options, steps=options.steps).fits


def fits_within(
    hold: Hold, inventory: Inventory, facts: PolicyFacts, claim: Claim, options: Options, *, steps: int
) -> Fit:
    """Whether `assign` finds an assignment in `steps`: for filter, which asks about thousands of nodes.

    Filter needs no reasons. Without any search a node takes no steps, so it is also answered if none are left.
    """
    if claim.uid in hold.pods:
        return Fit(fits=True, steps=steps)
    if _missing(hold, inventory, claim):
        return Fit(fits=False, steps=steps)
    if not claim.units:
        return Fit(fits=True, steps=steps)
    if len(claim.units) == 1 and not claim.linked and claim.single_numa is SingleNuma.NOTHING:
        return Fit(fits=_has_enough(hold, inventory, facts, claim), steps=steps)
    usable = usable_cards(inventory, facts, allow=claim.allow, deny=claim.deny)
    left = steps - len(claim.units) * len(claim.resources) * len(usable) // STEP_COMPARISONS
    if left <= 0:
        return Fit(fits=False, steps=0, exhausted=True)
    search = Search(hold, inventory, facts, claim, msgspec.structs.replace(options, steps=left), cards=usable)
    found = search.run() is not None
    return Fit(fits=found, steps=search.steps, exhausted=search.exhausted)


def _has_enough(hold: Hold, inventory: Inventory, facts: PolicyFacts, claim: Claim) -> bool:
    """Whether enough cards serve the only unit of a claim, whichever it gets. A search takes several times as long."""
    (unit,) = claim.units
    missing = unit.cards
    for card in usable_cards(inventory, facts, allow=claim.allow, deny=claim.deny):
        use = hold.cards.get(card.number, NOT_USED)
        for resource, need in zip(claim.resources, unit.needs, strict=True):
            if free_amount(resource, card, use, facts) < need:
                break
        else:
            missing -= 1
            if not missing:
                return True
    return False


def _missing(hold: Hold, inventory: Inventory, claim: Claim) -> str:
    """What the node as a whole lacks, or an empty text."""
    for resource, need in claim.node_amounts.items():
        if inventory.node.get(resource, 0) - hold.node.get(resource, 0) < need:
            return f"the node has too little {resource}"
    if not claim.units:
        return ""
    if not inventory.cards:
        return f"no cards: neither label {GPU_NUMBERS} nor {CARDS} can be read"
    if claim.linked and not inventory.links:
        return f"no links: label {XE_LINKS} is missing or cannot be read"
    if claim.single_numa is not SingleNuma.NOTHING and not inventory.numa:
        return f"no numa map: label {NUMA_MAP} is missing or cannot be read"
    return ""


def usable_cards(
    inventory: Inventory, facts: PolicyFacts, *, allow: frozenset[int] | None, deny: frozenset[int]
) -> Sequence[Card]:
    """The cards that no policy disables, and that a claim with these wishes may use."""
    if not facts.disabled and allow is None and not deny:
        return inventory.cards
    return [card for card in inventory.cards if not _exclusion(card, facts, allow=allow, deny=deny)]


def _exclusion(card: Card, facts: PolicyFacts, *, allow: frozenset[int] | None, deny: frozenset[int]) -> str:
    """Why a claim with these wishes must not use a card, or an empty text."""
    if card.number in facts.disabled:
        return f"disabled by {', '.join(facts.disabled[card.number])}"
    if allow is not None and card.number not in allow:
        return f"not in {ALLOW}"
    if card.number in deny:
        return f"in {DENY}"
    return ""


def _assignment(hold: Hold, facts: PolicyFacts, claim: Claim, chosen: Sequence[Sequence[Chosen]]) -> Assignment:
    """The assignment with the chosen cards, with tiles."""
    cards: dict[int, Sequence[Chosen]] = {}
    for unit, found in zip(claim.units, chosen, strict=True):
        cards.update(dict.fromkeys(unit.slots, found))
    free = _Tiles(hold, facts)
    for index, found in cards.items():
        if claim.slots[index].amounts.get(TILES):
            for card, tile in found:
                free.take_link(card, tile)
    slots = []
    for index, slot in enumerate(claim.slots):
        tiles = slot.amounts.get(TILES, 0)
        shares = [
            Share(card=card.number, amounts=slot.amounts, tiles=free.take(card, tile, tiles) if tiles else ())
            for card, tile in cards.get(index, ())
        ]
        slots.append(SlotAssignment(container=slot.container, shares=tuple(shares)))
    return Assignment(slots=tuple(slots), node_amounts=claim.node_amounts)


class _Tiles:
    """The free tiles of cards while those of one claim are chosen."""

    def __init__(self, hold: Hold, facts: PolicyFacts) -> None:
        self._hold = hold
        self._facts = facts
        self._free: dict[int, int] = {}

    def take_link(self, card: Card, tile: int) -> None:
        """Takes the tile of a link."""
        if tile != NO_LINK:
            self._free[card.number] = self._of(card) & ~(1 << tile)

    def take(self, card: Card, link: int, count: int) -> tuple[int, ...]:
        """So many tiles: the tile of the link, which was taken before, then preferred ones, then the lowest."""
        found = [] if link == NO_LINK else [link]
        free = self._of(card)
        preferred = self._facts.preferred_tiles.get(card.number, ())
        for tile in (*preferred, *range(free.bit_length())):
            if len(found) < count and free >> tile & 1:
                found.append(tile)
                free &= ~(1 << tile)
        self._free[card.number] = free
        return tuple(found)

    def _of(self, card: Card) -> int:
        free = self._free.get(card.number)
        if free is None:
            free = free_tiles(card, self._hold.cards.get(card.number, NOT_USED), self._facts)
        return free


def _refused(reason: str, cards: Mapping[int, str] | None = None) -> Refusal:
    return Refusal(cause=Cause.WILL_NOT_FIT, reason=reason, cards=cards or {})


def _refusal(search: Search, inventory: Inventory, facts: PolicyFacts, claim: Claim, options: Options) -> Refusal:
    """Why a search found nothing."""
    end = search.dead_end
    if search.exhausted:
        reason = f"no assignment was found in {options.steps} steps"
    elif claim.single_numa is SingleNuma.POD:
        reason = "no NUMA node has room for all containers"
    elif end.alone and end.unit is not None:
        reason = _reason(end.unit, claim)
    else:
        reason = "the containers do not fit together"
    return _refused(reason, {card.number: _card_reason(card, end, facts, claim) for card in inventory.cards})


def _reason(unit: Unit, claim: Claim) -> str:
    """Why a unit does not fit, although it gets its cards before all others."""
    names = [claim.slots[slot].container for slot in unit.slots]
    who = line_of(f"container{'s' if len(names) > 1 else ''} {', '.join(names)}")
    if claim.linked:
        return f"fewer than {unit.cards} linked cards have room for {who}"
    if claim.single_numa is not SingleNuma.NOTHING:
        return f"no NUMA node has {counted(unit.cards, 'card')} with room for {who}"
    return f"no card has room for {who}" if unit.cards == 1 else f"fewer than {unit.cards} cards have room for {who}"


def _card_reason(card: Card, end: DeadEnd, facts: PolicyFacts, claim: Claim) -> str:
    """What a card could do for the unit of a dead end."""
    if exclusion := _exclusion(card, facts, allow=claim.allow, deny=claim.deny):
        return exclusion
    free = [max(each, 0) for each in end.free[card.number]]
    if end.unit is None:
        return ", ".join(f"{name}: {amount_text(each)} free" for name, each in zip(claim.resources, free, strict=True))
    if card.number in end.given:
        return "the container already has it"
    lacking = [
        f"{name}: needs {amount_text(need)}, {amount_text(each)} free"
        for name, need, each in zip(claim.resources, end.unit.needs, free, strict=True)
        if each < need
    ]
    if lacking:
        return ", ".join(lacking)
    if claim.linked:
        return "has room, but no free link to a card with room"
    return "has room"
