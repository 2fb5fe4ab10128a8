"""Several questions to the server: some of them together, since the answer to each takes as long as the way to it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

ASKED_AT_ONCE = 20
"""So many are asked together: the server ends a connection at which 64 MiB of answers wait (facts.md n165)."""

K = TypeVar("K")
R = TypeVar("R")


async def ask_each(ask: Callable[[K], Awaitable[R]], keys: Sequence[K], *, at_once: int = ASKED_AT_ONCE) -> list[R]:
    """The answers for the keys, in their order. Raises the first error of a question."""
    found: list[R] = []
    for start in range(0, len(keys), at_once):
        found += await asyncio.gather(*map(ask, keys[start : start + at_once]))
    return found
