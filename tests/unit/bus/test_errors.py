"""The error class of each error of JetStream."""

import pytest

from bus.errors import BusError, ConflictError, FullError, RefusedError, UnavailableError, jetstream_error


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, 10071, ConflictError),
        (400, 10164, ConflictError),
        (503, 10077, FullError),
        (503, 10023, FullError),
        (500, 10047, FullError),
        (500, 10028, FullError),
        (400, 10054, RefusedError),
        (400, 10122, RefusedError),
        (400, 10165, RefusedError),
        (404, 10037, RefusedError),
        (404, 10014, RefusedError),
        (404, 10059, UnavailableError),
        (503, 10008, UnavailableError),
        (503, 10039, UnavailableError),
        (408, 0, UnavailableError),
    ],
)
def test_each_code_has_its_error_class_facts_n7(status: int, code: int, expected: type[BusError]) -> None:
    error = jetstream_error("put", status=status, code=code, description="why")
    assert type(error) is expected
    assert error.code == code
    assert str(error) == f"put: why ({code})"
