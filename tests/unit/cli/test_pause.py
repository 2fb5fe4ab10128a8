"""Who has paused labels, and what is tried again."""

import os
import pwd

import pytest

from bus.errors import ConflictError, ExpiredError
from cli.pause import TRIES, user_name


def test_a_user_without_a_name_can_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as any number."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert user_name() == str(os.getuid())


async def test_what_was_read_too_long_ago_or_has_changed_is_read_again() -> None:
    """On a busy machine more than 2 s may pass between the read and the write."""
    failures: list[Exception] = [ExpiredError("BREAKERS/_paused: read 3.1 s ago"), ConflictError("changed")]

    async def action() -> int:
        if failures:
            raise failures.pop()
        return 0

    assert await TRIES.of(action) == 0


async def test_the_last_failure_is_an_error() -> None:
    tries = 0

    async def action() -> int:
        nonlocal tries
        tries += 1
        raise ExpiredError("BREAKERS/_paused: read 3.1 s ago")

    with pytest.raises(ExpiredError):
        await TRIES.of(action)
    assert tries == TRIES.times
