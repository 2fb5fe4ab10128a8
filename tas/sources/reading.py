"""What one look at a source gave: values of nodes, and what of the answer could not be used.

An answer is taken apart value by value. What is wrong is refused alone, counted by its reason and told with one
example, so that a source that lies about one node says nothing less of the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from tas.errors import InvalidInputError
from tas.names import is_subdomain
from tas.quantity import Quantity, QuantityError, format_quantity, parse_quantity
from tas.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE, Scrape

MAX_METRICS_PER_SCRAPE = 500
"""The most metrics of a node in one scrape: whole in one message on SAMPLES, however long their names are."""


class Refused(StrEnum):
    """Why a value was not taken."""

    SHAPE = "shape"
    """The answer, or one item of it, cannot be read at all."""
    NODE = "node"
    """It is of no node: of a pod, without the label that names one, or under a name that no node can have."""
    METRIC = "metric"
    """It is of another metric than was asked for."""
    VALUE = "value"
    """It is no quantity: NaN, an infinity, text."""
    TIME = "time"
    """Its time cannot be read, lies ahead, or is more than an hour ago."""
    TWICE = "twice"
    """The answer holds several values of this metric for one node, and nothing says which counts: none does."""


class Reading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One value of one metric of one node.

    `metric` is the name that policies use. `measured` is in seconds since 1970; None where the source does not say: it
    counts as measured when it was asked. `window` is the span in seconds that the value stands for, if known.
    """

    node: str
    metric: str
    value: Quantity
    measured: float | None = None
    window: float | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """How many values were refused for one reason, and one of them: its object, field and value."""

    count: int
    example: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a source gave.

    A node and metric stand in `readings` at most once. `missing` tells for metrics of which nothing was got why that
    is: the source does not know them, or failed for them alone.
    """

    readings: tuple[Reading, ...] = ()
    refusals: Mapping[Refused, Refusal] = {}
    missing: Mapping[str, str] = {}


class Gathering:
    """Takes an answer in, value by value, and becomes a `Batch`. Every decoder of a source ends here."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, str], Reading] = {}
        self._twice: set[tuple[str, str]] = set()
        self._refusals: dict[Refused, Refusal] = {}
        self._missing: dict[str, str] = {}

    def add(
        self, *, node: str, metric: str, value: str, measured: float | None = None, window: float | None = None
    ) -> None:
        """Takes a value of `metric`, as the text that the source wrote; refuses what cannot be."""
        if not is_subdomain(node):
            self.refuse(Refused.NODE, metric, "node", node, "must be a lowercase DNS subdomain (RFC 1123)")
            return
        try:
            quantity = parse_quantity(value)
        except QuantityError as error:
            self.refuse(Refused.VALUE, f"{metric} of {node}", "value", value, str(error))
            return
        self.take(Reading(node=node, metric=metric, value=quantity, measured=measured, window=window))

    def take(self, reading: Reading) -> None:
        """Takes a value whose node and quantity were found to be such.

        The first and all further values of one node and metric are refused together: none of them is more right.
        """
        place = (reading.node, reading.metric)
        if place not in self._readings and place not in self._twice:
            self._readings[place] = reading
            return
        before = self._readings.pop(place, None)
        self._twice.add(place)
        reason = "must be the only value of this metric for the node" + (
            "" if before is None else ", and there is another: neither counts"
        )
        subject, value = f"{reading.metric} of {reading.node}", format_quantity(reading.value)
        self.refuse(Refused.TWICE, subject, "value", value, reason, count=1 if before is None else 2)

    def refuse(self, why: Refused, subject: str, field: str, value: object, reason: str, *, count: int = 1) -> None:
        """Counts what cannot be used; the first of each reason is the example."""
        before = self._refusals.get(why)
        self._refusals[why] = (
            Refusal(count=count, example=str(InvalidInputError(subject, field, value, reason)))
            if before is None
            else msgspec.structs.replace(before, count=before.count + count)
        )

    def miss(self, metric: str, why: str) -> None:
        """Nothing was got of `metric`."""
        self._missing[metric] = why

    def batch(self) -> Batch:
        """All that was taken in, readings in the order in which they came."""
        return Batch(readings=tuple(self._readings.values()), refusals=self._refusals, missing=self._missing)


def combined(batches: Iterable[Batch]) -> Batch:
    """One batch of several that have no metric in common, as of one question for each metric."""
    readings: list[Reading] = []
    refusals: dict[Refused, Refusal] = {}
    missing: dict[str, str] = {}
    for batch in batches:
        readings += batch.readings
        _count_in(refusals, batch.refusals)
        missing |= batch.missing
    return Batch(readings=tuple(readings), refusals=refusals, missing=missing)


def _count_in(refusals: dict[Refused, Refusal], more: Mapping[Refused, Refusal]) -> None:
    for why, refusal in more.items():
        before = refusals.get(why)
        count = refusal.count + (before.count if before else 0)
        refusals[why] = Refusal(count=count, example=(before or refusal).example)


def timely(batch: Batch, *, now: float) -> Batch:
    """`batch` without the readings whose time cannot be, which are refused: what SAMPLES would refuse (n52)."""
    if all(_time_fault(reading, now) is None for reading in batch.readings):
        return batch
    gathering = Gathering()
    kept: list[Reading] = []
    for reading in batch.readings:
        fault = _time_fault(reading, now)
        if fault is None:
            kept.append(reading)
        else:
            subject = f"{reading.metric} of {reading.node}"
            gathering.refuse(Refused.TIME, subject, "measured", reading.measured, fault)
    late = gathering.batch()
    return combined([msgspec.structs.replace(batch, readings=tuple(kept)), late])


def _time_fault(reading: Reading, now: float) -> str | None:
    if reading.measured is None:
        return None
    if reading.measured > now + FUTURE_TOLERANCE:
        return f"must be at most {FUTURE_TOLERANCE:g} s ahead, and is {reading.measured - now:.0f} s ahead"
    if reading.measured < now - MAX_SAMPLE_AGE:
        return f"must be at most {MAX_SAMPLE_AGE:g} s ago, and is {now - reading.measured:.0f} s ago"
    return None


def scrapes(readings: Iterable[Reading], *, source: str, asked: float) -> Iterator[tuple[str, Scrape]]:
    """Each node's readings as scrapes: one for all that were measured together over the same window.

    `asked` is when the question was sent, in seconds since 1970: so old is what comes without a time of its own.
    """
    together: dict[tuple[str, float, float | None], dict[str, Quantity]] = {}
    for reading in readings:
        measured = asked if reading.measured is None else reading.measured
        together.setdefault((reading.node, measured, reading.window), {})[reading.metric] = reading.value
    for (node, measured, window), metrics in together.items():
        names = list(metrics)
        for start in range(0, len(names), MAX_METRICS_PER_SCRAPE):
            some = {name: metrics[name] for name in names[start : start + MAX_METRICS_PER_SCRAPE]}
            yield (
                node,
                Scrape(source=source, measured=measured, arrived=measured, sequence=0, window=window, metrics=some),
            )
