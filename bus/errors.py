"""The errors of the bus. No other package sees the NATS client's own errors."""

from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class BusError(Exception):
    """Base of every error of the bus. `code` is JetStream's `err_code`, or None if there was none."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class UnavailableError(BusError):
    """No answer within the time limit, or no connection: try again later.

    A write may have succeeded nevertheless: perhaps only the answer was lost.
    """


class SlowError(UnavailableError):
    """No server has answered a connection in time: nobody has refused it."""


class NobodyListensError(UnavailableError):
    """No stream has the subject, or the server has no JetStream."""


class MissingError(UnavailableError):
    """A stream is missing, and this user may not create it: somebody else may do so at any time."""


class NoPlaceError(UnavailableError):
    """All consumers of a stream that this user may have are in use: a place is free when one of them ends."""


class NoMajorityError(UnavailableError):
    """Most servers with copies of a stream do not run: the stream accepts nothing until they do."""


class ConflictError(BusError):
    """The key was written since the read: read again (server codes 10071 and 10164: facts.md n7)."""


class ExpiredError(BusError):
    """The read behind this write is too old: read again. Nothing was sent."""


class RefusedError(BusError):
    """The server refuses the call, and will again: a full store, a message too large, a missing permission."""


class ForbiddenError(RefusedError):
    """The user has no permission for the subject; nothing was stored."""

    def __init__(self, message: str, *, subject: str = "") -> None:
        super().__init__(message)
        self.subject = subject


class FullError(RefusedError):
    """The store, or the stream's own limit, is full."""


class CrowdedError(RefusedError):
    """The stream has as many consumers as the server allows: nobody can begin to read it."""


class MisconfiguredError(BusError):
    """A stream or consumer differs from what this version needs; TAS does not change it."""


class AccessError(BusError):
    """A file of credentials cannot be used; the message names it, and what it must be. It never has a secret."""


NO_LEADER = 10008
"""JetStream is temporarily unavailable: the servers of the cluster have no leader."""

CONSUMER_NOT_FOUND = 10014
CONSUMER_EXISTS = 10148
"""A consumer of this name exists, and has another configuration."""

MESSAGE_NOT_FOUND = 10037
STREAM_EXISTS_OTHERWISE = 10058
STREAM_NOT_FOUND = 10059
NO_JETSTREAM = frozenset({10039, 10076})
"""JetStream is not enabled for this account, or on this server."""

_CONFLICTS = frozenset({10071, 10164})

# Insufficient resources, memory exceeded, storage exceeded, message too large, store failed (`maximum bytes exceeded`),
# header too large, beyond the account's limit for one stream. Some have status 5xx, but a retry does not help.
_REFUSALS = frozenset({10023, 10028, 10047, 10054, 10077, 10097, 10122})
_FULL = frozenset({10023, 10028, 10047, 10077})
_CROWDED = 10026
CROWDED_MEND = "tas bus mend DIR removes consumers that nobody uses (docs/how-to/mend-the-bus.md#too-many-consumers)"
STREAM_FULL = 10077
"""A stream has as many bytes as it may have: other streams may still have room."""

STORE_FULL_MEND = "the store of the server, or what the account may have, is full (docs/operations.md#full-disk)"
FULL_MEND = "tas doctor says which bucket is full, and what to do (docs/how-to/mend-the-bus.md#full-buckets)"

# A missing stream is created again by any connection; streams and consumers of a cluster can be offline for a while.
_TRANSIENT = frozenset({STREAM_NOT_FOUND, 10118, 10119})


async def none_if(code: int, call: Awaitable[T]) -> T | None:
    """The result of a call; None if it fails with this code. Raises BusError for any other failure."""
    try:
        return await call
    except BusError as error:
        if error.code != code:
            raise
        return None


def jetstream_error(what: str, *, status: int, code: int, description: str) -> BusError:
    """The exception for an error of JetStream; `status` is its HTTP-like class, `code` its `err_code`."""
    message = f"{what}: {description} ({code})"
    if code in _CONFLICTS:
        return ConflictError(message, code=code)
    if code in _FULL:
        return FullError(message, code=code)
    if code == _CROWDED:
        return CrowdedError(f"{message}: nobody can begin to read this stream: {CROWDED_MEND}", code=code)
    if code in _TRANSIENT or (status in (408, 429, 503) and code not in _REFUSALS):
        return UnavailableError(message, code=code)
    return RefusedError(message, code=code)
