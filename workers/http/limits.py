"""Limits for clients of an HTTP server of the product."""

from dataclasses import dataclass

MAX_CONNECTIONS = 512
IDLE_SECONDS = 120.0
"""More than the 90 s after which Go's client, and so kube-scheduler, closes an idle connection. A server that closes
first could lose a request that is on its way, and kube-scheduler never sends such a request again (facts.md c1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of connections and requests. Times in seconds, sizes in bytes."""

    connections: int = MAX_CONNECTIONS
    idle_seconds: float = IDLE_SECONDS
    header_seconds: float = 5.0
    """From the first byte of a request to the end of its headers; also for a TLS handshake."""
    answer_seconds: float = 10.0
    """How long the client may take to read its response."""
    headers: int = 64
    header_bytes: int = 8190
    """Of a header line, or of the request line."""
