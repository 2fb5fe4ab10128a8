"""How often `tas bus check` asks a slow server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from bus.connection import Bus
from bus.errors import BusError, ForbiddenError, NobodyListensError, UnavailableError
from bus.rights.access import Access
from cli.rights import connecting
from cli.rights.connecting import TRIES, asked

LOST = UnavailableError("the connection was lost")


class Link:
    """A connection that is open or not."""

    def __init__(self, *, connected: bool) -> None:
        self.connected = connected
        self.last_error = "" if connected else "refused"


@pytest.mark.parametrize(
    ("outcomes", "connected", "found"),
    [
        (["answer"], True, "answer"),
        ([LOST, UnavailableError("no answer within 2 s"), "answer"], True, "answer"),
        ([LOST] * int(TRIES.times), True, LOST),
        ([NobodyListensError("nobody listens")], True, "nobody listens"),
        ([UnavailableError("no such stream", code=10059)], True, "no such stream"),
        ([ForbiddenError("forbidden")], True, "forbidden"),
        ([], False, "refused"),
    ],
)
async def test_a_server_is_asked_again_if_only_time_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[Any], connected: bool, found: object
) -> None:
    left = list(outcomes)
    opened: list[str] = []

    @asynccontextmanager
    async def connection(address: str, _access: Access) -> AsyncIterator[Bus]:
        opened.append(address)
        yield cast("Bus", Link(connected=connected))

    async def question(_bus: Bus) -> str:
        outcome = left.pop(0)
        if isinstance(outcome, BusError):
            raise outcome
        return str(outcome)

    monkeypatch.setattr(connecting, "connected", connection)
    try:
        answer: object = await asked("nats://127.0.0.1:4222", Access(), question)
    except BusError as error:
        answer = str(error)
    assert answer == str(found)
    assert left == []
    assert len(opened) == max(1, len(outcomes)), "each try has a connection, and one that does not open is the last"
