"""A group of commands that loads the module of a command only when the command is called, for a fast start."""

import gc
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


@contextmanager
def importing() -> Iterator[None]:
    """Within the body, which imports, nothing is collected: imports leave no garbage, and a collection takes time.

    Of the imports of a worker it takes a tenth.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LazyCommand(NamedTuple):
    """A command: its module, which has it under its name, and its line in the help of its group."""

    module: str
    help: str


class LazyGroup(click.Group):
    """A group of `LazyCommand`s by name, in the order of the help."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of the help."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command `cmd_name`; None if there is no such command."""
        if cmd_name not in self.lazy:
            return None
        with importing():
            module = importlib.import_module(self.lazy[cmd_name].module)
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with. click suggests only names of loaded ones."""
        name = args[0]
        if name not in self.lazy and not name.startswith("-") and not ctx.resilient_parsing:
            close = get_close_matches(name, self.lazy)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin with `incomplete`, without importing the modules of the commands."""
        names = [name for name in self.lazy if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=self.lazy[name].help) for name in names] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands as click does, without importing their modules."""
        limit = formatter.width - 6 - max(map(len, self.lazy))
        rows = [
            (name, click.Command(name, help=command.help).get_short_help_str(limit))
            for name, command in self.lazy.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
