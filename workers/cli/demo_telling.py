"""How `tas demo` tells what it does, what it expects and what it sees."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rich.console import Console

from workers.kubernetes.errors import KubernetesError

LOOK_SECONDS = 0.05


class NotSeenError(Exception):
    """Something that was expected did not happen in time, or could not be done; it has been told."""


class Seen(NamedTuple):
    """What there is to see at a moment, and whether it is what was expected."""

    expected: bool
    what: str


Look = Callable[[], Awaitable[Seen]]


class Telling:
    """A numbered tale of steps.

    Attributes:
        within: How many seconds each thing that is expected may take.
    """

    def __init__(self, console: Console, *, within: float) -> None:
        self.within = within
        self._console = console
        self._steps = 0

    def did(self, what: str) -> None:
        """Tells the next step."""
        self._steps += 1
        self._console.print(f"{self._steps:2}  {what}", style="bold")

    def failed(self, what: str) -> NotSeenError:
        """The error to raise for what cannot be done or is not seen; it is told at once."""
        self._tell("NOT SEEN", what, style="bold red")
        return NotSeenError(what)

    async def expect(self, expected: str, look: Look) -> None:
        """Tells what is expected, and looks until it is seen.

        Raises:
            NotSeenError: if it is not in time.
        """
        self._tell("expected", expected, style="")
        began = time.monotonic()
        while True:
            try:
                seen = await look()
            except KubernetesError as error:  # it may answer better the next time
                seen = Seen(expected=False, what=str(error))
            passed = time.monotonic() - began
            if seen.expected:
                self._tell("seen", f"{seen.what} ({_seconds(passed)})", style="green")
                return
            if passed >= self.within:
                raise self.failed(f"{seen.what} (after {self.within:g} s)")
            await asyncio.sleep(LOOK_SECONDS)

    def _tell(self, word: str, what: str, *, style: str) -> None:
        self._console.print(f"    {word:8}  {what}", style=style)


def _seconds(seconds: float) -> str:
    return f"after {seconds:.2f} s" if seconds >= 0.005 else "at once"
