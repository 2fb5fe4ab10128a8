"""Of how many nodes two sources contradict each other about a metric, as metrics for an alert.

Both values may be fresh, and each source healthy: then a policy without `source` sees both in turn.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bus.connection import Bus
from bus.errors import BusError, ForbiddenError
from bus.kinds import SOURCE_STATES
from tas.samples.contradictions import Comparison
from tas.sources.state import tolerances_of
from tas.verdict.status import any_source_limits
from workers.following.followed_view import FollowedView

log = structlog.get_logger("view")

CHECK_SECONDS = 15.0

FORBIDDEN_SECONDS = 3600.0
"""So long nothing is compared if the right to read the states of sources is missing: each attempt is in the log."""

SHARE = 20
"""The pause is so many times as long as the check: two sources of 5,000 nodes with 20 metrics take 1.5 s."""

LONGEST_PAUSE_SECONDS = 120.0
"""Tens of thousands of policies make a check long, as do the other tasks that run between its pieces."""

AT_ONCE = 10
"""So many nodes are looked at in one piece, of which each has all its metrics: the event loop has other work."""

POLICIES_AT_ONCE = 10
"""So many policies are looked at in one piece: a namespace may have 100,000 rules."""

MAX_METRICS = 20
"""Of so many metrics, those with the most contradictions, there are series."""


class Compared(NamedTuple):
    """Of how many nodes sources contradict each other, and of how many several have a fresh value."""

    contradictions: int
    nodes: int


class ComparedSources(Collector):
    """Compares them again and again. Where each metric has one source, as nearly always, it reads no value."""

    def __init__(self, bus: Bus, followed: FollowedView, *, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._followed = followed
        self.found: Mapping[str, Compared] = {}
        """By metric with a contradiction; nothing while it is not known."""
        self._forbidden = False
        registry.register(self)

    async def run(self) -> None:
        """Compares until cancelled."""
        pause = CHECK_SECONDS
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                self.found = await self._compared()
            except ForbiddenError as error:
                if not self._forbidden:
                    log.info("sources_not_compared", error=str(error))
                self.found, self._forbidden, pause = {}, True, FORBIDDEN_SECONDS
                continue
            except BusError:  # which the connection reports
                self.found = {}
            pause = min(max(CHECK_SECONDS, SHARE * (time.monotonic() - began)), LONGEST_PAUSE_SECONDS)

    async def _compared(self) -> Mapping[str, Compared]:
        view = self._followed.view
        shared = await self._shared(await self._limits())
        if not shared:
            return {}
        states = [state for entry in await SOURCE_STATES.entries(self._bus) if (state := entry.readable()) is not None]
        comparison = Comparison(shared, now=time.time(), bounds=tolerances_of(states))
        for number, node in enumerate(list(view.sampled_nodes)):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            comparison.add(node, view.samples(node))
        counts: dict[str, int] = {}
        for metric in comparison.compared:
            await asyncio.sleep(0)
            if count := comparison.count(metric):
                counts[metric] = count
        worst = nsmallest(MAX_METRICS, counts, key=lambda metric: (-counts[metric], metric))
        return {metric: Compared(counts[metric], comparison.compared[metric]) for metric in worst}

    async def _limits(self) -> Mapping[str, float]:
        """As `any_source_limits` of all policies."""
        view, found = self._followed.view, dict[str, float]()
        policies = [index.policy for index in view.policies.values()]
        for start in range(0, len(policies), POLICIES_AT_ONCE):
            await asyncio.sleep(0)
            some = any_source_limits(policies[start : start + POLICIES_AT_ONCE], view.default_stale_after)
            for metric, limit in some.items():
                found[metric] = max(limit, found.get(metric, 0.0))
        return found

    async def _shared(self, limits: Mapping[str, float]) -> Mapping[str, float]:
        """Those of `limits` that several sources have of one node, fresh or not."""
        view, shared = self._followed.view, set[str]()
        for number, node in enumerate(list(view.sampled_nodes)):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            seen: set[str] = set()
            for metrics in view.series(node):
                own = metrics & limits.keys()
                shared |= seen & own
                seen |= own
        return {metric: limits[metric] for metric in shared}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics now."""
        contradictions = GaugeMetricFamily(
            "tas_metric_contradictions",
            "Nodes of which two sources have fresh values of the metric that contradict each other.",
            labels=["metric"],
        )
        compared = GaugeMetricFamily(
            "tas_metric_nodes_compared",
            "Nodes of which several sources have a fresh value of the metric; of metrics with a contradiction.",
            labels=["metric"],
        )
        for metric, found in sorted(self.found.items()):
            contradictions.add_metric([metric], found.contradictions)
            compared.add_metric([metric], found.nodes)
        yield from (contradictions, compared)
