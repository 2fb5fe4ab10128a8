"""Answers to full nodes: whether they are passed on as the bytes they came as."""

import json
import time

from tas.extender.telemetry import TelemetryDecider
from tas.extender.verbs import answer_filter
from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.measure import interleaved, processor_timed
from tests.bench.rows import Budget, Of, Results, Row, Size, quantile, quantile_rows, row
from tests.bench.stand import FILTER, Server, Stand, processor_rounds

NAME = "nodes"
SIZES = (100, 1000, 5000)
BUDGETED = 5000
FIFTH = Budget(1 / 5, Of.RATIO)


async def measure(stand: Stand) -> Results:
    """Filter beside the echo, and the extender's own time beside `json.loads` of the same bytes."""
    names = cluster.node_names(max(SIZES))
    objects = [cluster.node_object(name) for name in names]
    decider = TelemetryDecider(cluster.filled_view(names, time.time()))
    results = Results()
    async with stand.bus(names) as running:
        with stand.extender(running.server.url) as extender, stand.echo() as echo:
            for size in SIZES:
                body = cluster.full_nodes(0, objects[:size])
                rounds = _Rounds(stand, extender, echo, size)
                await rounds.run(body, decider)
                results.rows += rounds.rows()
    return results


class _Rounds:
    """What was found at one size: a list of rounds for each thing that was timed."""

    def __init__(self, stand: Stand, extender: Server, echo: Server, size: int) -> None:
        self._count = stand.rounds
        self._repetitions = max(stand.some(12, 4), stand.some(20_000, 5000) // size)
        self._extender, self._echo = extender, echo
        self._size = size
        self._times: dict[str, list[list[float]]] = {}
        self._processor: dict[str, list[float]] = {}

    async def run(self, body: bytes, decider: TelemetryDecider) -> None:
        """Takes all times."""
        asked, echoed = self._extender.request(body, FILTER), self._echo.request(body)
        now = time.time()
        with Client(self._extender.port) as ours, Client(self._echo.port) as floor:
            self._times = await interleaved(
                {"echo": lambda: floor.seconds(echoed), "filter": lambda: ours.seconds(asked)},
                rounds=self._count,
                repetitions=self._repetitions,
            )
            self._processor = processor_rounds(
                {
                    "extender": (self._extender, lambda: ours.seconds(asked)),
                    "echo": (self._echo, lambda: floor.seconds(echoed)),
                },
                rounds=self._count,
                repetitions=self._repetitions,
            )
        self._times |= await interleaved(
            {
                "json": processor_timed(lambda: json.loads(body)),
                "answer": processor_timed(lambda: answer_filter(decider, body, now)),
            },
            rounds=self._count,
            repetitions=max(3, self._repetitions // 4),
        )

    def rows(self) -> list[Row]:
        """Beside the echo as the scheduler waits for it, and beside `json.loads` as our own work."""
        size = Size(self._size, "nodes")
        whole = "filter of full nodes, the whole process"
        decoding, answering = (
            [quantile(times, 0.5) * 1000 for times in self._times[name]] for name in ("json", "answer")
        )
        serving, echoing = self._processor["extender"], self._processor["echo"]
        return [
            *quantile_rows(
                "filter of full nodes", self._times["filter"], self._times["echo"], floor_name="echo", size=size
            ),
            row(
                "filter of full nodes, from body to answer",
                "processor",
                answering,
                decoding,
                unit="ms",
                floor_name="json.loads",
                size=size,
                budget=FIFTH if self._size == BUDGETED else None,
            ),
            row(whole, "processor", serving, echoing, unit="ms", floor_name="echo", size=size),
            row(whole, "processor", serving, decoding, unit="ms", floor_name="json.loads", size=size),
        ]
