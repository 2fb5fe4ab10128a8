"""`tas files`: lists the files for a deployment, or writes them to a folder."""

import shutil
from pathlib import Path

import click

from cli.output import echo
from tas.values.nouns import counted

FOLDERS = {Path(): Path(__file__).with_name("deploy"), Path("docs"): Path(__file__).with_name("pages")}
"""Below `--to`: `deploy/` and `docs/` of the repository. In the repository the package has links to them, in a wheel it
has copies. Messages of `tas` name pages of `docs/`."""


@click.command("files")
@click.option(
    "--to", metavar="DIR", type=click.Path(path_type=Path), help="Write the files to this folder, which must be empty."
)
def files(*, to: Path | None) -> None:
    """List the files for a deployment, or write them to a folder.

    The CRD, the RBAC roles, example policies, worked examples, alerts, a dashboard, and in docs/ the documentation: all
    of this version.
    """
    names = sorted(
        below / path.relative_to(source)
        for below, source in FOLDERS.items()
        for path in source.rglob("*")
        if path.is_file()
    )
    if to is None:
        for name in names:
            echo(name)
        return
    try:
        if to.exists() and any(to.iterdir()):
            raise click.ClickException(f"--to: {to} is not empty")
        for below, source in FOLDERS.items():
            shutil.copytree(source, to / below, dirs_exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"--to: {error.filename or to}: {error.strerror}") from error
    echo(f"{counted(len(names), 'file')} in {to}")
