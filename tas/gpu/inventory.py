"""The inventory of a node: its cards with their amounts, and how the cards are connected.

Node feature discovery and the device plugin describe the cards by labels and by amounts of the whole node. All cards
of a node are alike, so each has an equal share of an amount, rounded down (facts.md g2). A label that cannot be read
counts as missing: pods that need it do not fit, and no other pod notices. A label that can be read may name a card or a
tile that the node does not have; only this part of it is ignored. `problems` has both.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

import msgspec

from tas.errors import TasError, shortened
from tas.gpu.amounts import AmountError, Amounts, parse_amount
from tas.gpu.labels import MAX_VALUE, LabelProblem, Problems, split_values
from tas.gpu.names import (
    CARDS,
    GPU_NUMBERS,
    I915,
    MAX_CARDS,
    MAX_RESOURCES,
    MAX_TILES,
    MONITORING,
    NUMA_MAP,
    NUMBER,
    PCI_GROUPS,
    READ_FIRST,
    RESOURCE_PREFIX,
    TILES,
    XE,
    XE_LINKS,
    Number,
    card_name,
    card_number,
    tile_name,
)
from tas.values.nouns import counted

T = TypeVar("T")

_NUMBER = re.compile(NUMBER)
_LINK = re.compile(rf"({NUMBER})\.({NUMBER})-({NUMBER})\.({NUMBER})")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A card by its number, and its amounts by resource, without those of 0."""

    number: Number
    capacity: Amounts

    @property
    def name(self) -> str:
        """The name of the card: `card0`."""
        return card_name(self.number)


class Link(NamedTuple):
    """A direct connection of a tile of one card with a tile of another card, by their numbers."""

    card: Number
    tile: Number
    partner: Number
    partner_tile: Number


class NumaNode(NamedTuple):
    """A NUMA node by its number, and its cards in ascending order."""

    number: Number
    cards: tuple[Number, ...]


class Inventory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a node has.

    Attributes:
        cards: The cards in ascending order.
        node: The amounts that belong to no card (`MONITORING`).
        pci_groups: The cards of each board with several. They may name cards that the node does not have.
        links: The links, in the order of the label.
        numa: The NUMA nodes, in the order of the label. Empty if the label is missing or cannot be read.
        problems: What cannot be read, or names what the node does not have.
    """

    cards: tuple[Card, ...] = ()
    node: Amounts = {}
    pci_groups: tuple[tuple[Number, ...], ...] = ()
    links: tuple[Link, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    problems: tuple[LabelProblem, ...] = ()


class _UnreadableError(TasError, ValueError):
    """A label value that cannot be read; the message gives the reason."""


def read_inventory(labels: Mapping[str, str], allocatable: Mapping[str, str]) -> Inventory:
    """The inventory of a node by its labels and its `status.allocatable`."""
    problems = Problems()
    values = split_values(labels, problems)
    numbered = _read(GPU_NUMBERS, values, problems, _card_numbers)
    numbers = numbered or _read(CARDS, labels, problems, _named_cards) or ()
    amounts = _amounts(allocatable, problems)
    capacity = _share(amounts, len(numbers), problems)
    tiles = capacity.get(TILES)
    return Inventory(
        cards=tuple(Card(number=number, capacity=capacity) for number in numbers),
        node={resource: amount for resource, amount in amounts.items() if resource in MONITORING and amount},
        pci_groups=_read(PCI_GROUPS, values, problems, _groups) or (),
        links=tuple(_existing_links(values, numbered or (), tiles, problems)),
        numa=tuple(_existing_numa_nodes(values, frozenset(numbers), problems)),
        problems=problems.listed(),
    )


def _read(label: str, labels: Mapping[str, str], problems: Problems, read: Callable[[str], T]) -> T | None:
    """What `read` makes of a label; None if the label is missing or empty, or cannot be read: then a problem."""
    value = labels.get(label)
    if not value:
        return None
    try:
        return read(value)
    except _UnreadableError as error:
        problems.add(label, value, str(error))
        return None


def _numbers(text: str) -> list[int]:
    """The numbers in `0.1.2`."""
    found = []
    for each in text.split("."):
        if _NUMBER.fullmatch(each) is None:
            raise _UnreadableError(f"{shortened(each)} is no number of a card")
        found.append(int(each))
    return found


def _distinct(numbers: list[int]) -> tuple[int, ...]:
    """The cards in ascending order. An equal share needs their exact count, so no card may be there twice."""
    ordered = sorted(numbers)
    for number, following in pairwise(ordered):
        if number == following:
            raise _UnreadableError(f"{card_name(number)} is there twice")
    if len(ordered) > MAX_CARDS:
        raise _UnreadableError(f"{len(ordered)} cards: at most {MAX_CARDS} are read")
    return tuple(ordered)


def _card_numbers(value: str) -> tuple[int, ...]:
    return _distinct(_numbers(value))


def _named_cards(value: str) -> tuple[int, ...]:
    if len(value) > MAX_VALUE:
        raise _UnreadableError(f"is longer than {MAX_VALUE} characters")
    numbers = []
    for name in value.split("."):
        number = card_number(name)
        if number is None:
            raise _UnreadableError(f"{shortened(name)} is no name of a card")
        numbers.append(number)
    return _distinct(numbers)


def _groups(value: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sorted(set(_numbers(group)))) for group in value.split("_"))


def _amounts(allocatable: Mapping[str, str], problems: Problems) -> dict[str, int]:
    """The amounts of the node's GPU resources, at most `MAX_RESOURCES`: the record has each of them for each card."""
    amounts = {}
    given = [resource for resource in allocatable if resource.startswith(RESOURCE_PREFIX)]
    given.sort(key=lambda resource: (resource not in READ_FIRST, resource))
    for resource in given[:MAX_RESOURCES]:
        text = allocatable[resource]
        try:
            amounts[resource] = parse_amount(text)
        except AmountError as error:
            problems.add(f"allocatable {resource}", text, str(error))
    if len(given) > MAX_RESOURCES:
        reason = f"at most {MAX_RESOURCES} different ones are read"
        problems.add("allocatable", counted(len(given), "GPU resource"), reason)
    if amounts.get(I915) and amounts.get(XE):
        reason = f"the node also has {XE}, and no label says which driver a card has: no card is given to any pod"
        problems.add(f"allocatable {I915}", allocatable[I915], reason)
        del amounts[I915], amounts[XE]
    return amounts


def _share(amounts: Amounts, cards: int, problems: Problems) -> dict[str, int]:
    """The amounts of each card."""
    if not cards:
        return {}
    share = {resource: amount // cards for resource, amount in amounts.items() if resource not in MONITORING}
    if (tiles := share.get(TILES, 0)) > MAX_TILES:
        problems.add(f"allocatable {TILES}", str(amounts[TILES]), f"{tiles} tiles of each card: at most {MAX_TILES}")
        del share[TILES]
    return {resource: amount for resource, amount in share.items() if amount}


def _links(value: str) -> list[Link]:
    """The links of the label, with the places of the cards in the sorted list (facts.md g3)."""
    found = []
    for each in value.split("_"):
        match = _LINK.fullmatch(each)
        if match is None:
            raise _UnreadableError(f"{shortened(each)} is no link such as 0.0-1.0")
        found.append(Link(*map(int, match.groups())))
    return found


def _existing_links(
    values: Mapping[str, str], numbers: tuple[int, ...], tiles: int | None, problems: Problems
) -> Iterator[Link]:
    """The links between tiles that exist. `tiles` is the number of tiles of each card, None if it is not known."""
    value = values.get(XE_LINKS)
    found = dict.fromkeys(_read(XE_LINKS, values, problems, _links) or ())
    if found and value and not numbers:
        problems.add(XE_LINKS, value, f"counts the cards in {GPU_NUMBERS}, which is missing or cannot be read")
        return
    for link in found:
        text = f"{link.card}.{link.tile}-{link.partner}.{link.partner_tile}"
        highest = max(link.tile, link.partner_tile)
        if max(link.card, link.partner) >= len(numbers):
            problems.add(XE_LINKS, text, f"the node has {counted(len(numbers), 'card')}")
        elif highest >= (MAX_TILES if tiles is None else tiles):
            problems.add(XE_LINKS, text, f"the cards have no {tile_name(highest)}")
        elif link.card == link.partner:
            problems.add(XE_LINKS, text, "connects a card with itself")
        else:
            yield link._replace(card=numbers[link.card], partner=numbers[link.partner])


def _numa_nodes(value: str) -> list[NumaNode]:
    nodes = []
    for each in value.split("_"):
        number, dash, cards = each.partition("-")
        if not dash or _NUMBER.fullmatch(number) is None:
            raise _UnreadableError(f"{shortened(each)} is no NUMA node with its cards such as 0-0.1")
        nodes.append(NumaNode(int(number), tuple(sorted(_numbers(cards)))))
    _distinct(list(chain.from_iterable(node.cards for node in nodes)))
    if len({node.number for node in nodes}) < len(nodes):
        raise _UnreadableError("a NUMA node is there twice")
    return nodes


def _existing_numa_nodes(values: Mapping[str, str], cards: frozenset[int], problems: Problems) -> Iterator[NumaNode]:
    """The NUMA nodes of the label, with cards that exist."""
    for node in _read(NUMA_MAP, values, problems, _numa_nodes) or ():
        absent = [number for number in node.cards if number not in cards]
        if absent:
            text = f"{node.number}-{'.'.join(map(str, node.cards))}"
            problems.add(NUMA_MAP, text, f"the node has no {card_name(absent[0])}")
        yield node._replace(cards=tuple(number for number in node.cards if number in cards))
