"""Freshness: which times of samples are accepted, until when a sample is fresh, and until when its value is kept.

A *kept* value is the newest value of a series without a fresh one. With `onStale: keep` it counts in `dontschedule`,
and nowhere else: a node that was sick when it fell silent gets no pods. It is the node's only if it was measured at or
after the node was created, and it counts until `keepFor` after it was measured. The end that a source has reported
(`Scrape.ends`) makes a value stale, and does not end this time: a node that is gone from its source is silent.
"""

from math import inf

from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE, Scrape

DEFAULT_STALE_AFTER = 120.0
"""Seconds after which a sample is stale, without `staleAfter` in the policy and without the setting `--stale-after`."""


def time_fault(measured: float, now: float) -> str | None:
    """Why a sample with the time `measured` that arrives at `now` is refused; None if it is accepted."""
    if measured > now + FUTURE_TOLERANCE:
        return f"must be at most {FUTURE_TOLERANCE:g} s ahead, and is {measured - now:.0f} s ahead"
    if measured < now - MAX_SAMPLE_AGE:
        return f"must be at most {MAX_SAMPLE_AGE:g} s ago, and is {now - measured:.0f} s ago"
    return None


def stale_time(time: float, stale_after: float, ends: float | None) -> float:
    """When a sample of `time` becomes stale: at exactly this time it is already stale. `stale_after` is in seconds.

    `ends` is the end of a series that its source has reported (`Scrape.ends`); it can only make a sample stale earlier.
    """
    return time + stale_after if ends is None else min(time + stale_after, ends)


def stale_at(scrape: Scrape, stale_after: float) -> float:
    """`stale_time` of the samples of a scrape."""
    return stale_time(scrape.time, stale_after, scrape.ends)


def is_fresh(scrape: Scrape, stale_after: float, now: float) -> bool:
    """Whether the samples of a scrape are fresh at `now`. `stale_after` is in seconds."""
    return stale_at(scrape, stale_after) > now


def kept_until(time: float, keep_for: float, kept_from: float) -> float:
    """When a value that was measured at `time` is kept no more: at exactly this time it does not count.

    `keep_for` is in seconds. Values of the node are kept if they were measured at `kept_from` or later (`kept_from`);
    an earlier one has ended always.
    """
    return time + keep_for if time >= kept_from else -inf


def kept_from(*, listed: bool, created: float | None, cluster: bool, released: float = -inf) -> float:
    """Since when a value is one of this node's, in seconds since 1970; infinite: no value is.

    Args:
        listed: Whether the API server has the node, as far as is known.
        created: When it created the node, if known. Without this time a value may be that of an earlier node.
        cluster: Whether there is a complete list of nodes: a node that is not in the list is none. Without a cluster
            the name is the node.
        released: When somebody has released the node: earlier values do not count.
    """
    if listed:
        return inf if created is None else max(created, released)
    return inf if cluster else released
