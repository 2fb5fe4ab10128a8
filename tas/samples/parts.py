"""Parts: how a source divides its nodes among tables, so that whoever looks for one node reads few tables.

A source with many nodes has a power of two of parts, and the part of a node follows from its name alone. A source that
grows changes to more parts; for a while the tables of both layouts are stored.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

MAX_PARTS = 64
"""The most parts of a source: 64 tables of 1,000 rows."""

MAX_ROWS = 1000
"""The most rows of a table."""

FORGET_SECONDS = 3600.0
"""A node that a source has not named for so long, or twice as long, needs no row any more."""


class Part(NamedTuple):
    """One of `of` parts of the nodes of a source, from 0."""

    of: int
    number: int

    def __str__(self) -> str:
        return f"{self.of}-{self.number}"

    def has(self, node: str) -> bool:
        """Whether a node of this name belongs to the part."""
        return part_number(node, self.of) == self.number


def part_number(node: str, parts: int) -> int:
    """The number of a node's part: the CRC-32 (as of zlib) of its name in UTF-8, modulo the number of parts."""
    return crc32(node.encode()) % parts


def parts_with(node: str) -> Iterator[Part]:
    """The part of a node in each layout that a source may have."""
    of = 1
    while of <= MAX_PARTS:
        yield Part(of, part_number(node, of))
        of *= 2


def parse_part(text: str) -> Part | None:
    """The part that `<parts>-<number>` names; None for any other text."""
    parts, dash, number = text.partition("-")
    if not dash or not all(each.isdecimal() and each.isascii() and len(each) < 3 for each in (parts, number)):
        return None
    part = Part(int(parts), int(number))
    valid = 0 < part.of <= MAX_PARTS and part.of & (part.of - 1) == 0 and part.number < part.of
    return part if valid and str(part) == text else None


def divided(nodes: Iterable[str], parts: int) -> dict[Part, list[str]]:
    """The nodes of each part that has any, in their order."""
    every = [Part(parts, number) for number in range(parts)]
    found: dict[Part, list[str]] = {}
    for node in nodes:
        found.setdefault(every[part_number(node, parts)], []).append(node)
    return found


class Layout:
    """How many parts a source needs whose nodes become known little by little.

    Of each node only the hash is kept, and of at most as many as all parts have rows.

    Attributes:
        parts: So many, a power of two; never fewer than before.
    """

    def __init__(self) -> None:
        self.parts = 1
        self._since = float("-inf")
        self._recent: set[int] = set()
        self._earlier: set[int] = set()

    @property
    def nodes(self) -> int:
        """How many nodes the source has named lately."""
        return len(self._recent | self._earlier)

    def add(self, nodes: Iterable[str], now: float) -> None:
        """Takes in nodes that the source has named `now`, in seconds of a clock that is not set back."""
        if now - self._since >= FORGET_SECONDS:
            self._since = now
            self._earlier, self._recent = self._recent, set()
        named = {crc32(node.encode()) for node in nodes} - self._recent
        new = named - self._earlier
        self._recent.update(sorted(named)[: MAX_PARTS * MAX_ROWS - len(self._recent)])
        if new:
            known = self._recent | self._earlier
            while self.parts < MAX_PARTS and max(Counter(each % self.parts for each in known).values()) > MAX_ROWS:
                self.parts *= 2
