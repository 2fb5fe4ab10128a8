"""Epochs, entries of buckets and messages of streams, as read from the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any

EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"
"""The header of a conditional write."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a stream, at the time of a request.

    Attributes:
        created: The time of its creation, as reported.
        last_sequence: The sequence of its last message.
        age: The seconds since its creation, by the clock of the server.
        stored_bytes: The size of all its messages.
    """

    created: str
    last_sequence: int
    age: float = field(default=inf, compare=False)
    stored_bytes: int = field(default=0, compare=False)

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "Epoch":
        """The epoch from an answer to STREAM.INFO."""
        created, now = (datetime.fromisoformat(info[name]) for name in ("created", "ts"))
        age, state = (now - created).total_seconds(), info["state"]
        return cls(created=info["created"], last_sequence=state["last_seq"], age=age, stored_bytes=state["bytes"])

    @property
    def now(self) -> float:
        """When the server answered, by its own clock, seconds since 1970."""
        return datetime.fromisoformat(self.created).timestamp() + self.age


@dataclass(frozen=True, slots=True)
class RawEntry:
    """One revision of a key with its stored bytes, for the modules of this package.

    `value` is None for a deletion, an expiry or a purge. `created` is when the server stored it, seconds since 1970.
    `previous` is the revision of the key that it replaced, 0 for none; None if its writer named none.
    """

    key: str
    value: bytes | None
    revision: int
    created: float
    previous: int | None = None


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A stored message of a stream. `arrived` is when the server stored it, seconds since 1970."""

    subject: str
    data: bytes
    sequence: int
    arrived: float
    headers: Mapping[str, str] | None = None


def replaced_revision(headers: Mapping[str, str] | None) -> int | None:
    """The revision that a conditional write has replaced: the server keeps the condition with the message."""
    written = (headers or {}).get(EXPECTED_REVISION, "")
    return int(written) if written.isascii() and written.isdigit() else None


def is_tombstone(headers: Mapping[str, str] | None) -> bool:
    """Whether a message of a bucket is a tombstone, of a client (`KV-Operation`) or the server (facts.md n13)."""
    if not headers:
        return False
    return headers.get("KV-Operation") in ("DEL", "PURGE") or "Nats-Marker-Reason" in headers
