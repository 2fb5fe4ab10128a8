"""The output of all commands. A text from elsewhere cannot control the terminal: its control characters are escaped.

Names of pods, labels of Prometheus and error texts of servers may contain such characters. So no module of `cli` but
this one and `cli.console` writes to the terminal by itself.
"""

import json
from difflib import unified_diff

import click

from tas.errors import printable


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Prints a text, of one or several lines."""
    click.echo(lines_of(str(text)), err=err, nl=nl)


def echo_line(text: object, *, err: bool = False) -> None:
    """Prints a text as one line: a text from elsewhere cannot add a line that looks like one of ours."""
    click.echo(printable(str(text)), err=err)


def echo_coloured(head: str, text: str, *, colour: str) -> None:
    """Prints a line whose head is coloured on a terminal."""
    click.echo(click.style(lines_of(head), fg=colour) + lines_of(text))


def print_diff(name: str, before: str, after: str) -> None:
    """Prints the lines of a text that differ, with three lines around them; on a terminal in red and green."""
    lines = diff_lines(name, before, after)
    for line in lines or [f"{name}: no changes"]:
        colour = {"-": "red", "+": "green"}.get(line[:1]) if lines else None
        click.echo(click.style(lines_of(line), fg=colour) if colour else lines_of(line))


def diff_lines(name: str, before: str, after: str) -> list[str]:
    """The lines of a text that differ, with three lines around them."""
    return list(unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm=""))


def lines_of(text: str) -> str:
    """`text` with all its lines escaped; line ends stay."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def json_lines_of(text: str) -> str:
    """The same JSON, with escapes of JSON in its strings."""
    return "\n".join(line if line.isprintable() else "".join(map(_json_escape, line)) for line in text.split("\n"))


def _json_escape(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
