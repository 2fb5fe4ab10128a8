"""A replica of labels, or marks, that sends itself a signal between the check of a removal and its patch.

    python -m tests.integration.workers.halting_labels BUS KUBECONFIG SIGNAL LINE

It sends `SIGNAL` (`STOP`, `KILL`) to itself, once, at `LINE`: `read` is after all reads of a removal, before their
check; `send` is after the last check of a patch that removes a label, just before the patch is sent. With `later` as
LINE it does nothing until it gets one of `SIGNALS`, which sets the line or clears it. With `--worker marks`, `send` is
before any patch of taints. With `--worker all` it runs all workers as one process does, and `read` is still after the
reads of labels.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import workers.kubernetes.client
from bus.buckets import NODES, Bucket
from bus.connection import Bus, RawEntry
from tas.enforcing.brake import BrakeSettings
from tas.enforcing.limits import DefaultLimit
from tests.integration.workers.whole_process import NAMES, NumberedContext, settings_of_all
from tests.kubernetes.world import STALE_SECONDS
from workers.labels.worker import Labels
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.process.signals import stop_signals
from workers.runtime import Supervisor, new_registry
from workers.settings import Settings

LINES = ("read", "send")
SIGNALS = {"read": signal.SIGUSR1, "send": signal.SIGUSR2, None: signal.SIGALRM}
"""The signals that set the line of a running replica."""


class Halt:
    """The signal, and the line of its sending."""

    def __init__(self, number: signal.Signals, line: str) -> None:
        self._number = number
        self._line: str | None = None
        self.set_line(line if line in LINES else None)

    def at(self, line: str) -> None:
        if self._line == line:
            self._line = None
            os.kill(os.getpid(), self._number)

    def set_line(self, line: str | None) -> None:
        self._line = line

    def handle(self, line: str | None, *_: object) -> None:
        """For `signal.signal`."""
        self.set_line(line)


_is_labels: ContextVar[bool] = ContextVar("whether a task is one of the worker labels", default=False)


def halt_reads(halt: Halt) -> None:
    """Calls `halt` after each read of samples by labels."""

    get, run = Bus.get, Labels.run

    async def halting_get(self: Bus, bucket: Bucket, key: str) -> RawEntry | None:
        entry = await get(self, bucket, key)
        if _is_labels.get() and bucket is NODES and key.endswith(".metrics"):
            halt.at("read")
        return entry

    async def marked_run(self: Labels) -> None:
        _is_labels.set(True)
        await run(self)

    Bus.get = halting_get  # type: ignore[method-assign]
    Labels.run = marked_run  # type: ignore[method-assign]


def halt_bodies(halt: Halt) -> None:
    """Calls `halt` before the body of a patch with a removal of labels, or with taints, is sent."""

    class HaltingBody(workers.kubernetes.client._Body):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for content in super().__aiter__():
                if (b'"labels"' in content and b"null" in content) or b'"taints"' in content:
                    halt.at("send")
                yield content

    workers.kubernetes.client._Body = HaltingBody  # type: ignore[misc]


async def main(settings: Settings, halt: Halt, *, names: Sequence[str], number: str) -> int:
    registry = new_registry()
    halt_reads(halt)
    halt_bodies(halt)
    async with stop_signals() as stop, AsyncExitStack() as stack:
        replicas = await NumberedContext(settings, stack, registry, number=number).build(names)
        return await Supervisor(replicas, registry=registry, health=settings.health_listen).run(stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("bus")
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("signal")
    parser.add_argument("line", choices=(*LINES, "later"))
    parser.add_argument("--worker", choices=("labels", "marks", "all"), default="labels")
    parser.add_argument("--number", default="", help="which replica it is, for the user agent")
    parser.add_argument("--stale-after", type=float, default=STALE_SECONDS)
    parser.add_argument("--limit", type=int, help="how many nodes may have labels of a policy without its own limit")
    given = parser.parse_args()
    halting = Halt(signal.Signals[f"SIG{given.signal}"], given.line)
    # Not with the event loop: the handlers must run before the next line of the program.
    for named, number in SIGNALS.items():
        signal.signal(number, partial(halting.handle, named))
    configure_logging(LogFormat.JSON, LogLevel.INFO)
    policy = None if given.limit is None else DefaultLimit(0, given.limit)
    # A history may use this replica.
    brake = BrakeSettings(policy=policy, over_all=None, flap_budget=0, label_rate=None, label_rate_all=None)
    settings = settings_of_all(given.bus, given.kubeconfig, stale_after=given.stale_after, brake=brake)
    names = NAMES if given.worker == "all" else (given.worker,)
    sys.exit(asyncio.run(main(settings, halting, names=names, number=given.number)))
