"""The command `tas`: starts the workers, and answers questions about the bus."""

import codecs
import errno
import faulthandler
import io
import os
import sys

import click

from cli.groups import LazyCommand, LazyGroup
from cli.output import echo
from workers.process.errors import EXIT_FAILED

COMMANDS = {
    "run": LazyCommand("cli.run", "Run a worker, or all of them, until SIGTERM or Ctrl-C."),
    "up": LazyCommand("lab.up.up", "Run everything here, with simulated nodes and a live view."),
    "demo": LazyCommand("lab.demo.demo", "Run a worked example on a simulated cluster."),
    "publish": LazyCommand("cli.publish", "Publish samples of NODE."),
    "get": LazyCommand("cli.queries.get", "Show nodes, policies, verdicts, sources or GPU cards."),
    "events": LazyCommand("cli.queries.events", "Show what happened: violations, labels, sources and more."),
    "explain": LazyCommand("cli.queries.explain", "Show why: each rule with its value, age, source and state."),
    "trace": LazyCommand("cli.queries.trace", "Follow METRIC of NODE: source, sample, view, verdict, label."),
    "status": LazyCommand("cli.status.status", "Show on one screen what is wrong, and what runs."),
    "doctor": LazyCommand("cli.doctor.doctor", "Check an installation, and say how to mend what is wrong."),
    "support": LazyCommand("cli.support", "Write an archive for a bug report, without secrets."),
    "top": LazyCommand("cli.top.top", "Show the live view of a running installation."),
    "simulate": LazyCommand("lab.simulate.simulate", "Compare default scores, policies and agents by simulation."),
    "pause": LazyCommand("cli.pause", "Stop setting and removing labels."),
    "resume": LazyCommand("cli.pause", "Go on setting and removing labels, after a pause."),
    "release": LazyCommand("cli.release", "Stop rejecting a node by its last known values."),
    "reset": LazyCommand("cli.pause", "Reset a tripped breaker: of one policy, or the common one."),
    "dismiss": LazyCommand("cli.dismiss", "Expect only as many processes of WORKER as run now."),
    "configure": LazyCommand(
        "cli.configure.configure", "Configure the kube-scheduler of this node to ask the extenders."
    ),
    "certs": LazyCommand("cli.certs.certs", "Create, renew and check certificates of extender and scheduler."),
    "bus": LazyCommand("cli.rights.bus", "The address of the bus, and who may do what on it."),
    "policy": LazyCommand("cli.policy", "Check manifests of TASPolicy, and what they would do."),
    "crd": LazyCommand("cli.crd", "Print the CRD of TASPolicy: tas crd | kubectl apply -f -."),
    "files": LazyCommand("cli.files", "List the files for a deployment, or write them to a folder."),
    "runbook": LazyCommand("cli.runbook", "Say when ALERT fires and what to do, or list all alerts."),
    "docs": LazyCommand(
        "cli.docs", "Write the pages of settings, options of agents and commands, and the schemas of the events."
    ),
}
"""Each command with its module, imported when the command is called, and its line in `tas --help`.

Only these names lead from here into `lab`.
"""

OF_EXTRA = frozenset({"rich"})
"""The packages that a command imports and that only the extra `try` installs."""


class _LogsWithoutRich:
    """structlog imports rich where it is installed, for tracebacks that TAS does not print: a quarter of each start.

    It has the interface of `importlib.abc.MetaPathFinder`, which loads as much as all else of `tas --version`.
    """

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        structlog = sys.modules.get("structlog")
        if fullname == "rich" and structlog is not None and not hasattr(structlog, "get_logger"):
            raise ModuleNotFoundError("not for logs", name=fullname)


sys.meta_path.insert(0, _LogsWithoutRich())

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

ESCAPES = "tas.escapes"
"""The name of the handler of characters that standard output lacks."""


HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True, context_settings=HELP)
@click.version_option(package_name="tas-on-nats", prog_name="tas")
def cli() -> None:
    """Telemetry-aware scheduling for an unmodified kube-scheduler, on NATS.

    Settings are flags or environment variables: --log-level is TAS_LOG_LEVEL.
    """


def main() -> None:
    """Runs the command line and exits."""
    if sys.stderr is not None and not faulthandler.is_enabled():  # it is None if its file is closed
        faulthandler.enable()  # a fatal signal, such as an abort in a library, leaves the Python stack on stderr
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - until the process ends, as standard output
    elif isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error(ESCAPES, _escaped)
        sys.stdout.reconfigure(errors=ESCAPES)  # as of stderr: a terminal may lack characters of a name
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


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that the encoding lacks, as escapes of JSON: so the output of `--json` remains JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


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
