"""The error class of each error of JetStream."""

import pytest

from bus.errors import (
    CONSUMER_NOT_FOUND,
    MESSAGE_NOT_FOUND,
    BusError,
    ConflictError,
    FullError,
    RefusedError,
    UnavailableError,
    jetstream_error,
    none_if,
)


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


async def test_only_the_expected_code_is_no_error() -> None:
    async def failing(code: int | None) -> str:
        raise RefusedError("why", code=code)

    async def answered() -> str:
        return "found"

    assert await none_if(MESSAGE_NOT_FOUND, answered()) == "found"
    assert await none_if(MESSAGE_NOT_FOUND, failing(MESSAGE_NOT_FOUND)) is None
    for other in (CONSUMER_NOT_FOUND, None):
        with pytest.raises(RefusedError):
            await none_if(MESSAGE_NOT_FOUND, failing(other))
