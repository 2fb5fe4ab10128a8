"""`tas files`: lists the files for a deployment, or writes them to a folder."""

import posixpath
import re
import shutil
from functools import partial
from pathlib import Path, PurePosixPath

import click

from cli.output import echo
from tas.values.nouns import counted

FOLDERS = {Path(): Path(__file__).with_name("deploy"), Path("docs"): Path(__file__).with_name("pages")}
"""Below `--to`: `deploy/` and `docs/` of the repository. In the repository the package has links to them, in a wheel it
has copies. Messages of `tas` name pages of `docs/`."""

LINK = re.compile(r"\[(?P<text>[^][]{1,300})\]\((?P<path>[\w./-]{1,200})(?P<anchor>#[\w-]{1,100})?\)")
"""A link of a page to a file; one with a scheme, as `https:`, does not match."""


@click.command("files")
@click.option(
    "--to", metavar="DIR", type=click.Path(path_type=Path), help="Write the files to this folder, which must be empty."
)
def files(*, to: Path | None) -> None:
    """List the files for a deployment, or write them to a folder.

    The CRD, the RBAC roles, example policies, worked examples, alerts, a dashboard, and in docs/ the documentation: all
    of this version. Links between pages lead to the written files; a link to a file that only the repository has
    becomes its path.
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
        for below, source in reversed(FOLDERS.items()):  # `to` itself last: it may then be read-only, as the package is
            shutil.copytree(source, to / below, dirs_exist_ok=True, copy_function=partial(_copy, to))
    except OSError as error:
        raise click.ClickException(f"--to: {error.filename or to}: {error.strerror}") from error
    echo(f"{counted(len(names), 'file')} in {to}")


def _copy(to: Path, source: str, target: str) -> None:
    """Copies a file to its place below `to`; a page with links from there."""
    if not target.endswith(".md"):
        shutil.copy2(source, target)
        return
    name = PurePosixPath(Path(target).relative_to(to).as_posix())
    text = Path(source).read_bytes().decode()
    Path(target).write_bytes(LINK.sub(lambda link: _from_new_place(link, name), text).encode())
    shutil.copystat(source, target)


def _from_new_place(link: re.Match[str], page: PurePosixPath) -> str:
    """A link of a page from its new place; of a file that is not written, its path in the repository."""
    first = page if page.parts[0] == "docs" else "deploy" / page
    target = PurePosixPath(posixpath.normpath(first.parent / link["path"]))
    top = target.parts[:1]  # empty for the repository itself
    if top == ("docs",):
        written = target
    elif top == ("deploy",):
        written = target.relative_to("deploy")
    else:
        return f"{link['text']} (`{target}` of the repository)"
    slash = "/" if link["path"].endswith("/") else ""
    return f"[{link['text']}]({posixpath.relpath(written, page.parent)}{slash}{link['anchor'] or ''})"
