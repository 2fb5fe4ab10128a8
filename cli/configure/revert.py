"""`tas configure revert`: the files of a backup."""

from pathlib import Path

import click

from cli.as_json import JSON_OPTION, print_json
from cli.configure.backups import changed_since, newest_backup, steps_of_backup
from cli.configure.errors import ConfigureError, errors_shown
from cli.configure.files import write_all
from cli.configure.flags import Command, OriginalOption, backup_option
from cli.configure.planning import FOLDER_MODE
from cli.configure.report import files_json, print_diffs, print_notices
from cli.output import echo
from tas.values.nouns import counted


@click.command("revert", cls=Command, params=[
    click.Option(["--backup"], metavar="DIR", help="The backup. [default: the newest]"),
    backup_option(),
    OriginalOption("dry-run", "dry_run", is_flag=True, help="Print what would change, and write nothing."),
    JSON_OPTION,
])  # fmt: skip
@errors_shown
def revert(*, backup: str | None, backup_dir: str, dry_run: bool, as_json: bool) -> int:
    """Restore the files of a backup.

    Files that did not exist before are deleted. The backup stays. If a file has changed since the newest backup, for
    example by `kubeadm upgrade`, nothing is restored: name the backup with --backup to restore it nevertheless.
    """
    folder = Path(backup) if backup is not None else newest_backup(Path(backup_dir))
    steps = steps_of_backup(folder)
    changed = changed_since(folder)
    notices = [f"{path}: has changed since this backup, and is lost" for path in changed]
    if changed and backup is None and not dry_run:
        reason = f"changed since the backup: {', '.join(changed)}; every file is as before"
        raise ConfigureError(f"{reason}. To restore the backup nevertheless: --backup {folder}")
    if not dry_run:
        write_all(steps, folder_mode=FOLDER_MODE)
    if as_json:
        files = files_json(steps, diffs=dry_run)
        print_json({"backup": str(folder), "dry_run": dry_run, "files": files, "notices": notices})
        return 0
    echo(f"backup: {folder}")
    print_notices(notices)
    if dry_run:
        print_diffs(steps)
        return 0
    pending = [step for step in steps if step.changes]
    for step in pending:
        echo(f"{'deleted' if step.content is None else 'restored'}: {step.path}")
    echo("no changes needed" if not pending else f"restored {counted(len(pending), 'file')}")
    return 0
