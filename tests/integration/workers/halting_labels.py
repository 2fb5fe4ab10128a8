"""A replica of labels that a signal hits between the check of a removal and its sending.

    python -m tests.integration.workers.halting_labels BUS KUBECONFIG SIGNAL

It sends `SIGNAL` (`STOP`, `KILL`) to itself the first time that it has read a node's samples: all that a removal stands
on has been read by then, and nothing been sent.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from bus.buckets import NODES, Bucket
from bus.connection import Bus, Entry
from tests.kubernetes.world import STALE_SECONDS
from workers.kubernetes.client import KubernetesClient
from workers.labels import Labels
from workers.logs import LogFormat, LogLevel, configure_logging
from workers.runtime import Address, Supervisor, new_registry, stop_signals


class HaltingBus(Bus):
    """A bus after one of whose answers the process is stopped."""

    halt_with: signal.Signals | None = None

    async def get(self, bucket: Bucket, key: str) -> Entry | None:
        entry = await super().get(bucket, key)
        if self.halt_with is not None and bucket is NODES and key.endswith(".metrics"):
            number, self.halt_with = self.halt_with, None
            os.kill(os.getpid(), number)
        return entry


async def main(url: str, kubeconfig: Path, number: signal.Signals) -> int:
    registry = new_registry()
    async with (
        stop_signals() as stop,
        HaltingBus.connect(url, name="halting") as bus,
        KubernetesClient.connect(kubeconfig, worker="labels") as client,
    ):
        assert isinstance(bus, HaltingBus)
        bus.halt_with = number
        worker = Labels(bus, client, registry=registry, default_stale_after=STALE_SECONDS)
        return await Supervisor([worker], registry=registry, health=Address("127.0.0.1", 0)).run(stop)


if __name__ == "__main__":
    configure_logging(LogFormat.JSON, LogLevel.INFO)
    sys.exit(asyncio.run(main(sys.argv[1], Path(sys.argv[2]), signal.Signals[f"SIG{sys.argv[3]}"])))
