"""What the whole product uses while it polls a source, and how late its answers are, on a real API server.

One `tas run all` and its nats-server, for clusters that grow until something breaks. The floor fetches the same
answers, decodes them, and puts them into one dict.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import aiohttp
import orjson
import psutil

from bus.server import EmbeddedServer
from tests.bench import cluster
from tests.bench.e2e.world import Polled, Served, World
from tests.bench.rows import Budget, NotRun, Results, Row, Size, row
from tests.bench.stand import FILTER, CpuMeter, Stand, cpu_seconds
from tests.e2e import binaries

NAME = "polls"

SETTLE_SECONDS = 120.0
"""After which a cluster of which the product has not all values has broken it."""

LATE_SECONDS = 30.0
"""After which a changed value that filter does not know has broken the product."""

ASK_SECONDS = 0.01
"""The wait between two requests of filter."""

METRICS_SECONDS = 0.2
"""The wait between two requests of the metrics of the product: with 5,000 nodes, a page takes it 10 ms."""

MEBIBYTE = float(1 << 20)
POLICY = cluster.policy_name(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """At most so many cores, seconds until filter knows a change (median, longest), and MiB of `tas run all`."""

    cores: float | None = None
    usual: float | None = None
    longest: float | None = None
    memory: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One cluster, and how it is polled.

    Attributes:
        nodes: How many.
        metrics: The values of each node in a poll.
        policies: Each uses three of the metrics; one policy alone has one rule.
        period: Seconds between polls; None: nothing is polled.
        crossing: The share of the nodes that cross a target between two polls.
        at_once: Whether the time is taken until all nodes that cross at once are known.
    """

    nodes: int
    metrics: int = 1
    policies: int = 1
    period: float | None = 1.0
    crossing: float = 0.0
    at_once: bool = False
    budgets: Budgets = field(default_factory=Budgets)

    @property
    def series(self) -> str:
        """What is polled, without the number of nodes."""
        if self.period is None:
            return "nothing polled, nothing changes"
        metrics = "1 metric" if self.metrics == 1 else f"{self.metrics} metrics, {self.policies} policies"
        crossing = f", {self.crossing:.0%} cross" if self.crossing else ""
        return f"{metrics}, each {self.period:g} s{crossing}"

    @property
    def specs(self) -> dict[str, Any]:
        """The policies, which use all of the metrics."""
        if self.policies > 1:
            return {cluster.policy_name(number): cluster.policy_spec(number) for number in range(self.policies)}
        rules = [
            {"metricname": name, "operator": "GreaterThan", "target": int(cluster.VIOLATING)}
            for name in cluster.METRIC_NAMES[: self.metrics]
        ]
        return {POLICY: {"strategies": {"dontschedule": {"rules": rules}}}}


CASES = (
    Case(nodes=500, period=None, budgets=Budgets(cores=0.02, memory=110e6 / MEBIBYTE)),
    Case(nodes=500, budgets=Budgets(cores=0.08)),
    Case(nodes=2000, budgets=Budgets(cores=0.15)),
    Case(nodes=5000, at_once=True, budgets=Budgets(cores=0.35, usual=0.7, longest=1.3, memory=200)),
    Case(nodes=5000, crossing=0.02, budgets=Budgets(cores=0.5)),
    Case(nodes=5000, metrics=20, policies=50, period=10.0, budgets=Budgets(cores=0.35)),
    Case(nodes=15_000, metrics=5, period=10.0, budgets=Budgets(cores=0.3, memory=300)),
    Case(nodes=15_000),
)
QUICK_NODES = 2000
ALL_CROSSED = Budget(1.3)
ALL_VERDICTS = Budget(10.0)


async def measure(stand: Stand) -> Results:
    """Each case in turn on one control plane; a case that breaks the product is named, and the rest goes on."""
    results = Results()
    built = binaries.find()
    if built is None:
        results.not_run.append(NotRun("cores while a source is polled", binaries.MISSING))
        return results
    with World.start(stand, built) as world:
        for case in CASES:
            if stand.quick and case.nodes > QUICK_NODES:
                continue
            world.grow(case.nodes)
            world.set_policies(case.specs)
            found = Results()
            try:
                async with _polled(world, case) as poll:
                    found = await poll.measured()
            except TimeoutError as error:
                found.not_run.append(NotRun(f"{case.series}, {case.nodes:,} nodes", f"breaks: {error}"))
            stand.found(found)
            results.add(found)
    return results


@asynccontextmanager
async def _polled(world: World, case: Case) -> AsyncIterator["_Poll"]:
    """The product on a bus of its own, ready, and what it polls."""
    with world.polled(crossing=case.crossing) as polled:
        async with (
            EmbeddedServer.start(world.stand.subfolder("bus")) as server,
            aiohttp.ClientSession() as session,
        ):
            flags = () if case.period is None else polled.flags(case.period)
            with world.product(server.url, *flags) as served:
                await world.ready(served)
                yield _Poll(world, case, served, server.pid, session=session, polled=polled)


class _Poll:
    def __init__(
        self,
        world: World,
        case: Case,
        served: Served,
        server: int,
        *,
        session: aiohttp.ClientSession,
        polled: Polled,
    ) -> None:
        self._stand = world.stand
        self._names = world.names
        self._case = case
        self._served = served
        self._pids = {"tas run all": served.processes[0].pid, "nats-server": server}
        self._session = session
        self._polled = polled
        self._size = Size(case.nodes, "nodes")
        self._chance = random.Random(0)

    async def measured(self) -> Results:
        """The rows of the case. Raises TimeoutError if the product does not know all values, or a changed one."""
        case, budgets = self._case, self._case.budgets
        if case.period is not None:
            await self._until_rejected(set(self._names), SETTLE_SECONDS)
            await self._until_rejected(set(), SETTLE_SECONDS)
            await self._until_none_pending()
        seconds = max(5.0, 2 * (case.period or 1.0))
        await self._cores(seconds)  # what the start left to do
        meter = CpuMeter(f"{case.series}, {case.nodes:,} nodes", self._pids)
        cores, floor = [], []
        for _ in range(self._stand.some(5, 2)):
            cores.append(await self._cores(seconds))
            if case.period is not None:
                floor.append(await self._floor_seconds() / case.period)
        results = Results(cpu=meter.read())
        results.rows.append(self._row("cores", cores, floor, unit="cores", budget=budgets.cores))
        resident = [psutil.Process(pid).memory_info().rss / MEBIBYTE for pid in self._pids.values()]
        results.rows.append(self._row("tas run all, resident", resident[:1], unit="MiB", budget=budgets.memory))
        results.rows.append(self._row("nats-server, resident", resident[1:], unit="MiB"))
        if case.period is not None and not case.crossing:
            count = self._stand.some(12, 6)
            late = [await self._late(number, count, case.period) for number in range(count)]
            results.rows.append(self._row("a change to filter, median", [median(late)], unit="s", budget=budgets.usual))
            longest = self._row("a change to filter, longest", [max(late)], unit="s", budget=budgets.longest)
            results.rows.append(longest)
        if case.at_once:
            results.rows += await self._all_at_once()
        return results

    def _row(
        self,
        statistic: str,
        ours: Sequence[float],
        floor: Sequence[float] = (),
        *,
        unit: str,
        budget: float | None = None,
    ) -> Row:
        return row(
            self._case.series,
            statistic,
            ours,
            floor,
            unit=unit,
            floor_name="fetched, decoded, one dict" if floor else "",
            budget=None if budget is None else Budget(budget),
            size=self._size,
        )

    async def _cores(self, seconds: float) -> float:
        began, before = time.monotonic(), self._used()
        await asyncio.sleep(seconds)
        return (self._used() - before) / (time.monotonic() - began)

    def _used(self) -> float:
        """Processor seconds of all processes since their start."""
        return sum(map(cpu_seconds, self._pids.values()))

    async def _floor_seconds(self) -> float:
        """Processor seconds of one poll that does nothing with the values."""
        values: dict[tuple[str, str], str] = {}
        began = time.process_time()
        for metric in cluster.METRIC_NAMES[: self._case.metrics]:
            async with self._session.get(f"{self._polled.url}/api/v1/query", params={"query": metric}) as response:
                for each in orjson.loads(await response.read())["data"]["result"]:
                    values[metric, each["metric"]["instance"]] = each["value"][1]
        return time.process_time() - began

    # Changes

    async def _late(self, number: int, count: int, period: float) -> float:
        """Seconds from a changed value at the source until filter rejects the node.

        Of `count` changes each comes in another part of the period, so that they wait for the next poll as long as all
        changes do on average: by chance alone, the median of 12 would differ by a seventh of the period.
        """
        node = self._chance.choice(self._names)
        await asyncio.sleep(period * (number + self._chance.random()) / count)  # after a poll
        late = await self._until_rejected({node}, LATE_SECONDS)
        await self._until_rejected(set(), LATE_SECONDS)
        return late

    async def _all_at_once(self) -> list[Row]:
        """Every node crosses between two polls, there and back, once for each direction."""
        size = self._size
        filtered, stored, used = [], [], []
        for hot in (set(self._names), set()):
            writes = self._writes()
            began, before = time.perf_counter(), self._used()
            filtered.append(await self._until_rejected(hot, LATE_SECONDS))
            await self._until_stored(writes + len(self._names))
            stored.append(time.perf_counter() - began)
            used.append((self._used() - before) / len(self._names) * 1000)
        series = "all nodes cross at once"
        return [
            row(series, "until filter is right", filtered, unit="s", budget=ALL_CROSSED, size=size),
            row(series, "until all verdicts are stored", stored, unit="s", budget=ALL_VERDICTS, size=size),
            row(series, "processor, for each verdict", used, unit="ms", size=size),
        ]

    def _writes(self) -> float:
        return sum(
            value for name, value in self._served.samples().items() if name.startswith("tas_verdict_writes_total")
        )

    async def _until_rejected(self, hot: set[str], within: float) -> float:
        """Makes these nodes violate; seconds until filter rejects them and passes the others.

        Raises TimeoutError. Of the others so many may be rejected as cross a target.
        """
        began = time.perf_counter()
        await asyncio.to_thread(self._polled.heat, hot)
        crossing = round(len(self._names) * self._case.crossing)
        while True:
            answer = await asyncio.to_thread(self._served.ask, FILTER, self._names)
            rejected = set(self._names).difference(answer["NodeNames"])
            wrong = len(hot - rejected) + max(0, len(rejected - hot) - crossing)
            taken = time.perf_counter() - began
            if not wrong:
                return taken
            if taken > within:
                raise TimeoutError(f"filter is wrong about {wrong:,} nodes after {within:g} s")
            await asyncio.sleep(ASK_SECONDS)

    async def _until_none_pending(self) -> None:
        """Waits until all verdicts that have changed are stored: with 50 policies, 50 of each node.

        Raises TimeoutError.
        """
        ends = time.monotonic() + SETTLE_SECONDS
        while pending := self._served.samples()["tas_verdict_nodes_pending{}"]:
            if time.monotonic() > ends:
                raise TimeoutError(f"verdicts of {pending:,.0f} nodes are not stored after {SETTLE_SECONDS:g} s")
            await asyncio.sleep(METRICS_SECONDS)

    async def _until_stored(self, verdicts: float) -> None:
        """Waits for so many written verdicts since the start. Raises TimeoutError."""
        ends = time.monotonic() + SETTLE_SECONDS
        while (written := self._writes()) < verdicts:
            if time.monotonic() > ends:
                raise TimeoutError(f"{verdicts - written:,.0f} verdicts are not stored after {SETTLE_SECONDS:g} s")
            await asyncio.sleep(METRICS_SECONDS)
