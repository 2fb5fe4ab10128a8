"""Sources that contradict each other about one metric of one node.

Of several sources the newest value counts, so a policy whose rule names no source sees both values in turn.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tas.samples.freshness import is_fresh
from tas.samples.sample import NodeSamples, Scrape
from tas.values.quantity import Quantity, format_quantity

BOUND = 0.5
"""Two values contradict each other if they differ by more than this part of the larger one."""

APART = 60.0
"""Seconds between two measurements beyond which they are not compared: meanwhile the value may have changed."""

NOISE = 0.05
"""Less than this part of the largest value that any node has of the metric is no difference: an idle node has 0.01 to
0.03."""


class Contradiction(NamedTuple):
    """The two sources of which the values of one metric of one node differ most."""

    metric: str
    node: str
    source: str
    value: Quantity
    other_source: str
    other_value: Quantity

    def __str__(self) -> str:
        one, other = format_quantity(self.value), format_quantity(self.other_value)
        return f"{self.metric} of {self.node}: {one} by {self.source}, and {other} by {self.other_source}"


def contradictions(
    samples: Mapping[str, NodeSamples],
    stale_after: Mapping[str, float],
    *,
    now: float,
    bounds: Mapping[str, float] | None = None,
) -> list[Contradiction]:
    """The contradictions between fresh values, at most one for each metric and node.

    `samples` are by node. `stale_after` has the metrics in question, each with the seconds after which its samples are
    stale. `bounds` are by metric, in place of `BOUND`. A counter that moves between two polls is no contradiction: its
    values differ by a small part.
    """
    comparison = Comparison(stale_after, now=now, bounds=bounds)
    for node, scrapes in samples.items():
        comparison.add(node, scrapes)
    return comparison.contradictions()


class Comparison:
    """The same node after node, so that other work can go on in between; the parameters are as of `contradictions`.

    Attributes:
        compared: By metric, of how many nodes several sources have a fresh value.
    """

    def __init__(
        self, stale_after: Mapping[str, float], *, now: float, bounds: Mapping[str, float] | None = None
    ) -> None:
        self._stale_after = stale_after
        self._now = now
        self._bounds = bounds or {}
        self.compared: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        # Beyond the bound. Plain tuples: the collector of garbage looks at them once.
        self._differing: dict[str, list[tuple[str, str, Quantity, str, Quantity]]] = {}

    def add(self, node: str, scrapes: NodeSamples) -> None:
        """Takes in the samples of a node."""
        by_metric: dict[str, list[Scrape]] = {}
        for scrape in scrapes:
            for metric in scrape.metrics.keys() & self._stale_after.keys():
                if is_fresh(scrape, self._stale_after[metric], self._now):
                    by_metric.setdefault(metric, []).append(scrape)
                    self._largest[metric] = max(self._largest.get(metric, 0), abs(scrape.metrics[metric]))
        for metric, found in by_metric.items():
            if len(found) > 1:
                self._compare(metric, node, found)

    def _compare(self, metric: str, node: str, scrapes: list[Scrape]) -> None:
        """Keeps the largest difference, if it is beyond the bound, of values that were measured at about one time."""
        self.compared[metric] = self.compared.get(metric, 0) + 1
        newest = max(scrape.time for scrape in scrapes)
        values = sorted((scrape.metrics[metric], scrape.source) for scrape in scrapes if newest - scrape.time <= APART)
        (low, source), (high, other) = values[0], values[-1]
        if high - low > self._bounds.get(metric, BOUND) * max(abs(low), abs(high)):
            self._differing.setdefault(metric, []).append((node, source, low, other, high))

    def count(self, metric: str) -> int:
        """Of how many nodes that were taken in there is a contradiction about the metric."""
        noise = NOISE * self._largest.get(metric, 0)
        return len([node for node, _, low, _, high in self._differing.get(metric, ()) if high - low > noise])

    def contradictions(self) -> list[Contradiction]:
        """The contradictions between what was taken in, by metric and node."""
        return sorted(
            Contradiction(metric, node, source, low, other, high)
            for metric, differing in self._differing.items()
            for node, source, low, other, high in differing
            if high - low > NOISE * self._largest[metric]
        )
