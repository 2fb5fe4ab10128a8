"""Metrics of requests and answers of the extender, by path."""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tas.extender.decision import Outcome
from tas.extender.verbs import Answer

BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, inf)
"""Upper bounds of the histogram, in seconds."""

CLIENT_GONE = 499
"""The status in metrics for a client that left before its response; never sent."""


FROM_THE_START = (200, 500, 503, 504)
"""The statuses with a count of 0 at first: an alert sees an increase only between two values."""


BY_PATH = {
    "tas_extender_rejected": "Nodes rejected by filter.",
    "tas_extender_unknown_passed": "Nodes that filter passed with an unknown metric.",
    "tas_extender_unknown_rejected": "Nodes that filter rejected for an unknown metric.",
    "tas_extender_kept_rejected": "Nodes that filter rejected by last known values.",
    "tas_extender_unknown_scored": "Nodes that prioritize scored with an unknown metric.",
    "tas_extender_pod_cost_answers": "Answers of prioritize that count costs of pods.",
}
"""Counters by path alone."""


class _VerbCounts:
    __slots__ = ("buckets", "candidates", "codes", "last", "outcomes", "seconds")

    def __init__(self) -> None:
        self.last = time.time()
        self.codes = dict.fromkeys(FROM_THE_START, 0)
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.candidates = 0
        self.seconds = 0.0
        self.buckets = [0] * len(BUCKETS)


class ExtenderMetrics(Collector):
    """Plain numbers that become metrics when scraped.

    The library's counters, eight per request, took a tenth of the time of an answer for 500 names.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts: dict[tuple[str, str], _VerbCounts] = {}
        self._by_path: dict[str, dict[str, int]] = {}
        self._unknown_paths: dict[int, int] = {}
        registry.register(self)

    def mount(self, path: str, verbs: Iterable[str]) -> None:
        """Adds these verbs below `path`, with counts of 0; what was counted before stays."""
        for verb in verbs:
            self._counts.setdefault((path, verb), _VerbCounts())
        self._by_path.setdefault(path, dict.fromkeys(BY_PATH, 0))

    def count_unknown_path(self, code: int) -> None:
        """Counts a request to a path without a verb."""
        self._unknown_paths[code] = self._unknown_paths.get(code, 0) + 1

    def observe(self, answer: Answer) -> None:
        """Counts a request to a verb, and its answer."""
        path, verb = answer.path, answer.verb
        counts = self._counts[path, verb]
        counts.codes[answer.status] = counts.codes.get(answer.status, 0) + 1
        counts.last = max(counts.last, answer.time)
        counts.seconds += answer.seconds
        counts.buckets[bisect_left(BUCKETS, answer.seconds)] += 1
        if answer.outcome is None:
            return
        counts.outcomes[answer.outcome] += 1
        counts.candidates += answer.candidates
        of_path = self._by_path[path]
        if verb == "filter" and not answer.error:
            of_path["tas_extender_rejected"] += answer.candidates - answer.passed
            of_path["tas_extender_unknown_passed"] += answer.unknown
            of_path["tas_extender_unknown_rejected"] += answer.unknown_rejected
            of_path["tas_extender_kept_rejected"] += answer.kept_rejected
        if verb == "prioritize" and not answer.error:
            of_path["tas_extender_unknown_scored"] += answer.unknown
        of_path["tas_extender_pod_cost_answers"] += answer.costed > 0

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        requests = CounterMetricFamily(
            "tas_extender_requests",
            f"Requests by path, verb and HTTP status; {CLIENT_GONE}: the client left.",
            labels=["path", "verb", "code"],
        )
        seconds = HistogramMetricFamily(
            "tas_extender_request_seconds", "Seconds from a request's headers to its response.", labels=["path", "verb"]
        )
        decisions = CounterMetricFamily(
            "tas_extender_decisions", "Decisions by outcome.", labels=["path", "verb", "outcome"]
        )
        candidates = CounterMetricFamily(
            "tas_extender_candidates", "Candidate nodes in requests.", labels=["path", "verb"]
        )
        # From the start on, so that a replica that has just started does not look like one that nobody asks.
        last = GaugeMetricFamily(
            "tas_extender_last_request_timestamp_seconds",
            "When the last request came; before the first one, when the extender began to serve the path.",
            labels=["path", "verb"],
        )
        for (path, verb), counts in self._counts.items():
            for code, count in counts.codes.items():
                requests.add_metric([path, verb, str(code)], count)
            cumulative = zip(map(floatToGoString, BUCKETS), accumulate(counts.buckets), strict=True)
            seconds.add_metric([path, verb], buckets=list(cumulative), sum_value=counts.seconds)
            for outcome, count in counts.outcomes.items():
                decisions.add_metric([path, verb, outcome], count)
            candidates.add_metric([path, verb], counts.candidates)
            last.add_metric([path, verb], counts.last)
        for code, count in self._unknown_paths.items():
            requests.add_metric(["", "", str(code)], count)
        yield from (requests, seconds, decisions, candidates, last)
        for name, text in BY_PATH.items():
            counter = CounterMetricFamily(name, text, labels=["path"])
            for path, counts_of_path in self._by_path.items():
                counter.add_metric([path], counts_of_path[name])
            yield counter
