"""Annotations of nodes as samples: the names, the numbers and the age of values that other programs write to nodes.

The original agents got all their data so: a program beside them wrote annotations, and kube-scheduler sent them along
with the nodes. Names and units are those of the original.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from tas.errors import InvalidInputError
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.sources.result import RefusalReason, ResultBuilder, Sample
from tas.values.blanks import ANY, has_small_blanks, refusal_of
from tas.values.quantity import Quantity, QuantityError, parse_quantity

SOURCE = "annotations"
"""The source of the samples, which a rule may name."""

NAMES = (
    *(f"{statistic}-free-{resource}" for resource in ("cpu", "memory") for statistic in ("mean", "std", "forcasted")),
    "congestion-factor",
    *(
        f"{amount}-{resource}"
        for amount in ("requested", "free")
        for resource in ("cpu", "memory", "pods", "gpu", "ephemeral-storage")
    ),
)
"""The annotations of the original agents and of their annotators: cpu in millicores, memory and storage in bytes.

Left out: `reqested_memory` and `allocatable_memory`, whose units the annotator guesses.
"""

NOTHING = frozenset({"N/A", "None"})
"""What the original annotator writes if it has no value."""

MAX_LENGTH = 64
"""The most characters of a value: a float has at most 25."""

STEADY_AGE = 60.0
"""Seconds: a value that nobody changes counts as no older during its lifetime. Annotators write about once a minute."""

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Annotation(NamedTuple):
    """The value of an annotation, and when it was written at the latest, in seconds since 1970."""

    text: str
    written: float


def annotation_samples(
    node: str, annotations: Mapping[str, Annotation], builder: ResultBuilder, *, now: float, lifetime: float
) -> dict[str, str]:
    """Adds the samples of the annotations of a node, given by metric. Returns why values are refused, by metric.

    An annotation has no time of measurement, and writing the same value again leaves no trace. So a value is measured
    when it was written, and for `lifetime` seconds it does not become older than `STEADY_AGE`; from then on it ages.
    One that no policy can use any more gives no sample. A value that is refused costs no other its sample.
    """
    refused: dict[str, str] = {}
    for metric, (text, written) in annotations.items():
        measured = max(written, min(now, written + lifetime) - STEADY_AGE)
        if text in NOTHING or measured < now - MAX_SAMPLE_AGE:
            continue
        try:
            value = parse_number(text)
            why = refusal_of(value, ANY, small=has_small_blanks(metric))
        except QuantityError as error:
            why = str(error)
        if why is None:
            builder.add_sample(Sample(node=node, metric=metric, value=value, measured=measured))
        else:
            subject, field = f"node {node}", f"annotation {metric}"
            builder.refuse(RefusalReason.VALUE, subject, field, text, why)
            refused[metric] = str(InvalidInputError(subject, field, text, why))
    return refused


def parse_number(text: str) -> Quantity:
    """The number of an annotation, such as `155597063.5` or `2E+9`. Raises QuantityError for anything else.

    A suffix as in `1500m` is refused: the original reads plain numbers only, and it would change the unit.
    """
    if len(text) > MAX_LENGTH:
        raise QuantityError(f"must have at most {MAX_LENGTH} characters, and has {len(text)}")
    if _NUMBER.fullmatch(text) is None:
        raise QuantityError("must be a plain decimal number, without a unit")
    value = parse_quantity(text)
    if value < 0:
        raise QuantityError("must not be negative")
    return value
