"""Errors of the API server, by what a caller can do. Errors of the HTTP library never leave this package.

https://kubernetes.io/docs/reference/using-api/api-concepts/ and `Status` of meta/v1.
"""

from collections.abc import Mapping

import msgspec

from tas.errors import line_of


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a refusal, as for an invalid object (422)."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The object of a `Status`. `kind` is the resource as in its path: `taspolicies`, `nodes`."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: float = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The `Status` in a response; all fields are empty if something else responded, as a proxy."""

    reason: str = ""
    message: str = ""
    code: int = 0
    details: StatusDetails | None = None


class KubernetesError(Exception):
    """Base of every error of the API server.

    Attributes:
        code: The HTTP status; 0 without a response.
        status: The `Status` in the response.
    """

    def __init__(self, message: str, *, code: int = 0, status: Status | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or Status()


class ConfigurationError(KubernetesError):
    """The configuration gives no access to the API server: a missing file, or no service account in this pod."""


class UnavailableError(KubernetesError):
    """No response in time, no connection, or 5xx: try again later.

    After a patch the object may have been written: only the response may have been lost.
    """


class SilentError(UnavailableError):
    """A watch received nothing for its time limit: nothing has changed, or nobody answers. Watch again to know."""


class ThrottledError(UnavailableError):
    """429: too many requests, of this client or of all. `retry_after` is in seconds."""

    def __init__(self, message: str, *, code: int, status: Status, retry_after: float) -> None:
        super().__init__(message, code=code, status=status)
        self.retry_after = retry_after


class ForbiddenError(KubernetesError):
    """401 or 403: the credentials are not accepted, or lack a permission. A retry helps once it has been granted."""


class NotFoundError(KubernetesError):
    """404. Only `confirms_missing` means a missing object: a path that is currently not served returns 404 too."""

    def confirms_missing(self, *, group: str, plural: str, name: str) -> bool:
        """Whether the API server serves this resource, and has no object of this name."""
        details = self.status.details
        return (
            self.status.reason == "NotFound"
            and details is not None
            and (details.group, details.kind, details.name) == (group, plural, name)
        )


class ConflictError(KubernetesError):
    """409: the object has changed since it was read. Read again."""


class GoneError(KubernetesError):
    """410: the changes after this resource version are not stored any more. List again."""


class InvalidError(KubernetesError):
    """422: the object would be invalid, and nothing was written; `status.details.causes` has the reasons."""


class RejectedError(KubernetesError):
    """Refused for another reason; a retry alone does not help."""


class TooLargeResponseError(RejectedError):
    """The response has more bytes than are read."""


class ExpiredError(KubernetesError):
    """The read that the patch is based on is too old: read again. Nothing was sent."""


_BY_CODE: Mapping[int, type[KubernetesError]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
}

RETRY_AFTER_SECONDS = 1.0
"""The wait after a 429 without a time."""

MAX_RETRY_AFTER_SECONDS = 60.0
"""The longest wait after a 429: what answers need not be the API server, and nothing else ends the wait."""

_decoder = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status | None:
    """The `Status` in a body, or None."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def error_of(what: str, *, code: int, body: bytes, retry_after: str | None = None) -> KubernetesError:
    """The error for a response. `retry_after` is the header `Retry-After`."""
    status = decode_status(body) or Status()
    text = status.message or body[:200].decode(errors="replace").strip() or "no reason given"
    message = f"{what}: {line_of(text)} ({code})"
    if code == 429:
        seconds = _seconds(retry_after) or (status.details.retry_after_seconds if status.details else 0)
        seconds = min(seconds or RETRY_AFTER_SECONDS, MAX_RETRY_AFTER_SECONDS)
        return ThrottledError(message, code=code, status=status, retry_after=seconds)
    kind = _BY_CODE.get(code, UnavailableError if code >= 500 else RejectedError)
    return kind(message, code=code, status=status)


def is_outdated(error: KubernetesError, name: str, *, plural: str = "nodes") -> bool:
    """Whether a patch was refused because the object has changed, was replaced or deleted since it was read."""
    if isinstance(error, NotFoundError):
        return error.confirms_missing(group="", plural=plural, name=name)
    return isinstance(error, ConflictError) or is_successor(error)


def is_successor(error: KubernetesError) -> bool:
    """Whether a patch was refused because the name belongs to another object now."""
    details = error.status.details
    return details is not None and any(cause.field == "metadata.uid" for cause in details.causes)


def _seconds(text: str | None) -> float:
    """The seconds in a header; 0 for any other value, as a date."""
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else 0.0
