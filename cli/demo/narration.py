"""Prints the steps of `tas demo`, with the expected and the observed state."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rich.console import Console

from workers.kubernetes.errors import KubernetesError

CHECK_INTERVAL_SECONDS = 0.05


class StepFailedError(Exception):
    """A step could not be done, or its expected state was not observed in time. The failure has been printed."""


class Observed(NamedTuple):
    """The state at one time as text, and whether the state is as expected."""

    expected: bool
    state: str


Check = Callable[[], Awaitable[Observed]]


class Narration:
    """Prints numbered steps.

    Attributes:
        within: How many seconds each expected state may take.
    """

    def __init__(self, console: Console, *, within: float) -> None:
        self.within = within
        self._console = console
        self._steps = 0

    def step(self, text: str) -> None:
        """Prints the next step."""
        self._steps += 1
        self._console.print(f"{self._steps:2}  {text}", style="bold")

    def note(self, text: str) -> None:
        """Prints what happens beside the steps."""
        self._print("note", text, style="")

    def failed(self, text: str) -> StepFailedError:
        """Prints the failure of a step, and returns the error to raise."""
        self._print("FAILED", text, style="bold red")
        return StepFailedError(text)

    async def expect(self, expected: str, check: Check) -> None:
        """Prints the expected state, and repeats `check` until the state is as expected.

        Raises StepFailedError if the expected state is not observed within `within` seconds.
        """
        self._print("expected", expected, style="")
        started = time.monotonic()
        while True:
            try:
                observed = await check()
            except KubernetesError as error:  # the next request may succeed
                observed = Observed(expected=False, state=str(error))
            passed = time.monotonic() - started
            if observed.expected:
                self._print("observed", f"{observed.state} ({_seconds(passed)})", style="green")
                return
            if passed >= self.within:
                raise self.failed(f"{observed.state} (after {self.within:g} s)")
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

    def _print(self, kind: str, text: str, *, style: str) -> None:
        self._console.print(f"    {kind:8}  {text}", style=style)


def _seconds(seconds: float) -> str:
    return f"after {seconds:.2f} s" if seconds >= 0.005 else "at once"
