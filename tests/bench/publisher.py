"""The load: node messages at an even rate, as many sources would send them.

`python -m tests.bench.publisher URL RATE NODES` publishes until SIGTERM, then prints a `Published` as one line of JSON.
"""

import asyncio
import random
import signal
import sys
import time
from itertools import cycle

import msgspec
import uvloop

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from tests.bench import cluster

VARIANTS = 2000
TICK_SECONDS = 0.001
AT_ONCE = 500
"""Messages that may wait for the server to have stored them."""


class Published(msgspec.Struct, frozen=True):
    """How many messages were sent, in which time, and how many were refused or lost."""

    messages: int
    seconds: float
    failed: int

    @property
    def rate(self) -> float:
        """Messages that were stored, a second."""
        return (self.messages - self.failed) / self.seconds


async def _publish(url: str, rate: float, nodes: int) -> Published:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    chance = random.Random(1)
    values = cycle([cluster.metrics(chance) for _ in range(VARIANTS)])
    names = cycle(cluster.node_names(nodes))
    turns = asyncio.Semaphore(AT_ONCE)
    failed = 0
    async with Bus.connect(url, name="bench-publisher") as bus, asyncio.TaskGroup() as tasks:
        await bus.wait_connected()

        async def send() -> None:
            nonlocal failed
            payload = encode_samples(cluster.scrape(next(values), time.time()))
            try:
                await bus.publish(SAMPLES, samples_subject(next(names), cluster.SOURCE), payload)
            except BusError:
                failed += 1
            finally:
                turns.release()

        began = time.monotonic()
        sent = 0
        while not stop.is_set():
            due = int((time.monotonic() - began) * rate)
            for _ in range(due - sent):
                await turns.acquire()
                tasks.create_task(send())
            sent = due
            await asyncio.sleep(TICK_SECONDS)
        seconds = time.monotonic() - began
    return Published(messages=sent, seconds=seconds, failed=failed)


if __name__ == "__main__":
    found = uvloop.run(_publish(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
    print(msgspec.json.encode(found).decode())
