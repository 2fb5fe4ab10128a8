"""The errors of the bus. The NATS client's own never leave this package."""


class BusError(Exception):
    """Base of every error of the bus. `code` is JetStream's own `err_code`, or None if it said none."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class UnavailableError(BusError):
    """No answer in time, or no connection: try again later.

    After a write this does not say that nothing was written: the answer alone may have been lost.
    """


class NobodyListensError(UnavailableError):
    """Nobody takes what is sent there: no stream has the subject, or the server has no JetStream."""


class ConflictError(BusError):
    """Something else was written since the read: read again (server codes 10071 and 10164, n7)."""


class ExpiredError(BusError):
    """Too long ago was the read that this write stands on: read again. Nothing was sent."""


class RefusedError(BusError):
    """It is refused, and repeating alone will not help: a full store, a message too large, a missing right."""


class FullError(RefusedError):
    """There is no room: the store, or the stream's own limit, is full."""


class MisconfiguredError(BusError):
    """What stands on the server is not what this version needs; it is never changed silently."""


CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037
STREAM_EXISTS_OTHERWISE = 10058
STREAM_NOT_FOUND = 10059
NO_JETSTREAM = frozenset({10039, 10076})
"""For this account, or on this server at all."""

_CONFLICTS = frozenset({10071, 10164})

# Insufficient resources, memory exceeded, storage exceeded, message too large, store failed (`maximum bytes exceeded`),
# header too large, beyond the account's limit for one stream. Some of them are 5xx, yet no repetition heals them.
_REFUSALS = frozenset({10023, 10028, 10047, 10054, 10077, 10097, 10122})
_FULL = frozenset({10023, 10028, 10047, 10077})

# A stream is created again by whoever notices; streams and consumers of a cluster may be offline for a while.
_PASSING = frozenset({STREAM_NOT_FOUND, 10118, 10119})


def jetstream_error(what: str, *, status: int, code: int, description: str) -> BusError:
    """The error that JetStream's answer means; `status` is its HTTP-like class, `code` its `err_code`."""
    message = f"{what}: {description} ({code})"
    if code in _CONFLICTS:
        return ConflictError(message, code=code)
    if code in _FULL:
        return FullError(message, code=code)
    if code in _PASSING or (status in (408, 429, 503) and code not in _REFUSALS):
        return UnavailableError(message, code=code)
    return RefusedError(message, code=code)
