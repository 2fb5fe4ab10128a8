"""Prints the steps of `tas demo`, with the expected and the observed state."""

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from rich.console import Console

from bus.trying import Tries
from tas.values.backoff import Backoff
from workers.kubernetes.errors import KubernetesError

CHECK_INTERVAL = Backoff(first=0.05, longest=0.05)


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

    def tries(self, again: type[Exception]) -> Tries:
        """How a request is tried that may fail with this error."""
        return Tries((again,), within=self.within, wait=CHECK_INTERVAL)

    async def expect(self, expected: str, check: Check) -> None:
        """Prints the expected state, and repeats `check` until the state is as expected.

        Raises StepFailedError if the expected state is not observed within `within` seconds.
        """
        self._print("expected", expected, style="")
        started = time.monotonic()
        try:
            observed = await self.tries(KubernetesError).of(check, until=lambda each: each.expected)
        except (KubernetesError, TimeoutError) as error:
            observed = Observed(expected=False, state=str(error))
        if not observed.expected:
            raise self.failed(f"{observed.state} (after {self.within:g} s)")
        self._print("observed", f"{observed.state} ({_seconds(time.monotonic() - started)})", style="green")

    def _print(self, kind: str, text: str, *, style: str) -> None:
        self._console.print(f"    {kind:8}  {text}", style=style)


def _seconds(seconds: float) -> str:
    return f"after {seconds:.2f} s" if seconds >= 0.005 else "at once"
