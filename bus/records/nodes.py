"""A node in NODES: its newest samples, and what the API server reported."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bus.records.codec import (
    Time,
    encode,
    optional_seconds_of,
    optional_time_of,
    quantity_texts,
    reader,
    seconds_of,
    time_of,
)
from tas.errors import InvalidInputError
from tas.samples.sample import NodeSamples, Scrape
from tas.values.quantity import Quantity, QuantityError, parse_quantity


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Value of `<node>.facts` in NODES: the node as reported by the API server.

    `resource_version`, here and in other records, is the API server's resource version at which these values were
    first read: of two writers, the one with the later version is right. `labels_left_out` counts the labels of the
    node for which the record had no room; `labels` are then not complete. `created` is when the API server created the
    node. `addresses` are those of its status, IP addresses and names, as read at `addresses_version`, which is the
    resource version of the node or of a list of all nodes; None while they are not read.
    """

    uid: str
    labels: dict[str, str]
    resource_version: str = ""
    labels_left_out: int = 0
    created: Time | None = None
    addresses: tuple[str, ...] | None = None
    addresses_version: str = ""

    @property
    def complete_labels(self) -> dict[str, str] | None:
        """All labels of the node, for a `nodeSelector`; None if some were left out."""
        return None if self.labels_left_out else self.labels

    @property
    def created_at(self) -> float | None:
        """`created` in seconds since 1970."""
        return None if self.created is None else self.created.timestamp()


class NodeRelease(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `<node>.released` in NODES: filter keeps no value that was measured before `time` (`onStale: keep`).

    `by` is who released the node.
    """

    time: Time
    by: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StoredSamples:
    """Value of `<node>.metrics` in NODES: the newest samples of a node.

    `left_out` names the metrics of which a reader of each version has still not seen each value, as in a
    `tas.samples.table.Table`: values that came between this version and the one before are in neither.
    """

    samples: NodeSamples = ()
    left_out: frozenset[str] = frozenset()

    @property
    def unseen(self) -> Mapping[tuple[str, str], int]:
        """By source and metric, the sequence before which no reader of this version has seen each value."""
        found: dict[tuple[str, str], int] = {}
        for scrape in self.samples if self.left_out else ():
            for metric in scrape.metrics.keys() & self.left_out:
                series = (scrape.source, metric)
                found[series] = max(scrape.sequence, found.get(series, 0))
        return found


class _Scrape(msgspec.Struct, kw_only=True, omit_defaults=True):
    source: str
    measured: Time
    arrived: Time
    sequence: int
    metrics: dict[str, str]
    window: float | None = None
    ends: Time | None = None


class _StoredSamples(msgspec.Struct, kw_only=True, omit_defaults=True):
    scrapes: list[_Scrape]
    left_out: Sequence[str] = ()


_read_samples = reader("samples of a node", _StoredSamples)

_read_facts = reader("facts of a node", NodeFacts)

MAX_TEXTS = 100_000
_texts: dict[str, str] = {}
"""Values of labels. Not `sys.intern`: Python 3.12 never frees a text of it, and a node may change a label for ever."""


def decode_node_facts(data: bytes) -> NodeFacts:
    """The value of `<node>.facts` in NODES. Raises InvalidInputError.

    Nodes have many of the same values of labels: each text is in memory once.
    """
    facts = _read_facts(data)
    if len(_texts) > MAX_TEXTS:
        _texts.clear()
    for key, value in facts.labels.items():
        facts.labels[key] = _texts.setdefault(value, value)
    return facts


decode_node_release = reader("release of a node", NodeRelease)


def encode_node_samples(samples: NodeSamples, left_out: Collection[str] = ()) -> bytes:
    """The value of `<node>.metrics` in NODES."""
    return encode(
        _StoredSamples(
            scrapes=[
                _Scrape(
                    source=scrape.source,
                    measured=time_of(scrape.measured),
                    arrived=time_of(scrape.arrived),
                    sequence=scrape.sequence,
                    window=scrape.window,
                    ends=optional_time_of(scrape.ends),
                    metrics=quantity_texts(scrape.metrics),
                )
                for scrape in samples
            ],
            left_out=tuple(sorted(left_out)),
        )
    )


def decode_node_samples(data: bytes) -> StoredSamples:
    """The inverse of `encode_node_samples`. Raises InvalidInputError."""
    found = _read_samples(data)
    scrapes = [
        Scrape(
            source=scrape.source,
            measured=seconds_of(scrape.measured),
            arrived=seconds_of(scrape.arrived),
            sequence=scrape.sequence,
            window=scrape.window,
            ends=optional_seconds_of(scrape.ends),
            metrics=_quantities(scrape),
        )
        for scrape in found.scrapes
    ]
    scrapes.sort(key=lambda scrape: (scrape.source, scrape.order))
    return StoredSamples(tuple(scrapes), frozenset(found.left_out))


def _quantities(scrape: _Scrape) -> dict[str, Quantity]:
    metrics: dict[str, Quantity] = {}
    for metric, text in scrape.metrics.items():
        try:
            metrics[metric] = _quantity(text)
        except QuantityError as error:
            raise InvalidInputError("samples of a node", f"metrics.{metric}", text, str(error)) from error
    return metrics


_SCALES = tuple(10 ** (9 - places) for places in range(10))


def _quantity(text: str) -> Quantity:
    """As `parse_quantity`, but faster for the plain decimals of `format_quantity`."""
    whole, point, fraction = text.partition(".")
    digits = whole + fraction
    if point and len(fraction) < 10 and len(digits) < 40 and digits.isdigit() and digits.isascii():
        return Quantity(int(digits) * _SCALES[len(fraction)])
    return parse_quantity(text)
