"""What policies say about the cards of a node: labels `telemetry.aware.scheduling.<policy>/gas-…`.

A policy with `labeling` sets such a label while its rule is violated, for example because a card is too hot. Several
policies may say the same about one card or tile: it counts once, until the last of them has removed its label.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tas.gpu.labels import LabelProblem, Problems
from tas.gpu.names import MAX_TILES, NUMBER, Number, card_number, tile_number
from tas.policy.policy import LABEL_PREFIX

FACT_PREFIX = "gas-"
PCI_GROUP = "PCI_GROUP"
"""The value by which a label of one card also concerns the other cards of its PCI groups."""

_DISABLE = "gas-disable-"
_EVICT = "gas-deschedule-pods-"
_PREFER = "gas-prefer-gpu"
_TILE_DISABLE = "gas-tile-disable-"
_TILE_EVICT = "gas-tile-deschedule-"
_TILE_PREFER = "gas-tile-preferred-"

_CARD_AND_TILE = re.compile(rf"card({NUMBER})_gt({NUMBER})")

Policies = tuple[str, ...]
"""The names of the policies that say something, sorted."""


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What policies say about cards by their number, and about tiles by card and tile.

    What is disabled or evicted has the names of the policies that say so.

    Attributes:
        disabled: Cards that no pod is given any more, including those of `evicted`.
        evicted: Cards whose pods are to leave.
        preferred: Cards that pods are given first, in ascending order.
        disabled_tiles: Tiles that no pod is given any more, including those of `evicted_tiles`.
        evicted_tiles: Tiles whose pods are to leave.
        preferred_tiles: Tiles of a card that pods are given first, in ascending order.
        problems: What cannot be read.
    """

    disabled: Mapping[Number, Policies] = {}
    evicted: Mapping[Number, Policies] = {}
    preferred: tuple[Number, ...] = ()
    disabled_tiles: Mapping[Number, Mapping[Number, Policies]] = {}
    evicted_tiles: Mapping[Number, Mapping[Number, Policies]] = {}
    preferred_tiles: Mapping[Number, tuple[Number, ...]] = {}
    problems: tuple[LabelProblem, ...] = ()


NO_FACTS = PolicyFacts()

_Cards = defaultdict[int, set[str]]
_Tiles = defaultdict[int, defaultdict[int, set[str]]]


def read_policy_facts(labels: Mapping[str, str], pci_groups: Iterable[Sequence[int]]) -> PolicyFacts:
    """The policy facts in the labels of a node, whose PCI groups are those of its inventory.

    A label that cannot be read concerns no card. A card or a tile that the node does not have is ignored.
    """
    reader = _Reader(pci_groups)
    for key, value in labels.items():
        policy, slash, name = key.removeprefix(LABEL_PREFIX).partition("/")
        if key.startswith(LABEL_PREFIX) and slash and "/" not in name and name.startswith(FACT_PREFIX):
            reason = reader.take_in(policy, name, value)
            if reason:
                reader.problems.add(key, value, reason)
    return reader.facts()


def empties_a_group(labels: Mapping[str, str]) -> bool:
    """Whether a label of the node empties a card with the other cards of its PCI groups."""
    return any(
        key.startswith(LABEL_PREFIX) and key.rpartition("/")[2].startswith(_EVICT) and value == PCI_GROUP
        for key, value in labels.items()
    )


class _Reader:
    """Collects facts from labels, in any order."""

    def __init__(self, pci_groups: Iterable[Sequence[int]]) -> None:
        self._groups: defaultdict[int, list[Sequence[int]]] = defaultdict(list)
        for group in pci_groups:
            for card in group:
                self._groups[card].append(group)
        self._disabled: _Cards = defaultdict(set)
        self._evicted: _Cards = defaultdict(set)
        self._preferred: set[int] = set()
        self._disabled_tiles: _Tiles = defaultdict(lambda: defaultdict(set))
        self._evicted_tiles: _Tiles = defaultdict(lambda: defaultdict(set))
        self._preferred_tiles: defaultdict[int, set[int]] = defaultdict(set)
        self.problems = Problems()

    def take_in(self, policy: str, name: str, value: str) -> str:
        """Adds the fact of a label; returns why the label cannot be read, or an empty text."""
        if name == _PREFER:
            return self._take_in_preference(value)
        if name.startswith((_DISABLE, _EVICT)):
            return self._take_in_card(policy, name, value)
        if name.startswith((_TILE_DISABLE, _TILE_EVICT)):
            return self._take_in_tile(policy, name)
        if name.startswith(_TILE_PREFER):
            return self._take_in_tile_preference(name, value)
        return "is no known name of a label about GPUs"

    def facts(self) -> PolicyFacts:
        """Everything that was taken in."""
        return PolicyFacts(
            disabled=_sorted(self._disabled),
            evicted=_sorted(self._evicted),
            preferred=tuple(sorted(self._preferred)),
            disabled_tiles={card: _sorted(tiles) for card, tiles in sorted(self._disabled_tiles.items())},
            evicted_tiles={card: _sorted(tiles) for card, tiles in sorted(self._evicted_tiles.items())},
            preferred_tiles={card: tuple(sorted(tiles)) for card, tiles in sorted(self._preferred_tiles.items())},
            problems=self.problems.listed(),
        )

    def _take_in_preference(self, value: str) -> str:
        card = card_number(value)
        if card is None:
            return "must be the name of a card such as card0"
        self._preferred.add(card)
        return ""

    def _take_in_card(self, policy: str, name: str, value: str) -> str:
        card = card_number(name.removeprefix(_EVICT).removeprefix(_DISABLE))
        if card is None:
            return "the name must end with a card such as card0"
        for each in self._concerned(card, value):
            self._disabled[each].add(policy)
            if name.startswith(_EVICT):
                self._evicted[each].add(policy)
        return ""

    def _take_in_tile_preference(self, name: str, value: str) -> str:
        card, tile = card_number(name.removeprefix(_TILE_PREFER)), tile_number(value)
        if card is None or tile is None:
            return "the name must end with a card such as card0, and the value must be a tile such as gt0"
        if tile < MAX_TILES:
            self._preferred_tiles[card].add(tile)
        return ""

    def _take_in_tile(self, policy: str, name: str) -> str:
        match = _CARD_AND_TILE.fullmatch(name.removeprefix(_TILE_EVICT).removeprefix(_TILE_DISABLE))
        if match is None:
            return "the name must end with a card and a tile such as card0_gt0"
        card, tile = int(match[1]), int(match[2])
        if tile < MAX_TILES:
            self._disabled_tiles[card][tile].add(policy)
            if name.startswith(_TILE_EVICT):
                self._evicted_tiles[card][tile].add(policy)
        return ""

    def _concerned(self, card: int, value: str) -> frozenset[int]:
        """The cards that a label of `card` concerns. Without a PCI group, only the card itself is known."""
        if value != PCI_GROUP:
            return frozenset((card,))
        return frozenset((card,)).union(*self._groups.get(card, ()))


def _sorted(policies: Mapping[int, set[str]]) -> dict[int, Policies]:
    return {number: tuple(sorted(names)) for number, names in sorted(policies.items())}
