"""Responses of the API server as errors."""

import json

import pytest

from workers.kubernetes.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubernetesError,
    NotFoundError,
    RejectedError,
    ThrottledError,
    UnavailableError,
    error_of,
)

NOT_FOUND = {
    "kind": "Status",
    "status": "Failure",
    "message": 'taspolicies.telemetry.intel.com "demo" not found',
    "reason": "NotFound",
    "details": {"name": "demo", "group": "telemetry.intel.com", "kind": "taspolicies"},
    "code": 404,
}


def error_for(code: int, body: object = None, retry_after: str | None = None) -> KubernetesError:
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return error_of("get it", code=code, body=data, retry_after=retry_after)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (301, RejectedError),
        (400, RejectedError),
        (401, ForbiddenError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (405, RejectedError),
        (406, RejectedError),
        (408, UnavailableError),
        (409, ConflictError),
        (410, GoneError),
        (413, RejectedError),
        (415, RejectedError),
        (422, InvalidError),
        (429, ThrottledError),
        (500, UnavailableError),
        (503, UnavailableError),
        (504, UnavailableError),
    ],
)
def test_each_status_code_has_its_error_class(code: int, kind: type[KubernetesError]) -> None:
    error = error_for(code, {"message": "text of the server"})
    assert type(error) is kind
    assert error.code == code
    assert str(error) == f"get it: text of the server ({code})"


def test_only_a_status_with_the_name_of_the_object_confirms_that_it_is_missing() -> None:
    policy = {"group": "telemetry.intel.com", "plural": "taspolicies", "name": "demo"}
    error = error_for(404, NOT_FOUND)
    assert isinstance(error, NotFoundError)
    assert error.confirms_missing(**policy)
    for other in ({"name": "other"}, {"plural": "nodes"}, {"group": ""}):
        assert not error.confirms_missing(**policy | other)
    for body in (b"404 page not found\n", b"", NOT_FOUND | {"details": None}, NOT_FOUND | {"reason": "Other"}, [1]):
        found = error_for(404, body)
        assert isinstance(found, NotFoundError)
        assert not found.confirms_missing(**policy)


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("3", {"retryAfterSeconds": 9}, 3),
        (None, {"retryAfterSeconds": 9}, 9),
        ("soon", None, 1),
        (None, None, 1),
        ("86400", None, 60),
        (None, {"retryAfterSeconds": 1e12}, 60),
    ],
)
def test_a_throttled_error_has_the_time_to_wait(header: str | None, details: object, seconds: float) -> None:
    error = error_for(429, {"details": details}, header)
    assert isinstance(error, ThrottledError)
    assert error.retry_after == seconds


def test_an_invalid_object_error_has_its_causes() -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "Invalid value", "field": "metadata.labels"}]
    error = error_for(422, {"reason": "Invalid", "details": {"name": "n", "causes": causes}})
    assert error.status.details is not None
    assert error.status.details.causes[0].field == "metadata.labels"


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"\xff\xfe", b"", b"null", b"[" * 10**5])
def test_any_response_of_a_proxy_is_an_error(body: bytes) -> None:
    error = error_for(502, body)
    assert isinstance(error, UnavailableError)
    assert len(str(error)) < 400
