"""The limits of metrics of one node, so that no source can fill the bus or displace another source."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tas.errors import InvalidInputError
from tas.samples.sample import MAX_SAMPLE_AGE, NodeSamples, Scrape, kept_metrics, merge, metric_count
from tas.values.nouns import counted


class CapacityLimit(NamedTuple):
    """The most pairs of source and metric, and the most bytes that these pairs may take (`reserved_bytes`)."""

    pairs: int
    size: int


NODE_LIMIT = CapacityLimit(2000, 1_000_000)
"""For all samples of a node. With these bytes every node fits into one value of a bucket (1 MiB less 1 KiB)."""

SOURCE_LIMIT = CapacityLimit(1000, 500_000)
"""For the samples of a node from one source: one source leaves half of the node to the others."""

PAIR_BYTES = 300
"""What a stored pair takes at most besides both names: the value, and all fields of a scrape with one metric."""

MAX_PAIR_BYTES = PAIR_BYTES + 63 + 253
"""What a stored pair takes at most: with the longest name of a source and of a metric."""


def reserved_bytes(source: str, metric: str) -> int:
    """The bytes that a pair may take in NODES, whatever its value: so a new value of a known pair always fits."""
    return PAIR_BYTES + len(source) + len(metric)


class _Usage:
    """The pairs that a node or a source has, and their bytes."""

    def __init__(self, limit: CapacityLimit) -> None:
        self.limit = limit
        self.pairs = 0
        self.size = 0

    def has_room(self, size: int) -> bool:
        return self.pairs < self.limit.pairs and self.size + size <= self.limit.size

    def add(self, size: int) -> None:
        self.pairs += 1
        self.size += size

    def __str__(self) -> str:
        limit = self.limit
        return f"{counted(self.pairs, 'metric')} of {self.size} bytes, at most {limit.pairs} of {limit.size} bytes"


class _Usages:
    """The usage of a node, of each of its sources, and the pairs that it has."""

    def __init__(self, known: NodeSamples, node_limit: CapacityLimit, source_limit: CapacityLimit) -> None:
        self._source_limit = source_limit
        self._pairs: set[tuple[str, str]] = set()
        self._sources: dict[str, _Usage] = {}
        self.node = _Usage(node_limit)
        for scrape in known:
            for metric in scrape.metrics:
                self._add(scrape.source, metric)

    def of(self, source: str) -> _Usage:
        return self._sources.setdefault(source, _Usage(self._source_limit))

    def admit(self, source: str, metric: str) -> bool:
        """Whether a pair is known, or there is room for it; then it is added."""
        if (source, metric) in self._pairs:
            return True
        size = reserved_bytes(source, metric)
        if not (self.node.has_room(size) and self.of(source).has_room(size)):
            return False
        self._add(source, metric)
        return True

    def _add(self, source: str, metric: str) -> None:
        self._pairs.add((source, metric))
        size = reserved_bytes(source, metric)
        self.node.add(size)
        self.of(source).add(size)


def refusal_of_new_source(
    node: str, source: str, known: NodeSamples, *, node_limit: CapacityLimit = NODE_LIMIT
) -> InvalidInputError | None:
    """An error if a node with the samples `known` has no room for any metric of a source that is not in `known`.

    So the samples of such a source need not be decoded: a node with room for three sources may get ten thousand.
    """
    count = metric_count(known)
    if count < node_limit.pairs or any(scrape.source == source for scrape in known):
        return None
    reason = f"the node has {count} metrics, at most {node_limit.pairs}"
    return InvalidInputError(f"samples {node}/{source}", "metrics", "all", reason)


def within_capacity(
    node: str,
    known: NodeSamples,
    incoming: Iterable[Scrape],
    *,
    node_limit: CapacityLimit = NODE_LIMIT,
    source_limit: CapacityLimit = SOURCE_LIMIT,
) -> tuple[list[Scrape], list[InvalidInputError]]:
    """`incoming` without the pairs beyond the limits, and an error for each scrape with refused pairs.

    A pair that is in `known` is always accepted. New pairs are accepted in the order of `incoming`.
    """
    scrapes = list(incoming)
    most = metric_count(known) + metric_count(tuple(scrapes))
    if most <= source_limit.pairs and most * MAX_PAIR_BYTES <= source_limit.size:  # as nearly always
        return scrapes, []
    usages = _Usages(known, node_limit, source_limit)
    taken: list[Scrape] = []
    refused: list[InvalidInputError] = []
    for scrape in scrapes:
        metrics = {metric: value for metric, value in scrape.metrics.items() if usages.admit(scrape.source, metric)}
        left_out = [metric for metric in scrape.metrics if metric not in metrics]
        if left_out:
            reason = f"and {len(left_out) - 1} more: source {scrape.source} has {usages.of(scrape.source)}"
            reason += f"; the node has {usages.node}"
            refused.append(InvalidInputError(f"samples {node}/{scrape.source}", "metrics", left_out[0], reason))
        if metrics:
            taken.append(scrape if not left_out else msgspec.structs.replace(scrape, metrics=metrics))
    return taken, refused


def refusal_of(node: str, known: NodeSamples, scrape: Scrape) -> InvalidInputError | None:
    """Why not all metrics of `scrape` can be stored for a node with the samples `known`; None if they can."""
    accepted, refused = within_capacity(node, known, [scrape])
    if refused:
        return refused[0]
    if kept_metrics(merge(known, accepted), scrape, scrape.sequence) == scrape.metrics.keys():
        return None
    before = max(each.time for each in known) - scrape.time
    reason = f"must be at most {MAX_SAMPLE_AGE:g} s before the newest sample of the node, and is {before:.0f} s before"
    return InvalidInputError(f"sample {node}/{scrape.source}", "measured", scrape.measured, reason)
