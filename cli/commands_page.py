"""The page of all commands, made from the command line itself."""

import inspect
import re
import textwrap
from collections.abc import Iterator

import click

from cli.options import SettingOption
from cli.original import OriginalOption
from workers.settings import flag

WIDTH = 132
"""The longest line of a page, in characters."""

HEAD = """\
# Commands

<!-- Made from the commands in `cli/` by `tas docs`: change them there. -->

Each command with its own options and the names of its settings. [settings.md](settings.md) has the values of the
settings. The shell can [complete](../how-to/package.md#completion) commands and flags.
"""


def commands_page(root: click.Command) -> str:
    """The page `reference/commands.md`: each command below `root` with its usage, help, own options and settings."""
    context = click.Context(root, info_name="tas")
    return "\n".join([HEAD, *_below(root, context, level=2)]).rstrip("\n") + "\n"


def _below(group: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        below = click.Context(command, parent=context, info_name=name)
        yield from _lines(command, below, level)
        yield from _below(command, below, level=level + 1)


def _lines(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """One command; an empty line after each part."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"{'#' * level} {context.command_path}\n\n```\n{usage}\n```\n"
    yield _text(command.help or "") + "\n"
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    own = [
        record
        for each in options
        if not isinstance(each, SettingOption | OriginalOption)
        and "--help" not in each.opts
        and (record := each.get_help_record(context))
    ]
    if own:
        rows = (f"| `{_cell(names)}` | {_cell(_text(meaning))} |" for names, meaning in own)
        yield "\n".join(["| Option | Meaning |", "|---|---|", *rows, ""])
    settings = [f"`{flag(each.name)}`" for each in options if isinstance(each, SettingOption) and each.name]
    if settings:
        yield textwrap.fill(f"Settings: {', '.join(settings)}.", WIDTH, break_on_hyphens=False) + "\n"
    originals = [f"`-{each.original.name}`" for each in options if isinstance(each, OriginalOption)]
    if originals:
        yield f"Flags of the original: {', '.join(originals)}.\n"


def _text(help_text: str) -> str:
    """A help text as Markdown: a `_` or `*` in it marks nothing, unless it is between backticks."""
    parts = inspect.cleandoc(help_text).split("`")
    return "`".join(re.sub(r"([<*_])", r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
