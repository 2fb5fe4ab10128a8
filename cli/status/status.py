"""`tas status`: what is wrong, and what runs, on one screen."""

import time

import click
import msgspec

from bus.connection import Bus
from cli.as_json import JSON_OPTION, print_json
from cli.doctor.bus_facts import BusRead, metric_facts, no_bus, policy_facts, process_facts, read_bus
from cli.options import settings_command
from cli.queries.query import ask
from cli.status.screen import print_overview
from tas.diagnosis.finding import Missing
from tas.diagnosis.overview import Overview, overview
from workers.settings import Settings

FROM_BUS = Missing("tas status reads only the bus", "tas doctor asks the API server as well")


@settings_command(
    "status",
    params=[
        click.Option(
            ["--all", "everything"],
            is_flag=True,
            help="Print all lines, also those for which the terminal has no room.",
        ),
        JSON_OPTION,
    ],
)
def status(settings: Settings, *, everything: bool, as_json: bool) -> int:
    """Show on one screen what is wrong, and what runs.

    First what is wrong, the worst first, each with the next command. Then the workers and how many of each should run,
    the processes with their leases, sources by the age of their newest value, policies that are not in force, and when
    kube-scheduler last asked. Reads only the bus: `tas doctor` also checks cluster, scheduler and extender.

    Exit codes: 0 all is well; 1 something is wrong, for example no bus answers; 2 usage; 3 nothing is known to be
    wrong, but something cannot be judged: for 10 minutes after a wipe of the bus, how many processes should run.
    """

    async def known(bus: Bus, url: str) -> int:
        read = await read_bus(bus, embedded=True)
        return shown(settings, read, url, everything=everything, as_json=as_json)

    async def unknown(reason: str) -> int:
        return shown(settings, no_bus(reason), "", everything=everything, as_json=as_json)

    return ask(settings, known, without_bus=unknown)


def shown(settings: Settings, read: BusRead, address: str, *, everything: bool, as_json: bool) -> int:
    """Prints the screen; returns the exit code."""
    found = overview_of(settings, read, address)
    if as_json:
        print_json(msgspec.to_builtins(found) | {"exit_code": found.exit_code})
    else:
        print_overview(found, everything=everything)
    return found.exit_code


def overview_of(settings: Settings, read: BusRead, address: str) -> Overview:
    """The screen of what was read."""
    from_directory = not isinstance(read.stored, Missing) and read.stored.cluster is False
    return overview(
        bus=read.bus,
        policies=policy_facts(read, in_api=FROM_BUS, has_api=not from_directory, strategy_fields=FROM_BUS),
        metrics=metric_facts(read, offered=FROM_BUS, stale_after=settings.stale_after, in_files=from_directory),
        processes=process_facts(read, time.time()),
        leases={} if isinstance(read.stored, Missing) else read.stored.leases,
        address=address,
    )
