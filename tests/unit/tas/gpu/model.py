"""Models of the rules in the simplest terms, written from the description of the original and not from the product."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

Use = dict[str, int]


@dataclass
class Machine:
    """A node: what each card has, what is in use, pairs of linked tiles, and NUMA nodes."""

    cards: list[int]
    capacity: Mapping[str, int]
    used: dict[int, Use] = field(default_factory=dict)
    used_tiles: dict[int, set[int]] = field(default_factory=dict)
    links: Sequence[tuple[int, int, int, int]] = ()
    numa: Sequence[Sequence[int]] = ()
    unusable: frozenset[int] = frozenset()
    balanced: str = ""


@dataclass
class Ask:
    """A container: the number of its cards, and what it needs of each."""

    cards: int
    needs: Mapping[str, int]


class Books:
    """What is in use of each card."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.used = {card: dict(machine.used.get(card, {})) for card in machine.cards}

    def serves(self, card: int, needs: Mapping[str, int]) -> bool:
        """Whether the card has what is needed."""
        capacity, used = self.machine.capacity, self.used[card]
        return card not in self.machine.unusable and all(
            capacity.get(name, 0) > 0 and used.get(name, 0) + need <= capacity[name] for name, need in needs.items()
        )

    def book(self, card: int, needs: Mapping[str, int]) -> None:
        for name, need in needs.items():
            self.used[card][name] = self.used[card].get(name, 0) + need

    def in_order(self) -> list[int]:
        """The cards as the original tries them: by number, or the least used first."""
        return sorted(self.machine.cards, key=lambda card: (self.used[card].get(self.machine.balanced, 0), card))


def original(machine: Machine, asks: Sequence[Ask], *, xelink: bool = False) -> list[list[int]] | None:
    """The cards of each container by the greedy order of the original; None if it finds none.

    With NUMA nodes, a group that does not serve leaves nothing behind: that the original left it was a defect.
    """
    books = Books(machine)
    taken = {card: set(machine.used_tiles.get(card, ())) for card in machine.cards}
    found = []
    for ask in asks:
        for group in machine.numa or [machine.cards]:
            before = {card: dict(used) for card, used in books.used.items()}
            own = _linked(books, taken, ask, group) if xelink else _plain(books, ask, group)
            if own is not None:
                found.append(own)
                break
            books.used = before
        else:
            return None
    return found


def _plain(books: Books, ask: Ask, group: Sequence[int]) -> list[int] | None:
    own: list[int] = []
    for _ in range(ask.cards):
        for card in books.in_order():
            if card in group and card not in own and books.serves(card, ask.needs):
                books.book(card, ask.needs)
                own.append(card)
                break
        else:
            return None
    return own


def _linked(books: Books, taken: dict[int, set[int]], ask: Ask, group: Sequence[int]) -> list[int] | None:
    own: list[int] = []
    lost: list[tuple[int, int]] = []
    while len(own) < ask.cards:
        pair = _pair(books, taken, ask, group, own)
        if pair is None:
            for card, tile in lost:
                taken[card].discard(tile)
            return None
        for card, tile in pair:
            books.book(card, ask.needs)
            taken[card].add(tile)
            own.append(card)
            lost.append((card, tile))
    return own


def _pair(
    books: Books, taken: Mapping[int, set[int]], ask: Ask, group: Sequence[int], own: Sequence[int]
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    def serves(card: int) -> bool:
        return card in group and card not in own and books.serves(card, ask.needs)

    for card in books.in_order():
        for left, tile, right, right_tile in sorted(books.machine.links, key=lambda link: link[1]):
            ends = ((left, tile), (right, right_tile))
            if left == card and all(serves(end) and number not in taken[end] for end, number in ends):
                return ends
    return None


def arrangements(machine: Machine, asks: Sequence[Ask]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to give cards to plain containers, by trying everything."""
    for cards in product(*(combinations(machine.cards, ask.cards) for ask in asks)):
        books = Books(machine)
        if all(_all_served(books, ask, own) for ask, own in zip(asks, cards, strict=True)):
            yield cards


def _all_served(books: Books, ask: Ask, own: Sequence[int]) -> bool:
    for card in own:
        if not books.serves(card, ask.needs):
            return False
        books.book(card, ask.needs)
    return True
