"""As much of Kubernetes' protobuf as kubectl sends of its own accord: objects whose metadata says it all.

An envelope (`runtime.Unknown`) holds the object; field 1 of every object is its ObjectMeta (`generated.proto` of
k8s.io/api).
"""

from collections.abc import Iterator

from sandbox.errors import StatusError
from sandbox.resources import Object

MAGIC = b"k8s\x00"
KINDS = frozenset({"Namespace", "Eviction"})
TEXTS = {1: "name", 2: "generateName", 3: "namespace"}
MAPS = {11: "labels", 12: "annotations"}


def decode_object(body: bytes) -> Object:
    """Kind, version and metadata of an object.

    Raises:
        StatusError: 400 for what cannot be read, 415 for a kind that has more to it.
    """
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
    """Each field of a message by its number, as far as it has a length; numbers mean nothing here."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        match tag & 7:
            case 0:
                _, place = _varint(data, place)
            case 1:
                place += 8
            case 2:
                size, place = _varint(data, place)
                if place + size > len(data):
                    raise ValueError("it ends too early")
                yield tag >> 3, data[place : place + size]
                place += size
            case 5:
                place += 4
            case other:
                raise ValueError(f"wire type {other}")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
