"""Consoles of rich, for tables and live views, which escape texts from elsewhere as `cli.output` does."""

import errno
import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cli.output import lines_of


class SafeConsole(Console):
    """A console of rich that escapes what it shows; rich itself lets escape sequences through."""

    def on_broken_pipe(self) -> None:
        """An error as of any other failed write; rich would raise SystemExit, also in the middle of a task."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As for every console."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(lines_of(segment.text), segment.style)


def new_console(**options: Any) -> SafeConsole:
    """A console that shows texts as they are, without the markup of rich."""
    return SafeConsole(markup=False, emoji=False, highlight=False, **options)
