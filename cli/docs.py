"""`tas docs`: writes the documentation that is generated from the code."""

from pathlib import Path

import click

from cli.output import echo
from cli.settings import settings_page

SETTINGS_PAGE = Path("docs/settings.md")


@click.command("docs")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the page is out of date.")
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=SETTINGS_PAGE,
    show_default=True,
    help="The file to write.",
)
def docs(*, check: bool, page: Path) -> None:
    """Write the documentation of the settings."""
    expected = settings_page()
    if check:
        if _content(page) != expected.encode():
            raise click.ClickException(f"{page} is out of date: run `tas docs`")
        return
    try:
        page.write_text(expected)
    except OSError as error:
        raise click.ClickException(f"--page = {page}: {error.strerror}") from error
    echo(f"{page} written")


def _content(page: Path) -> bytes | None:
    try:
        return page.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.ClickException(f"--page = {page}: {error.strerror}") from error
