"""How long a burst of one publisher delays the samples of another node.

`python -m tests.bench.burst URL CASE` is the publisher: it sends the messages of `CASE` as fast as the server stores
them.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable

import uvloop

from bus.buckets import NODES, SAMPLES
from bus.client import Msg
from bus.connection import Bus
from bus.kinds import NODE_SAMPLES
from bus.records.nodes import decode_node_samples
from bus.records.samples import encode_samples
from bus.subjects import samples_subject
from tas.samples.sample import Scrape
from tas.values.quantity import NANO, Quantity
from tests.bench import cluster
from tests.bench.rows import Budget, Results, Row, row
from tests.bench.stand import Stand, module, product

NAME = "burst"
MESSAGES = 10_000
METRICS = 740
"""Of one message of the burst: 16 kB."""

CASES: dict[str, Callable[[int], str]] = {
    "of one source": lambda _: samples_subject("noisy", "noisy"),
    "of as many sources of one node": lambda number: samples_subject("noisy", f"s{number}"),
    "of as many nodes": lambda number: samples_subject(f"noisy-{number}", "noisy"),
}
BUDGET = Budget(1.0)
PERIOD_SECONDS = 0.1
"""The other node sends a sample so often."""

BEFORE_SECONDS, AFTER_SECONDS = 2.0, 3.0
"""Samples are sent from so long before the burst until so long after it."""

ARRIVAL_SECONDS = 60.0
AT_ONCE = 500
NUMBER = "number"
"""The metric that says which sample of the other node a record contains."""


async def measure(stand: Stand) -> Results:
    """Seconds from the publication of a sample until `materialize` writes it, of the slowest sample of each round."""
    results = Results()
    for case in CASES:
        results.rows.append(await _row(stand, case))
    return results


async def _row(stand: Stand, case: str) -> Row:
    slowest, before = [], []
    for _ in range(stand.some(5, 2)):
        quiet, disturbed = await _round(stand, case)
        slowest.append(max(disturbed))
        before.append(max(quiet))
    return row(
        f"a sample beside a burst {case}, {MESSAGES:,} messages of 16 kB",
        "slowest",
        slowest,
        before,
        unit="s",
        floor_name="before the burst",
        budget=BUDGET,
    )


async def _round(stand: Stand, case: str) -> tuple[list[float], list[float]]:
    """The seconds of each sample sent before the burst, and since its begin."""
    async with stand.bus(()) as running:
        url = running.server.url
        with stand.process("materialize", product("materialize", url)) as materialize:
            async with Bus.connect(url, name="observer") as bus:
                await bus.wait_connected()
                observer = _Observer(bus)
                await bus.link.subscribe(NODES.subject(NODE_SAMPLES.key(observer.NODE)), observer.arrived)
                await observer.send_and_wait()  # from here on `materialize` runs
                quiet = await observer.send_for(BEFORE_SECONDS)
                with stand.process("burst", [*module("tests.bench.burst"), url, case]) as burst:
                    disturbed = []
                    while burst.is_running:
                        disturbed += await observer.send_for(PERIOD_SECONDS)
                    disturbed += await observer.send_for(AFTER_SECONDS)
                await observer.wait()
                materialize.must_run()
                stored = await bus.api("STREAM.INFO.SAMPLES")
                if stored["state"]["last_seq"] < MESSAGES:
                    raise RuntimeError(f"the burst ended early:\n{burst.tail()}")
                return [observer.seconds(number) for number in quiet], [observer.seconds(each) for each in disturbed]


class _Observer:
    """Sends the samples of one node, and notes when each is written."""

    NODE = "honest"

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._sent: list[float] = []
        self._arrived: list[float] = []
        self._all_arrived = asyncio.Event()

    async def send_for(self, seconds: float) -> list[int]:
        """Sends a sample each period; returns their numbers."""
        end, first = time.monotonic() + seconds, len(self._sent)
        while time.monotonic() < end:
            await self._send()
            await asyncio.sleep(PERIOD_SECONDS)
        return list(range(first, len(self._sent)))

    async def send_and_wait(self) -> None:
        """Sends one sample, and waits until it is written."""
        await self._send()
        await self.wait()

    async def wait(self) -> None:
        """Waits until all samples are written."""
        async with asyncio.timeout(ARRIVAL_SECONDS):
            await self._all_arrived.wait()

    def seconds(self, number: int) -> float:
        """From the publication of a sample until it, or a newer one, was written."""
        return self._arrived[number] - self._sent[number]

    async def arrived(self, message: Msg) -> None:
        """Notes the sample in a record of the node, and with it all earlier ones."""
        now = time.monotonic()
        (scrape,) = decode_node_samples(message.data).samples
        missing = int(scrape.metrics[NUMBER]) // NANO + 1 - len(self._arrived)
        self._arrived += [now] * missing
        if len(self._arrived) == len(self._sent):
            self._all_arrived.set()

    async def _send(self) -> None:
        number = len(self._sent)
        metrics = cluster.metrics(random.Random(number)) | {NUMBER: Quantity(number * NANO)}
        payload = encode_samples(_scrape(metrics))
        self._all_arrived.clear()
        self._sent.append(time.monotonic())
        await self._bus.publish(SAMPLES, samples_subject(self.NODE, "honest"), payload)


async def _burst(url: str, case: str) -> None:
    subject = CASES[case]
    names = [f"metric_{number:08}" for number in range(METRICS)]
    payload = encode_samples(_scrape(dict.fromkeys(names, Quantity(NANO))))
    async with Bus.connect(url, name="burst") as bus:
        await bus.wait_connected()
        for first in range(0, MESSAGES, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            await bus.publish_all(SAMPLES, [(subject(number), payload) for number in numbers])


def _scrape(metrics: dict[str, Quantity]) -> Scrape:
    now = time.time()
    return Scrape(source="", measured=now, arrived=now, sequence=0, metrics=metrics)


if __name__ == "__main__":
    uvloop.run(_burst(sys.argv[1], sys.argv[2]))
