"""Errors as the API server words them: a metav1.Status with code, reason and details."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.resources import Resource

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What is wrong with one field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class StatusError(Exception):
    """A request that cannot be served, as its answer says it."""

    def __init__(
        self, code: int, message: str, *, reason: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = REASONS.get(code) if reason is None else reason
        self.details = details

    def to_object(self) -> dict[str, Any]:
        """The Status."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        return status | {"code": self.code}


class PageNotFoundError(Exception):
    """A 404 in plain text: nothing is served under this path, as while a CustomResourceDefinition is away."""


def not_found(resource: Resource, name: str) -> StatusError:
    """There is no object of that name; the details say which."""
    return StatusError(404, f'{resource.qualified} "{name}" not found', details=_details(resource, name))


def already_exists(resource: Resource, name: str) -> StatusError:
    """There is one already."""
    message = f'{resource.qualified} "{name}" already exists'
    return StatusError(409, message, reason="AlreadyExists", details=_details(resource, name))


def conflict(resource: Resource, name: str, why: str = MODIFIED) -> StatusError:
    """A condition of the request does not hold."""
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return StatusError(409, message, details=_details(resource, name))


def uid_conflict(resource: Resource, name: str, *, asked: str, found: str) -> StatusError:
    """A deletion was meant for another object of that name."""
    message = (
        f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": the UID in the precondition ({asked}) '
        f"does not match the UID in record ({found}). The object might have been deleted and then recreated"
    )
    return StatusError(409, message, details=_details(resource, name, kind=resource.kind))


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> StatusError:
    """The object would not be valid; each cause is named, and nothing is changed."""
    said = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    details = _details(resource, name, kind=resource.kind) | {
        "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    }
    return StatusError(422, f'{resource.qualified_kind} "{name}" is invalid: {listed}', details=details)


def undecodable(what: str) -> StatusError:
    """A patch whose outcome is no object of that type."""
    cause = {"reason": "FieldValueInvalid", "message": f"Invalid value: {what}", "field": "patch"}
    return StatusError(422, f' "" is invalid: patch: Invalid value: {what}', details={"causes": [cause]})


def method_not_allowed() -> StatusError:
    """Such a request has no meaning here."""
    return StatusError(405, "the server does not allow this method on the requested resource", details={})


def _details(resource: Resource, name: str, *, kind: str | None = None) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return details | {"kind": kind or resource.plural}
