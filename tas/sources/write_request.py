"""The bytes of Prometheus remote write 1.0: a snappy block that holds a protobuf message `prometheus.WriteRequest`.

The message's descriptor is built here with the fields that are looked at; all others are unknown fields, which
protobuf skips. A sample's value is declared as the 64 bits that it is: so a stale marker, which is one NaN of many, is
told apart exactly, whatever a processor does to a NaN that it moves.
"""

import struct
from collections.abc import Sequence
from typing import Protocol, cast

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from tas.errors import TasError

STALE_MARKER = 0x7FF0000000000002
"""The bits of the value that says: this series has ended (n24)."""

MAX_BYTES = 32 << 20
"""The largest message, uncompressed: 100,000 series with six labels take 14 MB."""

_MOST_SAVED = 22  # a copy of 64 bytes takes 3 in a snappy block: no block says more than this many times its own size
_SLACK = 64


class WriteError(TasError):
    """A request that can never be taken; the message says why."""


class Label(Protocol):
    """One label of a series."""

    name: str
    value: str


class Sample(Protocol):
    """One sample: the bits of a double, and milliseconds since 1970."""

    value: int
    timestamp: int


class Series(Protocol):
    """One series. `histograms` are only counted."""

    labels: Sequence[Label]
    samples: Sequence[Sample]
    histograms: Sequence[object]


class WriteRequest(Protocol):
    """What one request holds."""

    timeseries: Sequence[Series]


def decode_write_request(body: bytes, *, max_bytes: int = MAX_BYTES) -> WriteRequest:
    """The request in a body. What the block says of its length is looked at before anything is unpacked.

    Raises:
        WriteError: if it is none, or larger than `max_bytes`.
    """
    try:
        length = cramjam.snappy.decompress_raw_len(body)
    except cramjam.DecompressionError as error:
        raise WriteError(f"body: no snappy block: {error}") from error
    if length > max_bytes:
        raise WriteError(f"body: says that it unpacks to {length} bytes: must be at most {max_bytes}")
    if length > _MOST_SAVED * len(body) + _SLACK:
        raise WriteError(f"body: says that its {len(body)} bytes unpack to {length}, which no snappy block does")
    try:
        unpacked = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise WriteError(f"body: a broken snappy block: {error}") from error
    try:
        return cast("WriteRequest", _WriteRequest.FromString(unpacked))
    except DecodeError as error:
        raise WriteError(f"body: no message prometheus.WriteRequest: {error}") from error


def value_of(bits: int) -> float:
    """The double of these bits."""
    return cast("float", struct.unpack("<d", bits.to_bytes(8, "little"))[0])


_Field = descriptor_pb2.FieldDescriptorProto

_MESSAGES = {
    "Label": (("name", 1, _Field.TYPE_STRING), ("value", 2, _Field.TYPE_STRING)),
    "Sample": (("value", 1, _Field.TYPE_FIXED64), ("timestamp", 2, _Field.TYPE_INT64)),
    "Histogram": (),
    "TimeSeries": (("labels", 1, "Label"), ("samples", 2, "Sample"), ("histograms", 4, "Histogram")),
    "WriteRequest": (("timeseries", 1, "TimeSeries"),),
}


def _message_class() -> type[Message]:
    """`prometheus.WriteRequest`, in a pool of its own: another program's definition of that name is not touched."""
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
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


_WriteRequest = _message_class()
