"""Prometheus, asked: the query for a metric, and what its answer says.

An answer tells of one metric, since each has a query of its own: one that cannot be answered costs no other metric its
values. Source of the format: the stable HTTP API, `/api/v1/query`.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from tas.errors import TasError, shortened
from tas.quantity import QuantityError, parse_quantity
from tas.sources.reading import Batch, Gathering, Reading, Refused
from tas.sources.series import NAME_LABEL, MetricMapping, Point, named_node, series_names, settle

_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
"""A number as Prometheus writes it. The suffixes of Kubernetes quantities are no part of it."""


class AnswerError(TasError):
    """An answer that says nothing of its metric; the message says why. `unreadable`: it is none of a Prometheus."""

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


_answer_decoder = msgspec.json.Decoder(_Answer)
_data_decoder = msgspec.json.Decoder(_Data)
_vector_decoder = msgspec.json.Decoder(list[_Series])
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_series_decoder = msgspec.json.Decoder(_Series)

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def query_of(metric: str, mapping: MetricMapping) -> str:
    """The query for a metric: the user's, else one for the series that may be it."""
    if mapping.query is not None:
        return mapping.query
    names = series_names(metric, mapping)
    # Matched by its label and not written as a selector: a metric's name may hold a `-`, which would subtract.
    matchers = [f'{NAME_LABEL}="{names[0]}"' if len(names) == 1 else f'{NAME_LABEL}=~"{"|".join(names)}"']
    matchers += [f"{name}={_quoted(value)}" for name, value in mapping.labels.items()]
    return "{" + ",".join(matchers) + "}"


def _quoted(value: str) -> str:
    return msgspec.json.encode(value).decode()


def read_answer(metric: str, mapping: MetricMapping, body: bytes, *, status: int = 200) -> Batch:
    """What an answer to `query_of(metric, mapping)` says. `status` is the one of HTTP.

    Raises:
        AnswerError: if nothing of it counts.
    """
    gathering = Gathering()
    answer = _answer(body, status)
    series = list(_vector(answer, metric, gathering))
    points: dict[str, list[Point]] = {}
    names = series_names(metric, mapping) if mapping.query is None else ()
    for each in series:
        node = named_node(gathering, metric, each.metric, mapping.node_label)
        if node is not None and (point := _point(f"{metric} of {node}", each, names, gathering)) is not None:
            points.setdefault(node, []).append(point)
    for node, of_node in points.items():
        settle(gathering, metric, node, of_node, mapping.aggregate)
    batch = gathering.batch()
    if not batch.readings:
        gathering.miss(metric, _nothing(query_of(metric, mapping), batch, answer.warnings))
    return batch


def of_one_look(batches: Iterable[Batch], *, within: float) -> Iterator[Batch]:
    """`batches`, those whose queries were evaluated within so many seconds as if together, at the first one's time.

    Each query is evaluated at a time of its own, a few milliseconds after the one before. Told so, the values of one
    node would be as many messages as there are metrics. None is told to be newer than it is.
    """
    evaluated = [(_evaluated(batch), batch) for batch in batches]
    first = float("-inf")
    told: dict[float, float] = {}
    for time in sorted({time for time, _ in evaluated if time is not None}):
        if time > first + within:
            first = time
        told[time] = first
    for when, batch in evaluated:
        yield batch if when is None or when == told[when] else _measured_at(told[when], batch)


def _evaluated(batch: Batch) -> float | None:
    """When the query of an answer was evaluated; None where it tells no one time."""
    times = {reading.measured for reading in batch.readings}
    return times.pop() if len(times) == 1 else None


def _measured_at(time: float, batch: Batch) -> Batch:
    readings = tuple(
        Reading(node=each.node, metric=each.metric, value=each.value, measured=time) for each in batch.readings
    )
    return msgspec.structs.replace(batch, readings=readings)


def _nothing(query: str, batch: Batch, warnings: list[str]) -> str:
    told = [f"no value from the query {shortened(query, 200)}"]
    told += [f"{refusal.count} refused, as {refusal.example}" for refusal in batch.refusals.values()]
    told += [f"Prometheus warns: {shortened(warning, 200)}" for warning in warnings[:1]]
    return "; ".join(told)


def _point(subject: str, series: _Series, names: tuple[str, ...], gathering: Gathering) -> Point | None:
    if series.value is None:
        gathering.refuse(Refused.SHAPE, subject, "histogram", "a native histogram", "must be a single value")
        return None
    measured, text = series.value
    if not _DECIMAL.fullmatch(text):
        gathering.refuse(Refused.VALUE, subject, "value", text, "must be a finite decimal number")
        return None
    try:
        value = parse_quantity(text)
    except QuantityError as error:
        gathering.refuse(Refused.VALUE, subject, "value", text, str(error))
        return None
    name = series.metric.get(NAME_LABEL, "")
    rank = names.index(name) if name in names else 0
    return Point(labels=lambda: series.metric, rank=rank, value=value, measured=measured)


def _answer(body: bytes, status: int) -> _Answer:
    """An answer that says success. Raises AnswerError."""
    try:
        answer = _answer_decoder.decode(body)
    except _UNREADABLE as error:
        raise AnswerError(_no_answer(body, status, error), unreadable=True) from error
    if answer.status != "success" or status // 100 != 2:
        told = f"{answer.error_type}: {answer.error}" if answer.error_type else answer.error
        told = shortened(told or f"status {answer.status!r}", 300)
        raise AnswerError(f"Prometheus answered {status} {shortened(answer.status)}: {told}", unreadable=False)
    return answer


def _no_answer(body: bytes, status: int, error: Exception) -> str:
    if not body.strip():
        return f"an empty body with status {status}"
    if body.lstrip()[:1] == b"<":
        return f"HTML with status {status}, and no answer of a Prometheus: {_excerpt(body)}"
    return f"no answer of a Prometheus, with status {status}: {error}: {_excerpt(body)}"


def _vector(answer: _Answer, metric: str, gathering: Gathering) -> Iterator[_Series]:
    """The series of an instant vector that can be read; the others are refused. Raises AnswerError if it is none."""
    try:
        data = _data_decoder.decode(answer.data)
    except _UNREADABLE as error:
        raise AnswerError(f"data = {_excerpt(answer.data)}: {error}", unreadable=True) from error
    if data.result_type == "scalar":
        # It would have to count for every node, also for those of which Prometheus knows nothing.
        raise AnswerError("the result is a scalar, which names no node: a query must give a vector", unreadable=False)
    if data.result_type != "vector":
        told = shortened(data.result_type)
        raise AnswerError(f"the result is a {told}: a query must give an instant vector", unreadable=False)
    try:
        series, items = _vector_decoder.decode(data.result), []
    except _UNREADABLE:
        series, items = [], _items(data.result)  # once more, one by one
    yield from series
    for item in items:
        try:
            yield _series_decoder.decode(item)
        except _UNREADABLE as error:
            gathering.refuse(Refused.SHAPE, metric, "series", _excerpt(item), str(error))


def _items(result: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _items_decoder.decode(result)
    except _UNREADABLE as error:
        raise AnswerError(f"result = {_excerpt(result)}: {error}", unreadable=True) from error


def _excerpt(data: bytes | msgspec.Raw) -> str:
    return shortened(bytes(data)[:200].decode(errors="replace"))
