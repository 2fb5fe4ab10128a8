"""Series of remote write as metrics of nodes.

A sender spreads its series over many requests, but the value of a node may need several series. So the newest sample of
each relevant series is stored for as long as the series counts as alive. After a restart the store is empty, and the
next requests fill it again.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple

from tas.errors import shortened
from tas.samples.freshness import time_fault
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.sources.jumps import Jumps
from tas.sources.nodes import ANY_NODE, NodeNames
from tas.sources.result import RefusalReason, ResultBuilder, SourceResult, with_suspect
from tas.sources.series import (
    LOOKBACK,
    NAME_LABEL,
    REPLICA_LABELS,
    Identity,
    Mappings,
    MetricMapping,
    SeriesId,
    SeriesSample,
    add_node_sample,
    has_labels,
    identity_of,
    series_names,
    valid_node,
)
from tas.sources.write_request import STALE_MARKER, WriteError, WrittenSeries, decode_series, value_of
from tas.values.blanks import ValueRules, has_small_blanks
from tas.values.quantity import Quantity, QuantityError, parse_quantity

MAX_SERIES = 200_000
"""The largest number of stored series: 10,000 nodes with 20 metrics. Further series are refused."""

MAX_SERIES_OF_NODE = 1024
"""The most stored series of one metric of one node, as of 512 processors for two replicas of a Prometheus.

Each request with one of these series looks at all of them."""

MAX_STORED_BYTES = 64 << 20
"""The largest size of the labels of all stored series."""

MAX_LABELS = 128
"""The most labels of a series."""

MAX_LABEL_BYTES = 2048
"""The largest name and value of a label."""

MAX_SAMPLES = 200_000
"""The most samples in a request: a sender of Prometheus sends 2,000 by default."""

MAX_CONTINUED = 16
"""Of a node with more series of a metric it is not sure which one a new series continues."""


class _SeriesUse(NamedTuple):
    """A metric for which the series of one name are used; `rank` is the index of that name in `series_names`.

    `rules` and `small` say which numbers are values, as `refusal_of` takes them.
    """

    metric: str
    rank: int
    mapping: MetricMapping
    rules: ValueRules
    small: bool


class _StoredSeries:
    """The newest sample of a series: its value and when it was measured, and the newest time of a sample or marker.

    A stale marker sets `ends`: until then the last value counts. One failed scrape marks every series of its target,
    and the next scrape continues them. `identity` is that of `SeriesSample`, once the node has several series.
    """

    __slots__ = ("_gaps", "arrived", "ends", "identity", "measured", "rank", "time", "value")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.time = -math.inf
        self.measured = -math.inf
        self.value: Quantity | None = None
        self.ends: float | None = None
        self.arrived = 0.0
        self.identity: Identity | None = None
        self._gaps = (0.0, 0.0)  # between the last samples, in seconds

    @property
    def sampled_again(self) -> bool:
        """Whether a second sample of another time has arrived."""
        return self._gaps[1] > 0

    def add(self, samples: Sequence[tuple[float, Quantity | None]], now: float) -> bool:
        """Stores the newest of `samples`; returns whether the series has a value, and none of them is too old."""
        added = False
        for time, value in samples if len(samples) == 1 else sorted(samples, key=_time):
            if time >= self.time:  # an equal time counts: the sender repeats a sample that was not published
                added = True
                self._add(time, value, now)
        return added and self.value is not None

    def _add(self, time: float, value: Quantity | None, now: float) -> None:
        if value is None:
            self.ends = now + 2 * self._interval() if self.ends is None else self.ends
        else:
            if time > self.measured > -math.inf:
                self._gaps = (self._gaps[1], time - self.measured)
            self.measured, self.value, self.ends = time, value, None
        self.time, self.arrived = time, now

    def _interval(self) -> float:
        """Seconds between two samples. Two senders of one series alternate: so the longer of two gaps.

        After a single sample not known: then `staleAfter` alone decides, which is at most `MAX_SAMPLE_AGE`.
        """
        return max(self._gaps) or MAX_SAMPLE_AGE / 2

    def counts(self, horizon: float, now: float) -> bool:
        """Whether the series has a value that was measured after `horizon`, and has not ended by `now`."""
        return self.value is not None and self.measured > horizon and (self.ends is None or self.ends > now)


def _time(sample: tuple[float, Quantity | None]) -> float:
    return sample[0]


class InvalidSeries(NamedTuple):
    """The number of series in a request that break the protocol, and the error of the first of them."""

    number: int
    example: str


_NodeMetric = tuple[str, str]  # a metric and a node


class _RequestContext:
    """The state while one request is read: its time, its result, and the metrics of nodes with a new sample."""

    def __init__(self, now: float, nodes: NodeNames) -> None:
        self.now = now
        self.builder = ResultBuilder(nodes)
        self.updated: dict[_NodeMetric, None] = {}
        self.samples = 0
        self.invalid: InvalidSeries | None = None

    def add_invalid(self, reason: str, labels: Callable[[], Mapping[str, str]] = dict, *, count: int = 1) -> None:
        """Counts series that break the protocol. Only of the first one the labels are formatted: that takes time."""
        if self.invalid is None:
            found = labels()
            self.invalid = InvalidSeries(count, f"series {shortened(found)}: {reason}" if found else reason)
        else:
            self.invalid = self.invalid._replace(number=self.invalid.number + count)


class SeriesStore:
    """The newest samples of all relevant series, for one thread at a time."""

    def __init__(
        self,
        mappings: Mappings,
        *,
        max_series: int = MAX_SERIES,
        max_series_of_node: int = MAX_SERIES_OF_NODE,
        max_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        self._mappings = mappings
        self._max_series = max_series
        self._max_series_of_node = max_series_of_node
        self._max_bytes = max_bytes
        self._bytes = 0
        self._metrics: frozenset[str] = frozenset()
        self._uses: dict[str, list[_SeriesUse]] = {}
        self._mapping_of: dict[str, MetricMapping] = {}
        self._nodes = ANY_NODE
        self._stored: dict[_NodeMetric, dict[SeriesId, _StoredSeries]] = {}
        self._incomplete: dict[_NodeMetric, float] = {}  # when a series was last dropped that counted
        self._series = 0
        self._last_sweep = -math.inf
        self._jumps = Jumps()

    @property
    def series(self) -> int:
        """The number of stored series."""
        return self._series

    def add_request(
        self, request: Sequence[bytes], metrics: frozenset[str], *, now: float, nodes: NodeNames = ANY_NODE
    ) -> tuple[SourceResult, InvalidSeries | None]:
        """The samples of `metrics` of `nodes` after a request, and the series in it that break the protocol, if any.

        `request` is from `decode_write_request`. A request that was not published may be added again, also after later
        requests. `now` is in seconds since 1970.
        """
        self._set_metrics(metrics)
        self._set_nodes(nodes)
        self._sweep(now)
        context = _RequestContext(now, nodes)
        for number, data in enumerate(request):
            if context.samples > MAX_SAMPLES:
                reason = f"more than {MAX_SAMPLES} samples in a request: send fewer at once"
                context.add_invalid(reason, count=len(request) - number)
                break
            self._add_series(data, context)
        for node_metric in context.updated:
            self._add_node_sample(node_metric, context)
        return with_suspect(context.builder.result(), self._jumps.taken()), context.invalid

    def _set_metrics(self, metrics: frozenset[str]) -> None:
        if metrics == self._metrics:
            return
        self._metrics = metrics
        self._uses = {}
        self._mapping_of = {metric: self._mappings.of(metric) for metric in sorted(metrics)}
        for metric, mapping in self._mapping_of.items():
            for rank, name in enumerate(series_names(metric, mapping)):
                small = mapping.has_small_blanks(metric) or has_small_blanks(name)
                self._uses.setdefault(name, []).append(_SeriesUse(metric, rank, mapping, mapping.rules, small))

    def _set_nodes(self, nodes: NodeNames) -> None:
        """From now on labels mean these nodes. Series of a node that has lost an address may be of another node now."""
        if nodes is self._nodes:
            return
        lost = self._nodes.lost_by(nodes)
        self._nodes = nodes
        if lost:
            self._stored = {key: series for key, series in self._stored.items() if key[1] not in lost}
            self._incomplete = {key: at for key, at in self._incomplete.items() if key[1] not in lost}
            self._count()

    def _add_series(self, data: bytes, context: _RequestContext) -> None:
        series = _decoded(data, context)
        uses = None if series is None else self._uses.get(_name(series) or "")
        if series is None or uses is None:
            return
        labels = _checked_labels(series, context)
        if labels is None:
            return
        context.samples += len(series.samples)
        series_id = "\0".join(chain.from_iterable(labels.items()))
        samples: list[tuple[float, Quantity | None]] | None = None
        for use in uses:
            metric, rank, mapping = use.metric, use.rank, use.mapping
            if not has_labels(labels, mapping.labels):
                continue
            node = valid_node(context.builder, metric, labels, mapping.node_label)
            if node is None:
                continue
            if samples is None:
                samples = list(_samples(series, f"{metric} of {node}", context))
            counting = self._values_of(samples, use, f"{metric} of {node}", context)
            stored = self._stored_series((metric, node), series_id, rank, context) if counting else None
            if stored is None:
                continue
            before = stored.value
            if stored.add(counting, context.now):
                context.updated[metric, node] = None
                if stored.value is not before and stored.value is not None:
                    self._compare(use, node, series_id, before, stored.value, now=context.now)

    def _compare(
        self, use: _SeriesUse, node: str, series_id: SeriesId, before: Quantity | None, value: Quantity, *, now: float
    ) -> None:
        """Notes whether a value jumps. An exporter that restarts has other labels: a new series continues another."""
        series = self._stored[use.metric, node]
        if before is None and use.mapping.aggregate is None and len(series) <= MAX_CONTINUED:
            others = [each for each, old in series.items() if each != series_id and old.rank == use.rank]
            if others:
                last = max(others, key=lambda each: series[each].measured)
                before = series[last].value
                self._jumps.add_value(node, use.metric, None, value, now, series=last)
        self._jumps.add_value(node, use.metric, before, value, now, series=series_id)

    def _values_of(
        self, samples: Sequence[tuple[float, Quantity | None]], use: _SeriesUse, subject: str, context: _RequestContext
    ) -> list[tuple[float, Quantity | None]]:
        """The samples of a series without numbers that are no value of the metric."""
        return [
            (time, value)
            for time, value in samples
            if value is None or context.builder.is_value(value, subject, use.rules, small=use.small)
        ]

    def _stored_series(
        self, node_metric: _NodeMetric, series_id: SeriesId, rank: int, context: _RequestContext
    ) -> _StoredSeries | None:
        """The entry of a series, new if needed; None, and the series is refused, if the store is full."""
        of_node = self._stored.get(node_metric, {})
        stored = of_node.get(series_id)
        if stored is not None:
            return stored
        if len(of_node) >= self._max_series_of_node:
            self._drop_oldest(node_metric, context.now)
        if self._series >= self._max_series or self._bytes >= self._max_bytes:
            if not context.builder.counted(RefusalReason.SHAPE):
                reason = f"{self._series} series of {self._bytes} bytes are alive: this one is not stored"
                subject = f"{node_metric[0]} of {node_metric[1]}"
                context.builder.refuse(RefusalReason.SHAPE, subject, "series", _labels(series_id), reason)
            return None
        stored = self._stored.setdefault(node_metric, {})[series_id] = _StoredSeries(rank)
        self._series += 1
        self._bytes += _bytes_of(series_id)
        return stored

    def _drop_oldest(self, node_metric: _NodeMetric, now: float) -> None:
        """Makes room for series of a node: drops an eighth of them, those that have not been sent for longest."""
        series = self._stored[node_metric]
        for series_id in nsmallest(len(series) // 8 + 1, series, key=lambda each: series[each].arrived):
            dropped = series.pop(series_id)
            if dropped.counts(-math.inf, now) and dropped.arrived > now - LOOKBACK:
                self._incomplete[node_metric] = now
            self._series -= 1
            self._bytes -= _bytes_of(series_id)

    def _add_node_sample(self, node_metric: _NodeMetric, context: _RequestContext) -> None:
        metric, node = node_metric
        series = self._stored[node_metric]
        if context.now - self._incomplete.get(node_metric, -math.inf) < LOOKBACK:
            if not context.builder.counted(RefusalReason.SHAPE):
                reason = f"must be at most {self._max_series_of_node}: no value counts; choose fewer series by `labels`"
                subject, number = f"{metric} of {node}", f"more than {self._max_series_of_node}"
                context.builder.refuse(RefusalReason.SHAPE, subject, "number of series", number, reason)
            return
        mapping = self._mapping_of[metric]
        aggregate = mapping.aggregate
        if len(series) > 1:
            _identify(series, REPLICA_LABELS if mapping.replica_labels is None else mapping.replica_labels)
        if aggregate is not None and not any(stored.sampled_again for stored in series.values()):
            # The sender may not have sent all series yet, and a sum without them would be too small. Once one series
            # arrives for the second time, all have arrived.
            return
        horizon = max(stored.time for stored in series.values()) - LOOKBACK
        counting = {series_id: stored for series_id, stored in series.items() if stored.counts(horizon, context.now)}
        alive = {series_id: stored for series_id, stored in counting.items() if stored.ends is None}
        if alive and aggregate is None:  # a series that has ended is no second series of the node
            counting = alive
        samples = [
            SeriesSample(
                labels=partial(_labels, series_id),
                rank=stored.rank,
                value=stored.value,
                measured=stored.measured,
                has_ended=stored.ends is not None,
                identity=stored.identity,
            )
            for series_id, stored in counting.items()
            if stored.value is not None
        ]
        ends = None if alive else max((stored.ends or 0.0 for stored in counting.values()), default=None)
        if samples:  # none if the new sample is older than a series that has ended since
            add_node_sample(
                context.builder, metric, node, samples, aggregate, replica_labels=mapping.replica_labels, ends=ends
            )

    def _sweep(self, now: float) -> None:
        """Deletes the series without a recent sample, at most once in `LOOKBACK` seconds."""
        if now - self._last_sweep < LOOKBACK:
            return
        self._last_sweep = now
        for node_metric, series in list(self._stored.items()):
            alive = {series_id: stored for series_id, stored in series.items() if stored.arrived >= now - LOOKBACK}
            if alive:
                self._stored[node_metric] = alive
            else:
                del self._stored[node_metric]
        self._incomplete = {key: at for key, at in self._incomplete.items() if at >= now - LOOKBACK}
        self._count()

    def _count(self) -> None:
        self._series = sum(map(len, self._stored.values()))
        self._bytes = sum(map(_bytes_of, chain.from_iterable(self._stored.values())))


def _identify(series: Mapping[SeriesId, _StoredSeries], replica_labels: Collection[str]) -> None:
    """Sets the identities of the series of a node. Hashes, since the texts would take as much again as the labels."""
    for series_id, stored in series.items():
        if stored.identity is None:
            found = identity_of(_labels(series_id), replica_labels)
            stored.identity = Identity(
                hash(found.series), sys.intern(found.replica), hash(found.content), sys.intern(found.job)
            )


def _labels(series_id: SeriesId) -> dict[str, str]:
    texts = series_id.split("\0")
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _labels_of(series: WrittenSeries) -> dict[str, str]:
    return {label.name: label.value for label in series.labels}


def _name(series: WrittenSeries) -> str | None:
    return next((label.value for label in series.labels if label.name == NAME_LABEL), None)


def _decoded(data: bytes, context: _RequestContext) -> WrittenSeries | None:
    """A series with a name; None, and the series is counted, if it breaks the protocol."""
    try:
        series = decode_series(data)
    except WriteError as error:
        context.add_invalid(str(error))
        return None
    if len(series.labels) > MAX_LABELS:
        context.add_invalid(f"series with {len(series.labels)} labels: must be at most {MAX_LABELS}")
        return None
    if _name(series) is None:
        context.add_invalid(f"has no label {NAME_LABEL}", partial(_labels_of, series))
        return None
    return series


def _checked_labels(series: WrittenSeries, context: _RequestContext) -> dict[str, str] | None:
    """The labels of a series; None, and the series is counted, if they are invalid."""
    labels = _labels_of(series)
    if len(labels) != len(series.labels):
        context.add_invalid("has a label twice", lambda: labels)
        return None
    if all(_bytes_of(each) <= MAX_LABEL_BYTES for each in chain.from_iterable(labels.items())):
        return labels
    if not context.builder.counted(RefusalReason.SHAPE):
        reason = f"must have no label of more than {MAX_LABEL_BYTES} bytes"
        context.builder.refuse(RefusalReason.SHAPE, labels[NAME_LABEL], "series", labels, reason)
    return None


def _samples(series: WrittenSeries, subject: str, context: _RequestContext) -> Iterator[tuple[float, Quantity | None]]:
    """The valid samples of a series: the time and the value of each, None for a stale marker."""
    now, builder = context.now, context.builder
    for sample in series.samples:
        measured = sample.timestamp / 1000
        if (fault := time_fault(measured, now)) is not None:
            if not builder.counted(RefusalReason.TIME):
                builder.refuse(RefusalReason.TIME, subject, "timestamp", sample.timestamp, fault)
        elif sample.value == STALE_MARKER:
            yield measured, None
        else:
            number = value_of(sample.value)
            try:
                # The shortest text of this double, as Prometheus writes it, so that 0.1 stays 0.1.
                yield measured, parse_quantity(repr(number))
            except QuantityError as error:
                builder.refuse(RefusalReason.VALUE, subject, "value", number, str(error))
    if series.histograms:
        builder.refuse(RefusalReason.SHAPE, subject, "histograms", "a native histogram", "must be a single value")
