"""The labels and marks of a policy that the API server refuses, in REFUSALS."""

import msgspec

from bus.records.codec import encode, reader
from tas.errors import line_of
from tas.verdict.refused import MAX_LABELS, MAX_NODES, RefusedLabel


class _Refused(msgspec.Struct, kw_only=True, omit_defaults=True):
    value: str | None = None
    reason: str
    count: int
    nodes: list[str]


class _RefusedLabel(_Refused, kw_only=True, omit_defaults=True):
    label: str


class _RefusedLabels(msgspec.Struct, kw_only=True):
    labels: list[_RefusedLabel]


class _RefusedMark(_Refused, kw_only=True, omit_defaults=True):
    mark: str


class _RefusedMarks(msgspec.Struct, kw_only=True):
    marks: list[_RefusedMark]


_read_labels = reader("refused labels of a policy", _RefusedLabels)
_read_marks = reader("refused marks of a policy", _RefusedMarks)


def encode_refused_labels(labels: tuple[RefusedLabel, ...]) -> bytes:
    """The value of `<policy>` in REFUSALS."""
    return encode(_RefusedLabels(labels=[_RefusedLabel(**msgspec.structs.asdict(each)) for each in labels]))


def decode_refused_labels(data: bytes) -> tuple[RefusedLabel, ...]:
    """The inverse of `encode_refused_labels`, with reasons of one line. Raises InvalidInputError."""
    return tuple(_refused_label(each.label, each) for each in _read_labels(data).labels[:MAX_LABELS])


def encode_refused_marks(marks: tuple[RefusedLabel, ...]) -> bytes:
    """The value of `<policy>.marks` in REFUSALS."""
    fields = [msgspec.structs.asdict(each) for each in marks]
    return encode(_RefusedMarks(marks=[_RefusedMark(mark=each.pop("label"), **each) for each in fields]))


def decode_refused_marks(data: bytes) -> tuple[RefusedLabel, ...]:
    """The inverse of `encode_refused_marks`, with reasons of one line. Raises InvalidInputError."""
    return tuple(_refused_label(each.mark, each) for each in _read_marks(data).marks[:MAX_LABELS])


def _refused_label(label: str, found: _Refused) -> RefusedLabel:
    nodes = tuple(found.nodes[:MAX_NODES])
    return RefusedLabel(label=label, value=found.value, reason=line_of(found.reason), count=found.count, nodes=nodes)
