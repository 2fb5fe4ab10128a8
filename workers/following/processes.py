"""What WORKERS has: which processes run, and how many should."""

from typing import NamedTuple

import msgspec

from bus.buckets import WORKERS
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import EXPECTED_NUMBERS, PROCESSES
from bus.record_kind import Entry, read_entries
from bus.subjects import ProcessKey
from tas.processes.expected import Expected
from tas.processes.process import Process, Running, alive
from workers.names import workers_of


class StoredProcesses(NamedTuple):
    """What WORKERS has.

    Attributes:
        running: The processes that run.
        expected: By worker, how many should.
        entries: The entries of `expected`.
        newest: When the server stored the newest entry, in seconds since 1970; 0 without any.
    """

    running: list[Running]
    expected: dict[str, Expected]
    entries: dict[str, Entry[str, Expected]]
    newest: float


async def stored_processes(bus: Bus, *, now: float | None = None) -> StoredProcesses:
    """Reads WORKERS. Raises UnavailableError, RefusedError.

    `now` is the time by the clock of the server; without it that of the newest entry. The clocks of processes do not
    matter. A role proves that its own workers run, and no others.
    """
    found: list[Entry[ProcessKey, Process]] = []
    entries: list[Entry[str, Expected]] = []
    await read_entries(bus, WORKERS, EXPECTED_NUMBERS.to(entries.append), PROCESSES.to(found.append))
    newest = max([*(each.created for each in found), *(each.created for each in entries)], default=0.0)
    running = [
        Running(entry.key.role, entry.key.id, _of_role(entry.key.role, process), entry.created)
        for entry in found
        if (process := entry.readable()) is not None
    ]
    expected = {entry.key: record for entry in entries if (record := entry.readable()) is not None}
    return StoredProcesses(
        alive(running, newest if now is None else now), expected, {entry.key: entry for entry in entries}, newest
    )


async def running_processes(bus: Bus) -> list[Running]:
    """The processes that run; none if WORKERS cannot be read."""
    try:
        return (await stored_processes(bus)).running
    except BusError:
        return []  # a bus, or rights, of an earlier version


def _of_role(role: str, process: Process) -> Process:
    own = workers_of(role)
    workers = {name: why for name, why in process.workers.items() if name in own}
    return msgspec.structs.replace(process, workers=workers)
