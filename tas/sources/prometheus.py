"""Prometheus, polled: the query for a metric, and the values in its answer.

Each metric has its own query and answer, so a query that fails costs no other metric its values. Source of the format:
the stable HTTP API, `/api/v1/query`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil

import msgspec

from tas.errors import TasError, shortened
from tas.sources.nodes import ANY_NODE, NodeNames
from tas.sources.result import MAX_ITEMS, UNREADABLE, RefusalReason, ResultBuilder, Sample, SourceResult, excess_of
from tas.sources.series import (
    JOB_LABEL,
    NAME_LABEL,
    REPLICA_LABELS,
    Mappings,
    MetricMapping,
    SeriesSample,
    add_node_sample,
    series_names,
    valid_node,
)
from tas.values.blanks import is_plain
from tas.values.quantity import Quantity, QuantityError, parse_quantity, plain_quantity
from tas.values.window import Kind, Window, window_of

_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
"""A number as Prometheus writes it, without the suffixes of Kubernetes quantities."""

MAX_SERIES_BYTES = 64 << 10
"""The largest series: its name, its labels and its value."""


class AnswerError(TasError):
    """An answer without a result for its metric; the message gives the reason.

    `unreadable`: the answer is not in the format of Prometheus, so another program may have sent it.
    """

    def __init__(self, message: str, *, unreadable: bool) -> None:
        super().__init__(message)
        self.unreadable = unreadable


class _Answer(msgspec.Struct, kw_only=True, rename="camel"):
    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error_type: str = ""
    error: str = ""
    warnings: list[str] = []


class _Data(msgspec.Struct, kw_only=True, rename="camel"):
    result_type: str
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Series(msgspec.Struct, kw_only=True, gc=False):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    histogram: msgspec.Raw | None = None


class _Value(msgspec.Struct, gc=False):
    """The value of a series, and the series as written: its labels are decoded again where they are needed."""

    value: Quantity
    measured: float
    item: msgspec.Raw


_answer_decoder = msgspec.json.Decoder(_Answer)
_data_decoder = msgspec.json.Decoder(_Data)
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_series_decoder = msgspec.json.Decoder(_Series)


def query_of(metric: str, mapping: MetricMapping) -> str:
    """The query for a metric: the configured one, else a selector of the series that may hold the metric."""
    if mapping.query is not None:
        return mapping.query
    names = series_names(metric, mapping)
    # The name is matched as a label: a metric name may hold a `-`, which PromQL would read as a subtraction.
    matchers = [f'{NAME_LABEL}="{names[0]}"' if len(names) == 1 else f'{NAME_LABEL}=~"{"|".join(names)}"']
    matchers += [f"{name}={msgspec.json.encode(value).decode()}" for name, value in mapping.labels.items()]
    return "{" + ",".join(matchers) + "}"


STEPS = 60
"""At so many times at most within a window an expression is evaluated; a selector has all its values."""

_FUNCTIONS = {
    Kind.MEAN: "avg_over_time({range})",
    Kind.STD: "stddev_over_time({range})",
    Kind.MIN: "min_over_time({range})",
    Kind.MAX: "max_over_time({range})",
    Kind.PERCENTILE: "quantile_over_time({quantile}, {range})",
    Kind.FORECAST: "predict_linear({range}, {seconds})",
}


def mapping_of(mappings: Mappings, metric: str) -> MetricMapping:
    """The mapping of a metric for a Prometheus that is polled.

    A statistic of a window without a mapping of its own is a query over the series of its metric. Only series with a
    fresh value count: else a node that has ended would have a mean for as long as the window.
    Raises AnswerError for a statistic that Prometheus does not have.
    """
    window = None if metric in mappings.metrics else window_of(metric)
    if window is None:
        return mappings.of(metric)
    function = _FUNCTIONS.get(window.kind)
    if function is None:
        reason = f"Prometheus has no function for {window.kind.value}: use mean, std, min, max, p50, p95 or forecast"
        raise AnswerError(f"{shortened(metric)}: {reason}", unreadable=False)
    mapping = mappings.of(window.metric)
    numbers = {"quantile": f"{window.percentile / 100:g}", "seconds": f"{window.seconds:g}"}
    parts = (f"{function.format(range=values, **numbers)} and {fresh}" for values, fresh in _ranges(window, mapping))
    query = " or ".join(parts)
    # The bounds are those of the values, not of a standard deviation.
    return msgspec.structs.replace(mapping, query=query, min=None, max=None)


def _ranges(window: Window, mapping: MetricMapping) -> Iterator[tuple[str, str]]:
    """For each name that the series may have, the first one first: the values in the window, and the fresh value."""
    if mapping.query is not None:
        step = ceil(window.seconds / STEPS)  # Prometheus takes no fraction in a duration
        yield f"({mapping.query})[{window.duration}:{step}s]", f"({mapping.query})"
        return
    for name in series_names(window.metric, mapping):
        selector = query_of(name, msgspec.structs.replace(mapping, series=name))
        yield f"{selector}[{window.duration}]", selector


def read_answer(
    metric: str, mapping: MetricMapping, body: bytes, *, status: int = 200, nodes: NodeNames = ANY_NODE
) -> SourceResult:
    """The samples of `nodes` in an answer to `query_of(metric, mapping)`. `status` is the HTTP status.

    Raises AnswerError if the answer as a whole is an error or unreadable.
    """
    builder = ResultBuilder(nodes)
    if (excess := excess_of(body)) is not None:
        raise AnswerError(f"{excess}, from the query {shortened(query_of(metric, mapping), 200)}", unreadable=False)
    answer = _answer(body, status)
    values: dict[str, _Value] = {}
    several: dict[str, list[_Value]] = {}
    rules, small = mapping.rules, mapping.has_small_blanks(metric)
    for item in _vector(answer, query_of(metric, mapping)):
        one_series = _series(item, metric, builder)
        if one_series is None:
            continue
        node = valid_node(builder, metric, one_series.metric, mapping.node_label)
        if node is None:
            continue
        found = _value(metric, node, one_series, item, builder)
        if found is None or not (
            is_plain(found.value, rules) or builder.is_value(found.value, f"{metric} of {node}", rules, small=small)
        ):
            continue
        if node in values:
            several.setdefault(node, [values[node]]).append(found)
        else:
            values[node] = found
    for node, found in values.items():
        if node not in several:  # as nearly always
            builder.add_sample(Sample(node=node, metric=metric, value=found.value, measured=found.measured))
    _add_several(builder, metric, mapping, several)
    result = builder.result()
    if not result.samples:
        builder.add_missing(metric, _nothing(query_of(metric, mapping), result, answer.warnings))
    return result


def with_common_times(results: Iterable[SourceResult], *, within: float) -> Iterator[SourceResult]:
    """`results`, where samples whose queries were evaluated `within` seconds get the time of the first such query.

    Each query is evaluated at its own time, a few milliseconds after the one before. With these times the samples of
    one node would need one message for each metric. No sample becomes newer.
    """
    evaluated = [(_evaluated(result), result) for result in results]
    first = float("-inf")
    common: dict[float, float] = {}
    for time in sorted({time for time, _ in evaluated if time is not None}):
        if time > first + within:
            first = time
        common[time] = first
    for when, result in evaluated:
        yield result if when is None or when == common[when] else _measured_at(common[when], result)


def _evaluated(result: SourceResult) -> float | None:
    """When the query of an answer was evaluated; None if its samples have no time or different times."""
    times = {sample.measured for sample in result.samples}
    return times.pop() if len(times) == 1 else None


def _measured_at(time: float, result: SourceResult) -> SourceResult:
    samples = tuple(msgspec.structs.replace(each, measured=time) for each in result.samples)
    return msgspec.structs.replace(result, samples=samples)


def _nothing(query: str, result: SourceResult, warnings: list[str]) -> str:
    reasons = [f"no value from the query {shortened(query, 200)}"]
    reasons += [f"{refusal.count} refused, as {refusal.example}" for refusal in result.refusals.values()]
    reasons += [f"Prometheus warns: {shortened(warning, 200)}" for warning in warnings[:1]]
    return "; ".join(reasons)


def _value(metric: str, node: str, series: _Series, item: msgspec.Raw, builder: ResultBuilder) -> _Value | None:
    """The value of a series; None, and it is refused, if it has none."""
    if series.value is None:
        subject = f"{metric} of {node}"
        builder.refuse(RefusalReason.SHAPE, subject, "histogram", "a native histogram", "must be a single value")
        return None
    measured, text = series.value
    value = plain_quantity(text)
    if value is not None:
        return _Value(value, measured, item)
    subject = f"{metric} of {node}"
    if not _DECIMAL.fullmatch(text):
        builder.refuse(RefusalReason.VALUE, subject, "value", text, "must be a finite decimal number")
        return None
    try:
        return _Value(parse_quantity(text), measured, item)
    except QuantityError as error:
        builder.refuse(RefusalReason.VALUE, subject, "value", text, str(error))
        return None


def _add_several(
    builder: ResultBuilder, metric: str, mapping: MetricMapping, nodes: Mapping[str, Sequence[_Value]]
) -> None:
    """Adds the values of nodes with several series each."""
    if not nodes:
        return
    names = series_names(metric, mapping) if mapping.query is None else ()
    replica_labels = frozenset(REPLICA_LABELS if mapping.replica_labels is None else mapping.replica_labels)
    for node, values in nodes.items():
        labels = [_labels(each.item) for each in values]
        jobs = {each.get(JOB_LABEL, "") for each in labels}
        has_replicas = mapping.aggregate is None or not all(replica_labels.isdisjoint(each) for each in labels)
        # The labels are decoded again if they are needed: the labels of all series take ten times the bytes.
        samples = [
            SeriesSample(
                labels=partial(_labels, each.item),
                rank=names.index(name) if (name := known.get(NAME_LABEL, "")) in names else 0,
                value=each.value,
                measured=each.measured,
            )
            for each, known in zip(values, labels, strict=True)
        ]
        add_node_sample(
            builder,
            metric,
            node,
            samples,
            mapping.aggregate,
            replica_labels=replica_labels,
            is_plain=not has_replicas and len(jobs) == 1,
        )


def _labels(item: msgspec.Raw) -> Mapping[str, str]:
    return _series_decoder.decode(item).metric


def _answer(body: bytes, status: int) -> _Answer:
    """An answer with the status `success`. Raises AnswerError."""
    try:
        answer = _answer_decoder.decode(body)
    except UNREADABLE as error:
        raise AnswerError(_no_answer(body, status, error), unreadable=True) from error
    if answer.status != "success" or status // 100 != 2:
        message = f"{answer.error_type}: {answer.error}" if answer.error_type else answer.error
        message = shortened(message or f"status {answer.status!r}", 300)
        raise AnswerError(f"Prometheus answered {status} {shortened(answer.status)}: {message}", unreadable=False)
    return answer


def _no_answer(body: bytes, status: int, error: Exception) -> str:
    if not body.strip():
        return f"an empty body with status {status}"
    if body.lstrip()[:1] == b"<":
        return f"HTML with status {status}, and no answer of a Prometheus: {_excerpt(body)}"
    return f"no answer of a Prometheus, with status {status}: {error}: {_excerpt(body)}"


def _vector(answer: _Answer, query: str) -> list[msgspec.Raw]:
    """The series of an instant vector. Raises AnswerError for any other result, and for too many series."""
    try:
        data = _data_decoder.decode(answer.data)
    except UNREADABLE as error:
        raise AnswerError(f"data = {_excerpt(answer.data)}: {error}", unreadable=True) from error
    if data.result_type == "scalar":
        # A scalar would have to count for every node, also for nodes that Prometheus does not know.
        raise AnswerError("the result is a scalar, which names no node: a query must give a vector", unreadable=False)
    if data.result_type != "vector":
        kind = shortened(data.result_type)
        raise AnswerError(f"the result is a {kind}: a query must give an instant vector", unreadable=False)
    items = _items(data.result)
    if len(items) > MAX_ITEMS:
        reason = f"{len(items)} series from the query {shortened(query, 200)}: must be at most {MAX_ITEMS}"
        raise AnswerError(reason, unreadable=False)
    return items


def _series(item: msgspec.Raw, metric: str, builder: ResultBuilder) -> _Series | None:
    """One series; None, and the series is refused, if it cannot be decoded."""
    try:
        if len(memoryview(item)) <= MAX_SERIES_BYTES:
            return _series_decoder.decode(item)
        reason = f"must be at most {MAX_SERIES_BYTES} bytes"
    except UNREADABLE as error:
        reason = str(error)
    builder.refuse(RefusalReason.SHAPE, metric, "series", _excerpt(item), reason)
    return None


def _items(result: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _items_decoder.decode(result)
    except UNREADABLE as error:
        raise AnswerError(f"result = {_excerpt(result)}: {error}", unreadable=True) from error


def _excerpt(data: bytes | msgspec.Raw) -> str:
    return shortened(bytes(data)[:200].decode(errors="replace"))
