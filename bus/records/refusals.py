"""The labels of a policy that the API server refuses, in REFUSALS."""

import msgspec

from bus.records.codec import encode, reader
from tas.errors import line_of
from tas.verdict.refused import MAX_LABELS, MAX_NODES, RefusedLabel


class _RefusedLabel(msgspec.Struct, kw_only=True, omit_defaults=True):
    label: str
    value: str | None = None
    reason: str
    count: int
    nodes: list[str]


class _RefusedLabels(msgspec.Struct, kw_only=True):
    labels: list[_RefusedLabel]


_read = reader("refused labels of a policy", _RefusedLabels)


def encode_refused_labels(labels: tuple[RefusedLabel, ...]) -> bytes:
    """The value of `<policy>` in REFUSALS."""
    return encode(_RefusedLabels(labels=[_RefusedLabel(**msgspec.structs.asdict(each)) for each in labels]))


def decode_refused_labels(data: bytes) -> tuple[RefusedLabel, ...]:
    """The inverse of `encode_refused_labels`, with reasons of one line. Raises InvalidInputError."""
    return tuple(
        RefusedLabel(
            label=each.label,
            value=each.value,
            reason=line_of(each.reason),
            count=each.count,
            nodes=tuple(each.nodes[:MAX_NODES]),
        )
        for each in _read(data).labels[:MAX_LABELS]
    )
