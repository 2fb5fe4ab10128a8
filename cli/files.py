"""`tas files`: lists the files for a deployment, or writes them to a folder."""

import shutil
from pathlib import Path

import click

from cli.output import echo

FOLDER = Path(__file__).with_name("deploy")
"""`deploy/` of the repository: a link to it there, a copy of it in a wheel."""


@click.command("files")
@click.option(
    "--to", metavar="DIR", type=click.Path(path_type=Path), help="Write the files to this folder, which must be empty."
)
def files(*, to: Path | None) -> None:
    """List the files for a deployment, or write them to a folder.

    The CRD, the RBAC roles, example policies, worked examples, alerts and a dashboard, all of this version.
    """
    names = sorted(path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file())
    if to is None:
        for name in names:
            echo(name)
        return
    try:
        if to.exists() and any(to.iterdir()):
            raise click.ClickException(f"--to: {to} is not empty")
        shutil.copytree(FOLDER, to, dirs_exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"--to: {error.filename or to}: {error.strerror}") from error
    echo(f"{len(names)} files in {to}")
