"""The output of tables. They need rich, which only the extra `try` installs."""

import sys
from collections.abc import Iterable
from itertools import islice

from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from cli.console import new_console
from cli.output import echo
from tas.errors import line_of
from tas.values.nouns import counted

MAX_ROWS = 100_000
"""The most rows of a table, as of 15,000 nodes with 6 metrics. What is left out is said below it."""

MAX_LINES = 100
"""The most lines of a cell."""

MAX_LINE = 4000
"""The most characters of a cell of one line, as of all rules of a strategy."""


class _Lines(Text):
    """A cell of several lines, each of them one line."""


class _SafeTable(Table):
    """A table in which a text from elsewhere forges no row: each cell is one line, but for those of `cell_of`."""

    left_out = 0

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """As for every table, up to `MAX_ROWS`."""
        if self.row_count >= MAX_ROWS:
            self.left_out += 1
        else:
            super().add_row(*map(_one_line, cells), style=style, end_section=end_section)


def _one_line(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return line_of(cell, MAX_LINE)
    if isinstance(cell, Text) and not isinstance(cell, _Lines):
        return Text(line_of(cell.plain, MAX_LINE), style=cell.style)
    return cell


def cell_of(lines: Iterable[str], *, style: str = "") -> Text:
    """A cell of several lines, at most `MAX_LINES`; `-` without any."""
    rest = iter(lines)
    shown = [line_of(line) for line in islice(rest, MAX_LINES)]
    if left_out := sum(1 for _ in rest):
        shown.append(f"and {counted(left_out, 'more line')}: --json has them all")
    return _Lines("\n".join(shown) or "-", style=style)


def print_table(table: Table, *, empty: str = "") -> None:
    """Prints `table`; into a pipe in full width, so that nothing is cut.

    `empty` is printed to standard error if there are no rows.
    """
    if empty and not table.rows:
        echo(empty, err=True)
    if sys.stdout.isatty():
        new_console().print(table)
    else:
        _print_to_pipe(table)
    if isinstance(table, _SafeTable) and table.left_out:
        echo(f"and {counted(table.left_out, 'more row')}: --json has them all", err=True)


def _print_to_pipe(table: Table) -> None:
    console = new_console(width=10_000, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    # Without the spaces behind the last column: `| head` on a terminal would wrap them into empty lines.
    echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def new_table(*columns: str) -> Table:
    """A table without lines, which is easy to cut by other programs."""
    table = _SafeTable(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
