"""Requests with names: the time of filter and prioritize, beside a server that only reads and writes bytes."""

from itertools import cycle, islice

from tests.bench import cluster
from tests.bench.client import Client
from tests.bench.measure import Timed, interleaved
from tests.bench.rows import Budget, Of, Results, Row, Size, both, quantile_rows, row
from tests.bench.stand import FILTER, PRIORITIZE, Server, Stand, processor_rounds

NAME = "names"
SIZES = (100, 500, 1000, 5000, 15_000)
BUDGETED = (500, 5000)
BUDGETS = {
    "filter of names": both(Budget(2.0, Of.RATIO)),
    "prioritize of names": both(Budget(3.0, Of.RATIO)),
}

LISTS = 32
"""Different lists of names, requested in turn: more than the extender remembers."""


async def measure(stand: Stand) -> Results:
    """Filter and prioritize beside the echo, all nodes of the cluster known."""
    names = cluster.node_names(max(SIZES))
    async with stand.bus(names) as running:
        with stand.extender(running.server.url) as extender, stand.echo() as echo:
            return Results(rows=[row for size in SIZES for row in await _rows(stand, extender, echo, names, size)])


async def _rows(stand: Stand, extender: Server, echo: Server, names: list[str], size: int) -> list[Row]:
    lists = islice(cluster.lists_of_names(names, size, seed=size), LISTS)
    bodies = [cluster.names_only(number, found) for number, found in enumerate(lists)]
    others = bodies[LISTS // 2 :] + bodies[: LISTS // 2]
    echoed = cycle([echo.request(body) for body in bodies])
    filtered = cycle([extender.request(body, FILTER) for body in bodies])
    same_scored = cycle([extender.request(body, PRIORITIZE) for body in bodies])
    scored = cycle([extender.request(body, PRIORITIZE) for body in others])
    repetitions = stand.some(200, 40) if size > 1000 else stand.some(400, 100)
    with Client(extender.port) as ours, Client(echo.port) as floor:
        calls: dict[str, tuple[Server, Timed]] = {
            "echo": (echo, lambda: floor.seconds(next(echoed))),
            "filter of names": (extender, lambda: ours.seconds(next(filtered))),
            "prioritize of the names just filtered": (extender, lambda: ours.seconds(next(same_scored))),
            "prioritize of names": (extender, lambda: ours.seconds(next(scored))),
        }
        times = await interleaved(
            {series: call for series, (_, call) in calls.items()}, rounds=stand.rounds, repetitions=repetitions
        )
        del calls["prioritize of the names just filtered"]  # it needs the filter request before
        processor = processor_rounds(calls, rounds=stand.rounds, repetitions=repetitions // 4)
    rows = []
    sized = Size(size, "names")
    for series in (series for series in times if series != "echo"):
        budgets = BUDGETS.get(series) if size in BUDGETED else None
        rows += quantile_rows(series, times[series], times["echo"], floor_name="echo", budgets=budgets, size=sized)
        if found := processor.get(series):
            rows.append(row(series, "processor", found, processor["echo"], unit="ms", floor_name="echo", size=sized))
    return rows
