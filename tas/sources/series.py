"""Series of Prometheus as metrics of nodes: which series are a metric, which node one is of, what of several counts.

The same rules hold for series that were asked for (`tas.sources.prometheus`) and for those that were written to us
(`tas.sources.remote_write`).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from tas.names import is_subdomain
from tas.quantity import MAX_QUANTITY, Quantity, format_quantity
from tas.sources.reading import Gathering, Reading, Refused

NAME_LABEL = "__name__"
NODE_LABEL = "node"
INSTANCE_LABEL = "instance"

LOOKBACK = 120.0
"""Seconds after its last sample for which a series counts as alive: twice the longest scrape interval in common use.

Prometheus' own default is 5 minutes, and it tells such a value as of now: longer than what we call stale.
"""


class Aggregate(StrEnum):
    """What becomes of several series of one node."""

    MIN = "min"
    MAX = "max"
    AVG = "avg"
    SUM = "sum"


def _mean(values: Sequence[Quantity]) -> int:
    return (2 * sum(values) + len(values)) // (2 * len(values))  # to the nearest 10⁻⁹, halves up


_AGGREGATES: Mapping[Aggregate, Callable[[Sequence[Quantity]], int]] = {
    Aggregate.MIN: min,
    Aggregate.MAX: max,
    Aggregate.AVG: _mean,
    Aggregate.SUM: sum,
}


MAX_QUERY = 4000
"""Characters of a query: it travels in the URL, of which proxies take 8 KB."""

LabelName = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z_][a-zA-Z0-9_]*\Z")]
_SeriesName = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z_:][a-zA-Z0-9_:]*\Z")]
_Query = Annotated[str, msgspec.Meta(pattern=r"\S", max_length=MAX_QUERY)]


class MetricMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a metric of policies comes from, as far as a user said it.

    `query` is PromQL, for a Prometheus that is asked. `series` is the name of the series, and `labels` what they must
    carry; without a name it is the metric's own, else `node_` before it. `node_label` names the label that holds the
    node's name.
    """

    query: _Query | None = None
    series: _SeriesName | None = None
    labels: Mapping[LabelName, str] = {}
    node_label: LabelName | None = None
    aggregate: Aggregate | None = None

    def __post_init__(self) -> None:
        if NAME_LABEL in self.labels:
            raise ValueError(f"labels.{NAME_LABEL} is the name of the series: it is given as series")


class Mappings(msgspec.Struct, frozen=True, kw_only=True):
    """Each metric's mapping, and the node's label for all that name none."""

    metrics: Mapping[str, MetricMapping] = {}
    node_label: str | None = None

    def of(self, metric: str) -> MetricMapping:
        """The mapping of a metric, also of one that has no entry."""
        mapping = self.metrics.get(metric, _DEFAULT)
        if mapping.node_label is None and self.node_label is not None:
            return msgspec.structs.replace(mapping, node_label=self.node_label)
        return mapping


_DEFAULT = MetricMapping()


def series_names(metric: str, mapping: MetricMapping) -> tuple[str, ...]:
    """The names that the series of a metric may have. Of a node that has several, the first one counts."""
    return (metric, f"node_{metric}") if mapping.series is None else (mapping.series,)


def carries(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a series carries `wanted`; as in PromQL, a label that is absent has the value ""."""
    return all(labels.get(name, "") == value for name, value in wanted.items())


def node_of(labels: Mapping[str, str], node_label: str | None) -> str | None:
    """The node that a series is of: its label `node`, else `instance` without the port; None if it says none.

    A label that the user names counts alone: where it is absent, a guess at another would be worse than no value.
    """
    if node_label not in (None, INSTANCE_LABEL):
        return labels.get(node_label) or None
    if node_label is None and (node := labels.get(NODE_LABEL)):
        return node
    instance = labels.get(INSTANCE_LABEL, "")
    host, colon, port = instance.rpartition(":")
    return (host if colon and port.isdigit() else instance) or None


def named_node(gathering: Gathering, metric: str, labels: Mapping[str, str], node_label: str | None) -> str | None:
    """`node_of` a series, or None after it was refused, since it names none that can be."""
    node = node_of(labels, node_label)
    if node is not None and is_subdomain(node):
        return node
    places = f"{NODE_LABEL} or {INSTANCE_LABEL}" if node_label is None else node_label
    reason = f"must name a node, a lowercase DNS subdomain (RFC 1123), by its label {places}"
    gathering.refuse(Refused.NODE, metric, "labels", labels if node is None else node, reason)
    return None


class Point(NamedTuple):
    """The value of one series, and how to get its labels. `rank` is the place of its name in `series_names`."""

    labels: Callable[[], Mapping[str, str]]
    rank: int
    value: Quantity
    measured: float


def settle(gathering: Gathering, metric: str, node: str, points: Sequence[Point], aggregate: Aggregate | None) -> None:
    """Takes in what the series of one node say together; several without an aggregate are refused, naming two."""
    if len(points) == 1:  # as nearly always
        point = points[0]
        gathering.take(Reading(node=node, metric=metric, value=point.value, measured=point.measured))
        return
    best = min(point.rank for point in points)
    counting = [point for point in points if point.rank == best]
    subject = f"{metric} of {node}"
    if len(counting) > 1 and aggregate is None:
        first, second = _differences(counting[0].labels(), counting[1].labels())
        reason = f"and {second}: {len(counting)} series of one node, and no aggregate says which value counts"
        gathering.refuse(Refused.TWICE, subject, "series", first, reason, count=len(counting))
        return
    values = [point.value for point in counting]
    value = Quantity(values[0] if aggregate is None else _AGGREGATES[aggregate](values))
    if abs(value) > MAX_QUANTITY:
        gathering.refuse(Refused.VALUE, subject, str(aggregate), format_quantity(value), "is beyond 10^40")
        return
    measured = max(point.measured for point in counting)
    gathering.take(Reading(node=node, metric=metric, value=value, measured=measured))


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, str]:
    """Both series by the labels in which they differ; all of them if they do not."""
    names = sorted(name for name in one.keys() | other.keys() if one.get(name, "") != other.get(name, ""))
    return _series(one, names or sorted(one)), _series(other, names or sorted(other))


def _series(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return "{" + ",".join(f'{name}="{labels.get(name, "")[:60]}"' for name in names[:4]) + "}"
