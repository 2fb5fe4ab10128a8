"""What one sample costs the view: work for each event, whatever the size of the cluster."""

import random
import time

from bus.records.nodes import decode_node_samples, encode_node_samples
from tests.bench import cluster
from tests.bench.measure import no_collection
from tests.bench.rows import Budget, Of, Results, Size, row
from tests.bench.stand import Stand

NAME = "view"
SIZES = (100, 1000, 5000, 15_000)
FLAT = Budget(1.5, Of.RATIO)
SAMPLES = 1000
BEGINNING = 1.8e9
"""The time in seconds since 1970 at which everything is first known."""


async def measure(stand: Stand) -> Results:
    """Processor time of a sample in views of each size, against the smallest; and of reading it from its bytes."""
    sides = {size: _Side(size) for size in SIZES}
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    decoding: list[float] = []
    with no_collection():
        for _ in range(stand.rounds):
            for size, side in sides.items():
                times[size].append(side.seconds_per_sample() * 1e6)
            decoding.append(_decoding_seconds() * 1e6)
    rows = [
        row(
            "sample into the view",
            "processor",
            found,
            times[SIZES[0]],
            unit="µs",
            floor_name=f"at {SIZES[0]}",
            budget=FLAT if size == SIZES[-1] else None,
            size=Size(size, "nodes"),
        )
        for size, found in times.items()
    ]
    rows.append(row("sample read from its bytes", "processor", decoding, unit="µs"))
    return Results(rows=rows)


class _Side:
    """A filled view of one size, and samples to come, of nodes in no order."""

    def __init__(self, size: int) -> None:
        self._chance = random.Random(size)
        self._names = cluster.node_names(size)
        self._now = BEGINNING
        self._view = cluster.filled_view(self._names, self._now)
        self._values = [cluster.metrics(self._chance) for _ in range(SAMPLES)]

    def seconds_per_sample(self) -> float:
        """The mean over all samples: a new value of every metric each time."""
        self._chance.shuffle(self._values)
        news = []
        for values in self._values:
            self._now += 0.001
            news.append((self._chance.choice(self._names), (cluster.scrape(values, self._now),), self._now))
        add = self._view.add_samples
        began = time.thread_time()
        for node, scrapes, now in news:
            add(node, scrapes, now)
        return (time.thread_time() - began) / len(news)


def _decoding_seconds() -> float:
    """The mean time to read the record of one node."""
    chance = random.Random(0)
    entries = [encode_node_samples((cluster.scrape(cluster.metrics(chance), BEGINNING),)) for _ in range(SAMPLES)]
    began = time.thread_time()
    for entry in entries:
        decode_node_samples(entry)
    return (time.thread_time() - began) / len(entries)
