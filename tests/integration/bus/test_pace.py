"""Watches and consumers that gather messages that arrive quickly."""

import asyncio
import time

import pytest

from bus.buckets import NODES
from bus.connection import Bus
from tests.integration.bus.followers import following
from tests.integration.servers import eventually

pytestmark = pytest.mark.usefixtures("long_limits", "late_pulse")

STORED = 1500
"""More than one request gets."""


def waits(requests: list[dict[str, int]]) -> bool:
    """Whether the watch has sent a request, and the last one waits: the server has no more entries."""
    return bool(requests) and "expires" in requests[-1]


async def put(bus: Bus, key: str) -> int:
    return await bus.put(NODES, key, b"1", revision=0, read_at=time.monotonic())


async def test_a_paced_watch_delivers_all_entries_in_order_and_gathers_those_that_follow_quickly(
    bus: Bus, requests: list[dict[str, int]]
) -> None:
    for start in range(0, STORED, 100):
        await asyncio.gather(*(put(bus, f"stored-{number}") for number in range(start, start + 100)))
    async with following(bus, NODES, pace=0.2) as follower:
        await follower.caught_up()
        assert len(follower.view) == STORED
        await eventually(lambda: waits(requests))
        before, batches = len(requests), follower.batches
        # Together, not one after the other: on a busy machine so few a second come that nothing is gathered.
        revisions = sorted(await asyncio.gather(*(put(bus, f"later-{number}") for number in range(400))))
        await eventually(lambda: len(follower.entries) == STORED + 400)
        assert [entry.revision for entry in follower.entries[STORED:]] == revisions
        assert any("no_wait" in request for request in requests[before:])
        assert len(requests) - before < 100
        assert follower.batches - batches < 100


async def test_a_paced_watch_delivers_an_entry_after_an_idle_time_without_a_new_request(
    bus: Bus, requests: list[dict[str, int]]
) -> None:
    async with following(bus, NODES, pace=0.2) as follower:
        await follower.caught_up()
        await eventually(lambda: waits(requests))
        before = len(requests)
        await put(bus, "alone")
        await eventually(lambda: len(follower.entries) == 1)
        assert {*map(str, requests[before:])} <= {str(requests[before - 1])}  # at most the same one, after it expired


async def test_a_paced_watch_goes_on_after_its_consumer_was_deleted(bus: Bus) -> None:
    async with following(bus, NODES, pace=0.1) as follower:
        await follower.caught_up()
        feed = follower.watch._shared._feed
        assert feed is not None
        await bus.api(f"CONSUMER.DELETE.{NODES.stream}.{feed._consumer}")
        await put(bus, "after")
        await eventually(lambda: "after" in follower.view)
        assert follower.watch._shared._feed is not feed
