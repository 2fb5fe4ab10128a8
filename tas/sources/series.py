"""Series of Prometheus as metrics of nodes: the metric and the node of a series, and which of several series counts.

The same rules hold for the answers of queries (`tas.sources.prometheus`) and for remote write
(`tas.sources.remote_write`).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Annotated, NamedTuple

import msgspec

from tas.errors import shortened
from tas.sources.nodes import host_of
from tas.sources.result import RefusalReason, ResultBuilder, Sample
from tas.values.blanks import ANY, ValueRules, has_small_blanks
from tas.values.quantity import MAX_QUANTITY, Quantity, format_quantity, parse_quantity

NAME_LABEL = "__name__"
NODE_LABEL = "node"
INSTANCE_LABEL = "instance"
JOB_LABEL = "job"
_JOB_LABELS = frozenset((JOB_LABEL, INSTANCE_LABEL, "service", "endpoint", "metrics_path"))
"""What a job says of itself and of its way to an exporter; the Prometheus Operator adds service and endpoint."""

REPLICA_LABELS = (
    "prometheus_replica",
    "replica",
    "__replica__",
    "receive_replica",
    "rule_replica",
    "thanos_ruler_replica",
)
"""The labels by which replicas of one Prometheus differ, unless the user names others (facts.md n70).

Not `prometheus` and not `cluster`: these tell apart servers of different clusters, which may have the same addresses.
"""

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
    Series that differ in `replica_labels` alone are of replicas of one Prometheus.
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
    replica_labels: tuple[LabelName, ...] | None = None

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
    """The mapping of each metric, and the labels for mappings without `node_label` or `replica_labels`."""

    metrics: Mapping[str, MetricMapping] = {}
    node_label: str | None = None
    replica_labels: tuple[str, ...] = REPLICA_LABELS

    @property
    def tolerances(self) -> Mapping[str, float]:
        """The tolerance of each metric that has one."""
        return {name: each.tolerance for name, each in self.metrics.items() if each.tolerance is not None}

    def of(self, metric: str) -> MetricMapping:
        """The mapping of a metric; the default mapping if the metric has no entry."""
        mapping = self.metrics.get(metric, _DEFAULT)
        node_label = self.node_label if mapping.node_label is None else mapping.node_label
        replica_labels = self.replica_labels if mapping.replica_labels is None else mapping.replica_labels
        return msgspec.structs.replace(mapping, node_label=node_label, replica_labels=replica_labels)


_DEFAULT = MetricMapping()


def series_names(metric: str, mapping: MetricMapping) -> tuple[str, ...]:
    """The names that the series of a metric may have. If a node has series of several names, the first name counts."""
    return (metric, f"node_{metric}") if mapping.series is None else (mapping.series,)


SeriesId = str
"""The labels of a series as one text: there are many, and the garbage collector does not visit texts."""


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a series has the labels `wanted`; as in PromQL, an absent label has the value ""."""
    return all(labels.get(name, "") == value for name, value in wanted.items())


def _place(labels: Mapping[str, str], node_label: str | None) -> tuple[str, str]:
    """The label that says of which node a series is, and its value; empty if the series does not have it.

    The label `node`, else `instance`. If the user has set `node_label`, only that label counts: a wrong node would be
    worse than no value.
    """
    if node_label is not None:
        return node_label, labels.get(node_label, "")
    if node := labels.get(NODE_LABEL):
        return NODE_LABEL, node
    return INSTANCE_LABEL, labels.get(INSTANCE_LABEL, "")


def valid_node(builder: ResultBuilder, metric: str, labels: Mapping[str, str], node_label: str | None) -> str | None:
    """The node of a series, one of `builder.nodes`; None, and the series is refused, if its label means no node."""
    label, text = _place(labels, node_label)
    is_instance = label == INSTANCE_LABEL
    node = builder.nodes.find(text, is_instance=is_instance) if text else None
    if node is None:
        if text:
            builder.refuse_node(metric, label, text, lambda: builder.nodes.why_not(text, is_instance=is_instance))
        elif not builder.counted(RefusalReason.NODE):
            places = f"{NODE_LABEL} or {INSTANCE_LABEL}" if node_label is None else node_label
            builder.refuse(RefusalReason.NODE, metric, "labels", labels, f"must name a node, by its label {places}")
    return node


class Identity(NamedTuple):
    """What tells a series apart from the other ones of a node.

    `series` are its labels without those of replicas, which are `replica`; `content` are its labels also without those
    of the `job` that scrapes it, but with the port. Each may be a hash.
    """

    series: Hashable
    replica: SeriesId
    content: Hashable
    job: str


def identity_of(labels: Mapping[str, str], replica_labels: Collection[str]) -> Identity:
    """The identity of a series. Labels are ordered by name: two senders may send them in different orders."""
    present = sorted((name, value) for name, value in labels.items() if value)
    others = [label for label in present if label[0] not in replica_labels]
    replica = [label for label in present if label[0] in replica_labels]
    content = [label for label in others if label[0] not in _JOB_LABELS]
    return Identity(
        series=_series_id(others),
        replica=_series_id(replica),
        content=(_port(labels.get(INSTANCE_LABEL, "")), _series_id(content)),
        job=labels.get(JOB_LABEL, ""),
    )


def _series_id(labels: Iterable[tuple[str, str]]) -> SeriesId:
    return "\0".join(chain.from_iterable(labels))


class SeriesSample(NamedTuple):
    """The newest sample of one series. `rank` is the index of the series' name in `series_names`, the lowest counts.

    `has_ended`: the source has ended the series. `identity` is given if it is known.
    """

    labels: Callable[[], Mapping[str, str]]
    rank: int
    value: Quantity
    measured: float
    has_ended: bool = False
    identity: Identity | None = None


def newest_of_replicas(samples: Sequence[SeriesSample], replica_labels: Collection[str]) -> Sequence[SeriesSample]:
    """Of series that differ in the labels of replicas alone the one with the newest sample.

    At equal times always the same replica's: the first by its labels. A series that has ended comes after the others.
    """
    best: dict[Hashable, tuple[bool, float, SeriesId, list[SeriesSample]]] = {}
    for sample in samples:
        series, replica, *_ = sample.identity or identity_of(sample.labels(), replica_labels)
        ended, measured = sample.has_ended, sample.measured
        other = best.get(series)
        if other is not None and replica == other[2]:
            other[3].append(sample)  # one replica has two series with the same labels: they are no replicas
        elif other is None or (ended, -measured, replica) < (other[0], -other[1], other[2]):
            best[series] = (ended, measured, replica, [sample])
    return [sample for *_, chosen in best.values() for sample in chosen]


def add_node_sample(
    builder: ResultBuilder,
    metric: str,
    node: str,
    samples: Sequence[SeriesSample],
    aggregate: Aggregate | None,
    *,
    replica_labels: Collection[str] | None = None,
    is_plain: bool = False,
    ends: float | None = None,
) -> None:
    """Adds the value of one node, from its series; several series without an aggregate are refused, naming two.

    Of series that differ in `replica_labels` alone (None: the usual ones) one counts (`newest_of_replicas`).
    `is_plain`: none has such a label, and all are of one job, which saves looking for them. `ends`: when the value
    becomes stale, if all these series have ended.
    """
    replica_labels = REPLICA_LABELS if replica_labels is None else replica_labels
    if len(samples) > 1 and not is_plain:
        samples = [
            sample if sample.identity else sample._replace(identity=identity_of(sample.labels(), replica_labels))
            for sample in samples
        ]
        samples = newest_of_replicas(samples, replica_labels)
    if len(samples) == 1:  # as nearly always
        sample = samples[0]
        builder.add_sample(Sample(node=node, metric=metric, value=sample.value, measured=sample.measured, ends=ends))
        return
    best = min(sample.rank for sample in samples)
    counting = [sample for sample in samples if sample.rank == best]
    subject = f"{metric} of {node}"
    if len(counting) > 1:
        jobs = _two_jobs(builder, node, counting)
        if jobs is not None or aggregate is None:
            one, other = (sample.labels() for sample in jobs or counting[:2])
            first, second = _differences(one, other, replica_labels)
            reason = f"{len(counting)} series of one node, and no aggregate says which value counts"
            if jobs is not None:
                names = " and ".join(shortened(labels.get(JOB_LABEL, "")) for labels in (one, other))
                reason = f"two jobs, {names}, scrape the same exporter of node {node}: choose one by its labels"
            reason = f"and {second}: {reason}"
            builder.refuse(RefusalReason.DUPLICATE, subject, "series", first, reason, count=len(counting))
            return
    values = [sample.value for sample in counting]
    value = Quantity(values[0] if aggregate is None else _AGGREGATES[aggregate](values))
    if abs(value) > MAX_QUANTITY:
        builder.refuse(RefusalReason.VALUE, subject, str(aggregate), format_quantity(value), "is beyond 10^40")
        return
    measured = max(sample.measured for sample in counting)
    builder.add_sample(Sample(node=node, metric=metric, value=value, measured=measured, ends=ends))


def _two_jobs(
    builder: ResultBuilder, node: str, samples: Sequence[SeriesSample]
) -> tuple[SeriesSample, SeriesSample] | None:
    """Two series that two jobs have from the same exporter of a node: an aggregate would have its values twice."""
    seen: dict[Hashable, SeriesSample] = {}
    for sample in samples:
        if sample.identity is None:
            continue
        other = seen.setdefault(sample.identity.content, sample)
        if other.identity is not None and other.identity.job != sample.identity.job:
            exporters = {_exporter(builder, node, each.labels().get(INSTANCE_LABEL, "")) for each in (other, sample)}
            if len(exporters) == 1:
                return other, sample
    return None


def _exporter(builder: ResultBuilder, node: str, instance: str) -> str:
    """What is scraped: of a node, which has names and addresses, the port says it."""
    return _port(instance) if builder.nodes.find(instance, is_instance=True) == node else instance


def _port(instance: str) -> str:
    return instance[len(host_of(instance)) :].rpartition(":")[2]


def _differences(
    first: Mapping[str, str], second: Mapping[str, str], replica_labels: Collection[str]
) -> tuple[str, str]:
    """Two series as text: the labels in which they differ, or all labels if they are equal.

    Without those of replicas, in which they may differ; the label `job` first.
    """
    names = sorted(
        (name for name in first.keys() | second.keys() if first.get(name, "") != second.get(name, "")),
        key=lambda name: (name in replica_labels, name != JOB_LABEL, name),
    )
    names = [name for name in names if name not in replica_labels] or names
    return _series_text(first, names or sorted(first)), _series_text(second, names or sorted(second))


def _series_text(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return "{" + ",".join(f'{name}="{labels.get(name, "")[:60]}"' for name in names[:4]) + "}"
