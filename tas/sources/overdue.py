"""For how long fresh samples of a source are overdue: what an alert about a dead source goes by.

A polled source gives samples each period. How often a source writes that writes to us (remote write) is not known: what
it did in the last minutes is its interval. So neither a long interval nor a long period looks like a dead source.
"""

from math import inf

USUAL_SECONDS = 60.0
"""The interval of a source that writes to us, until it is known: the default `scrape_interval` of Prometheus."""

LONGEST_SECONDS = 90.0
"""A longer pause between fresh samples is an outage, and no interval."""

LEARNED_SECONDS = 300.0
"""For how long at least the longest pause counts as the interval, and at most twice as long."""


class Overdue:
    """Of one source, as long as a replica has it. Times are in seconds since 1970."""

    def __init__(self, period: float | None) -> None:
        """`period` is in seconds; None for a source that writes to us."""
        self._period = period
        self._since = inf  # when samples were last fresh, or were first wanted
        self._is_fed = False
        self._began = inf  # of the present span of `LEARNED_SECONDS`
        self._pauses = (USUAL_SECONDS, 0.0)  # the longest one in the span before and in the present one

    def want(self, now: float, *, wanted: bool) -> None:
        """Notes whether policies use a metric of the source."""
        if not wanted:
            self._since, self._is_fed = inf, False
        elif self._since == inf:
            self._since = now

    def feed(self, now: float) -> None:
        """Notes that a fresh sample came, or that none can come yet."""
        if self._since == inf:
            return
        self._began = min(self._began, now)
        if self._is_fed and (pause := now - self._since) <= LONGEST_SECONDS:
            self._pauses = self._pauses[0], max(self._pauses[1], pause)
        if now - self._began >= LEARNED_SECONDS:
            self._began, self._pauses = now, (self._pauses[1], 0.0)
        self._since, self._is_fed = now, True

    def seconds(self, now: float) -> float:
        """For how long a fresh sample is overdue; 0 if none is wanted."""
        interval = max(self._pauses) if self._period is None else self._period
        return max(0.0, now - self._since - interval)
