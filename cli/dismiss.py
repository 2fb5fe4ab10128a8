"""`tas dismiss`: fewer processes should run a worker from now on."""

import socket
import time

import click

from bus.connection import Bus
from bus.kinds import EXPECTED_NUMBERS
from bus.trying import STALE, Tries
from cli.options import settings_command
from cli.output import echo
from cli.pause import user_name
from cli.queries.query import ask
from tas.processes.expected import KEPT_SECONDS, Expected
from tas.processes.process import numbers
from workers.following.processes import stored_processes
from workers.registry import WORKERS
from workers.settings import Settings

TRIES = Tries(STALE, times=10)
"""A number is read and written again if `watch` has changed it meanwhile or the read was too slow."""


@settings_command("dismiss", params=[click.Argument(["worker"], metavar="WORKER", type=click.Choice(list(WORKERS)))])
def dismiss(settings: Settings, *, worker: str) -> int:
    """Expect only as many processes of WORKER as run now.

    For a worker that was scaled down or is no longer used: without this, the missing processes count as lost for a day.
    If later more of them run together for 10 minutes, that number is expected again.
    """
    return ask(settings, lambda bus, _: TRIES.of(lambda: _dismiss(bus, worker)))


async def _dismiss(bus: Bus, worker: str) -> int:
    read_at = time.monotonic()
    stored = await stored_processes(bus)
    running, expected = numbers(stored.running).get(worker, 0), stored.expected.get(worker)
    if expected is None:
        echo(f"how many processes of {worker} should run is not known yet: there is nothing to dismiss")
        return 1
    if running >= expected.count:
        echo(f"{running} of {worker} run, and {expected.count} should: there is nothing to dismiss")
        return 1
    by = f"{user_name()}@{socket.gethostname()}"
    await EXPECTED_NUMBERS.put(
        bus,
        worker,
        Expected(count=running, dismissed=by),
        revision=stored.entries[worker].revision,
        read_at=read_at,
        ttl_seconds=KEPT_SECONDS,
    )
    echo(f"of {worker} {running} should run from now on, no longer {expected.count}")
    return 0
