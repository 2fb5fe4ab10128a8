"""`tas doctor`: why an installation does not work."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from bus.connection import Bus
from cli.as_json import JSON_OPTION, print_json
from cli.doctor.bus_facts import BusRead, ask_read
from cli.doctor.options import MANIFEST, Options
from cli.doctor.output import print_findings
from cli.groups import importing
from cli.options import settings_command
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.finding import exit_code
from tas.diagnosis.rights import NAMESPACE
from tas.errors import shortened, without_password
from workers.settings import Settings


class CannotRunError(click.ClickException):
    """`tas doctor` itself could not run."""

    exit_code = 2


def _monitors(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The URLs of `--bus-monitor`, of each value several separated by commas."""
    urls = tuple(url.strip() for value in values for url in value.split(","))
    for url in urls:
        if not re.match(r"https?://[^/]", url):
            raise click.BadParameter(f"{shortened(without_password(url))}: must be a URL such as http://HOST:8222")
    return urls


def _checks(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The checks and groups of `--skip`, of each value several separated by commas."""
    names = [name.strip() for value in values for name in value.split(",")]
    known = {*CHECKS, *(check.partition(".")[0] for check in CHECKS)}
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name}: no check and no group of checks, see docs/reference/doctor.md")
    return tuple(names)


@settings_command(
    "doctor",
    params=[
        click.Option(
            ["--scheduler-config"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="The KubeSchedulerConfiguration. [default: as in the manifest]",
        ),
        click.Option(
            ["--manifest"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            default=MANIFEST,
            show_default=True,
            help="The manifest of kube-scheduler on this machine.",
        ),
        click.Option(
            ["--bus-monitor", "monitors"],
            metavar="URL",
            multiple=True,
            callback=_monitors,
            help="The monitoring port of a nats-server, such as http://HOST:8222. May be given several times, for each "
            "server. [default: port 8222 of each host of --bus]",
        ),
        click.Option(
            ["--account-namespace"],
            metavar="NAMESPACE",
            default=NAMESPACE,
            show_default=True,
            help="The namespace with the ServiceAccounts of the workers.",
        ),
        click.Option(
            ["--skip", "skipped"],
            metavar="CHECK",
            multiple=True,
            callback=_checks,
            help="A check that is not made, such as bus.sync, or a group of checks, such as bus. May be given several "
            "times.",
        ),
        click.Option(["--all", "with_ok"], is_flag=True, help="Print also the checks that found nothing."),
        JSON_OPTION,
    ],
)
def doctor(settings: Settings, **options: Any) -> int:
    """Check an installation, and say how to mend what is wrong.

    Nothing is changed. Checks the bus, policies, metrics, workloads, the scheduler, the extender, certificates,
    proxies, clocks, the descheduler and rights. Run it on a control plane node, where the files of the scheduler are.

    Exit codes: 0 nothing above a hint; 1 a warning, an error, or a check that could not be made; 2 doctor could not
    run.
    """
    try:
        return ask_read(settings, partial(_shown, settings, Options(**options)))
    except click.ClickException as error:
        raise CannotRunError(error.format_message()) from error


async def _shown(settings: Settings, options: Options, read: BusRead, bus: Bus | None, *, simulated: bool) -> int:
    with importing():  # here: what asks the extender is half of what the command loads
        from cli.doctor.examination import examined

    findings = await examined(settings, options, read, bus, simulated=simulated)
    if options.as_json:
        print_json([msgspec.to_builtins(each) for each in findings])
    else:
        print_findings(findings, with_ok=options.with_ok)
    return exit_code(findings)
