"""The roster: how many processes should run is learned, and after a wipe of the bus not known."""

import math
import time
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import WORKERS
from bus.connection import Bus
from bus.kinds import EXPECTED_NUMBERS
from bus.processes import StoredProcesses, stored_processes
from tas.processes.expected import Expected
from tas.processes.process import Process
from tests.integration.servers import Server, answered, eventually
from tests.integration.watched import meanwhile
from workers.following.roster import Roster
from workers.process.presence import Presence

SOON = 0.05


def presence(bus: Bus, worker: str) -> Presence:
    def described() -> Process:
        return Process(version="1", name="h-1", started=time.time(), workers={worker: ""})

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
