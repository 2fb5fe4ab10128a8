"""Remote write requests, encoded by hand: the product's decoder is tested against independent bytes."""

import struct
from collections.abc import Iterable, Mapping, Sequence

import cramjam

STALE = struct.unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": "Prometheus/3.13.5",
}

Sample = tuple[float | int, int]
"""A value, or as an integer its bits; milliseconds since 1970."""

Series = tuple[Mapping[str, str] | Sequence[tuple[str, str]], Sequence[Sample]]


def series(name: str, *samples: Sample, **labels: str) -> Series:
    """A series of this name."""
    return ({"__name__": name, **labels}, samples)


def message(all_series: Iterable[Series], *, extra: bytes = b"") -> bytes:
    """A `prometheus.WriteRequest`, and `extra` after it."""
    return b"".join(_nested(1, _series(each)) for each in all_series) + extra


def body(all_series: Iterable[Series], *, extra: bytes = b"") -> bytes:
    """The body of a request."""
    return compressed(message(all_series, extra=extra))


def compressed(data: bytes) -> bytes:
    """`data` as a snappy block."""
    return bytes(cramjam.snappy.compress_raw(data))


def _series(each: Series) -> bytes:
    labels, samples = each
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    written = [_nested(1, _text(1, name) + _text(2, value)) for name, value in pairs]
    return b"".join(written + [_nested(2, _sample(*sample)) for sample in samples])


def _sample(value: float, timestamp: int) -> bytes:
    bits = value.to_bytes(8, "little") if isinstance(value, int) else struct.pack("<d", value)
    return b"\x09" + bits + b"\x10" + varint(timestamp)


def _text(field: int, text: str) -> bytes:
    return _nested(field, text.encode())


def _nested(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """A protobuf varint; negative numbers as their 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
