"""`tas files`: lists the files for a deployment, or writes them to a folder."""

import posixpath
import re
import shutil
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
        for below, source in FOLDERS.items():
            shutil.copytree(source, to / below, dirs_exist_ok=True)
        for name in names:
            if name.suffix == ".md":
                _relink(to, name)
    except OSError as error:
        raise click.ClickException(f"--to: {error.filename or to}: {error.strerror}") from error
    echo(f"{counted(len(names), 'file')} in {to}")


def _relink(to: Path, name: Path) -> None:
    """Writes the page `name` below `to` again, with links from its new place."""
    text = (to / name).read_text(encoding="utf-8")
    relinked = LINK.sub(lambda link: _from_new_place(link, PurePosixPath(name.as_posix())), text)
    if relinked != text:
        (to / name).write_text(relinked, encoding="utf-8")


def _from_new_place(link: re.Match[str], page: PurePosixPath) -> str:
    """A link of a page from its new place; of a file that is not written, its path in the repository."""
    first = page if page.parts[0] == "docs" else "deploy" / page
    target = PurePosixPath(posixpath.normpath(first.parent / link["path"]))
    if target.parts[0] == "docs":
        written = target
    elif target.parts[0] == "deploy":
        written = target.relative_to("deploy")
    else:
        return f"{link['text']} (`{target}` of the repository)"
    slash = "/" if link["path"].endswith("/") else ""
    return f"[{link['text']}]({posixpath.relpath(written, page.parent)}{slash}{link['anchor'] or ''})"
