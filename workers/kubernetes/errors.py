"""The errors of the API server, by what a caller does about them. Those of the HTTP library never leave this package.

https://kubernetes.io/docs/reference/using-api/api-concepts/ and `Status` of meta/v1.
"""

from collections.abc import Mapping

import msgspec


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, as of an object that was refused (422)."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a `Status` is about. `kind` is the resource as in its path: `taspolicies`, `nodes`."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: float = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's own account of what happened; all empty where something else answered, as a proxy."""

    reason: str = ""
    message: str = ""
    code: int = 0
    details: StatusDetails | None = None


class KubernetesError(Exception):
    """Base of every error of the API server.

    Attributes:
        code: The HTTP status; 0 if there was none.
        status: What the API server said of it.
    """

    def __init__(self, message: str, *, code: int = 0, status: Status | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status or Status()


class ConfigurationError(KubernetesError):
    """No way to the API server can be read from what is configured: a file that is away, no account in this pod."""


class UnavailableError(KubernetesError):
    """No answer in time, no connection, or 5xx: try again later.

    After a patch this does not say that nothing was written: the answer alone may have been lost.
    """


class ThrottledError(UnavailableError):
    """429: too much is asked, by us or by all. `retry_after` is in seconds."""

    def __init__(self, message: str, *, code: int, status: Status, retry_after: float) -> None:
        super().__init__(message, code=code, status=status)
        self.retry_after = retry_after


class ForbiddenError(KubernetesError):
    """401 or 403: who we are is not known, or may not do this. Repeating helps once somebody has granted it."""


class NotFoundError(KubernetesError):
    """404. Only `names` tells whether the object is gone: so answers as well a path that is not served just now."""

    def names(self, *, group: str, plural: str, name: str) -> bool:
        """Whether the API server says that it serves this resource, and has no object of this name."""
        details = self.status.details
        return (
            self.status.reason == "NotFound"
            and details is not None
            and (details.group, details.kind, details.name) == (group, plural, name)
        )


class ConflictError(KubernetesError):
    """409: it has changed since it was read. Read again."""


class GoneError(KubernetesError):
    """410: what came after this resource version is not known any more. List again."""


class InvalidError(KubernetesError):
    """422: the object would not be valid, and nothing of it was written; `status.details.causes` say why."""


class RejectedError(KubernetesError):
    """It is refused for another reason, and repeating alone will not help."""


class ExpiredError(KubernetesError):
    """Too long ago was the read that this patch stands on: read again. Nothing was sent."""


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
"""After a 429 that does not say how long."""

_decoder = msgspec.json.Decoder(Status)


def decode_status(body: bytes) -> Status | None:
    """The `Status` that a body is, or None."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def error_of(what: str, *, code: int, body: bytes, retry_after: str | None = None) -> KubernetesError:
    """The error that an answer means. `retry_after` is the header of this name, in seconds."""
    status = decode_status(body) or Status()
    told = status.message or body[:200].decode(errors="replace").strip() or "no reason given"
    message = f"{what}: {told} ({code})"
    if code == 429:
        seconds = _seconds(retry_after) or (status.details.retry_after_seconds if status.details else 0)
        return ThrottledError(message, code=code, status=status, retry_after=seconds or RETRY_AFTER_SECONDS)
    kind = _BY_CODE.get(code, UnavailableError if code >= 500 else RejectedError)
    return kind(message, code=code, status=status)


def _seconds(text: str | None) -> float:
    """0 for what is no number of seconds, as a date."""
    return float(text) if text and text.isascii() and text.isdigit() else 0.0
