"""The flags of `tas configure`: those of the original PAS Configurator under their names, and others.

As in Go, a flag of the original has one dash or two, and a switch may have a value: `-dry-run=true`.
"""

import re
from pathlib import Path

import click

from tas.configuring.extenders import (
    DEFAULT_WEIGHT,
    GPU_RESOURCES,
    TELEMETRY_RESOURCE,
    URLS,
    Extender,
    ExtenderKind,
)

NO_BACKUP = "/dev/null"

_ORIGINALS = {
    "b": "--backup-dir",
    "cert": "--cert",
    "key": "--key",
    "cert-dir": "--cert-dir",
    "d": "--config-dir",
    "dry-run": "--dry-run",
    "f": "--template",
    "m": "--manifest",
    "tas-depl": "--tas-depl",
    "gas-depl": "--gas-depl",
}
_FLAG = re.compile(rf"--?({'|'.join(_ORIGINALS)})(=.*)?", re.DOTALL)


def translated(arguments: list[str]) -> list[str]:
    """The arguments with each flag of the original in its long form."""
    new: list[str] = []
    for argument in arguments:
        found = _FLAG.fullmatch(argument)
        if found is None:
            new.append(argument)
            continue
        value = found[2] or ""
        if found[1] == "dry-run" and value:
            switch = {"=true": True, "=1": True, "=false": False, "=0": False}.get(value.lower())
            if switch is None:
                raise click.BadParameter(f"{value[1:]!r} is neither true nor false", param_hint="-dry-run")
            new += ["--dry-run"] if switch else []
        else:
            new.append(_ORIGINALS[found[1]] + value)
    return new


class Command(click.Command):
    """A command with flags of the original."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As every command, after the translation."""
        return super().parse_args(ctx, translated(args))


class Group(click.Group):
    """A group of commands with flags of the original, which is itself a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As every group, after the translation."""
        return super().parse_args(ctx, translated(args))


class OriginalOption(click.Option):
    """A flag of the original, shown also with one dash."""

    def __init__(self, name: str, *others: str, **settings: object) -> None:
        self._original = f"-{name}"
        super().__init__([_ORIGINALS[name], *others], **settings)  # type: ignore[arg-type]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The flag in the help, the original's name first."""
        record = super().get_help_record(ctx)
        return record and (f"{self._original}, {record[0]}", record[1])


def backup_option() -> click.Option:
    """Where backups are."""
    return OriginalOption(
        "b", "backup_dir", metavar="DIR", default="/etc/kubernetes", show_default=True,
        help=f"The folder of the backups; {NO_BACKUP}: no backup.",
    )  # fmt: skip


def extender_options() -> list[click.Option]:
    """Whom the scheduler asks, and how."""
    return [
        click.Option(
            ["--extender", "extenders"],
            type=click.Choice([kind.value for kind in ExtenderKind]),
            multiple=True,
            help="Whom the scheduler asks. May be given several times. [default: telemetry; with -f none]",
        ),
        click.Option(
            ["--telemetry-url"], metavar="URL", default=URLS[ExtenderKind.TELEMETRY], show_default=True,
            help="The telemetry extender.",
        ),
        click.Option(
            ["--gpu-url"], metavar="URL", default=URLS[ExtenderKind.GPU], show_default=True, help="The GPU extender."
        ),
        click.Option(
            ["--agents-url"], metavar="URL", default=URLS[ExtenderKind.AGENTS], show_default=True, help="The agents.",
        ),
        click.Option(
            ["--agents", "agents_file"], metavar="FILE", type=click.Path(path_type=Path),
            help="The file of the agents, as for tas run agents: each agent gets an entry with its weight.",
        ),
        click.Option(
            ["--telemetry-resource", "telemetry_resources"], metavar="NAME", multiple=True,
            default=(TELEMETRY_RESOURCE,), show_default=True,
            help="The telemetry extender is asked only for pods that request one of these.",
        ),
        click.Option(
            ["--gpu-resource", "gpu_resources"], metavar="NAME", multiple=True, default=GPU_RESOURCES,
            show_default=True, help="The GPU extender is asked only for pods that request one of these.",
        ),
        click.Option(
            ["--weight"], type=int, default=DEFAULT_WEIGHT, show_default=True,
            help="The weight of the scores of telemetry and gpu: one step of a score is 10 times this many points.",
        ),
        click.Option(
            ["--http-timeout"], metavar="DURATION",
            help="How long the scheduler waits for an answer. [default: 1s for telemetry; 5s for gpu, whose bind waits "
            "for the API server; a second more than the timeout of an agent]",
        ),
        click.Option(
            ["--ignorable/--not-ignorable"], default=None,
            help="Whether pods are placed also while an extender does not answer. [default: ignorable for telemetry; "
            "not for gpu: such pods would run without cards; for an agent as its file says]",
        ),
        click.Option(
            ["--names-only/--whole-nodes"], default=True, show_default=True,
            help="Whether the scheduler sends only the names of nodes.",
        ),
    ]  # fmt: skip


def extenders_of(
    *,
    extenders: tuple[str, ...],
    telemetry_url: str,
    telemetry_resources: tuple[str, ...],
    gpu_url: str,
    gpu_resources: tuple[str, ...],
    agents_url: str,
    agents_file: Path | None,
    weight: int,
    http_timeout: str | None,
    ignorable: bool | None,
    names_only: bool,
    certificates: str = "/host/certs",
) -> tuple[Extender, ...]:
    """The extenders of these flags. Raises InvalidInputError, click.UsageError."""
    urls = {ExtenderKind.TELEMETRY: telemetry_url, ExtenderKind.GPU: gpu_url, ExtenderKind.AGENTS: agents_url}
    resources = {ExtenderKind.TELEMETRY: telemetry_resources, ExtenderKind.GPU: gpu_resources}
    if (ExtenderKind.AGENTS in extenders) != (agents_file is not None):
        raise click.UsageError("--extender agents and --agents FILE need each other")
    made = {
        kind: Extender(
            kind=kind,
            url=urls[kind],
            resources=resources.get(kind, ()),
            weight=weight,
            http_timeout=http_timeout,
            ignorable=ignorable,
            names_only=names_only,
            certificates=certificates,
        )
        for kind in ExtenderKind
        if kind in extenders
    }
    common = made.pop(ExtenderKind.AGENTS, None)
    if common is None or agents_file is None:
        return tuple(made.values())
    # Imported here: agents need numpy.
    from cli.agents import agents_of
    from tas.configuring.agents import agent_extenders

    return (*made.values(), *agent_extenders(agents_of(agents_file), common))
