"""Decodes the protobuf that kubectl sends by default: objects with nothing but metadata.

An envelope (`runtime.Unknown`) holds the object; field 1 of every object is its ObjectMeta (`generated.proto` of
k8s.io/api).
"""

from collections.abc import Iterator

from lab.sandbox.errors import StatusError
from lab.sandbox.resources import Object

MAGIC = b"k8s\x00"
KINDS = frozenset({"Namespace", "Eviction"})
TEXTS = {1: "name", 2: "generateName", 3: "namespace"}
MAPS = {11: "labels", 12: "annotations"}


def decode_object(body: bytes) -> Object:
    """Kind, version and metadata of an object. Raises StatusError: 400 if the body is invalid, 415 for other kinds."""
    if not body.startswith(MAGIC):
        raise StatusError(400, "error decoding the body of the request: it does not begin as Kubernetes' protobuf does")
    try:
        envelope = dict(_fields(body[len(MAGIC) :]))
        type_meta = dict(_fields(envelope[1]))
        kind, api_version = type_meta[2].decode(), type_meta[1].decode()
        metadata = _metadata(dict(_fields(envelope[2])).get(1, b"")) if kind in KINDS else {}
    except (ValueError, KeyError, IndexError) as error:
        raise StatusError(400, f"error decoding the body of the request: {error}") from error
    if kind not in KINDS:
        raise StatusError(415, f"the sandbox reads no {kind} as protobuf, only as application/json")
    return {"kind": kind, "apiVersion": api_version, "metadata": metadata}


def _metadata(data: bytes) -> Object:
    metadata: Object = {}
    for number, value in _fields(data):
        if number in TEXTS and value:
            metadata[TEXTS[number]] = value.decode()
        elif number in MAPS:
            entry = dict(_fields(value))
            metadata.setdefault(MAPS[number], {})[entry.get(1, b"").decode()] = entry.get(2, b"").decode()
    return metadata


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message, with their numbers; other fields are skipped."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        match tag & 7:
            case 0:
                _, offset = _varint(data, offset)
            case 1:
                offset += 8
            case 2:
                size, offset = _varint(data, offset)
                if offset + size > len(data):
                    raise ValueError("the message ends too early")
                yield tag >> 3, data[offset : offset + size]
                offset += size
            case 5:
                offset += 4
            case other:
                raise ValueError(f"wire type {other}")


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
