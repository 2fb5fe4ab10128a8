"""Series that are written to us, as metrics of nodes.

A sender spreads its series over many requests, and what several series of one node say together is known only from
all of them. So the newest sample of each series that matters is kept for as long as the series counts as alive.
Nothing else would know: a restart begins anew, and the next samples fill it again.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from tas.errors import shortened
from tas.quantity import Quantity, QuantityError, parse_quantity
from tas.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE
from tas.sources.reading import Batch, Gathering, Refused
from tas.sources.series import (
    LOOKBACK,
    NAME_LABEL,
    Mappings,
    MetricMapping,
    Point,
    carries,
    named_node,
    series_names,
    settle,
)
from tas.sources.write_request import STALE_MARKER, Series, WriteRequest, value_of

MAX_SERIES = 200_000
"""How many series are kept at most: 10,000 nodes with 20 metrics. Further ones are refused."""


class _Wanted(NamedTuple):
    """A metric that the series of some name are; `rank` is the place of that name in `series_names`."""

    metric: str
    rank: int
    mapping: MetricMapping


class _Held:
    """The newest sample of a series; without a value after a stale marker: it has ended, and nothing older counts."""

    __slots__ = ("again", "arrived", "rank", "time", "value")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.time = -math.inf
        self.value: Quantity | None = None
        self.again = False  # whether this is not its first sample
        self.arrived = 0.0

    def take(self, samples: Sequence[tuple[float, Quantity | None]], now: float) -> bool:
        """Keeps the newest of `samples`; returns whether that is news, and a value."""
        time, value = samples[0] if len(samples) == 1 else max(samples, key=_time)
        if time < self.time:  # older than what is known; equal: it is sent again, since it was not published
            return False
        self.again = self.again or -math.inf < self.time < time
        self.time, self.value, self.arrived = time, value, now
        return value is not None


def _time(sample: tuple[float, Quantity | None]) -> float:
    return sample[0]


class InvalidSeries(NamedTuple):
    """How many series of a request break the protocol, and what is wrong with the first of them."""

    number: int
    example: str


_Place = tuple[str, str]  # a metric and a node
_Identity = str  # the labels of a series in one text: there are many, and texts are no work for the garbage collector


class _Taking(NamedTuple):
    """One request while it is taken in: when, what is got of it, and of which metrics and nodes there is news."""

    now: float
    gathering: Gathering
    touched: dict[_Place, None]


class SeriesBook:
    """The series that are written to us. One thread at a time."""

    def __init__(self, mappings: Mappings, *, max_series: int = MAX_SERIES) -> None:
        self._mappings = mappings
        self._max_series = max_series
        self._metrics: frozenset[str] = frozenset()
        self._wanted: dict[str, list[_Wanted]] = {}
        self._places: dict[_Place, dict[_Identity, _Held]] = {}
        self._series = 0
        self._swept = -math.inf

    @property
    def series(self) -> int:
        """How many are kept."""
        return self._series

    def take(self, request: WriteRequest, metrics: frozenset[str], *, now: float) -> tuple[Batch, InvalidSeries | None]:
        """What a request says of `metrics`, and what in it breaks the protocol. All else in it is left out.

        A request that was not published may be taken again, whatever came in between. `now` is in seconds since 1970.
        """
        self._want(metrics)
        self._sweep(now)
        taking = _Taking(now, Gathering(), {})
        invalid: InvalidSeries | None = None
        for series in request.timeseries:
            try:
                self._take_series(series, taking)
            except _InvalidSeriesError as error:
                number, example = invalid or (0, str(error))
                invalid = InvalidSeries(number + 1, example)
        for place in taking.touched:
            self._settle(place, taking.gathering)
        return taking.gathering.batch(), invalid

    def _want(self, metrics: frozenset[str]) -> None:
        if metrics == self._metrics:
            return
        self._metrics = metrics
        self._wanted = {}
        for metric in sorted(metrics):
            mapping = self._mappings.of(metric)
            for rank, name in enumerate(series_names(metric, mapping)):
                self._wanted.setdefault(name, []).append(_Wanted(metric, rank, mapping))

    def _take_series(self, series: Series, taking: _Taking) -> None:
        wanted = self._wanted.get(_name(series))
        if wanted is None:
            return
        labels = {label.name: label.value for label in series.labels}
        if len(labels) != len(series.labels):
            raise _InvalidSeriesError(f"series {shortened(labels)}: has a label twice")
        identity = _identity(labels)
        samples: list[tuple[float, Quantity | None]] | None = None
        for metric, rank, mapping in wanted:
            if not carries(labels, mapping.labels):
                continue
            node = named_node(taking.gathering, metric, labels, mapping.node_label)
            if node is None:
                continue
            if samples is None:
                samples = list(_samples(series, f"{metric} of {node}", taking))
            held = self._held((metric, node), identity, rank, taking) if samples else None
            if held is not None and held.take(samples, taking.now):
                taking.touched[metric, node] = None

    def _held(self, place: _Place, identity: _Identity, rank: int, taking: _Taking) -> _Held | None:
        """What is kept of a series, perhaps nothing yet; None if there is no room for it."""
        held = self._places.get(place, {}).get(identity)
        if held is None and self._series >= self._max_series:
            reason = f"more than {self._max_series} series are alive: this one is not kept"
            taking.gathering.refuse(Refused.SHAPE, f"{place[0]} of {place[1]}", "series", _labels(identity), reason)
        elif held is None:
            held = self._places.setdefault(place, {})[identity] = _Held(rank)
            self._series += 1
        return held

    def _settle(self, place: _Place, gathering: Gathering) -> None:
        metric, node = place
        series = self._places[place]
        aggregate = self._mappings.of(metric).aggregate
        if aggregate is not None and not any(held.again for held in series.values()):
            # Others may not have been sent yet, and a sum without them would be too small. They were once one series
            # comes for the second time.
            return
        horizon = max(held.time for held in series.values()) - LOOKBACK
        points = [
            Point(labels=partial(_labels, identity), rank=held.rank, value=held.value, measured=held.time)
            for identity, held in series.items()
            if held.value is not None and held.time > horizon
        ]
        if points:  # none if what has just come is older than what ended meanwhile
            settle(gathering, metric, node, points, aggregate)

    def _sweep(self, now: float) -> None:
        """Lets go of what has said nothing for long, now and then."""
        if now - self._swept < LOOKBACK:
            return
        self._swept = now
        for place, series in list(self._places.items()):
            alive = {identity: held for identity, held in series.items() if held.arrived >= now - LOOKBACK}
            if alive:
                self._places[place] = alive
            else:
                del self._places[place]
        self._series = sum(map(len, self._places.values()))


class _InvalidSeriesError(ValueError):
    """A series that the protocol does not allow."""


def _identity(labels: Mapping[str, str]) -> _Identity:
    return "\0".join(chain.from_iterable(labels.items()))


def _labels(identity: _Identity) -> dict[str, str]:
    texts = identity.split("\0")
    return dict(zip(texts[::2], texts[1::2], strict=False))


def _name(series: Series) -> str:
    for label in series.labels:
        if label.name == NAME_LABEL:
            return label.value
    labels = {label.name: label.value for label in series.labels}
    raise _InvalidSeriesError(f"series {shortened(labels)}: has no label {NAME_LABEL}")


def _samples(series: Series, subject: str, taking: _Taking) -> Iterator[tuple[float, Quantity | None]]:
    """The samples of a series that can be: when each was measured, and its value, None for a stale marker."""
    now, gathering, _ = taking
    for sample in series.samples:
        measured = sample.timestamp / 1000
        if not now - MAX_SAMPLE_AGE <= measured <= now + FUTURE_TOLERANCE:
            reason = f"must be at most {MAX_SAMPLE_AGE:g} s ago and {FUTURE_TOLERANCE:g} s ahead"
            gathering.refuse(Refused.TIME, subject, "timestamp", sample.timestamp, reason)
        elif sample.value == STALE_MARKER:
            yield measured, None
        else:
            number = value_of(sample.value)
            try:
                # The shortest text that is this double: what Prometheus itself would write, so that 0.1 is 0.1.
                yield measured, parse_quantity(repr(number))
            except QuantityError as error:
                gathering.refuse(Refused.VALUE, subject, "value", number, str(error))
    if series.histograms:
        gathering.refuse(Refused.SHAPE, subject, "histograms", "a native histogram", "must be a single value")
