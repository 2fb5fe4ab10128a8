"""The annotations of a pod that say which cards and tiles its containers have.

The device plugin reads them, so the format is exactly that of the original: containers in the order of the spec are
separated by `|`, their cards by `,`, and tiles by `+`: `card0,card1||card2` and `card0:gt0+gt1,card1:gt0||card2:gt3`
(facts.md g6, g7).
"""

from collections.abc import Mapping

from tas.gpu.assignment import Assignment, SlotAssignment
from tas.gpu.labels import LabelProblem, Problems
from tas.gpu.names import (
    CONTAINER_CARDS,
    CONTAINER_TILES,
    MAX_CARDS,
    TIMESTAMP,
    card_name,
    card_number,
    tile_name,
    tile_number,
)

MAX_ANNOTATION = 256 << 10
"""The most characters of an annotation that are read: the API server accepts no more for all of a pod."""


def annotations(assignment: Assignment, nanoseconds: int) -> dict[str, str]:
    """The annotations of a pod with this assignment, which was made so many nanoseconds after 1970.

    Empty for a pod without cards. No two pods of a node may have the same time: by it the device plugin decides which
    pod gets its cards next.
    """
    if not any(slot.shares for slot in assignment.slots):
        return {}
    found = {TIMESTAMP: str(nanoseconds), CONTAINER_CARDS: cards_text(assignment)}
    tiles = tiles_text(assignment)
    return found | {CONTAINER_TILES: tiles} if tiles else found


def cards_text(assignment: Assignment) -> str:
    """The value of `gas-container-cards`."""
    return "|".join(",".join(card_name(share.card) for share in slot.shares) for slot in assignment.slots)


def tiles_text(assignment: Assignment) -> str:
    """The value of `gas-container-tiles`; empty if no container has tiles.

    The cards of a container are in ascending order: the place of a card counts, not its name (facts.md g8).
    """
    if not any(share.tiles for share in assignment.shares()):
        return ""
    return "|".join(",".join(_tiles_texts(slot)) for slot in assignment.slots)


def _tiles_texts(slot: SlotAssignment) -> list[str]:
    shares = sorted((share.card, share.tiles) for share in slot.shares if share.tiles)
    return [f"{card_name(card)}:{'+'.join(map(tile_name, tiles))}" for card, tiles in shares]


def parse_cards(text: str) -> tuple[tuple[tuple[int, ...], ...], tuple[LabelProblem, ...]]:
    """The cards of each container in `gas-container-cards`, and what cannot be read of it."""
    problems = Problems()
    containers = []
    for segment in _segments(CONTAINER_CARDS, text, problems):
        cards: dict[int, None] = {}
        for name in segment:
            number = card_number(name)
            if number is None:
                problems.add(f"annotation {CONTAINER_CARDS}", name, "is no name of a card")
            else:
                cards[number] = None
        containers.append(tuple(cards))
    return tuple(containers), problems.listed()


def parse_tiles(text: str) -> tuple[tuple[Mapping[int, tuple[int, ...]], ...], tuple[LabelProblem, ...]]:
    """The tiles of each container by card in `gas-container-tiles`, and what cannot be read of it."""
    problems = Problems()
    containers = []
    for segment in _segments(CONTAINER_TILES, text, problems):
        tiles: dict[int, dict[int, None]] = {}
        for item in segment:
            name, _, rest = item.partition(":")
            card = card_number(name)
            numbers = [tile_number(each) for each in rest.split("+")]
            if card is None or None in numbers:
                problems.add(f"annotation {CONTAINER_TILES}", item, "is no card with its tiles such as card0:gt0+gt1")
            if card is not None:
                tiles.setdefault(card, {}).update((each, None) for each in numbers if each is not None)
        containers.append({card: tuple(found) for card, found in tiles.items() if found})
    return tuple(containers), problems.listed()


def _segments(annotation: str, text: str, problems: Problems) -> list[list[str]]:
    """The items of each container; a container with more than `MAX_CARDS` has none."""
    if len(text) > MAX_ANNOTATION:
        problems.add(f"annotation {annotation}", text, f"is longer than {MAX_ANNOTATION} characters")
        return []
    found = []
    for segment in text.split("|"):
        items = segment.split(",") if segment else []
        if len(items) > MAX_CARDS:
            problems.add(f"annotation {annotation}", segment, f"{len(items)} cards: at most {MAX_CARDS} are read")
            items = []
        found.append(items)
    return found
