"""A replica of labels, or marks, that sends itself a signal between the check of a removal and its patch.

    python -m tests.integration.workers.halting_labels BUS KUBECONFIG SIGNAL LINE

It sends `SIGNAL` (`STOP`, `KILL`) to itself, once, at `LINE`: `read` is after all reads of a removal, before their
check; `send` is after the last check of a patch that removes a label, just before the patch is sent. With `later` as
LINE it does nothing until it gets one of `SIGNALS`, which sets the line or clears it. With `--worker marks`, `send` is
before any patch of taints.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import workers.kubernetes.client
from bus.buckets import NODES, Bucket
from bus.connection import Bus, RawEntry
from tas.enforcing.limits import DefaultLimit
from tests.kubernetes.world import STALE_SECONDS
from workers.enforcing.brake import BrakeSettings
from workers.enforcing.labels import Labels
from workers.enforcing.marks import Marks
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflectors import Reflectors
from workers.process.address import Address
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.process.runtime import Supervisor, new_registry, stop_signals

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


class HaltingBus(Bus):
    """A bus that calls `halt` after a read of samples."""

    halt: Halt | None = None

    async def get(self, bucket: Bucket, key: str) -> RawEntry | None:
        entry = await super().get(bucket, key)
        if self.halt is not None and bucket is NODES and key.endswith(".metrics"):
            self.halt.at("read")
        return entry


def halt_bodies(halt: Halt) -> None:
    """Calls `halt` before the body of a patch with a removal of labels, or with taints, is sent."""

    class HaltingBody(workers.kubernetes.client._Body):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for content in super().__aiter__():
                if (b'"labels"' in content and b"null" in content) or b'"taints"' in content:
                    halt.at("send")
                yield content

    workers.kubernetes.client._Body = HaltingBody  # type: ignore[misc]


async def main(
    url: str, kubeconfig: Path, halt: Halt, *, worker: str, name: str, stale_after: float, limit: int | None
) -> int:
    registry = new_registry()
    async with (
        stop_signals() as stop,
        HaltingBus.connect(url, name="halting") as bus,
        KubernetesClient.connect(kubeconfig, worker=name) as client,
    ):
        assert isinstance(bus, HaltingBus)
        bus.halt = halt
        halt_bodies(halt)
        policy = None if limit is None else DefaultLimit(0, limit)
        brake = BrakeSettings(policy=policy, over_all=None, flap_budget=0)  # a history may use this replica
        replica: Labels | Marks
        if worker == "labels":
            replica = Labels(
                bus, client, Reflectors(client), registry=registry, default_stale_after=stale_after, brake=brake
            )
        else:
            replica = Marks(bus, client, Reflectors(client), registry=registry, default_stale_after=stale_after)
        return await Supervisor([replica], registry=registry, health=Address("127.0.0.1", 0)).run(stop)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("bus")
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("signal")
    parser.add_argument("line", choices=(*LINES, "later"))
    parser.add_argument("--worker", choices=("labels", "marks"), default="labels")
    parser.add_argument("--name", default="labels", help="its name in the user agent")
    parser.add_argument("--stale-after", type=float, default=STALE_SECONDS)
    parser.add_argument("--limit", type=int, help="how many nodes may have labels of a policy without its own limit")
    given = parser.parse_args()
    halting = Halt(signal.Signals[f"SIG{given.signal}"], given.line)
    # Not with the event loop: the handlers must run before the next line of the program.
    for named, number in SIGNALS.items():
        signal.signal(number, partial(halting.handle, named))
    configure_logging(LogFormat.JSON, LogLevel.INFO)
    options = {"worker": given.worker, "name": given.name, "stale_after": given.stale_after, "limit": given.limit}
    sys.exit(asyncio.run(main(given.bus, given.kubeconfig, halting, **options)))
