"""The command `tas`: where everything is wired, and what a person or a script asks."""

import errno
import importlib
import importlib.util
import os
import sys

import click

from workers.runtime import EXIT_FAILED, product_version

COMMANDS = {
    "run": "workers.cli.run",
    "up": "workers.cli.up",
    "demo": "workers.cli.demo",
    "publish": "workers.cli.publish",
    "get": "workers.cli.get",
    "explain": "workers.cli.explain",
    "trace": "workers.cli.trace",
    "policy": "workers.cli.policy",
    "crd": "workers.cli.crd",
    "docs": "workers.cli.docs",
}
"""Each command and the module that holds it under its own name; imported when it is asked for."""

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class _Commands(click.Group):
    """Commands that are imported one by one, since most of them need little of what the others do."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands that are there, in their order."""
        return [name for name, module in COMMANDS.items() if importlib.util.find_spec(module) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command


HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(cls=_Commands, no_args_is_help=True, context_settings=HELP)
@click.version_option(product_version(), prog_name="tas")
def cli() -> None:
    """Telemetry-aware scheduling for an unmodified kube-scheduler, on NATS.

    Settings are flags or environment variables: --log-level is TAS_LOG_LEVEL.
    """


def main() -> None:
    """Runs the command line, and ends the process."""
    try:
        code = cli.main(prog_name="tas", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except OSError as error:
        code = _unwritten(error)
    sys.exit(_flushed(code if isinstance(code, int) else 0))


def _flushed(code: int) -> int:
    """The exit code after all was written; a reader that has gone away is no reason for a traceback at the very end."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _unwritten(error)
    return code


def _unwritten(error: OSError) -> int:
    """The exit code where what was to be written cannot be: nobody reads it any more, or the disk is full."""
    if isinstance(error, BrokenPipeError):
        return EXIT_BROKEN_PIPE
    if error.errno != errno.ENOSPC:
        raise error
    click.echo(f"Error: {error.filename or 'standard output'}: {error.strerror}", err=True)
    return EXIT_FAILED
