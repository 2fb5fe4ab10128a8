"""Freshness: which times of samples are accepted, and until when a sample is fresh."""

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
