"""The load: node messages at an even rate, as many sources would send them.

`python -m tests.bench.publisher URL RATE NODES` publishes until SIGTERM, then prints a `Published` as one line of JSON.
With `steady` as a fourth argument, each node's values change a little each time, and none crosses the target of a rule;
the first message of each node is sent at once.
"""

import asyncio
import random
import signal
import sys
import time
from collections.abc import Iterator
from itertools import cycle

import msgspec
import uvloop

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from tas.values.quantity import Quantity, parse_quantity
from tests.bench import cluster

VARIANTS = 2000
STEADY_VARIANTS = 3
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


def _steady(chance: random.Random, nodes: int) -> Iterator[dict[str, Quantity]]:
    """Values for each node in turn: `STEADY_VARIANTS` different ones for each."""
    base = [{name: chance.uniform(0, cluster.VALUES) for name in cluster.METRIC_NAMES} for _ in range(nodes)]

    def near(value: float) -> Quantity:
        low, high = (0.0, cluster.VIOLATING) if value <= cluster.VIOLATING else (cluster.VIOLATING, cluster.VALUES)
        found = min(max(value + chance.uniform(-1, 1), low + 0.001), high - 0.001)
        return parse_quantity(f"{found:.3f}")

    return cycle([{name: near(value) for name, value in of.items()} for _ in range(STEADY_VARIANTS) for of in base])


async def _publish(url: str, rate: float, nodes: int, *, steady: bool) -> Published:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    chance = random.Random(1)
    values = _steady(chance, nodes) if steady else cycle([cluster.metrics(chance) for _ in range(VARIANTS)])
    names = cycle(cluster.node_names(nodes))
    at_once = nodes if steady else 0
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
            due = at_once + int((time.monotonic() - began) * rate)
            for _ in range(due - sent):
                await turns.acquire()
                tasks.create_task(send())
            sent = due
            await asyncio.sleep(max(TICK_SECONDS, 1 / rate))
        seconds = time.monotonic() - began
    return Published(messages=sent, seconds=seconds, failed=failed)


if __name__ == "__main__":
    steady = sys.argv[4:] == ["steady"]
    found = uvloop.run(_publish(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), steady=steady))
    print(msgspec.json.encode(found).decode())
