"""`tas configure`: the scheduler of this control plane node asks the extenders, as the PAS Configurator does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from cli.as_json import JSON_OPTION, print_json
from cli.configure.backups import back_up, delete, prune
from cli.configure.deployment import deployment
from cli.configure.errors import EXIT_DIFFERENCES, ConfigureError, SomeNotRestoredError, errors_shown
from cli.configure.files import FilesError, NotRestoredError, stored, write_all
from cli.configure.flags import NO_BACKUP, Command, Group, OriginalOption, backup_option
from cli.configure.kubeadm import kubeadm
from cli.configure.liveness import livez_option, look_before, wait_for_restart
from cli.configure.planning import FOLDER_MODE, Planned, plan_options, planned
from cli.configure.report import change_of, files_json, print_diffs, print_notices
from cli.configure.revert import revert
from cli.configure.verify import verify
from cli.output import echo
from tas.values.duration import DurationError, parse_duration
from workers.process.version import product_version


@click.group(
    "configure",
    cls=Group,
    invoke_without_command=True,
    params=[
        *plan_options(),
        backup_option(),
        click.Option(
            ["--keep"], type=click.IntRange(min=1), metavar="N",
            help="After the change, delete all backups in this folder but the newest N.",
        ),
        OriginalOption("dry-run", "dry_run", is_flag=True, help="Print what would change, and write nothing."),
        click.Option(["--exit-code"], is_flag=True, help="With -dry-run: exit with 3 if something would change."),
        click.Option(
            ["--stdout"], is_flag=True, help="Print the new configuration and manifest, and write nothing."
        ),
        click.Option(
            ["--wait"], metavar="DURATION",
            help="Wait until the scheduler has started again. After this time, restore all files, and exit with 1.",
        ),
        livez_option(),
        JSON_OPTION,
    ],
)  # fmt: skip
@click.pass_context
def configure(ctx: click.Context, /, **given: Any) -> int:
    """Configure the kube-scheduler of this node to ask the extenders.

    Edits the manifest of the static pod, writes the configuration of the scheduler, and copies the certificates. All
    else in these files stays as it is. The kubelet then restarts the scheduler. Run it on each control plane node.

    Exit codes: 0 done, or nothing to do; 1 failed, every file is as before; 2 usage; 3 verify or status found
    differences; 4 failed, and the named files could not be restored.
    """
    typed = {
        name: str(value)
        for name, value in given.items()
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    if ctx.invoked_subcommand is None:
        return _configure(typed=typed, **given)
    if typed:
        raise click.UsageError(f"give flags after {ctx.invoked_subcommand}, not before")
    return 0


@errors_shown
def _configure(
    *,
    typed: Mapping[str, str],
    backup_dir: str,
    keep: int | None,
    dry_run: bool,
    exit_code: bool,
    stdout: bool,
    wait: str | None,
    livez: str,
    as_json: bool,
    **given: Any,
) -> int:
    seconds = _check_flags(dry_run=dry_run, stdout=stdout, as_json=as_json, wait=wait, keep=keep, backup_dir=backup_dir)
    looking = dry_run or stdout
    made = planned(looking=looking, **given)
    if backup_dir != NO_BACKUP and not looking:
        _check_backup_dir(Path(backup_dir), Path(given["manifest"]))
    if stdout:
        print_notices(made.notices)
        echo(f"# {made.steps[-2].path}\n{made.plan.config}---\n# {made.steps[-1].path}\n{made.plan.manifest}", nl=False)
        return 0
    done: dict[str, Any] = {"backup": None, "deleted_backups": [], "waited_seconds": None}
    if not as_json:
        print_notices(made.notices)
    if not dry_run and made.pending:
        done |= _written(made, backup_dir=backup_dir, keep=keep, typed=typed, livez=livez, seconds=seconds)
    if as_json:
        files = files_json(made.steps, diffs=dry_run)
        about = {"kube_version": f"1.{made.plan.minor}", "dry_run": dry_run, "files": files}
        print_json(about | {"manifest": made.plan.changes, "notices": made.notices} | done)
    elif dry_run:
        print_diffs(made.steps)
    else:
        _print_done(made, done, livez)
    return EXIT_DIFFERENCES if dry_run and exit_code and made.pending else 0


def _check_flags(
    *, dry_run: bool, stdout: bool, as_json: bool, wait: str | None, keep: int | None, backup_dir: str
) -> float:
    """The seconds of `--wait`; 0: no wait. Raises click.UsageError for flags that contradict each other."""
    if stdout and (dry_run or as_json):
        raise click.UsageError("--stdout contradicts -dry-run and --json")
    if (dry_run or stdout) and (wait is not None or keep is not None):
        raise click.UsageError("--wait and --keep contradict -dry-run and --stdout: nothing is written")
    if keep is not None and backup_dir == NO_BACKUP:
        raise click.UsageError(f"--keep contradicts -b {NO_BACKUP}")
    if wait is None:
        return 0
    try:
        seconds = parse_duration(wait)
    except DurationError as error:
        raise click.UsageError(f"--wait: {error}") from error
    if seconds <= 0:
        raise click.UsageError(f"--wait {wait}: must be more than 0")
    return seconds


def _written(
    made: Planned, *, backup_dir: str, keep: int | None, typed: Mapping[str, str], livez: str, seconds: float
) -> dict[str, Any]:
    """Writes the files, and returns what else was done."""
    done: dict[str, Any] = {}
    before = look_before(livez) if seconds else None
    backup: Path | None = None
    if backup_dir != NO_BACKUP:
        backup = back_up(Path(backup_dir), made.pending, datetime.now(UTC), version=product_version(), flags=typed)
        done["backup"] = str(backup)
    with _without_backup_if_as_before(backup, made):
        write_all(made.steps, folder_mode=FOLDER_MODE)
        if before is not None and made.plan.changes:
            done["waited_seconds"] = round(
                wait_for_restart(
                    livez, before, made.steps, seconds=seconds, own_certificate=not made.plan.serves_with_files
                ),
                1,
            )
    if keep is not None:
        try:
            done["deleted_backups"] = [str(path) for path in prune(Path(backup_dir), keep)]
        except FilesError as error:
            echo(f"note: {error}", err=True)
    return done


@contextmanager
def _without_backup_if_as_before(backup: Path | None, made: Planned) -> Iterator[None]:
    """Deletes the backup of a run that has changed nothing: else `revert` would take it, the newest, and do nothing.

    After Ctrl-C the files themselves say so: they are as before if it came during the writes, and not while it waits.
    """
    try:
        yield
    except (NotRestoredError, SomeNotRestoredError):
        raise
    except BaseException as error:
        if backup is not None:
            with suppress(FilesError):
                is_as_before = isinstance(error, (FilesError, ConfigureError))
                if is_as_before or all(stored(step.path) == step.before for step in made.pending):
                    delete(backup)
        raise


def _print_done(made: Planned, done: Mapping[str, Any], livez: str) -> None:
    if not made.pending:
        echo("no changes needed")
        return
    if done["backup"] is not None:
        echo(f"backup: {done['backup']}")
    for step in made.pending:
        echo(f"{change_of(step)}: {step.path}")
    for change in made.plan.changes:
        echo(f"  manifest: {change}")
    if done["waited_seconds"] is not None:
        echo(f"the scheduler has started again, and answers at {livez} after {done['waited_seconds']:g} s")
    for path in done["deleted_backups"]:
        echo(f"deleted: {path}")


def _check_backup_dir(folder: Path, manifest: Path) -> None:
    if not folder.is_dir():
        raise ConfigureError(f"-b {folder}: is no folder")
    if folder.resolve() == manifest.absolute().parent.resolve():
        raise click.UsageError(f"-b {folder}: must not be the folder of the manifests: the kubelet reads it")


@click.command(
    "status",
    cls=Command,
    params=[click.Option(["--kubeconfig"], metavar="FILE", required=True, help="The cluster."), JSON_OPTION],
)
@errors_shown
def status(*, kubeconfig: str, as_json: bool) -> int:
    """Show whether the scheduler of each control plane node is configured.

    Reads nodes and pods from the API server: the kubelet shows each static pod there with its annotations.

    Exit codes: 0 all are configured, ready and alike; 1 the API server does not answer; 3 differences.
    """
    from cli.configure.schedulers import show_status
    from cli.loop import run_to_end

    return run_to_end(show_status(Path(kubeconfig), as_json=as_json))


for command in (revert, verify, status, kubeadm, deployment):
    configure.add_command(command)
