"""Errors with the messages of the API server: a metav1.Status with code, reason and details."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.sandbox.resources import Resource

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
    """The error of one field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class StatusError(Exception):
    """An error answer of the API server."""

    def __init__(
        self, code: int, message: str, *, reason: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = REASONS.get(code) if reason is None else reason
        self.details = details

    def to_object(self) -> dict[str, Any]:
        """The metav1.Status as JSON."""
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
    """A 404 in plain text: nothing is served at this path, as without the CustomResourceDefinition."""


def not_found(resource: Resource, name: str) -> StatusError:
    """The error for an object that does not exist."""
    return StatusError(404, f'{resource.qualified} "{name}" not found', details=_details(resource, name))


def already_exists(resource: Resource, name: str) -> StatusError:
    """The error for a name that is already used."""
    message = f'{resource.qualified} "{name}" already exists'
    return StatusError(409, message, reason="AlreadyExists", details=_details(resource, name))


def conflict(resource: Resource, name: str, why: str = MODIFIED) -> StatusError:
    """The error for a conditional write whose condition is not met."""
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return StatusError(409, message, details=_details(resource, name))


def uid_conflict(resource: Resource, name: str, *, requested: str, current: str) -> StatusError:
    """The error for a deletion with the uid of another object of the same name."""
    message = (
        f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}": the UID in the precondition '
        f"({requested}) does not match the UID in record ({current}). The object might have been deleted "
        "and then recreated"
    )
    return StatusError(409, message, details=_details(resource, name, kind=resource.kind))


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> StatusError:
    """The error for an invalid object, with all causes."""
    messages = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    details = _details(resource, name, kind=resource.kind) | {
        "causes": [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    }
    return StatusError(422, f'{resource.qualified_kind} "{name}" is invalid: {listed}', details=details)


def undecodable(what: str) -> StatusError:
    """The error for a patch whose result is not an object of the type."""
    cause = {"reason": "FieldValueInvalid", "message": f"Invalid value: {what}", "field": "patch"}
    return StatusError(422, f' "" is invalid: patch: Invalid value: {what}', details={"causes": [cause]})


def budget_exceeded(budget: str, *, needed: int, healthy: int) -> StatusError:
    """The error for an eviction that a disruption budget forbids."""
    message = f"The disruption budget {budget} needs {needed} healthy pods and has {healthy} currently"
    return StatusError(
        429,
        "Cannot evict pod as it would violate the pod's disruption budget.",
        details={"causes": [{"reason": "DisruptionBudget", "message": message}]},
    )


def method_not_allowed() -> StatusError:
    """The error for a method that the resource does not have."""
    return StatusError(405, "the server does not allow this method on the requested resource", details={})


def _details(resource: Resource, name: str, *, kind: str | None = None) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return details | {"kind": kind or resource.plural}
