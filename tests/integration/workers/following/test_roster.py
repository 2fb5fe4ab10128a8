"""The roster: how many processes should run is learned, and after a wipe of the bus not known."""

import math
import time
from contextlib import AsyncExitStack
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import WORKERS
from bus.connection import Bus
from bus.kinds import EXPECTED_NUMBERS
from tas.processes.expected import KEPT_SECONDS, Expected
from tas.processes.process import Process
from tests.integration.servers import Server, answered, eventually
from tests.integration.watched import meanwhile
from workers.following.processes import StoredProcesses, stored_processes
from workers.following.roster import Roster
from workers.process.presence import Presence

SOON = 0.05


def presence(bus: Bus, worker: str, *, name: str = "h-1", ahead: float | None = None) -> Presence:
    def described() -> Process:
        now = None if ahead is None else time.time() + ahead
        return Process(version="1", name=name, started=time.time(), workers={worker: ""}, time=now)

    return Presence(bus, worker, described, write_seconds=SOON)


async def stored(bus: Bus) -> StoredProcesses:
    return await answered(partial(stored_processes, bus))


async def test_what_runs_together_is_expected_until_the_bus_is_wiped(
    server: Server, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tas.processes.expected.TOGETHER_SECONDS", 0.5)
    monkeypatch.setattr("workers.following.roster.GRACE_SECONDS", 0.2)
    registries = [CollectorRegistry(), CollectorRegistry()]
    rosters = [Roster(bus, each, ["evaluate", "labels"], read_seconds=SOON) for each in registries]

    def value(name: str, worker: str) -> float:
        found = registries[0].get_sample_value(name, {"worker": worker})
        assert found is not None
        return found

    assert math.isnan(value("tas_workers", "evaluate")), "nobody has looked"
    async with meanwhile(rosters[0].run()), meanwhile(rosters[1].run()):
        async with meanwhile(presence(bus, "evaluate").run()):
            async with meanwhile(presence(bus, "evaluate").run()):
                await eventually(lambda: value("tas_workers_expected", "evaluate") == 2)
                assert value("tas_workers", "evaluate") == 2
                assert value("tas_workers", "labels") == 0
                assert math.isnan(value("tas_workers_expected", "labels")), "not known: no zero"
            await eventually(lambda: value("tas_workers", "evaluate") == 1)
            assert not rosters[0].lost, "one still runs"
        await eventually(lambda: rosters[0].lost == {"evaluate"})
        assert (await stored(bus)).expected == {"evaluate": Expected(count=2)}

        await server.restart(wiped=True)
        await eventually(lambda: math.isnan(value("tas_workers_expected", "evaluate")))
        await eventually(lambda: not rosters[0].lost)
        async with meanwhile(presence(bus, "evaluate").run()):
            await eventually(lambda: value("tas_workers_expected", "evaluate") == 1)


async def test_an_expected_number_ends_a_day_after_it_was_last_seen(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a worker that was removed on purpose would be missed for ever."""
    assert KEPT_SECONDS == 24 * 3600
    monkeypatch.setattr("workers.following.roster.KEPT_SECONDS", 1)
    monkeypatch.setattr("tas.processes.expected.TOGETHER_SECONDS", 0.2)
    roster = Roster(bus, CollectorRegistry(), ["evaluate"], read_seconds=SOON)

    async def is_expected(count: int) -> bool:
        return (await stored(bus)).expected == ({"evaluate": Expected(count=count)} if count else {})

    async with meanwhile(roster.run()):
        async with meanwhile(presence(bus, "evaluate").run()):
            await eventually(partial(is_expected, 1))
        await eventually(partial(is_expected, 0))


async def test_an_expected_number_of_a_stranger_is_replaced_or_ignored(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tas.processes.expected.TOGETHER_SECONDS", 0.2)
    for key, text in {"evaluate": b'{"count": -1}', "labels": b'{"count": 1e300}', "watch": b"?"}.items():
        name = EXPECTED_NUMBERS.key(key)
        await answered(partial(bus.put, WORKERS, name, text, revision=0, read_at=time.monotonic()))
    roster = Roster(bus, CollectorRegistry(), ["evaluate"], read_seconds=SOON)
    async with meanwhile(roster.run()), meanwhile(presence(bus, "evaluate").run()):

        async def is_replaced() -> bool:
            return (await stored(bus)).expected == {"evaluate": Expected(count=1)}

        await eventually(is_replaced)


async def test_the_clock_of_each_process_is_compared_with_that_of_the_server(bus: Bus) -> None:
    registry = CollectorRegistry()

    def ahead(process: str) -> float | None:
        return registry.get_sample_value("tas_process_clock_ahead_seconds", {"process": process})

    roster = Roster(bus, registry, ["evaluate"], read_seconds=SOON)
    clocks = {"ahead": 3600.0, "behind": -3600.0, "right": 0.0, "silent": None}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(meanwhile(roster.run()))
        for name, seconds in clocks.items():
            running = presence(bus, "evaluate", name=name, ahead=seconds).run()
            await stack.enter_async_context(meanwhile(running))
        await eventually(lambda: None not in (ahead("ahead"), ahead("behind"), ahead("right")))
        found = [ahead("ahead") or 0.0, ahead("right") or 0.0, ahead("behind") or 0.0]
        # A write takes a moment, and on a busy machine more than the seconds that are taken off.
        assert found == [pytest.approx(seconds, abs=300) for seconds in (3600, 0, -3595)]
        assert ahead("silent") is None, "an earlier version does not say its time"
