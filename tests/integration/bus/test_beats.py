"""The beats of a connection: when all who expect heartbeats look for them."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from bus.errors import UnavailableError
from bus.link import Link
from bus.pulse import Pulse
from bus.rights.access import Loaded
from tests.integration.servers import Server

MANY = 20
BEAT_SECONDS = 0.0625


@pytest.fixture
async def link(server: Server) -> AsyncIterator[Link]:
    link = await Link.open([server.url], name="test", inbox_prefix="_INBOX_test", loaded=Loaded())
    yield link
    await link.close(1.0)


async def test_all_consumers_of_a_connection_share_one_timer(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.link.BEAT_SECONDS", BEAT_SECONDS)
    loop = asyncio.get_running_loop()
    call_later, timers = loop.call_later, []

    def counting(delay: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        if callback == link._end_beat:
            timers.append(callback)
        return call_later(delay, callback, *arguments)

    monkeypatch.setattr(loop, "call_later", counting)
    pulses = [Pulse(link, f"consumer {number}") for number in range(MANY)]
    for beat in (1, 2):
        tasks = len(asyncio.all_tasks())
        waiting = [asyncio.ensure_future(pulse.beat()) for pulse in pulses]
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == tasks + MANY  # none beside those of the callers
        await asyncio.gather(*waiting)
        assert len(timers) == beat


async def test_a_pulse_ends_at_the_second_beat_without_a_message(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.link.BEAT_SECONDS", BEAT_SECONDS)
    silent, heard = Pulse(link, "the silent consumer"), Pulse(link, "the other one")
    await silent.beat()  # the first beat may come at once
    await silent.beat()
    for _ in range(3):
        heard.received()
        await heard.beat()
    with pytest.raises(UnavailableError, match="the silent consumer: heartbeats"):
        await silent.beat()


async def test_who_waits_for_a_beat_learns_at_once_that_the_connection_is_lost(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.link.BEAT_SECONDS", 3600.0)
    pulse = Pulse(link, "the consumer")
    waiting = asyncio.ensure_future(pulse.beat())
    await asyncio.sleep(0)
    await link.close(1.0)
    for each in (waiting, pulse.beat()):
        with pytest.raises(UnavailableError, match="connection was lost"):
            await each
