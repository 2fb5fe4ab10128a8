"""Freshness: which times of samples are accepted, and until when a sample is fresh."""

from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE

DEFAULT_STALE_AFTER = 120.0
"""Seconds after which a sample is stale, without `staleAfter` in the policy and without the setting `--stale-after`."""


def time_fault(measured: float, now: float) -> str | None:
    """Why a sample with the time `measured` that arrives at `now` is refused; None if it is accepted."""
    if measured > now + FUTURE_TOLERANCE:
        return f"must be at most {FUTURE_TOLERANCE:g} s ahead, and is {measured - now:.0f} s ahead"
    if measured < now - MAX_SAMPLE_AGE:
        return f"must be at most {MAX_SAMPLE_AGE:g} s ago, and is {now - measured:.0f} s ago"
    return None


def stale_at(time: float, stale_after: float) -> float:
    """When a sample of `time` (`Scrape.time`) becomes stale: at exactly this time it is already stale."""
    return time + stale_after


def is_fresh(time: float, stale_after: float, now: float) -> bool:
    """Whether a sample of `time` (`Scrape.time`) is fresh at `now`. `stale_after` is in seconds."""
    return time + stale_after > now
