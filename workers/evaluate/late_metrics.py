"""Which metrics come late to the view, for an alert and for WORKERS.

Judged here, as here are the values that rules read, whoever measured, published and stored them.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bus.buckets import NODES
from tas.samples.pace import LateMetric, Newest, Paces, Series
from tas.verdict.status import metrics_of
from workers.following.followed_view import FollowedView

CHECK_SECONDS = 5.0

SHARE = 50
"""A pause is so many times as long as the work of the look before, but at least `CHECK_SECONDS`."""

LONGEST_PAUSE_SECONDS = 30.0
"""In the largest clusters a late metric is found so much later, and the pace of a metric is taken to be as long."""

MAX_LAG = 100
"""A view with more unread entries says nothing of sources: those of `TasViewBehind`."""

AT_ONCE = 100
"""So many nodes, whose samples did not come in tables, are looked at in one piece."""

POLICIES_AT_ONCE = 10
"""So many policies are looked at in one piece, of at most 320 rules each: a namespace may have 100,000 rules."""


class LateMetrics(Collector):
    """Looks again and again. The work goes by metrics and tables, and by nodes that have samples of their own."""

    def __init__(self, followed: FollowedView, *, registry: CollectorRegistry) -> None:
        self._followed = followed
        self._paces = Paces()
        self._worked = self._began = 0.0  # the seconds of work of this look, and when its current piece began
        self._was_current, self._away_until = False, -inf
        self.found: Sequence[LateMetric] = ()
        registry.register(self)

    async def run(self) -> None:
        """Looks until cancelled; nothing is late while the view is not complete, or has no bus."""
        pause = CHECK_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = await self._look()

    async def _look(self) -> float:
        """Returns the seconds until the next look: by its own work, and not by that of the tasks that run between."""
        self._worked, self._began = 0.0, time.monotonic()
        limits = await self._limits()
        newest = await self._newest(limits)
        now = time.time()
        if self._is_current():
            self._was_current = True
            self.found = self._paces.late(newest, limits, now, since=self._away_until)
        else:
            self.found = ()
            self._away_until = now if self._was_current else -inf
        worked = self._worked + time.monotonic() - self._began
        return min(max(CHECK_SECONDS, SHARE * worked), LONGEST_PAUSE_SECONDS)

    def _is_current(self) -> bool:
        """Whether the view has what sources publish now: else other alerts tell of the bus, or of this process."""
        lag = self._followed.watches[NODES.name].lag
        return self._followed.unready() is None and lag is not None and lag <= MAX_LAG

    async def _let_others_run(self) -> None:
        self._worked += time.monotonic() - self._began
        await asyncio.sleep(0)
        self._began = time.monotonic()

    async def _limits(self) -> dict[Series, float]:
        """The metrics that policies read, each with the longest time after which a policy counts it as stale."""
        view, found = self._followed.view, dict[Series, float]()
        for number, index in enumerate(list(view.policies.values())):
            if number % POLICIES_AT_ONCE == 0:
                await self._let_others_run()
            for use in metrics_of(index.policy):
                series = use.metric, use.source or None
                found[series] = max(view.stale_after(index.policy), found.get(series, 0.0))
        return found

    async def _newest(self, wanted: Mapping[Series, float]) -> dict[Series, Newest]:
        view, found = self._followed.view, dict[Series, Newest]()
        metrics = {metric for metric, _ in wanted}

        def note(metric: str, source: str, measured: float) -> None:
            for series in ((metric, None), (metric, source)):
                if series in wanted and (series not in found or measured > found[series].measured):
                    found[series] = Newest(measured, source)

        for metric in metrics:
            await self._let_others_run()
            for source, measured in list(view.table_times(metric)):
                note(metric, source, measured)
        for number, node in enumerate(list(view.sampled_nodes)):
            if number % AT_ONCE == 0:
                await self._let_others_run()
            for scrape in view.single_samples(node):
                for metric in metrics & scrape.metrics.keys():
                    note(metric, scrape.source, scrape.time)
        return found

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics now."""
        ages = GaugeMetricFamily(
            "tas_metric_late_seconds",
            "How old the newest value of a metric is that comes late, while others of its source do not.",
            labels=["metric", "source"],
        )
        silent = GaugeMetricFamily(
            "tas_source_silent_seconds",
            "How old the newest value of a source is of which all metrics of policies come late.",
            labels=["source"],
        )
        now = time.time()
        newest: dict[str, float] = {}
        for each in self.found:
            if each.others_come:
                ages.add_metric([each.metric, each.source], max(0.0, now - each.measured))
            else:
                newest[each.source] = max(each.measured, newest.get(each.source, 0.0))
        for source, measured in newest.items():
            silent.add_metric([source], max(0.0, now - measured))
        yield ages
        yield silent
