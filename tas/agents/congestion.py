"""The agent `congestion`: prefers nodes whose network is not congested.

The original reads a factor that somebody else writes. Without a factor, ours derives one from the traffic of a node.
"""

from typing import Annotated, ClassVar

import msgspec
import numpy as np

from tas.agents.agent import Agent, Candidates, Columns, FloatArray, Needs, PodDemand, Scores
from tas.agents.usage import MetricName

Limit = Annotated[float, msgspec.Meta(gt=0)]


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A direction of a node's network.

    Attributes:
        traffic: The metric with its traffic.
        capacity: The largest traffic in the same unit, of every node.
        capacity_metric: The metric with the largest traffic of a node, which counts where it is known.
    """

    traffic: MetricName
    capacity: Limit | None = None
    capacity_metric: str = ""

    def __post_init__(self) -> None:
        if self.capacity is None and not self.capacity_metric:
            raise ValueError("must have capacity or capacity_metric: else the link never counts")


class CongestionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `congestion`.

    Attributes:
        factor: The metric with the congestion factor: 0 is none, `limit` the worst.
        limit: The largest factor.
        links: What a factor is derived from where `factor` is not known: the fullest of them counts.
        drops: The metric with the part of packets that are lost, 0 to 1; it counts like a link that is as full.
    """

    factor: MetricName = "congestion-factor"
    limit: Limit = 100.0
    links: tuple[Link, ...] = ()
    drops: str = ""


class Congestion(Agent):
    """The score falls in proportion to the congestion factor."""

    Options: ClassVar[type[CongestionOptions]] = CongestionOptions

    def __init__(self, options: CongestionOptions) -> None:
        self._options = options

    @property
    def needs(self) -> Needs:
        """The metrics of the factor, and of what it is derived from."""
        options = self._options
        links = (name for each in options.links for name in (each.traffic, each.capacity_metric))
        return Needs(metrics=tuple(dict.fromkeys(name for name in (options.factor, *links, options.drops) if name)))

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        """1 - factor / limit; a negative factor is none, one above the limit is the limit."""
        values, factor = nodes.derived("score", self._score_of_nodes)
        return Scores(values=values, known=np.isfinite(factor), terms={"factor": factor})

    def _score_of_nodes(self, nodes: Columns) -> FloatArray:
        """The score and the factor, which is NaN where it is not known."""
        given, limit = nodes.metric(self._options.factor), self._options.limit
        factor = np.clip(np.where(np.isfinite(given), given, self._from_links(nodes)), 0.0, limit)
        return np.array((1.0 - np.where(np.isfinite(factor), factor, 0.0) / limit, factor))

    def _from_links(self, nodes: Columns) -> FloatArray:
        """Limit · the fullest link, or the part of lost packets if that is larger; NaN where nothing is known."""
        fullest = np.full(len(nodes.names), np.nan)
        for link in self._options.links:
            capacity = np.full(len(nodes.names), np.nan if link.capacity is None else link.capacity)
            if link.capacity_metric:
                measured = nodes.metric(link.capacity_metric)
                capacity = np.where(np.isfinite(measured), measured, capacity)
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                fullest = np.fmax(fullest, np.where(capacity > 0, nodes.metric(link.traffic) / capacity, np.nan))
        if self._options.drops:
            fullest = np.fmax(fullest, nodes.metric(self._options.drops))
        factor: FloatArray = self._options.limit * np.clip(fullest, 0.0, 1.0)
        return factor
