"""A message on SAMPLES: one scrape of one node, written by programs in any language."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, NoReturn, Protocol, TypeVar

import msgspec

from bus.records.codec import (
    UNREADABLE,
    body_of,
    encode,
    optional_time_of,
    quantity_texts,
    seconds_of,
    text_decoder,
    time_decoder,
    time_of,
    window_decoder,
)
from bus.subjects import parse_samples_subject
from tas.errors import InvalidInputError
from tas.samples.freshness import time_fault
from tas.samples.sample import NodeSamples, Scrape
from tas.values.blanks import ANY, has_small_blanks, is_plain, refusal_of
from tas.values.names import is_metric_name
from tas.values.quantity import Quantity, QuantityError, parse_quantity, plain_quantity

MAX_SAMPLES_BYTES = 256 << 10
"""The largest message on SAMPLES that is read."""

MAX_SAMPLES_METRICS = 1000
"""The most metrics that one message on SAMPLES may hold."""

T = TypeVar("T")


# Raw leaves a value as text: a number keeps all its digits, and an invalid value affects only its own metric. A message
# whose values are all texts needs none for each value.


class _Samples(msgspec.Struct, kw_only=True):
    metrics: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    measured: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    window: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    ends: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    source: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _WrittenSamples(msgspec.Struct, kw_only=True, omit_defaults=True):
    metrics: dict[str, str]
    measured: datetime
    window: float | None = None
    ends: datetime | None = None


_samples_decoder = msgspec.json.Decoder(_Samples)
_texts_decoder = msgspec.json.Decoder(dict[str, str])
_metrics_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

_MAX_NAMES = 10_000
_metric_names: set[str] = set()
"""Names of metrics that are valid, as found lately: a source sends the same ones in each message."""


class SamplesMessage(Protocol):
    """A message of SAMPLES, from a consumer or from the stream. `arrived` is in seconds since 1970."""

    @property
    def subject(self) -> str: ...  # noqa: D102
    @property
    def data(self) -> bytes: ...  # noqa: D102
    @property
    def arrived(self) -> float: ...  # noqa: D102
    @property
    def sequence(self) -> int: ...  # noqa: D102


def decode_samples(
    subject: str, data: bytes, *, arrived: float, sequence: int, only: Container[str] | None = None
) -> tuple[str, Scrape | None, tuple[InvalidInputError, ...]]:
    """The node, the scrape with its valid metrics (None if there are none), and all refusals.

    The subject names node and source; a body with another node or source is refused completely. A `measured` slightly
    later than `arrived` is kept; `Scrape.time` corrects it. With `only`, other metrics are neither decoded nor refused.
    Raises InvalidInputError if the subject is invalid.
    """
    node, source = parse_samples_subject(subject)
    scrape, refused, _ = _scrape(_head(node, source, data, arrived=arrived, sequence=sequence), (), only)
    return node, scrape, refused


class NewestScrape(NamedTuple):
    """The scrape of a message without metrics of which there is a newer value, None without any, and what is refused.

    `left_out` names the metrics of the message whose value a later message has replaced before it was stored. Metrics
    of a message that came late, after one that was measured later, are not among them: their values never counted.
    `sequence` is that of the message.
    """

    scrape: Scrape | None
    refused: tuple[InvalidInputError, ...]
    left_out: frozenset[str]
    sequence: int


def decode_newest(
    node: str, source: str, messages: Iterable[SamplesMessage], stored: NodeSamples
) -> Iterator[NewestScrape]:
    """The scrapes of messages of one source of a node, without metrics of which there is a newer valid value.

    Newer values are those of other messages, or of the stored samples of the node. Only values that count are decoded,
    which takes a tenth of the time. Merged with `stored`, the result is the same as for the complete scrapes. The
    refused metrics are those of `decode_samples`, except for metrics with a newer value.
    """
    heads = (_head(node, source, each.data, arrived=each.arrived, sequence=each.sequence) for each in messages)
    known = (scrape for scrape in stored if scrape.source == source)
    replaced: dict[str, int] = {}  # by which sequence
    both: list[Scrape | _Head] = [*known, *heads]
    for each in sorted(both, key=_order, reverse=True):
        if isinstance(each, Scrape):
            replaced |= dict.fromkeys(each.metrics, each.sequence)
            continue
        scrape, refused, written = _scrape(each, replaced)
        left_out = frozenset(metric for metric in written if replaced.get(metric, 0) > each.sequence)
        if scrape is not None:
            replaced |= dict.fromkeys(scrape.metrics, each.sequence)
        yield NewestScrape(scrape, refused, left_out, each.sequence)


def _order(each: "Scrape | _Head") -> tuple[float, int, bool]:
    """As `Scrape.order`; a stored scrape counts as newer than its message."""
    return (min(each.measured, each.arrived), each.sequence, isinstance(each, Scrape))


class _Head(NamedTuple):
    """A message whose values are not decoded yet; `body` is an error if the whole message is refused."""

    node: str
    source: str
    measured: float
    arrived: float
    sequence: int
    body: _Samples | InvalidInputError


def _head(node: str, source: str, data: bytes, *, arrived: float, sequence: int) -> _Head:
    sample = f"sample {node}/{source}"
    arrived = round(arrived, 6)  # the precision of the JSON, so that a scrape equals its stored copy
    try:
        body = body_of(sample, _samples_decoder, data, MAX_SAMPLES_BYTES)
        _check_names(sample, body, node=node, source=source)
        measured = _measured(sample, body, arrived=arrived)
    except InvalidInputError as error:
        return _Head(node, source, arrived, arrived, sequence, error)
    return _Head(node, source, measured, arrived, sequence, body)


def _scrape(
    head: _Head, replaced: Collection[str], only: Container[str] | None = None
) -> tuple[Scrape | None, tuple[InvalidInputError, ...], Collection[str]]:
    """The scrape without the metrics in `replaced`, or with those in `only`, the refusals, and all metric names."""
    sample = f"sample {head.node}/{head.source}"
    if isinstance(head.body, InvalidInputError):
        return None, (head.body,), ()
    try:
        window = _window(sample, head.body)
        ends = _ends(sample, head.body)
        written = _metrics(sample, head.body)
    except InvalidInputError as error:
        return None, (error,), ()
    metrics: dict[str, Quantity] = {}
    refused: list[InvalidInputError] = []
    for metric, value in written.items():
        if metric in replaced or (only is not None and metric not in only):
            continue
        try:
            metrics[metric] = _metric_value(sample, metric, value)
        except InvalidInputError as error:
            refused.append(error)
    if not metrics:
        return None, tuple(refused), written
    scrape = Scrape(
        source=head.source,
        measured=head.measured,
        arrived=head.arrived,
        sequence=head.sequence,
        window=window,
        ends=ends,
        metrics=metrics,
    )
    return scrape, tuple(refused), written


def encode_samples(scrape: Scrape) -> bytes:
    """The body of a message on SAMPLES, without `arrived` and `sequence`, which the server sets."""
    return encode(
        _WrittenSamples(
            metrics=quantity_texts(scrape.metrics),
            measured=time_of(scrape.measured),
            window=scrape.window,
            ends=optional_time_of(scrape.ends),
        )
    )


def _check_names(sample: str, body: _Samples, *, node: str, source: str) -> None:
    for field, written, expected in (("node", body.node, node), ("source", body.source, source)):
        if written is not msgspec.UNSET and _field(sample, field, written, text_decoder) != expected:
            _refuse(sample, field, written, f"must be {expected}, as in the subject")


def _measured(sample: str, body: _Samples, *, arrived: float) -> float:
    if body.measured is msgspec.UNSET:
        return arrived
    measured = _field(sample, "measured", body.measured, time_decoder).timestamp()
    if (fault := time_fault(measured, arrived)) is not None:
        _refuse(sample, "measured", body.measured, fault)
    return measured


def _window(sample: str, body: _Samples) -> float | None:
    if body.window is msgspec.UNSET:
        return None
    return _field(sample, "window", body.window, window_decoder)


def _ends(sample: str, body: _Samples) -> float | None:
    if body.ends is msgspec.UNSET:
        return None
    try:
        return seconds_of(_field(sample, "ends", body.ends, time_decoder))
    except InvalidInputError as error:
        _refuse(sample, "ends", body.ends, error.reason)


def _metrics(sample: str, body: _Samples) -> Mapping[str, str | msgspec.Raw]:
    """The values by metric: all as texts, or all as raw JSON."""
    if body.metrics is msgspec.UNSET:
        raise InvalidInputError(sample, "metrics", "absent", "must be an object of values by metric name")
    metrics: Mapping[str, str | msgspec.Raw]
    try:
        metrics = _texts_decoder.decode(body.metrics)
    except UNREADABLE:
        try:
            metrics = _metrics_decoder.decode(body.metrics)
        except UNREADABLE:
            _refuse(sample, "metrics", body.metrics, "must be an object of values by metric name")
    if len(metrics) > MAX_SAMPLES_METRICS:
        raise InvalidInputError(
            sample, "metrics", f"{len(metrics)} metrics", f"must be at most {MAX_SAMPLES_METRICS} in a message"
        )
    return metrics


def _metric_value(sample: str, metric: str, written: str | msgspec.Raw) -> Quantity:
    if isinstance(written, str) and metric in _metric_names:
        plain = plain_quantity(written)
        if plain is not None and is_plain(plain, ANY):
            return plain  # as nearly every value
    _check_metric_name(sample, metric)
    field = f"metrics.{metric}"
    text = written if isinstance(written, str) else _text_of(sample, field, written)
    try:
        value = parse_quantity(text)
    except QuantityError as error:
        raise InvalidInputError(sample, field, text, str(error)) from error
    if is_plain(value, ANY) or (why := refusal_of(value, ANY, small=has_small_blanks(metric))) is None:
        return value
    raise InvalidInputError(sample, field, text, why)


def _check_metric_name(sample: str, metric: str) -> None:
    if metric in _metric_names:
        return
    if not is_metric_name(metric):
        raise InvalidInputError(sample, "metrics", metric, "must be a metric's name of letters, digits, _, - and :")
    if len(_metric_names) >= _MAX_NAMES:
        _metric_names.clear()
    _metric_names.add(metric)


def _text_of(sample: str, field: str, written: msgspec.Raw) -> str:
    """The text of a quantity, which is written as a number or as text."""
    text = bytes(written).decode(errors="replace")
    if text[0] == '"':
        plain = text[1:-1]
        return plain if plain_quantity(plain) is not None else _field(sample, field, written, text_decoder)
    if text[0] not in "-0123456789":
        raise InvalidInputError(sample, field, text, "must be a quantity, as a number or as text")
    return text


def _field(sample: str, field: str, written: msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(written)
    except UNREADABLE as error:
        raise InvalidInputError(sample, field, bytes(written).decode(errors="replace"), str(error)) from error


def _refuse(sample: str, field: str, written: msgspec.Raw, reason: str) -> NoReturn:
    raise InvalidInputError(sample, field, bytes(written).decode(errors="replace"), reason)
