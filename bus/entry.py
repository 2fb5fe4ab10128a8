"""What a bucket or a stream holds, as its readers see it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Epoch:
    """One life of a stream: when it was created, as the server tells it, and its last sequence when asked."""

    created: str
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One revision of a key. `value` is None for a deletion, an expiry or a purge.

    `created` is when the server stored it, seconds since 1970.
    """

    key: str
    value: bytes | None
    revision: int
    created: float


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message as a stream keeps it. `arrived` is when the server stored it, seconds since 1970."""

    subject: str
    data: bytes
    sequence: int
    arrived: float


def is_marker(headers: Mapping[str, str] | None) -> bool:
    """Whether a message of a bucket says that its key is gone: by a client (`KV-Operation`) or the server (n13)."""
    if not headers:
        return False
    return headers.get("KV-Operation") in ("DEL", "PURGE") or "Nats-Marker-Reason" in headers
