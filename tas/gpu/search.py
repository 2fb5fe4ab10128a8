"""Finds cards for all units of a claim: the first that serve, and others instead if the claim does not fit then.

A *decision* gives a unit all its cards, or the next two of its linked cards. Decisions are tried in the order of the
original: units as the claim has them, cards by number, preferred ones first. If a unit has no decision left, the last
decision is taken back and the next one is tried, until the claim fits, nothing is left to try, or too many cards were
taken back. So the result is that of the original wherever the original finds one (facts.md g4).

States from which the claim does not fit are remembered. If links do not matter, two states are the same if they have
the same number of cards with the same free amounts.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from operator import ge
from typing import NamedTuple

from tas.gpu.claim import Claim, Options, SingleNuma, Unit
from tas.gpu.hold import NOT_USED, CardUse, Hold
from tas.gpu.inventory import Card, Inventory
from tas.gpu.names import MAX_TILES, TILES
from tas.gpu.policy_facts import PolicyFacts

NO_LINK = -1


class Chosen(NamedTuple):
    """A card that a unit is given, and the tile of its link (or `NO_LINK`)."""

    card: Card
    tile: int


Decision = tuple[Chosen, ...]
"""The cards that a unit is given at once."""


class DeadEnd(NamedTuple):
    """Where a search first came to an end.

    Attributes:
        unit: The unit for which no card was left; None if the cards have too little for all units together.
        alone: Whether no other unit had a card.
        given: The linked cards that the unit already had.
        free: What each card had free of each resource of the claim.
    """

    unit: Unit | None
    alone: bool
    given: tuple[int, ...]
    free: Mapping[int, tuple[int, ...]]


def free_tiles(card: Card, use: CardUse, facts: PolicyFacts) -> int:
    """The tiles of a card that a pod can be given, as the bits of an integer."""
    return _tiles(card) & ~use.tiles & ~disabled_tiles(card.number, facts)


def disabled_tiles(card: int, facts: PolicyFacts) -> int:
    """The tiles of a card that no pod is given, as the bits of an integer."""
    return sum(1 << tile for tile in facts.disabled_tiles.get(card, ()) if tile < MAX_TILES)


def free_amount(resource: str, card: Card, use: CardUse, facts: PolicyFacts) -> int:
    """How much of a resource a card has free; of tiles as many as can be given. Below 0 if too much is in use."""
    free = card.capacity.get(resource, 0) - use.amounts.get(resource, 0)
    if resource != TILES:
        return free
    # An adopted pod may have an amount of tiles without naming them, or name tiles without an amount.
    disabled = _tiles(card) & ~use.tiles & disabled_tiles(card.number, facts)
    return min(free - disabled.bit_count(), free_tiles(card, use, facts).bit_count())


def room(resource: str, card: Card, use: CardUse, facts: PolicyFacts) -> int:
    """How much of a resource of a card new pods can get: nothing of a disabled card."""
    return 0 if card.number in facts.disabled else max(free_amount(resource, card, use, facts), 0)


def _tiles(card: Card) -> int:
    return (1 << card.capacity.get(TILES, 0)) - 1


class Search:
    """One search for a claim on a node, with the cards that the claim may use."""

    def __init__(
        self,
        hold: Hold,
        inventory: Inventory,
        facts: PolicyFacts,
        claim: Claim,
        options: Options,
        *,
        cards: Sequence[Card],
    ) -> None:
        self._hold = hold
        self._facts = facts
        self._claim = claim
        self._resources = claim.resources
        self._units = claim.units
        self._balanced = options.balanced
        self._steps = options.steps
        self._links = _links_by_card(inventory) if claim.linked else {}
        self._cards = _preferred_first(cards, facts)
        self._domains: list[list[Card]] | None = None
        if claim.single_numa is not SingleNuma.NOTHING:
            self._domains = [[card for card in cards if card.number in node.cards] for node in inventory.numa]
        self._domain_of = {card.number: at for at, domain in enumerate(self._domains or ()) for card in domain}
        self._free = {
            card.number: [
                free_amount(each, card, hold.cards.get(card.number, NOT_USED), facts) for each in self._resources
            ]
            for card in self._cards
        }
        self._taken: dict[int, int] = {}
        self._given: list[list[int]] = [[] for _ in self._units]
        self._made: list[tuple[int, Decision]] = []
        self._dead_end: DeadEnd | None = None
        self.exhausted = False

    @property
    def dead_end(self) -> DeadEnd:
        """Where the search first came to an end, after it has found nothing."""
        assert self._dead_end is not None
        return self._dead_end

    @property
    def steps(self) -> int:
        """How many more cards the search may take back."""
        return max(self._steps, 0)

    def run(self) -> list[list[Chosen]] | None:
        """The cards of each unit of the claim, or None: then `dead_end` and `exhausted` say why."""
        domains = self._domains
        if domains is None or self._claim.single_numa is not SingleNuma.POD:
            return self._search()
        for domain in domains or [[]]:
            self._domains = [domain]
            found = self._search()
            if found is not None:
                return found
        return None

    def _search(self) -> list[list[Chosen]] | None:
        if len(self._units) > 1 and not self._is_possible():
            return None
        frames = [self._decisions(0)]
        dead: set[object] = set()
        while True:
            decision = next(frames[-1], None)
            if decision is None:
                self._came_to_an_end(self._at())
                frames.pop()
                if not frames:
                    return None
                dead.add(self._state())
                self._take_back()
                if self.exhausted:
                    break
                continue
            self._make(decision)
            at = self._at()
            if at == len(self._units):
                return self._chosen()
            if dead and self._state() in dead:
                self._take_back()
                if self.exhausted:
                    break
            else:
                frames.append(self._decisions(at))
        while self._made:
            self._take_back()
        return None

    def _is_possible(self) -> bool:
        """Whether nothing simple forbids that the claim fits.

        Each unit must fit on its own. All cards together must have enough of each resource. And whichever amount one
        looks at: so many units need as much or more, and no card can serve more of them than the amount goes into it.
        """
        for at in range(len(self._units)):
            if next(self._decisions(at), None) is None:
                self._came_to_an_end(at)
                return False
        for index in range(len(self._resources)):
            free = [max(each[index], 0) for each in self._free.values()]
            needed = 0
            served = 0
            for unit in sorted(self._units, key=lambda each: -each.needs[index]):
                need = unit.needs[index]
                needed += unit.cards * need
                served += unit.cards
                if needed > sum(free) or (need and served > sum(each // need for each in free)):
                    self._came_to_an_end(None)
                    return False
        return True

    def _at(self) -> int:
        """The index of the first unit that needs more cards; the number of units if none does."""
        at = self._made[-1][0] if self._made else 0
        return at if at < len(self._units) and len(self._given[at]) < self._units[at].cards else at + 1

    def _decisions(self, at: int) -> Iterator[Decision]:
        """What a unit may be given next, in the order of preference, in the current state."""
        unit, given = self._units[at], self._given[at]
        if unit.cards > len(self._cards):
            return
        for cards in self._candidates(given):
            if self._claim.linked:
                yield from self._linked_pairs(unit, given, cards)
            else:
                serving = [Chosen(card, NO_LINK) for card in cards if self._serves(card, unit)]
                yield from combinations(serving, unit.cards)

    def _linked_pairs(self, unit: Unit, given: Sequence[int], cards: Iterable[Card]) -> Iterator[Decision]:
        by_number = {card.number: card for card in cards}
        for card in by_number.values():
            if card.number in given or not self._serves(card, unit):
                continue
            for tile, number, partner_tile in self._links.get(card.number, ()):
                partner = by_number.get(number)
                if (
                    partner is not None
                    and number not in given
                    and self._is_free(card.number, tile)
                    and self._is_free(number, partner_tile)
                    and self._serves(partner, unit)
                ):
                    yield (Chosen(card, tile), Chosen(partner, partner_tile))

    def _candidates(self, given: Sequence[int]) -> Iterator[Sequence[Card]]:
        """The cards from which a unit gets its next one, in order: all, or those of each NUMA node in turn."""
        if self._domains is None:
            yield self._in_order(self._cards)
            return
        for domain in self._domains:
            if not given or any(card.number in given for card in domain):
                yield self._in_order(_preferred_first(domain, self._facts))

    def _in_order(self, cards: Sequence[Card]) -> Sequence[Card]:
        if not self._balanced:
            return cards
        return _preferred_first(sorted(cards, key=self._balanced_use), self._facts)

    def _balanced_use(self, card: Card) -> tuple[int, int]:
        """How much of the balanced resource of a card is in use, with what this claim is given; then the number."""
        capacity = card.capacity.get(self._balanced, 0)
        if self._balanced in self._claim.resources:
            return capacity - self._free[card.number][self._claim.resources.index(self._balanced)], card.number
        use = self._hold.cards.get(card.number, NOT_USED)
        return capacity - free_amount(self._balanced, card, use, self._facts), card.number

    def _serves(self, card: Card, unit: Unit) -> bool:
        """Whether a card has what a unit needs of it."""
        return all(map(ge, self._free[card.number], unit.needs))

    def _is_free(self, card: int, tile: int) -> bool:
        use = self._hold.cards.get(card, NOT_USED)
        return not (use.tiles | disabled_tiles(card, self._facts) | self._taken.get(card, 0)) >> tile & 1

    def _make(self, decision: Decision) -> None:
        at = self._at()
        for card, tile in decision:
            free = self._free[card.number]
            for index, need in enumerate(self._units[at].needs):
                free[index] -= need
            self._given[at].append(card.number)
            if tile != NO_LINK:
                self._taken[card.number] = self._taken.get(card.number, 0) | 1 << tile
        self._made.append((at, decision))

    def _take_back(self) -> None:
        """Takes the last decision back, a step for each of its cards."""
        at, decision = self._made.pop()
        for card, tile in decision:
            free = self._free[card.number]
            for index, need in enumerate(self._units[at].needs):
                free[index] += need
            self._given[at].pop()
            if tile != NO_LINK:
                self._taken[card.number] &= ~(1 << tile)
        self._steps -= len(decision)
        self.exhausted = self._steps <= 0

    def _state(self) -> object:
        """All on which it depends whether the other units fit; equal states need not be searched twice."""
        at = self._at()
        if self._claim.linked:
            free = tuple(map(tuple, self._free.values()))
            return at, tuple(self._given[at]), free, tuple(map(self._taken.get, self._free))
        domains = self._domain_of
        return at, tuple(sorted((domains.get(number, -1), *free) for number, free in self._free.items()))

    def _chosen(self) -> list[list[Chosen]]:
        found: list[list[Chosen]] = [[] for _ in self._units]
        for at, decision in self._made:
            found[at] += decision
        return found

    def _came_to_an_end(self, at: int | None) -> None:
        """Remembers the first dead end, of the unit `at` or of all together."""
        if self._dead_end is None:
            free = {card.number: tuple(self._free[card.number]) for card in self._cards}
            unit, given = (None, ()) if at is None else (self._units[at], tuple(self._given[at]))
            self._dead_end = DeadEnd(unit, at == 0 or not self._made, given, free)


def _preferred_first(cards: Sequence[Card], facts: PolicyFacts) -> Sequence[Card]:
    if not facts.preferred:
        return cards
    return sorted(cards, key=lambda card: card.number not in facts.preferred)


def _links_by_card(inventory: Inventory) -> dict[int, list[tuple[int, int, int]]]:
    """The links of each card, from both ends: its tile, the partner, the partner's tile; by tile, as in the label."""
    links: dict[int, list[tuple[int, int, int]]] = {}
    for link in inventory.links:
        links.setdefault(link.card, []).append((link.tile, link.partner, link.partner_tile))
        links.setdefault(link.partner, []).append((link.partner_tile, link.card, link.tile))
    for found in links.values():
        found.sort(key=lambda link: link[0])
    return links
