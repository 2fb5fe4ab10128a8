"""How long a command waits for the bus."""

import asyncio
from typing import cast

import pytest

from bus.connection import Bus
from cli.queries.query import _wait_connected


class Slow:
    """A bus whose server is slow: it answers, or refuses, when somebody has asked so often whether it is slow."""

    def __init__(self, *, asked: int, refuses: bool) -> None:
        self.connected = False
        self._left = asked
        self._refuses = refuses

    async def wait_connected(self) -> None:
        await asyncio.Event().wait()

    @property
    def is_slow(self) -> bool:
        self._left -= 1
        self.connected = self._left <= 0 and not self._refuses
        return self._left > 0


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.queries.query.CONNECT_SECONDS", 0.001)
    monkeypatch.setattr("cli.queries.query.POLL_SECONDS", 0.001)


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_slow_server_has_more_time_until_it_refuses(refuses: bool) -> None:
    bus = Slow(asked=5, refuses=refuses)
    await _wait_connected(cast("Bus", bus))
    assert bus.connected is not refuses


async def test_the_time_of_a_slow_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.queries.query.SLOW_SECONDS", 0.01)
    bus = Slow(asked=10**9, refuses=False)
    await _wait_connected(cast("Bus", bus))
    assert not bus.connected
