"""Series of Prometheus as metrics of nodes: the metric and the node of a series, and which of several series counts.

The same rules hold for the answers of queries (`tas.sources.prometheus`) and for remote write
(`tas.sources.remote_write`).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from tas.sources.result import RefusalReason, ResultBuilder, Sample
from tas.values.blanks import ANY, ValueRules, has_small_blanks
from tas.values.names import is_subdomain
from tas.values.quantity import MAX_QUANTITY, Quantity, format_quantity, parse_quantity

NAME_LABEL = "__name__"
NODE_LABEL = "node"
INSTANCE_LABEL = "instance"

LOOKBACK = 120.0
"""Seconds after its last sample for which a series counts as alive: twice the longest scrape interval in common use.

The default of Prometheus is 5 minutes, and its answer gives such a value the time of the query: longer than our
default of `staleAfter`.
"""


class Aggregate(StrEnum):
    """How the values of several series of one node become one value."""

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
_Bound = int | float | str
_Part = Annotated[float, msgspec.Meta(gt=0)]
_Query = Annotated[str, msgspec.Meta(pattern=r"\S", max_length=MAX_QUERY)]


class MetricMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The series of a metric, as configured by the user.

    `query` is PromQL, for a Prometheus that is polled. `series` is the name of the series; without it, the name of the
    metric, with or without `node_` before it. `labels` are labels that a series must have. `node_label` is the label
    that holds the name of the node. Values less than `min` or more than `max` are refused; with `blanks` also those
    that are blanks of GPU exporters (`tas.values.blanks`). Values of two sources contradict each other if they differ
    by more than the part `tolerance` of the larger one (`tas.samples.contradictions`).
    """

    query: _Query | None = None
    series: _SeriesName | None = None
    labels: Mapping[LabelName, str] = {}
    node_label: LabelName | None = None
    aggregate: Aggregate | None = None
    min: _Bound | None = None
    max: _Bound | None = None
    blanks: bool = False
    tolerance: _Part | None = None

    def __post_init__(self) -> None:
        least, most = self.rules[1:]
        if least is not None and most is not None and least > most:
            raise ValueError(f"max = {self.max} is less than min = {self.min}")
        if NAME_LABEL in self.labels:
            raise ValueError(f"labels.{NAME_LABEL} is the name of the series: set the field series instead")

    @property
    def rules(self) -> ValueRules:
        """Which values count. Raises ValueError if `min` or `max` is no quantity."""
        if not self.blanks and self.min is None and self.max is None:
            return ANY
        least, most = (None if bound is None else parse_quantity(str(bound)) for bound in (self.min, self.max))
        return ValueRules(self.blanks, least, most)

    def has_small_blanks(self, metric: str) -> bool:
        """Whether the metric, its series or its query is one of DCGM."""
        return any(map(has_small_blanks, (metric, self.series or "", self.query or "")))


class Mappings(msgspec.Struct, frozen=True, kw_only=True):
    """The mapping of each metric, and the label of the node's name for mappings without `node_label`."""

    metrics: Mapping[str, MetricMapping] = {}
    node_label: str | None = None

    @property
    def tolerances(self) -> Mapping[str, float]:
        """The tolerance of each metric that has one."""
        return {name: each.tolerance for name, each in self.metrics.items() if each.tolerance is not None}

    def of(self, metric: str) -> MetricMapping:
        """The mapping of a metric; the default mapping if the metric has no entry."""
        mapping = self.metrics.get(metric, _DEFAULT)
        if mapping.node_label is None and self.node_label is not None:
            return msgspec.structs.replace(mapping, node_label=self.node_label)
        return mapping


_DEFAULT = MetricMapping()


def series_names(metric: str, mapping: MetricMapping) -> tuple[str, ...]:
    """The names that the series of a metric may have. If a node has series of several names, the first name counts."""
    return (metric, f"node_{metric}") if mapping.series is None else (mapping.series,)


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a series has the labels `wanted`; as in PromQL, an absent label has the value ""."""
    return all(labels.get(name, "") == value for name, value in wanted.items())


def node_of(labels: Mapping[str, str], node_label: str | None) -> str | None:
    """The node of a series: its label `node`, else `instance` without the port; None if it has neither.

    If the user has set `node_label`, only that label counts: a wrong node would be worse than no value.
    """
    if node_label not in (None, INSTANCE_LABEL):
        return labels.get(node_label) or None
    if node_label is None and (node := labels.get(NODE_LABEL)):
        return node
    instance = labels.get(INSTANCE_LABEL, "")
    host, colon, port = instance.rpartition(":")
    return (host if colon and port.isdigit() else instance) or None


def valid_node(builder: ResultBuilder, metric: str, labels: Mapping[str, str], node_label: str | None) -> str | None:
    """The node of a series (`node_of`); None, and the series is refused, if that is no valid name of a node."""
    node = node_of(labels, node_label)
    if node is not None and is_subdomain(node):
        return node
    if builder.counted(RefusalReason.NODE):
        return None
    places = f"{NODE_LABEL} or {INSTANCE_LABEL}" if node_label is None else node_label
    reason = f"must name a node, a lowercase DNS subdomain (RFC 1123), by its label {places}"
    builder.refuse(RefusalReason.NODE, metric, "labels", labels if node is None else node, reason)
    return None


class SeriesSample(NamedTuple):
    """The newest sample of one series. `rank` is the index of the series' name in `series_names`, the lowest counts."""

    labels: Callable[[], Mapping[str, str]]
    rank: int
    value: Quantity
    measured: float


def add_node_sample(
    builder: ResultBuilder,
    metric: str,
    node: str,
    samples: Sequence[SeriesSample],
    aggregate: Aggregate | None,
    *,
    ends: float | None = None,
) -> None:
    """Adds the value of one node, from its series; several series without an aggregate are refused, naming two.

    `ends`: when the value becomes stale, if all these series have ended.
    """
    if len(samples) == 1:  # as nearly always
        sample = samples[0]
        builder.add_sample(Sample(node=node, metric=metric, value=sample.value, measured=sample.measured, ends=ends))
        return
    best = min(sample.rank for sample in samples)
    counting = [sample for sample in samples if sample.rank == best]
    subject = f"{metric} of {node}"
    if len(counting) > 1 and aggregate is None:
        first, second = _differences(counting[0].labels(), counting[1].labels())
        reason = f"and {second}: {len(counting)} series of one node, and no aggregate says which value counts"
        builder.refuse(RefusalReason.DUPLICATE, subject, "series", first, reason, count=len(counting))
        return
    values = [sample.value for sample in counting]
    value = Quantity(values[0] if aggregate is None else _AGGREGATES[aggregate](values))
    if abs(value) > MAX_QUANTITY:
        builder.refuse(RefusalReason.VALUE, subject, str(aggregate), format_quantity(value), "is beyond 10^40")
        return
    measured = max(sample.measured for sample in counting)
    builder.add_sample(Sample(node=node, metric=metric, value=value, measured=measured, ends=ends))


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> tuple[str, str]:
    """Two series as text: the labels in which they differ, or all labels if they are equal."""
    names = sorted(name for name in first.keys() | second.keys() if first.get(name, "") != second.get(name, ""))
    return _series_text(first, names or sorted(first)), _series_text(second, names or sorted(second))


def _series_text(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return "{" + ",".join(f'{name}="{labels.get(name, "")[:60]}"' for name in names[:4]) + "}"
