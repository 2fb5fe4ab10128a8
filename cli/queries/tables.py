"""The output of tables. They need rich, which only the extra `try` installs."""

import sys

from rich.table import Table

from cli.console import new_console
from cli.output import echo


def print_table(table: Table, *, empty: str = "") -> None:
    """Prints `table`; into a pipe in full width, so that nothing is cut.

    `empty` is printed to standard error if there are no rows.
    """
    if empty and not table.rows:
        echo(empty, err=True)
    if sys.stdout.isatty():
        new_console().print(table)
        return
    console = new_console(width=10_000, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    # Without the spaces behind the last column: `| head` on a terminal would wrap them into empty lines.
    echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def new_table(*columns: str) -> Table:
    """A table without lines, which is easy to cut by other programs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
