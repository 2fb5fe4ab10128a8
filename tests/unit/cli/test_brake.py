"""Who has paused labels."""

import os
import pwd

import pytest

from cli.brake import user_name


def test_a_user_without_a_name_can_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as any number."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert user_name() == str(os.getuid())
