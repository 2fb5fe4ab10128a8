"""How long `tas bus check` tries to connect, and how often it asks a slow server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from bus.connection import Bus
from bus.errors import BusError, ForbiddenError, NobodyListensError, UnavailableError
from bus.rights.access import Access
from cli.rights import connecting
from cli.rights.connecting import TRIES, asked, connected
from tests.e2e.processes import free_ports

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


async def test_where_nobody_listens_it_is_tried_for_a_short_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(connecting, "SLOW_SECONDS", 3600.0)
    (unused,) = free_ports(1)
    async with asyncio.timeout(600), connected(f"nats://127.0.0.1:{unused}", Access()) as bus:
        assert "no connection" in bus.last_error


async def test_whoever_listens_and_does_not_answer_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.link.CONNECT_SECONDS", 3600.0)
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.0)
    monkeypatch.setattr(connecting, "SLOW_SECONDS", 3600.0)
    came = asyncio.Event()

    async def listen(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server, asyncio.timeout(600):
        port = server.sockets[0].getsockname()[1]
        async with connected(f"nats://127.0.0.1:{port}", Access()) as bus:
            assert came.is_set(), "it has not waited for the answer"
            assert not bus.connected
