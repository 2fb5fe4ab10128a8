"""A replica of materialize that sends itself a signal at an exact line.

    python -m tests.integration.workers.halting BUS SIGNAL LINE

It sends `SIGNAL` (`STOP`, `KILL`) to itself at the first write of a node: `before` the write is sent, after all its
reads, or `after` the write is stored, before its batch is acknowledged.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from bus.buckets import NODES, Bucket
from bus.connection import Bus
from workers.http.address import Address
from workers.materialize.worker import Materialize
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.process.signals import stop_signals
from workers.runtime import Supervisor, new_registry

LINES = ("before", "after")


class InterruptedBus(Bus):
    """A bus that runs a function once, at a write of a node."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        super().__init__(*arguments, **keywords)  # type: ignore[arg-type]
        self.interruptions: dict[str, Callable[[], Awaitable[None]]] = {}

    async def put(
        self, bucket: Bucket, key: str, value: bytes, *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        of_node = bucket is NODES and key.endswith(".metrics")
        if of_node and (interruption := self.interruptions.pop("before", None)):
            await interruption()
        written = await super().put(bucket, key, value, revision=revision, read_at=read_at, ttl_seconds=ttl_seconds)
        if of_node and (interruption := self.interruptions.pop("after", None)):
            await interruption()
        return written


async def main(url: str, number: signal.Signals, line: str) -> int:
    registry = new_registry()

    async def halt() -> None:
        os.kill(os.getpid(), number)

    async with stop_signals() as stop, InterruptedBus.connect(url, name="halting") as bus:
        assert isinstance(bus, InterruptedBus)
        bus.interruptions[line] = halt
        worker = Materialize(bus, registry=registry)
        return await Supervisor([worker], registry=registry, health=Address("127.0.0.1", 0)).run(stop)


if __name__ == "__main__":
    configure_logging(LogFormat.JSON, LogLevel.INFO)
    sys.exit(asyncio.run(main(sys.argv[1], signal.Signals[f"SIG{sys.argv[2]}"], sys.argv[3])))
