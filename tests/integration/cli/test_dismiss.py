"""`tas dismiss`: an operator says that fewer processes should run, and only as many as run."""

import time
from functools import partial

from bus.connection import Bus
from bus.kinds import EXPECTED_NUMBERS, PROCESSES
from bus.subjects import ProcessKey
from tas.processes.expected import Expected
from tas.processes.process import Process
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, answered
from workers.following.processes import stored_processes


async def test_a_worker_that_was_scaled_down_is_dismissed(tas: Tas, server: Server, bus: Bus) -> None:
    tas.environment["TAS_BUS"] = server.url
    process = Process(version="1", name="h-1", started=time.time(), workers={"labels": ""})
    await answered(partial(_put, bus, process))
    done = await tas("dismiss", "evaluate")
    assert "not known yet" in done.out, done
    done = await tas("dismiss", "labels")
    assert (done.code, "nothing to dismiss" in done.out) == (1, True)
    await answered(
        partial(EXPECTED_NUMBERS.put, bus, "labels", Expected(count=3), revision=0, read_at=time.monotonic())
    )
    await answered(partial(_put, bus, process))  # on a busy machine its record is old by now
    done = await tas("dismiss", "labels")
    assert (done.code, done.out) == (0, "of labels 1 should run from now on, no longer 3\n")
    found = (await stored_processes(bus)).expected["labels"]
    assert (found.count, "@" in found.dismissed) == (1, True)
    assert (await tas("dismiss", "no-such-worker")).code == 2


async def _put(bus: Bus, process: Process) -> None:
    key = ProcessKey("labels", "a")
    current = await PROCESSES.get(bus, key)
    await PROCESSES.put(bus, key, process, revision=current.revision, read_at=time.monotonic())
