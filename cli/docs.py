"""`tas docs`: writes the documentation that is generated from the code."""

from collections.abc import Iterator
from pathlib import Path

import click

from bus.asyncapi import asyncapi, schemas
from cli.as_json import indented
from cli.commands_page import commands_page
from cli.loading import settings_page
from cli.output import echo

FOLDER = Path("docs")
SCHEMAS = Path("reference/events/schemas")


@click.command("docs")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file is out of date.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=FOLDER,
    show_default=True,
    help="The folder of the files.",
)
def docs(*, check: bool, folder: Path) -> None:
    """Write the pages of settings, options of agents and commands, and the schemas of the events."""
    expected = dict(_generated())
    superfluous = {path.relative_to(folder) for path in (folder / SCHEMAS).glob("*.json")} - expected.keys()
    wrong = [path for path, content in expected.items() if _content(folder / path) != content] + sorted(superfluous)
    if check:
        if wrong:
            raise click.ClickException(f"{', '.join(str(folder / path) for path in wrong)}: run `tas docs`")
        return
    for path in wrong:
        _write(folder / path, expected.get(path))
        echo(f"{folder / path} {'written' if path in expected else 'deleted'}")


def _generated() -> Iterator[tuple[Path, bytes]]:
    """Each file, by its path below the folder."""
    from cli.agents_page import agents_page  # with numpy

    yield Path("reference/settings.md"), settings_page().encode()
    yield Path("reference/agent-options.md"), agents_page().encode()
    yield Path("reference/commands.md"), commands_page(click.get_current_context().find_root().command).encode()
    yield Path("reference/events/asyncapi.json"), indented(asyncapi()) + b"\n"
    for name, schema in schemas().items():
        yield SCHEMAS / f"{name}.json", indented(schema) + b"\n"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error


def _write(path: Path, content: bytes | None) -> None:
    try:
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
