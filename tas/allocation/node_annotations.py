"""What is written to annotations of a node for extenders of other people, under the names of the original agents."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from tas.allocation.node import NodeAllocation
from tas.allocation.pod import CPU, PODS
from tas.samples.freshness import DEFAULT_STALE_AFTER, is_fresh
from tas.samples.sample import NodeSamples, newest
from tas.samples.table import Table, with_metrics
from tas.sources.annotations import SOURCE, parse_number
from tas.values.quantity import NANO, QuantityError

RESOURCES = (CPU, "memory", PODS, "ephemeral-storage")
"""Of these the sums of requests are written."""

UNITS = {CPU: 1000, "memory": 1}
"""Of these the use is written: how many units of an annotation are one of the metric."""

STATISTICS = ("mean", "std")

CONGESTION = "congestion-factor"

WRITTEN = (
    *(f"{amount}-{resource}" for amount in ("requested", "free") for resource in RESOURCES),
    *(f"{statistic}-free-{resource}" for statistic in STATISTICS for resource in UNITS),
    CONGESTION,
)
"""The names of all annotations that may be written."""

STEP = 0.01
"""A measured value is written again if it differs by more than this part of the node's allocatable amount."""

MEASURED = frozenset((*(f"{resource}:{statistic}:5m" for resource in UNITS for statistic in STATISTICS), CONGESTION))
"""The metrics that are written."""


class Amount(NamedTuple):
    """A value for an annotation; it is written if what is there differs by more than `step`."""

    value: int
    step: float = 0.0


def needed(samples: NodeSamples) -> NodeSamples:
    """Of the samples of a node those of metrics that are written. What was itself read from an annotation is not."""
    own = ((each, {name: each.metrics[name] for name in MEASURED & each.metrics.keys()}) for each in samples)
    return tuple(
        msgspec.structs.replace(each, metrics=metrics) for each, metrics in own if metrics and each.source != SOURCE
    )


def needed_of_table(table: Table) -> Table:
    """The same of a table: it may have nothing left."""
    return with_metrics(table, () if table.source == SOURCE else MEASURED)


def amounts(allocation: NodeAllocation, samples: NodeSamples, now: float) -> dict[str, Amount]:
    """The values for the annotations of a node, as far as they are known and fresh, by name; `samples` are the needed.

    A sum of requests counts only if all pods can be read. Free is what pods may use and do not: the extenders that read
    this compare it with the allocatable amount.
    """
    return dict((*_sums(allocation), *_measured(allocation.allocatable, samples, now)))


def _sums(allocation: NodeAllocation) -> Iterator[tuple[str, Amount]]:
    for resource in RESOURCES if allocation.unreadable == 0 else ():
        if (size := allocation.allocatable.get(resource)) is not None:
            requested = allocation.requested.get(resource, 0)
            yield f"requested-{resource}", Amount(requested)
            yield f"free-{resource}", Amount(max(size - requested, 0))


def _measured(sizes: Mapping[str, int], samples: NodeSamples, now: float) -> Iterator[tuple[str, Amount]]:
    for resource, unit in UNITS.items():
        size = sizes.get(resource, 0)
        mean, deviation = (_fresh(samples, f"{resource}:{statistic}:5m", now) for statistic in STATISTICS)
        if size > 0 and mean is not None:
            yield f"mean-free-{resource}", Amount(max(size - round(mean * unit), 0), STEP * size)
        if size > 0 and deviation is not None:
            yield f"std-free-{resource}", Amount(round(deviation * unit), STEP * size)
    if (factor := _fresh(samples, CONGESTION, now)) is not None:
        yield CONGESTION, Amount(round(factor))


def _fresh(samples: NodeSamples, metric: str, now: float) -> float | None:
    """The value of a metric, if it is fresh and not negative."""
    scrape = newest(samples, metric)
    if scrape is None or not is_fresh(scrape, DEFAULT_STALE_AFTER, now):
        return None
    value = scrape.metrics[metric] / NANO
    return value if value >= 0 else None


def to_write(current: Mapping[str, str], wanted: Mapping[str, Amount]) -> dict[str, str]:
    """The annotations to be written, by name; `current` are those of the node. Nothing is ever removed."""
    return {name: str(amount.value) for name, amount in wanted.items() if _differs(current.get(name), amount)}


def _differs(current: str | None, amount: Amount) -> bool:
    try:
        return current is None or abs(parse_number(current) / NANO - amount.value) > amount.step
    except QuantityError:
        return True
