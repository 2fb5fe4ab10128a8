"""A replica of inventory that stops itself just before its first write of a hold is sent, after all checks.

python -m tests.integration.workers.halting_inventory BUS KUBECONFIG
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bus.buckets import HOLDS, SYNCED, Bucket
from bus.connection import Bus
from workers.http.address import Address
from workers.inventory.worker import Inventory
from workers.kubernetes.client import KubernetesClient
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.process.signals import stop_signals
from workers.runtime import Supervisor, new_registry


class InterruptedBus(Bus):
    """A bus that runs a function once, at a write of a hold. The age of the reads counts as checked before."""

    interruption: Callable[[], Awaitable[None]] | None = None

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        if bucket is HOLDS and key != SYNCED and (interruption := self.interruption) is not None:
            self.interruption = None
            await interruption()
            read_at = time.monotonic()
        return await super().put(bucket, key, value, revision=revision, read_at=read_at, ttl_seconds=ttl_seconds)


async def main(url: str, kubeconfig: Path) -> int:
    registry = new_registry()

    async def stop_this() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    async with (
        stop_signals() as stop,
        InterruptedBus.connect(url, name="halting") as bus,
        KubernetesClient.connect(kubeconfig, worker="inventory") as client,
    ):
        assert isinstance(bus, InterruptedBus)
        bus.interruption = stop_this
        worker = Inventory(bus, client, registry=registry, card_metrics=10, new_bus_wait=0.0)
        return await Supervisor([worker], registry=registry, health=Address("127.0.0.1", 0)).run(stop)


if __name__ == "__main__":
    configure_logging(LogFormat.JSON, LogLevel.INFO)
    sys.exit(asyncio.run(main(sys.argv[1], Path(sys.argv[2]))))
