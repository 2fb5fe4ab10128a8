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
    largest: dict[str, int] = {}
    several: list[tuple[str, str, list[Scrape]]] = []
    for node, scrapes in samples.items():
        by_metric: dict[str, list[Scrape]] = {}
        for scrape in scrapes:
            for metric in scrape.metrics.keys() & stale_after.keys():
                if is_fresh(scrape, stale_after[metric], now):
                    by_metric.setdefault(metric, []).append(scrape)
                    largest[metric] = max(largest.get(metric, 0), abs(scrape.metrics[metric]))
        several += ((metric, node, found) for metric, found in by_metric.items() if len(found) > 1)
    return [
        found
        for metric, node, scrapes in sorted(several, key=lambda each: each[:2])
        if (found := _contradiction(metric, node, scrapes, (bounds or {}).get(metric, BOUND), largest[metric]))
    ]


def _contradiction(metric: str, node: str, scrapes: list[Scrape], bound: float, largest: int) -> Contradiction | None:
    """The largest difference beyond the bound, of values that were measured at about one time."""
    newest = max(scrape.time for scrape in scrapes)
    values = sorted((scrape.metrics[metric], scrape.source) for scrape in scrapes if newest - scrape.time <= APART)
    (low, source), (high, other) = values[0], values[-1]
    if high - low <= max(bound * max(abs(low), abs(high)), NOISE * largest):
        return None
    return Contradiction(metric, node, source, low, other, high)
