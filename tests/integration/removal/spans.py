"""Spans of time, and what can be said of several: seconds since 1970, from the first to the second."""

from collections.abc import Iterable, Sequence
from math import inf

Span = tuple[float, float]

ALWAYS: Span = (-inf, inf)


def union(spans: Iterable[Span], *, gap: float = 0.0) -> list[Span]:
    """What any of them covers, in order; `gap`: so short an interruption is none."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] <= span[1]):
        if found and start <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def intersection(one: Iterable[Span], other: Sequence[Span]) -> list[Span]:
    """What both cover."""
    both = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return union(both)


def outside(spans: Iterable[Span], within: Span) -> list[Span]:
    """What of `within` none of them covers."""
    found, start = [], within[0]
    for begin, end in intersection(spans, [within]):
        if begin > start:
            found.append((start, begin))
        start = max(start, end)
    return found if start >= within[1] else [*found, (start, within[1])]


def lasting(spans: Iterable[Span], seconds: float) -> list[Span]:
    """When one of them has lasted for so long."""
    return [(start + seconds, end) for start, end in spans if end - start >= seconds]
