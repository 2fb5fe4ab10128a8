"""WORKERS: each process proves that it runs, at a price that does not grow, and nobody depends on it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import WORKERS
from bus.connection import Bus, RawEntry
from bus.kinds import PROCESSES
from bus.subjects import ProcessKey
from cli.loading import load_settings
from cli.wiring import Process as RunningProcess
from tas.processes.process import TTL_SECONDS, WRITE_SECONDS, Process
from tests.integration.servers import Server, answered, eventually
from tests.integration.watched import meanwhile
from workers.following.processes import stored_processes
from workers.process.presence import Presence
from workers.process.version import product_version
from workers.registry import workers_of_all

pytestmark = pytest.mark.usefixtures("long_limits")


def described(name: str = "h-1") -> Process:
    return Process(version="1", name=name, started=time.time(), workers={"evaluate": ""})


async def entries(bus: Bus) -> list[RawEntry]:
    return await answered(partial(bus.entries, WORKERS))


@asynccontextmanager
async def all_workers(server: Server, folder: Path) -> AsyncIterator[RunningProcess]:
    """`tas run all` with policies of a directory, in this process."""
    texts = {"bus": server.url, "policies": str(folder), "health_listen": "127.0.0.1:0", "listen": "127.0.0.1:0"}
    settings = load_settings("run all", texts)
    async with AsyncExitStack() as stack:
        parts = RunningProcess(settings, stack)
        await parts.build(workers_of_all(settings))
        stop = asyncio.Event()
        running = asyncio.create_task(parts.run(stop))
        try:
            yield parts
        finally:
            stop.set()
            assert await running == 0


async def test_a_process_lists_its_workers_and_leases_and_leaves_nothing(
    server: Server, bus: Bus, tmp_path: Path
) -> None:
    async def is_complete() -> bool:
        for each in await entries(bus):
            document = json.loads(each.value or b"{}")
            workers, leases = document.get("workers", {}), document.get("leases", ())
            if {"materialize", "evaluate", "extender", "policies"} <= workers.keys() and {"events"} <= set(leases):
                return all(reason is None for reason in workers.values()) and "NODES" in document["lag"]
        return False

    async with all_workers(server, tmp_path):
        await eventually(is_complete)
        (entry,) = await entries(bus)
        assert entry.key.startswith("all.")
        ((_, _, process, _),) = (await stored_processes(bus)).running
        assert process.time is not None
        assert process.time > process.started, "its clock now"
        assert process.version == product_version()
    assert await entries(bus) == []


async def test_an_idle_process_writes_once_in_five_seconds_whatever_the_bus_has(
    server: Server, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by the server: one message of WORKERS for each interval, and none of nodes or samples."""
    monkeypatch.setattr("cli.presence.Presence", partial(Presence, write_seconds=0.25))
    assert WRITE_SECONDS == 5.0
    async with all_workers(server, tmp_path) as parts:
        await eventually(lambda: not parts.unready())
        began = time.monotonic()
        first = (await answered(partial(bus.epoch, WORKERS))).last_sequence
        written = 0

        async def is_written() -> bool:
            nonlocal written
            written = (await answered(partial(bus.epoch, WORKERS))).last_sequence - first
            return written >= 6

        await eventually(is_written)
        # A busy machine delays writes and this look, so the time is too long, never too short for their number.
        assert written <= (time.monotonic() - began) / 0.2 + 1


async def test_a_key_that_somebody_else_writes_is_given_up(bus: Bus) -> None:
    """Two processes of one name have two keys, and a stranger's write into one of them takes nothing away."""
    presences = [Presence(bus, "evaluate", described, write_seconds=0.05) for _ in range(2)]
    async with meanwhile(presences[0].run()), meanwhile(presences[1].run()):
        await eventually(lambda: _count(bus, 2))
        first = (await entries(bus))[0]

        async def overwritten() -> None:
            current = await bus.get(WORKERS, first.key)
            assert current is not None
            await bus.put(WORKERS, first.key, b"?", revision=current.revision, read_at=time.monotonic())

        await answered(overwritten)
        await eventually(lambda: _count(bus, 2))
        assert first.key not in {PROCESSES.key(ProcessKey(each.role, each.id)) for each in await _running(bus)}


async def _running(bus: Bus) -> list[Any]:
    return (await answered(partial(stored_processes, bus))).running


async def _count(bus: Bus, count: int) -> bool:
    return len(await _running(bus)) == count


async def test_what_a_stranger_writes_proves_nothing(bus: Bus) -> None:
    """A role proves that its own workers run; other JSON, other keys and times of tomorrow are left out or harmless."""
    tomorrow = Process(version="\x1b[2J", name="x", started=time.time() + 86400, workers={"labels": "", "evaluate": ""})
    good = PROCESSES.encode(tomorrow)
    strange = {
        "evaluate.x": good,  # may say that evaluate runs, and not that labels does
        "stranger.x": good,
        "labels.x": b'{"workers": 5}',
        "labels.y.z": good,
        "labels": good,
        "watch.x": b"[" * 100_000,
    }
    for key, value in strange.items():
        await bus.put(WORKERS, key, value, revision=0, read_at=time.monotonic(), ttl_seconds=TTL_SECONDS)
    found = await stored_processes(bus)
    assert [(each.role, list(each.process.workers)) for each in found.running] == [
        ("evaluate", ["evaluate"]),
        ("stranger", []),
    ]
    assert (await stored_processes(bus, now=found.newest + 3600)).running == []  # they have no TTL


async def test_a_process_that_is_killed_is_gone_when_its_record_expires(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.process.presence.TTL_SECONDS", 1)
    presence = Presence(bus, "evaluate", described, write_seconds=60.0)
    monkeypatch.setattr(PROCESSES.__class__, "delete", _nothing)  # as if killed
    async with meanwhile(presence.run()):
        await eventually(lambda: _count(bus, 1))
    await eventually(lambda: _count(bus, 0))


async def _nothing(*_: object, **__: object) -> int:
    return 0
