"""`tas support`: one archive for a bug report, without secrets and addresses."""

import time
from pathlib import Path

import click

from bus.connection import Bus
from cli.doctor.bus_facts import BusRead, ask_read
from cli.groups import importing
from cli.options import settings_command
from workers.settings import Settings


@settings_command(
    "support",
    params=[
        click.Option(
            ["--output"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="The archive. [default: tas-support-TIME.tar.gz in this directory]",
        ),
        click.Option(
            ["--log", "logs"],
            metavar="FILE",
            multiple=True,
            type=click.Path(path_type=Path),
            help="The log file of a process; its end is added. May be given several times.",
        ),
    ],
)
def support(settings: Settings, *, output: Path | None, logs: tuple[Path, ...]) -> int:
    """Write an archive for a bug report, without secrets.

    It has versions, settings, status, findings of doctor, metrics, logs, sources and policies. Secrets, tokens, users
    in URLs and addresses are replaced; names of nodes, policies and metrics stay. Prints what is in it and what is
    lacking: read it before you send it. Nothing is changed, and nothing is sent.

    The logs are those that `--log` names, and with `--kubeconfig` the last lines of each pod of the chart: a process
    writes its log to standard error, and TAS keeps none.
    """
    path = output or Path(time.strftime("tas-support-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))

    async def written(read: BusRead, bus: Bus | None, *, simulated: bool) -> int:
        with importing():  # here: what asks the extender is half of what the command loads
            from cli.support_archive import write_archive

        return await write_archive(settings, read, bus, path, logs, simulated=simulated)

    return ask_read(settings, written)
