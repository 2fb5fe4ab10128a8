"""The command `tas`: starts the workers, and answers questions about the bus."""

import errno
import faulthandler
import importlib
import io
import os
import sys
from difflib import get_close_matches
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from cli.output import echo
from workers.process.errors import EXIT_FAILED


class _Command(NamedTuple):
    module: str
    help: str


COMMANDS = {
    "run": _Command("run", "Run a worker, or all of them, until SIGTERM or Ctrl-C."),
    "up": _Command("up.up", "Run everything here, with simulated nodes and a live view."),
    "demo": _Command("demo.demo", "Run a worked example on a simulated cluster."),
    "publish": _Command("publish", "Publish samples of NODE."),
    "get": _Command("queries.get", "Show nodes, policies, verdicts, sources or GPU cards as stored on the bus."),
    "events": _Command(
        "queries.events", "Show what happened: violations, labels, sources, policies, breakers, pauses."
    ),
    "explain": _Command("queries.explain", "Show why: each rule with its value, age, source and state."),
    "trace": _Command("queries.trace", "Follow METRIC of NODE: source, sample, view, verdict, label."),
    "doctor": _Command(
        "doctor.doctor", "Check an installation, and print what is wrong, why it matters, and what mends it."
    ),
    "top": _Command("top", "Show the live view of a running installation."),
    "simulate": _Command(
        "simulate.simulate", "Compare the default scores, policies and agents on a simulated cluster."
    ),
    "pause": _Command("brake", "Set and remove no label from now on."),
    "resume": _Command("brake", "Set and remove labels again, after a pause."),
    "reset": _Command("brake", "Reset the tripped breaker of a policy, or with --all of all policies together."),
    "configure": _Command("configure.configure", "Configure the kube-scheduler of this node to ask the extenders."),
    "certs": _Command("certs.certs", "Create, renew and check the certificates of the extender and of the scheduler."),
    "bus": _Command("rights.bus", "The address of the bus, and who may do what on it."),
    "policy": _Command("policy", "Check manifests of TASPolicy."),
    "crd": _Command("crd", "Print the CRD of TASPolicy: tas crd | kubectl apply -f -."),
    "files": _Command("files", "List the files for a deployment, or write them to a folder."),
    "docs": _Command(
        "docs", "Write the pages of settings, options of agents and commands, and the schemas of the events."
    ),
}
"""Each command with its module below `cli`, imported when the command is called, and its line in `tas --help`."""

OF_EXTRA = frozenset({"rich"})
"""The packages that a command imports and that only the extra `try` installs."""

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class _Commands(click.Group):
    """Imports the module of a command only when the command is called, for a fast start."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command `cmd_name`; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name].module}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with. click suggests only names of loaded ones."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            close = get_close_matches(name, COMMANDS)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin with `incomplete`, without importing the modules of the commands."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=COMMANDS[name].help) for name in names] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands as click does, without importing their modules."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        rows = [
            (name, click.Command(name, help=command.help).get_short_help_str(limit))
            for name, command in COMMANDS.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(cls=_Commands, no_args_is_help=True, context_settings=HELP)
@click.version_option(package_name="tas-on-nats", prog_name="tas")
def cli() -> None:
    """Telemetry-aware scheduling for an unmodified kube-scheduler, on NATS.

    Settings are flags or environment variables: --log-level is TAS_LOG_LEVEL.
    """


def main() -> None:
    """Runs the command line and exits."""
    if sys.stderr is not None and not faulthandler.is_enabled():  # it is None if its file is closed
        faulthandler.enable()  # a fatal signal, such as an abort in a library, leaves the Python stack on stderr
    try:
        code = cli.main(prog_name="tas", standalone_mode=False)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(file=shown)
        echo(shown.getvalue(), err=True, nl=False)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name not in OF_EXTRA:
            raise
        if "_TAS_COMPLETE" not in os.environ:  # else the shell would show it in the line that is being typed
            echo(f"Error: the package {error.name} is not installed: pip install 'tas-on-nats[try]'", err=True)
        code = EXIT_FAILED
    except OSError as error:
        code = _write_failed(error)
    sys.exit(_flush(code if isinstance(code, int) else 0))


def _flush(code: int) -> int:
    """Flushes standard output; returns the exit code, without a traceback if the reader has closed the pipe."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _write_failed(error)
    return code


def _write_failed(error: OSError) -> int:
    """The exit code after a failed write: the reader has closed the pipe, or the disk is full. Raises other errors."""
    if isinstance(error, BrokenPipeError):
        return EXIT_BROKEN_PIPE
    if error.errno != errno.ENOSPC:
        raise error
    echo(f"Error: {error.filename or 'standard output'}: {error.strerror}", err=True)
    return EXIT_FAILED
