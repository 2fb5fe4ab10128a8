"""`tas docs`: the pages that are made from the code."""

from pathlib import Path

import click

from workers.cli.settings import settings_page

SETTINGS_PAGE = Path("docs/settings.md")


@click.command("docs")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the page is not as it should be.")
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=SETTINGS_PAGE,
    show_default=True,
    help="Where the settings are told.",
)
def docs(*, check: bool, page: Path) -> None:
    """Write the page of settings."""
    wanted = settings_page()
    if check:
        if _content(page) != wanted.encode():
            raise click.ClickException(f"{page} is not what the settings say: run `tas docs`")
        return
    try:
        page.write_text(wanted)
    except OSError as error:
        raise click.ClickException(f"--page = {page}: {error.strerror}") from error
    click.echo(f"{page} written")


def _content(page: Path) -> bytes | None:
    """None: there is no such page."""
    try:
        return page.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.ClickException(f"--page = {page}: {error.strerror}") from error
