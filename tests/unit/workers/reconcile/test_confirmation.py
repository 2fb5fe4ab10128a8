"""Lists of policies that several nodes share."""

import asyncio
from typing import Any

import pytest

from bus.connection import Bus
from workers.kubernetes.client import Listing
from workers.reconcile.confirmation import LIST_SECONDS, Confirmation


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class SlowServer:
    """An API server that takes `seconds` for each list, by the clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.lists = 0
        self._clock = clock
        self._seconds = seconds

    async def list(self, _resource: object) -> Listing[Any]:
        self.lists += 1
        await asyncio.sleep(0)  # others ask meanwhile
        self._clock.now += self._seconds
        return Listing(items=(), resource_version="1")


async def test_nodes_that_ask_at_once_share_one_list_however_slow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would list one after the other, and the last of 16 nodes would wait for 16 slow lists."""
    clock = Clock()
    monkeypatch.setattr("workers.reconcile.confirmation.time", clock)
    server = SlowServer(clock, LIST_SECONDS * 3)
    bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # it never connects
    confirmation = Confirmation(bus, server, default_stale_after=60.0)  # type: ignore[arg-type]
    asked_at = clock.now
    found = await asyncio.gather(*(confirmation.listed_policies() for _ in range(16)))
    assert server.lists == 1
    assert {listed_at for _, listed_at in found} == {asked_at}
    _, later = await confirmation.listed_policies()
    assert (server.lists, later) == (2, asked_at + LIST_SECONDS * 3), "who asks later needs a later list"
