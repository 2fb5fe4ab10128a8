"""The bytes of Prometheus remote write 1.0: a snappy block with a protobuf message `prometheus.WriteRequest`.

The descriptor has only the fields that are needed; protobuf skips all others. The value of a sample is declared as 64
bits: a stale marker is one NaN of many, and a processor may change the bits of a NaN that it moves.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from tas.errors import TasError

STALE_MARKER = 0x7FF0000000000002
"""The bits of the value which means that the series has ended (facts.md n24)."""

MAX_BYTES = 32 << 20
"""The largest message, uncompressed: 100,000 series with six labels take 14 MB."""

MAX_FIELDS = 100_000
"""The most series in a request, with other fields of the message: a sender of Prometheus sends 2,000 by default."""

MAX_SERIES_BYTES = 64 << 10
"""The largest series: its labels and its samples."""

_MAX_COMPRESSION = 22  # a copy of 64 bytes takes 3 in a snappy block: no block unpacks to more than 22 times its size


class WriteError(TasError):
    """A request that can never be accepted; the message gives the reason."""


class Label(Protocol):
    """One label of a series."""

    name: str
    value: str


class WireSample(Protocol):
    """One sample: the bits of a double, and milliseconds since 1970."""

    value: int
    timestamp: int


class WrittenSeries(Protocol):
    """One series. `histograms` are only counted."""

    labels: Sequence[Label]
    samples: Sequence[WireSample]
    histograms: Sequence[object]


def decode_write_request(body: bytes, *, max_bytes: int = MAX_BYTES) -> list[bytes]:
    """The series of a request, each to be decoded by `decode_series`.

    Only one series is decoded at a time: decoded, a message takes up to 50 times its bytes. The length that the block
    declares is checked before anything is unpacked.
    Raises WriteError if the body is not a valid request, is larger than `max_bytes` when unpacked, or has more than
    `MAX_FIELDS` series.
    """
    try:
        length = cramjam.snappy.decompress_raw_len(body)
    except cramjam.DecompressionError as error:
        raise WriteError(f"body: not a snappy block: {error}") from error
    if length > max_bytes:
        raise WriteError(f"body: declares {length} bytes when unpacked: must be at most {max_bytes}")
    if length > _MAX_COMPRESSION * len(body):
        raise WriteError(f"body: {len(body)} bytes declare {length} when unpacked: more than a snappy block holds")
    try:
        unpacked = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise WriteError(f"body: a broken snappy block: {error}") from error
    try:
        return list(_series_of(unpacked))
    except (IndexError, ValueError) as error:
        raise WriteError(f"body: not a message prometheus.WriteRequest: {error}") from error


def decode_series(data: bytes) -> WrittenSeries:
    """One series of a request. Raises WriteError."""
    if len(data) > MAX_SERIES_BYTES:
        raise WriteError(f"series of {len(data)} bytes: must be at most {MAX_SERIES_BYTES}")
    try:
        return cast("WrittenSeries", _TimeSeries.FromString(data))
    except DecodeError as error:
        raise WriteError(f"series: not a message prometheus.TimeSeries: {error}") from error


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types: https://protobuf.dev/programming-guides/encoding/."""

_TIMESERIES = 1 << 3 | _BYTES


def _series_of(message: bytes) -> Iterator[bytes]:
    """The bytes of each series; other fields are skipped. Raises IndexError, ValueError, WriteError."""
    position = fields = 0
    while position < len(message):
        fields += 1
        if fields > MAX_FIELDS:
            raise WriteError(f"body: more than {MAX_FIELDS} series: send fewer at once")
        key, position = _varint(message, position)
        kind = key & 7
        start = position
        if kind == _VARINT:
            _, position = _varint(message, position)
        elif kind == _BYTES:
            length, start = _varint(message, position)
            position = start + length
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position > len(message):
            raise ValueError("cut off")
        if key == _TIMESERIES:
            yield message[start:position]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    byte = message[position]
    if byte < 0x80:
        return byte, position + 1
    number = shift = 0
    while byte >= 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
        byte = message[position]
    return number | byte << shift, position + 1


def value_of(bits: int) -> float:
    """The double with these bits."""
    return cast("float", struct.unpack("<d", bits.to_bytes(8, "little"))[0])


_Field = descriptor_pb2.FieldDescriptorProto

_MESSAGES = {
    "Label": (("name", 1, _Field.TYPE_STRING), ("value", 2, _Field.TYPE_STRING)),
    "Sample": (("value", 1, _Field.TYPE_FIXED64), ("timestamp", 2, _Field.TYPE_INT64)),
    "Histogram": (),
    "TimeSeries": (("labels", 1, "Label"), ("samples", 2, "Sample"), ("histograms", 4, "Histogram")),
}


def _message_class() -> type[Message]:
    """The class of `prometheus.TimeSeries`, in a separate pool to allow another definition of that name."""
    file = descriptor_pb2.FileDescriptorProto(name="remote_write.proto", package="prometheus", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            if isinstance(kind, str):
                nested = f".prometheus.{kind}"
                message.field.add(
                    name=field, number=number, label=_Field.LABEL_REPEATED, type=_Field.TYPE_MESSAGE, type_name=nested
                )
            else:
                message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.TimeSeries"))


_TimeSeries = _message_class()
