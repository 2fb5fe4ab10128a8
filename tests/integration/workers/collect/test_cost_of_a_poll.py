"""What a poll costs all workers of one process: with ten times the nodes, as many messages, writes and wake-ups."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from bus.buckets import NODES, SAMPLES, TABLES, VERDICTS
from bus.connection import Bus
from cli.loading import load_settings
from cli.wiring import process
from tas.values.quantity import NANO
from tas.view.indices import MetricKey
from tests.e2e.processes import free_ports
from tests.integration.servers import Server, answered, eventually
from workers.following.followed_view import FollowedView

FEW, MANY = 100, 1000
POLLS = 3
STALE_AFTER = 120.0
SETTLED_SECONDS = 2.0
"""After so long without a verdict all are stored."""
METRIC = "node_load"
MEAN = f"{METRIC}:mean:1m"
POLICY = {
    "apiVersion": "telemetry.intel.com/v1alpha1",
    "kind": "TASPolicy",
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {
        "strategies": {
            "dontschedule": {
                "rules": [{"metricname": name, "operator": "GreaterThan", "target": 10**6} for name in (METRIC, MEAN)]
            },
            "scheduleonmetric": {"rules": [{"metricname": METRIC, "operator": "LessThan"}]},
        }
    },
}
NAMES = ("materialize", "windows", "policies", "evaluate", "extender", "events", "collect")


class Cost(NamedTuple):
    """What some polls have cost.

    Attributes:
        polls: How many there were: on a busy machine another one begins before all have seen the last one.
        stored: Messages of each stream.
        wakeups: Callbacks that the event loop has run: each step of a task, timer and arrived message is one.
    """

    polls: int
    stored: dict[str, int]
    wakeups: int

    @property
    def wakeups_of_a_table(self) -> float:
        """How many each stored table has cost: on a busy machine not each poll stores one in this time."""
        return self.wakeups / self.stored[TABLES.name]


class Prometheus:
    """Has another value of every node for each query."""

    def __init__(self, nodes: int) -> None:
        self.polls = 0
        self._nodes = nodes

    async def answer(self, _: web.Request) -> web.Response:
        self.polls += 1
        now = time.time()
        series = [
            {"metric": {"__name__": METRIC, "node": f"node-{number}"}, "value": [now, str(self.polls)]}
            for number in range(self._nodes)
        ]
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": series}})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serves within the body; the URL."""
        app = web.Application()
        app.add_routes([web.get("/api/v1/query", self.answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        (port,) = free_ports(1)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


async def test_ten_times_the_nodes_cost_as_many_messages_writes_and_wakeups(
    server: Server, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    few = await cost(server, bus, FEW, tmp_path, monkeypatch)
    many = await cost(server, bus, MANY, tmp_path, monkeypatch)
    assert few.stored[TABLES.name] >= POLLS  # else no table was published
    assert many.stored.pop(VERDICTS.name) < MANY / 2  # not one of each node: some of the first may have come late
    for stream, messages in many.stored.items():
        assert messages <= (few.stored[stream] / few.polls + 2) * many.polls, stream  # a poll more may have begun
    # Timers go on while a poll is handled, so both have some hundred; a step for each node would be 900 more.
    assert many.wakeups_of_a_table - few.wakeups_of_a_table < MANY - FEW
    assert few.wakeups_of_a_table < MANY


async def cost(server: Server, bus: Bus, nodes: int, policies: Path, monkeypatch: pytest.MonkeyPatch) -> Cost:
    """The cost of `POLLS` polls of so many nodes, after all of them are known."""
    prometheus = Prometheus(nodes)
    async with prometheus.serving() as url, running(server, url, policies) as view:
        await eventually(lambda: len(counted(view, MEAN)) == nodes and len(counted(view, METRIC)) == nodes)
        await settled(bus)
        await after_next_poll(prometheus, view, nodes)
        before, polls = await messages(bus), prometheus.polls
        with monkeypatch.context() as patch:
            wakeups = count_wakeups(patch)
            for _ in range(POLLS):
                await after_next_poll(prometheus, view, nodes)
            found, polls = wakeups(), prometheus.polls - polls
        after = await messages(bus)
    return Cost(polls, {name: after[name] - before[name] for name in after}, found)


@asynccontextmanager
async def running(server: Server, prometheus: str, policies: Path) -> AsyncIterator[FollowedView]:
    """The workers, which poll each second, within the body; the view that they share."""
    settings = load_settings(
        "run all",
        {
            "bus": server.url,
            "policies": str(policies),
            "source": f"prometheus={prometheus}",
            "period": "1s",
            "publish": "tables",
            "listen": "127.0.0.1:0",
            "health_listen": "127.0.0.1:0",
        },
    )
    async with process(settings) as (parts, stop):
        await parts.build(NAMES)
        task = asyncio.create_task(parts.run(stop))
        try:
            yield await parts.context.view()
        finally:
            stop.set()
            assert await task == 0


def counted(view: FollowedView, metric: str) -> dict[str, int]:
    """The values that count of all nodes."""
    return dict(view.view.metric(MetricKey(metric, None, STALE_AFTER), time.time()))


async def after_next_poll(prometheus: Prometheus, view: FollowedView, nodes: int) -> None:
    """Waits until the view has the values of a poll that has not begun yet."""
    number = prometheus.polls + 1

    def is_applied() -> bool:
        values = counted(view, METRIC).values()
        return len(values) == nodes and min(values) >= number * NANO

    await eventually(is_applied, every=0.1)


async def settled(bus: Bus) -> None:
    """Waits until the first verdicts of all nodes are stored."""
    stored, since = -1, 0.0

    async def is_settled() -> bool:
        nonlocal stored, since
        before, stored = stored, (await messages(bus))[VERDICTS.name]
        since = time.monotonic() if stored != before else since
        return time.monotonic() - since > SETTLED_SECONDS

    await eventually(is_settled, every=0.1)


def count_wakeups(patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts the callbacks of the event loop from now on; the function returns how many there were."""
    number = 0
    run = asyncio.Handle._run

    def counting(handle: asyncio.Handle) -> None:
        nonlocal number
        number += 1
        run(handle)

    patch.setattr(asyncio.Handle, "_run", counting)
    return lambda: number


async def messages(bus: Bus) -> dict[str, int]:
    """The last sequence of each stream that samples and verdicts come through."""
    found: dict[str, int] = {}
    for each in (SAMPLES, TABLES, NODES, VERDICTS):
        found[each.name] = (await answered(partial(bus.epoch, each))).last_sequence
    return found
