"""Spans of time in seconds since 1970, with both ends, and their union, intersection and difference."""

from collections.abc import Iterable, Sequence
from math import inf

Span = tuple[float, float]

ALWAYS: Span = (-inf, inf)


def union(spans: Iterable[Span], *, gap: float = 0.0) -> list[Span]:
    """The time that any span covers, in order; interruptions of at most `gap` seconds are closed."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] <= span[1]):
        if found and start <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def intersection(one: Iterable[Span], other: Sequence[Span]) -> list[Span]:
    """The time that both cover."""
    both = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return union(both)


def outside(spans: Iterable[Span], within: Span) -> list[Span]:
    """The time in `within` that no span covers."""
    found, start = [], within[0]
    for begin, end in intersection(spans, [within]):
        if begin > start:
            found.append((start, begin))
        start = max(start, end)
    return found if start >= within[1] else [*found, (start, within[1])]


def lasting(spans: Iterable[Span], seconds: float) -> list[Span]:
    """The time of each span after its first `seconds`."""
    return [(start + seconds, end) for start, end in spans if end - start >= seconds]
