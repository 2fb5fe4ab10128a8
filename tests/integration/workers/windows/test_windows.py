"""Statistics of windows, from samples on a real nats-server to samples."""

import asyncio
import json
import re
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

import tas.windows.past
import workers.samples.source
import workers.windows.worker
from bus.buckets import NODES, SAMPLES, SYNCED, TABLES, WINDOWS, Bucket, Stream
from bus.connection import Bus
from bus.entry import RawEntry
from bus.errors import RefusedError, UnavailableError
from bus.kinds import NODE_FACTS, SOURCE_STATES, WINDOW_SERIES
from bus.lease import Lease
from bus.records.codec import encode
from bus.records.nodes import NodeFacts
from bus.records.synced import Synced
from bus.scrapes import publish_scrape
from bus.stream_reader import Batch, Start, StreamReader
from bus.tables import encoded_tables, publish_tables
from tas.samples.parts import Part
from tas.samples.sample import MAX_SAMPLE_AGE, Scrape
from tas.samples.table import Column, Reading, Table, TableKey
from tas.sources.result import SourceResult
from tas.sources.state import Health, health
from tas.values.quantity import NANO, Quantity
from tas.windows.admission import MAX_NAMES, Admission
from tas.windows.table import WindowTable
from tests.integration.bus.limits import long_limits
from tests.integration.servers import answered, eventually
from tests.integration.workers.collecting import World, polled
from tests.integration.workers.running import epoch_on, put, running
from workers.materialize.worker import Materialize
from workers.samples.metrics import SourceMetrics
from workers.samples.source import ReceivingSource
from workers.samples.wanted_metrics import WantedMetrics
from workers.windows.worker import READ, Windows

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

SOURCE = "windows"


class Cluster:
    """Publishes values with times before and after the begin of the test."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.now = time.time()
        self.start = (self.now - 130) // 6 * 6  # the begin of a slot of each window

    async def measure(self, node: str, after: float, value: float, metric: str = "cpu") -> None:
        at = self.start + after
        values = {metric: Quantity(round(value * NANO)), "other": Quantity(NANO)}
        await publish_scrape(
            self.bus, node, Scrape(source="program", measured=at, arrived=at, sequence=0, metrics=values)
        )

    async def has(self, *nodes: str, created: float = -3600.0) -> None:
        """Tells the bus that Kubernetes has exactly these nodes, created so long after the begin."""
        for node in nodes:
            facts = NodeFacts(uid=f"uid-{node}", labels={}, created=datetime.fromtimestamp(self.start + created, UTC))
            await put(self.bus, NODES, NODE_FACTS.key(node), encode(facts))
        epoch = await epoch_on(self.bus, NODES)
        synced = Synced(epoch=epoch.created, count=len(nodes), time=datetime.now(UTC), writer="test", cluster=True)
        await put(self.bus, NODES, SYNCED, encode(synced))


@pytest.fixture
def cluster(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """For the worker no time passes from now on: on a busy machine values would leave their windows during the test.

    And it keeps its lease. After a loss it publishes everything that is wanted, not only what has changed.
    """
    monkeypatch.setattr(workers.windows.worker, "Lease", partial(Lease, ttl_seconds=60))
    cluster = Cluster(bus)
    clock = SimpleNamespace(time=lambda: cluster.now, monotonic=time.monotonic)
    monkeypatch.setattr(workers.windows.worker, "time", clock)
    return cluster


async def expiry(bus: Bus, keys: str) -> str | None:
    """The header `Nats-TTL` of the newest entry of WINDOWS that matches; None without an entry."""
    try:
        answer = await bus.api("STREAM.MSG.GET.KV_WINDOWS", {"last_by_subj": f"$KV.WINDOWS.{keys}"})
    except RefusedError:  # no message
        return None
    headers = b64decode(answer["message"]["hdrs"]).decode()
    found = re.search(r"Nats-TTL: ?(\d+)", headers)
    return found[1] if found else None


def worker(bus: Bus, *, store_seconds: float = 60.0) -> Windows:
    registry = CollectorRegistry()
    return Windows(
        bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry), store_seconds=store_seconds
    )


async def test_samples_become_statistics_also_those_from_before_they_were_wanted(bus: Bus, cluster: Cluster) -> None:
    """The newest sample that is in a statistic gives the statistic its time. A node that nobody has counts nowhere."""
    world = World(bus)
    await cluster.has("a", "b")
    await world.use("cpu:mean:1m", "cpu:p50:1m")
    await world.listed()
    for node in ("ghost", "a"):
        for after, value in ((0, 100), (60, 1), (90, 2), (120, 9)):
            await cluster.measure(node, after, value)
    async with running(windows := worker(bus)):
        await world.has("a", SOURCE, {"cpu:mean:1m": 4, "cpu:p50:1m": 2})
        scrape = await world.scrape("a", SOURCE)
        assert scrape is not None
        assert scrape.measured == pytest.approx(cluster.start + 120, abs=1e-3)
        assert windows.unready() is None

        await cluster.measure("a", 120.5, 12)
        await world.has("a", SOURCE, {"cpu:mean:1m": 6, "cpu:p50:1m": 5.5})
        assert await world.scrape("b", SOURCE) is None
        assert await world.scrape("ghost", SOURCE) is None

        await world.use("cpu:max:2m", policy="later")  # nobody had wanted it when the samples came
        await world.has("a", SOURCE, {"cpu:max:2m": 100})  # the others have not changed

        await world.use("memory:mean:1m", policy="later")

        async def says_what_is_missing() -> bool:
            state = await world.state(SOURCE)
            found = None if state is None else state.metrics.get("memory:mean:1m")
            return found is not None and found.missing == "no value of memory yet"

        await polled(says_what_is_missing)


async def test_values_of_an_earlier_machine_of_the_name_are_in_no_statistic(bus: Bus, cluster: Cluster) -> None:
    """The values of before are still stored when a replica begins, and when a statistic is new."""
    world = World(bus)
    await cluster.has("a", created=60)
    await world.use("cpu:max:2m")
    await world.listed()
    for after, value in ((0, 100), (59, 100), (60, 1), (120, 3)):
        await cluster.measure("a", after, value)
    async with running(worker(bus)):
        await world.has("a", SOURCE, {"cpu:max:2m": 3})
        await world.use("cpu:p99:1m", policy="later")
        await world.has("a", SOURCE, {"cpu:p99:1m": 2.98})


class Readers:
    """The readers of SAMPLES that a worker makes. Those after the first, of the past, begin and end by events.

    Attributes:
        back: How many seconds back each begins, by the clock of the worker.
        reads: When each of the past was made and had read, by the clock of the loop.
        complete: How many batches with nothing behind them the bus has given to those of the past.
        is_held: Whether such a batch is given to the worker only when it is `allowed`.
        first_batch: How many messages the first reader may read together; after the first batch it waits for `begin`.
        of_tables: The readers of TABLES.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self.back: list[float] = []
        self.reads: list[tuple[float, float]] = []
        self.complete = 0
        self.is_held = False
        self.allowed = asyncio.Semaphore(0)
        self.first_batch: int | None = None
        self.of_tables: list[StreamReader] = []
        self.begin, self.end = asyncio.Event(), asyncio.Event()

    @property
    def count(self) -> int:
        return len(self.back)

    def make(self, bus: Bus, stream: Stream, start: Start) -> StreamReader:
        assert start.time is not None
        if stream is TABLES:
            self.of_tables.append(StreamReader(bus, stream, start))
            return self.of_tables[-1]
        self.back.append(self._now - start.time)
        if self.count > 1:
            return HeldReader(self, bus, stream, start)
        if self.first_batch is not None:
            return InterruptedReader(self, bus, stream, start, batch=self.first_batch)
        return StreamReader(bus, stream, start)

    def let_go(self) -> None:
        """Lets the readers go on for good."""
        self.is_held = False
        self.allowed.release()


class HeldReader(StreamReader):
    """A reader that is slow to begin, and to end."""

    def __init__(self, readers: Readers, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._readers = readers

    async def batches(self) -> AsyncGenerator[Batch, None]:
        readers, clock = self._readers, asyncio.get_running_loop().time
        made = clock()
        await readers.begin.wait()
        try:
            async with aclosing(super().batches()) as batches:
                async for batch in batches:
                    if not batch.behind:
                        readers.complete += 1
                        if readers.is_held:
                            await readers.allowed.acquire()
                    yield batch
        finally:
            await readers.end.wait()
            readers.reads.append((made, clock()))


class InterruptedReader(HeldReader):
    """A reader that waits after its first messages."""

    async def batches(self) -> AsyncGenerator[Batch, None]:
        async with aclosing(StreamReader.batches(self)) as batches:
            async for batch in batches:
                yield batch
                await self._readers.begin.wait()


class RecordedWindows(Windows):
    """The worker; with what it has given to its source, and how often it has checked its series."""

    def __init__(self, bus: Bus, registry: CollectorRegistry) -> None:
        super().__init__(bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry))
        self.results: list[SourceResult] = []
        self.checks = 0

    async def listen(
        self, metrics: Callable[[], frozenset[str]], publish: Callable[[SourceResult], Awaitable[None]]
    ) -> None:
        async def recorded(result: SourceResult) -> None:
            self.results.append(result)
            await publish(result)

        await super().listen(metrics, recorded)

    def _forget_revisions(self) -> None:
        self.checks += 1
        super()._forget_revisions()

    async def check(self) -> None:
        """Waits for some checks: what they would change has changed then."""
        enough = self.checks + 20
        await eventually(lambda: self.checks >= enough)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The series are checked again and again, and what has changed is published at once."""
    monkeypatch.setattr(workers.windows.worker, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(workers.windows.worker, "GATHER_SECONDS", 0.0)


@pytest.fixture
def readers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Readers:
    readers = Readers(cluster.now)
    monkeypatch.setattr(workers.windows.worker, "StreamReader", readers.make)
    return readers


async def test_a_statistic_has_each_value_of_a_backlog_of_tables(bus: Bus, cluster: Cluster) -> None:
    """`materialize` leaves values out of which it knows newer ones; a window may not."""
    world = World(bus)
    await cluster.has("a", "b")
    await world.use("cpu:mean:2m")
    await world.listed()
    values = range(1, 201)
    for number in values:
        measured = cluster.start + number / 2
        reading = Reading(measured, measured, 0)
        columns = {"cpu": Column((Quantity(number * NANO), Quantity(NANO)), reading)}
        table = Table("program", ("a", "b"), columns)
        fits, _ = encoded_tables([(TableKey("program", Part(1, 0)), table)], most=bus.max_value_bytes)
        await publish_tables(bus, fits)
    registry = CollectorRegistry()
    async with running(worker(bus)), running(Materialize(bus, registry=registry)):
        await world.has("a", SOURCE, {"cpu:mean:2m": sum(values) / len(values)})
        await world.has("b", SOURCE, {"cpu:mean:2m": 1})
        left_out = registry.get_sample_value("tas_table_messages_superseded_total")
        assert left_out, "materialize was never behind"


async def test_while_a_new_statistic_is_read_from_the_past_the_others_go_on(
    bus: Bus, cluster: Cluster, readers: Readers
) -> None:
    world = World(bus)
    await cluster.has("a")
    await world.use("cpu:mean:1m")
    await world.listed()
    for after, value in ((0, 100), (90, 1), (120, 3)):
        await cluster.measure("a", after, value)
    async with running(worker(bus)):
        await world.has("a", SOURCE, {"cpu:mean:1m": 2})
        await world.use("cpu:max:2m", policy="later")

        async def is_being_read() -> bool:
            state = await world.state(SOURCE)
            found = None if state is None else state.metrics.get("cpu:max:2m")
            return found is not None and found.missing == "its values of the last 10 minutes are not read yet"

        await polled(is_being_read)
        await cluster.measure("a", 120.5, 5)
        await world.has("a", SOURCE, {"cpu:mean:1m": 3})
        assert readers.count == 2
        readers.begin.set()
        await world.has("a", SOURCE, {"cpu:max:2m": 100})
        # The second reader has not ended yet: no value is lost meanwhile.
        await cluster.measure("a", 121, 200)
        await world.has("a", SOURCE, {"cpu:mean:1m": 52.25, "cpu:max:2m": 200})
        readers.end.set()


async def test_nothing_is_lost_of_what_comes_and_goes_while_the_past_is_read(
    bus: Bus, cluster: Cluster, readers: Readers
) -> None:
    """A value that the first reader alone has read, a node that is deleted, and statistics that are wanted or not."""
    world, registry = World(bus), CollectorRegistry()
    await cluster.has("a", "b")
    await world.use("cpu:mean:1m")
    await world.listed()
    for node in ("a", "b"):
        for after, value in ((0, 100), (90, 1), (120, 3)):
            await cluster.measure(node, after, value)
    windows = Windows(bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry))

    def series() -> float | None:
        return registry.get_sample_value("tas_windows_series")

    readers.begin.set()
    readers.end.set()
    readers.is_held = True
    async with running(windows):
        await eventually(lambda: series() == 2)
        await world.use("cpu:max:2m", "cpu:p50:2m", policy="later")
        await eventually(lambda: readers.complete == 1)
        await cluster.measure("a", 120.5, 200)
        await world.has("a", SOURCE, {"cpu:mean:1m": 68})
        await world.use("cpu:max:2m", "cpu:max:3m", policy="later")
        await eventually(lambda: windows._names().keys() == {"cpu:mean:1m", "cpu:max:2m", "cpu:max:3m"})
        readers.allowed.release()
        await eventually(lambda: readers.complete == 2)  # so the first batch is taken in
        readers.allowed.release()
        await eventually(lambda: readers.complete == 3)  # the reader has the last value, which is not taken in yet
        body = json.dumps({"nodes": ["a"], "metrics": {"memory": ["1"]}}).encode()
        sequence = await answered(lambda: bus.publish(TABLES, "tas.tables.s.1-0", body))
        await eventually(lambda: [each.applied for each in readers.of_tables] == [sequence, sequence])
        await put(bus, NODES, NODE_FACTS.key("b"), None)
        await eventually(lambda: series() == 1)
        readers.let_go()
        await world.misses(SOURCE, "cpu:max:3m", "")  # it was read from the past, too
        await cluster.measure("a", 121, 5)
        await world.has("a", SOURCE, {"cpu:mean:1m": 52.25, "cpu:max:2m": 200, "cpu:max:3m": 200})
        assert series() == 3


async def with_values(bus: Bus, cluster: Cluster, readers: Readers, metric: str) -> World:
    """A node with three values for this statistic; each reader begins and ends at once."""
    world = World(bus)
    readers.begin.set()
    readers.end.set()
    await cluster.has("a")
    await world.use(metric)
    await world.listed()
    for after in (0, 90, 120):
        await cluster.measure("a", after, 4)
    return world


async def test_a_reader_begins_where_all_values_are_that_may_be_missing(
    bus: Bus, cluster: Cluster, readers: Readers
) -> None:
    """With all that SAMPLES has, or where each series is stored with what has come since."""
    world = await with_values(bus, cluster, readers, "cpu:mean:1m")

    async def are_stored() -> bool:
        return len(await WINDOW_SERIES.entries(bus)) == 2

    async with running(worker(bus, store_seconds=0.2)):
        await world.has("a", SOURCE, {"cpu:mean:1m": 4})
        await world.use("cpu:max:2m", policy="later")
        await polled(are_stored)
    for metric in ("cpu:max:2m", "cpu:max:3m"):
        count = readers.count
        await world.use(metric, policy="later")
        async with running(worker(bus, store_seconds=45.0)):
            await eventually(lambda count=count: readers.count > count)  # type: ignore[misc]
    # The first, of a new statistic, with all stored, with some stored.
    of_stream = SAMPLES.max_age_seconds
    assert readers.back == pytest.approx([of_stream, of_stream, 2 * 45.0, of_stream], abs=10)


async def test_a_reader_begins_with_all_that_is_left_if_nothing_was_stored_for_some_time(
    bus: Bus, cluster: Cluster, readers: Readers
) -> None:
    """What has come since the last store would be missing; all replicas, or all policies, may have been away."""
    await with_values(bus, cluster, readers, "cpu:max:3m")

    async def is_stored() -> bool:
        return bool(await WINDOW_SERIES.entries(bus))

    async with running(worker(bus, store_seconds=0.2)):
        await polled(is_stored)
    for later, back in ((0.0, 2 * 5.0), (100.0, SAMPLES.max_age_seconds)):
        count = readers.count
        cluster.now += later
        async with running(worker(bus, store_seconds=5.0)):
            await eventually(lambda count=count: readers.count > count)  # type: ignore[misc]
        assert readers.back[-1] == pytest.approx(back - later)


async def test_the_past_is_read_again_only_after_three_times_as_long_as_it_took(
    bus: Bus, cluster: Cluster, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tas.windows.past, "FILL_SECONDS", 0.0)
    world, clock = World(bus), asyncio.get_running_loop().time
    readers.begin.set()
    await cluster.has("a")
    await world.use("cpu:mean:1m")
    await world.listed()
    for after in (0, 60, 120):
        await cluster.measure("a", after, 4)
    async with running(worker(bus)):
        await world.has("a", SOURCE, {"cpu:mean:1m": 4})
        await world.use("cpu:max:2m", policy="later")
        await world.has("a", SOURCE, {"cpu:max:2m": 4})
        began = clock()
        await world.use("cpu:max:2m", "cpu:max:3m", policy="later")
        await eventually(lambda: clock() >= began + 0.2)
        readers.end.set()
        await eventually(lambda: len(readers.reads) == 2)
    (first, second) = readers.reads
    assert second[0] - first[1] >= 3 * (first[1] - first[0])


@pytest.mark.usefixtures("often")
async def test_nothing_is_published_before_all_that_is_stored_is_read(
    bus: Bus, cluster: Cluster, readers: Readers
) -> None:
    """Else statistics of some of the values would come, and those of other nodes would be missing."""
    readers.first_batch = 3
    world, registry = World(bus), CollectorRegistry()
    await cluster.has("a")
    await world.use("cpu:mean:1m", "memory:mean:1m")
    await world.listed()
    for after, value in ((60, 1), (70, 1), (100, 1), (120, 9)):
        await cluster.measure("a", after, value)
    async with running(windows := RecordedWindows(bus, registry)):
        await eventually(lambda: registry.get_sample_value("tas_windows_series") == 1)
        await windows.check()
        assert windows.results == []
        readers.begin.set()
        await world.has("a", SOURCE, {"cpu:mean:1m": 3})
        assert {each.value / NANO for result in windows.results for each in result.samples} == {3}


@pytest.mark.usefixtures("often")
async def test_what_is_missing_is_published_as_long_as_it_is_and_nothing_without_a_change(
    bus: Bus, cluster: Cluster
) -> None:
    world = World(bus)
    await cluster.has("a")
    await world.use("cpu:mean:1m")
    await world.use("memory:mean:1m", policy="later")
    await world.listed()
    for after, value in ((60, 1), (120, 3)):
        await cluster.measure("a", after, value)
    async with running(windows := RecordedWindows(bus, CollectorRegistry())):
        await eventually(
            lambda: (
                bool(windows.results) and windows.results[-1].missing == {"memory:mean:1m": "no value of memory yet"}
            )
        )
        before = len(windows.results)
        await eventually(lambda: len(windows.results) > before + 2)  # the source lives, and says so
        await world.use(policy="later")
        await eventually(lambda: not windows.results[-1].missing)
        await windows.check()
        before = len(windows.results)
        await windows.check()
        assert len(windows.results) <= before + 2, "nothing has changed; an own sample may have come back"
        await cluster.measure("a", 120.5, 5)
        await world.has("a", SOURCE, {"cpu:mean:1m": 3})
        assert not any(result.missing for result in windows.results[before:])


@pytest.mark.usefixtures("often")
async def test_each_value_without_room_is_counted_once(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.windows.worker, "WindowTable", partial(WindowTable, max_room=2))
    world, registry = World(bus), CollectorRegistry()
    await cluster.has("a", "b")
    await world.use("cpu:mean:1m")
    await world.listed()
    for node in ("a", "b"):  # of 2 a namespace may have 1
        for after in (60, 90, 120):
            await cluster.measure(node, after, 5)

    def refused() -> float | None:
        return registry.get_sample_value("tas_windows_values_refused_total")

    async with running(windows := RecordedWindows(bus, registry)):
        await eventually(lambda: refused() == 3)
        await windows.check()
        await cluster.measure("b", 121, 5)
        await eventually(lambda: refused() == 4)
        await windows.check()
        assert refused() == 4


async def test_an_author_who_changes_windows_all_the_time_causes_few_reads(
    bus: Bus, cluster: Cluster, readers: Readers
) -> None:
    """SAMPLES is read again for new series after a pause."""
    world = World(bus)
    readers.begin.set()
    readers.end.set()
    await cluster.has("a")
    await world.use("cpu:mean:1m")
    await world.listed()
    for after in (0, 60, 120):
        await cluster.measure("a", after, 4)
    async with running(worker(bus)):
        await world.has("a", SOURCE, {"cpu:mean:1m": 4})
        began = time.monotonic()
        for number in range(40):
            await world.use(f"cpu:max:{number % 2 + 2}m", policy="author")
            await cluster.measure("a", 120 + number / 100, 4)

        async def has_the_last() -> bool:  # beside others, if it was read before the last value came
            return (await world.values("a", SOURCE)).get("cpu:max:3m") == 4

        await polled(has_the_last)
        assert 2 <= readers.count <= 3 + (time.monotonic() - began) / tas.windows.past.FILL_SECONDS


async def test_a_namespace_that_wants_too_much_takes_nothing_from_others(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.windows.worker, "WindowTable", partial(WindowTable, max_room=25))
    monkeypatch.setattr(workers.windows.worker, "CHECK_SECONDS", 0.1)
    world, nodes, registry = World(bus), ("a", "b", "c", "d"), CollectorRegistry()
    await cluster.has(*nodes)
    await world.use(*(f"cpu:max:{minutes}m" for minutes in range(2, 10)), policy="all", namespace="hostile")
    await world.listed()
    for node in nodes:
        for after, value in ((0, 100), (90, 1), (120, 3)):
            await cluster.measure(node, after, value)
    windows = Windows(bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry))

    def count(name: str) -> float:
        return registry.get_sample_value(f"tas_windows_{name}") or 0.0

    with capture_logs() as logs:
        async with running(windows):
            await eventually(lambda: count("series") == 20 and count("values_refused_total") > 0)
            await world.has("a", SOURCE, {f"cpu:max:{minutes}m": 100 for minutes in (2, 3, 4)})
            await world.use("cpu:mean:1m")

            async def all_have_it() -> bool:
                found = [await world.values(node, SOURCE) for node in nodes]
                return all(each.get("cpu:mean:1m") == 2 for each in found)

            await polled(all_have_it)
            assert count("series") == 24
    told = [line["namespaces"] for line in logs if line["event"] == "window_series_refused"]
    assert told == [["hostile"]]


async def test_a_namespace_that_names_too_many_statistics_leaves_a_place_for_others(bus: Bus, cluster: Cluster) -> None:
    """A node has a place for 1,000 of one source, and a hundred percentiles of one duration are a single series."""
    world = World(bus)
    await cluster.has("a")
    hostile = [f"cpu:p{number % 100}:{60 + number // 100}s" for number in range(300)]
    for number in range(0, 300, 60):
        await world.use(*hostile[number : number + 60], policy=f"all-{number}", namespace="hostile")
    await world.listed()
    for after, value in ((60, 1), (90, 2), (120, 3)):
        await cluster.measure("a", after, value)

    async def computed() -> set[str]:
        return set(await world.values("a", SOURCE)) & set(hostile)

    async with running(worker(bus)):
        await polled(lambda: _are(computed, MAX_NAMES))
        first = await computed()
        await world.use("cpu:mean:1m", "cpu:max:1m")
        await world.has("a", SOURCE, {"cpu:mean:1m": 2, "cpu:max:1m": 3})

        async def are_refused() -> bool:
            state = await world.state(SOURCE)
            missing = {} if state is None else {name: each.missing for name, each in state.metrics.items()}
            refused = {name for name, why in missing.items() if why == workers.windows.worker.NO_PLACE}
            # The two that gave their place to the other namespace have fresh values for a while.
            return set(hostile) - first <= refused <= set(hostile)

        await polled(are_refused)


async def test_statistics_without_a_place_come_when_the_places_of_others_end(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no other statistic is computed meanwhile, and no policy changes."""
    at = time.time()
    monkeypatch.setattr(workers.windows.worker, "Admission", partial(Admission, most=2))
    monkeypatch.setattr(workers.windows.worker, "ADMIT_SECONDS", 0.2)
    monkeypatch.setattr(workers.windows.worker, "time", SimpleNamespace(time=lambda: at, monotonic=time.monotonic))
    world = World(bus)
    await cluster.has("a")
    await world.use("cpu:mean:1m", "cpu:max:1m")
    await world.listed()
    for after, value in ((60, 1), (90, 2), (120, 3)):
        await cluster.measure("a", after, value)
    async with running(windows := worker(bus)):
        await world.has("a", SOURCE, {"cpu:mean:1m": 2, "cpu:max:1m": 3})
        await world.use("cpu:min:1m", "cpu:p50:1m")

        async def have_no_place() -> bool:
            state = await world.state(SOURCE)
            missing = {} if state is None else {name: each.missing for name, each in state.metrics.items()}
            return missing == dict.fromkeys(("cpu:min:1m", "cpu:p50:1m"), workers.windows.worker.NO_PLACE)

        await polled(have_no_place)
        assert not windows._names()
        at += MAX_SAMPLE_AGE + 1
        await eventually(lambda: set(windows._table.missing(time.time()).why) == {"cpu:min:1m", "cpu:p50:1m"})


async def test_another_replica_computes_the_statistics_that_the_one_before_did(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although one that has no place comes first by name."""
    monkeypatch.setattr(workers.windows.worker, "Admission", partial(Admission, most=2))
    world = World(bus)
    await cluster.has("a")
    await world.use("cpu:mean:2m", "cpu:mean:3m")
    await world.listed()
    async with running(worker(bus, store_seconds=0.2)):
        for after, value in ((30, 1), (60, 1), (90, 2), (120, 3)):
            await cluster.measure("a", after, value)

        async def are_stored() -> bool:
            keys = [entry.key.series.seconds for entry in await WINDOW_SERIES.entries(bus)]
            return sorted(keys) == [120, 180]

        await polled(are_stored)
    await world.use("cpu:mean:1m", "cpu:mean:2m", "cpu:mean:3m")
    async with running(last := worker(bus)):
        await eventually(lambda: last._admission.refused == {"cpu:mean:1m"})


async def test_a_replica_on_standby_takes_no_place(bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it takes over, what was wanted when it started has had no samples from it."""
    at = time.time()
    monkeypatch.setattr(workers.windows.worker, "Admission", partial(Admission, most=2))
    monkeypatch.setattr(workers.windows.worker, "time", SimpleNamespace(time=lambda: at, monotonic=time.monotonic))
    world = World(bus)
    await cluster.has("a")
    await world.use("cpu:mean:1m", "cpu:max:1m")
    await world.listed()
    async with AsyncExitStack() as of_first:
        first = worker(bus)
        await of_first.enter_async_context(running(first))
        await eventually(lambda: first._active)
        async with running(standby := worker(bus)):
            await eventually(lambda: standby.unready() is None)
            await world.use("cpu")
            await eventually(lambda: not first._active)
            at += MAX_SAMPLE_AGE + 1
            await world.use("cpu:mean:2m", "cpu:mean:3m")
            await eventually(lambda: first._active or standby._active)
            await of_first.aclose()
            await eventually(lambda: standby._active)
            assert standby._names().keys() == {"cpu:mean:2m", "cpu:mean:3m"}


async def _are(values: Callable[[], Awaitable[set[str]]], count: int) -> bool:
    return len(await values()) == count


async def test_a_source_that_nobody_wants_has_no_metrics(bus: Bus) -> None:
    """Else alerts would say that it has no success, and nothing fresh."""
    world, registry = World(bus), CollectorRegistry()
    windows = Windows(bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry))
    shown = partial(registry.get_sample_value, "tas_source_metrics_missing", {"source": SOURCE})
    async with running(windows):
        await world.use("cpu", policy="plain")
        await world.listed()
        await eventually(lambda: windows.unready() is None)
        assert shown() is None
        await world.use("cpu:mean:1m")
        await eventually(lambda: shown() == 1.0)  # nobody has published a value


async def test_a_window_that_is_not_covered_yet_is_no_missing_metric(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an alert would fire for half a day after somebody begins to use a statistic over a day."""
    looked: list[Mapping[str, str]] = []  # what was logged in each check, unless the same line was logged before
    logged = ReceivingSource._log_missing

    def log_missing(source: ReceivingSource, missing: Mapping[str, str]) -> None:
        looked.append(missing)
        logged(source, missing)

    monkeypatch.setattr(ReceivingSource, "_log_missing", log_missing)
    monkeypatch.setattr(workers.windows.worker, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(workers.samples.source, "STATE_CHECK_SECONDS", 0.05)
    world, registry = World(bus), CollectorRegistry()
    windows = Windows(bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry))
    shown = partial(registry.get_sample_value, "tas_source_metrics_missing", {"source": SOURCE})
    await cluster.has("a")
    await world.use("cpu:mean:24h")
    await world.listed()
    with capture_logs() as logs:
        async with running(windows):
            await eventually(lambda: shown() == 1.0)
            await cluster.measure("a", 60, 1)
            await eventually(lambda: shown() == 0.0)
            logs.clear()

            async def is_warming() -> bool:
                state = (await SOURCE_STATES.get(bus, SOURCE)).readable()
                return state is not None and health(state, is_held=True, now=state.time) is Health.WARMING

            await polled(is_warming)
            for number in range(3):  # each value covers more of the window
                await cluster.measure("a", 70 + number, 1)
                await eventually(lambda: f"span {10 + number} s so far" in windows._missing.get("cpu:mean:24h", ""))  # noqa: B023 - called at once
                await eventually(partial(_grows, looked, len(looked) + 1))
    assert "source_metric_missing" not in {each["event"] for each in logs}


def _grows(looked: Sequence[object], count: int) -> bool:
    return len(looked) > count


async def test_another_replica_goes_on_with_what_is_stored(bus: Bus, cluster: Cluster) -> None:
    """Although the messages are gone. Of a node that is a new machine of the old name, it begins again."""
    world = World(bus)
    await cluster.has("a", "b")
    await world.use("cpu:mean:1m", "cpu:p90:1m", "cpu:ewma:1m")
    await world.listed()
    async with running(worker(bus, store_seconds=0.2)):
        for node in ("a", "b"):
            for after, value in ((60, 1), (90, 3)):
                await cluster.measure(node, after, value)
            await world.has(node, SOURCE, {"cpu:mean:1m": 2, "cpu:p90:1m": 2.8, "cpu:ewma:1m": 2.333333333})

        async def are_stored() -> bool:
            stored = [entry.readable() for entry in await WINDOW_SERIES.entries(bus)]
            return [max(each.times.values()) for each in stored if each] == [pytest.approx(cluster.start + 90)] * 6

        await polled(are_stored)
        async with running(standby := worker(bus)):
            await eventually(lambda: standby.unready() is None)
    for stream in READ:
        await bus.api(f"STREAM.PURGE.{stream.name}", {})
    world = World(bus)
    await put(bus, NODES, NODE_FACTS.key("b"), encode(NodeFacts(uid="new", labels={}, created=datetime.now(UTC))))
    async with running(worker(bus)):
        for node in ("a", "b"):
            await cluster.measure(node, 120, 8)
        await world.has("a", SOURCE, {"cpu:mean:1m": 4, "cpu:p90:1m": 7, "cpu:ewma:1m": 5.571428571})
        assert await world.scrape("b", SOURCE) is None


async def test_a_policy_that_is_deleted_and_created_again_finds_its_statistics_as_they_were(
    bus: Bus, cluster: Cluster
) -> None:
    """As by `kubectl replace --force`, also if SAMPLES has less than the window. Not of a new machine of the name."""
    world = World(bus)
    await cluster.has("a", "b")
    await world.use("memory:mean:1m", policy="other")
    await world.use("cpu:mean:2m", "cpu:p50:2m", policy="replaced")
    await world.listed()
    async with running(windows := worker(bus, store_seconds=0.2)):
        for node in ("a", "b"):
            for after, value in ((30, 1), (90, 3)):
                await cluster.measure(node, after, value)
            await world.has(node, SOURCE, {"cpu:mean:2m": 2, "cpu:p50:2m": 2})

        async def are_stored() -> bool:
            stored = [entry.readable() for entry in await WINDOW_SERIES.entries(bus)]
            return [max(each.times.values()) for each in stored if each] == [pytest.approx(cluster.start + 90)] * 4

        await polled(are_stored)
        await world.use(policy="replaced")
        await eventually(lambda: not windows._table.has_series_of("cpu:mean:2m"))
        assert windows._table.count == 0, "nobody wants them, and they take no memory"
        created = datetime.fromtimestamp(cluster.start + 100, UTC)
        await put(bus, NODES, NODE_FACTS.key("b"), encode(NodeFacts(uid="new", labels={}, created=created)))
        await eventually(lambda: windows._uids["b"] == "new")
        for stream in READ:
            await bus.api(f"STREAM.PURGE.{stream.name}", {})
        world = World(bus)
        for node in ("a", "b"):
            await cluster.measure(node, 120, 8)
        await world.use("cpu:mean:2m", "cpu:p50:2m", policy="replaced")
        await world.has("a", SOURCE, {"cpu:mean:2m": 4, "cpu:p50:2m": 3})
        assert await world.scrape("b", SOURCE) is None

        async def is_stored_again() -> bool:
            stored = [entry.readable() for entry in await WINDOW_SERIES.entries(bus) if entry.key.node == "a"]
            return [max(each.times.values()) for each in stored if each] == [pytest.approx(cluster.start + 120)] * 2

        await polled(is_stored_again)


async def test_a_new_statistic_comes_from_the_streams_if_what_is_stored_cannot_be_read(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(bus)
    await cluster.has("a")
    await world.use("cpu:mean:1m")
    await world.listed()
    for after, value in ((60, 1), (90, 2), (120, 3)):
        await cluster.measure("a", after, value)
    with capture_logs() as logs:
        async with running(worker(bus)):
            await world.has("a", SOURCE, {"cpu:mean:1m": 2})

            async def refused(_bus: Bus, bucket: Bucket, _keys: Collection[str] = ()) -> list[RawEntry]:
                raise UnavailableError(f"{bucket.name}: for this test")

            monkeypatch.setattr(Bus, "entries", refused)
            await world.use("cpu:max:2m", policy="later")
            await world.has("a", SOURCE, {"cpu:max:2m": 3})
    told = [(line["log_level"], line["error"]) for line in logs if line["event"] == "window_series_not_read"]
    assert told == [("warning", "WINDOWS: for this test")]


async def test_a_series_ends_after_its_window_with_its_node_and_when_a_new_machine_has_the_name(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.windows.worker, "CHECK_SECONDS", 0.1)
    world, registry = World(bus), CollectorRegistry()
    await cluster.has("a", "b", "c")
    await world.use("cpu:mean:1m")
    await world.listed()
    for node, start in (("a", 0), ("b", 60), ("c", 60)):
        for after in (start, start + 60):
            await cluster.measure(node, after, 5)

    def series() -> float | None:
        return registry.get_sample_value("tas_windows_series")

    windows = Windows(
        bus, default_stale_after=60, registry=registry, metrics=SourceMetrics(registry), store_seconds=0.1
    )

    def stored() -> set[str]:
        return {key.node for key in windows._revisions}

    async with running(windows):
        await world.has("b", SOURCE, {"cpu:mean:1m": 5})
        await world.has("c", SOURCE, {"cpu:mean:1m": 5})
        await eventually(lambda: series() == 2)  # the newest value of a, which came before, is older than the window
        await eventually(lambda: stored() == {"b", "c"})
        await eventually(lambda: (registry.get_sample_value("tas_windows_store_seconds") or 0.0) >= 0.1)
        await put(bus, NODES, NODE_FACTS.key("b"), None)
        await eventually(lambda: series() == 1)
        await eventually(lambda: stored() == {"c"})  # else they would grow with every node that ever was
        await put(bus, NODES, NODE_FACTS.key("c"), encode(NodeFacts(uid="new", labels={}, created=datetime.now(UTC))))
        await eventually(lambda: series() == 0)


async def test_no_sample_writes_its_series_again(bus: Bus, cluster: Cluster) -> None:
    """Each series is stored once in four minutes, however often it is measured: here in the hours after the test."""
    world = World(bus)
    await cluster.has("a", "b")
    await world.use("cpu:max:1m")
    await world.listed()
    before = await answered(lambda: bus.epoch(WINDOWS))
    async with running(worker(bus, store_seconds=7200.0)):
        for number in range(50):
            for node in ("a", "b"):
                await cluster.measure(node, 60 + number, number)
        for node in ("a", "b"):
            await world.has(node, SOURCE, {"cpu:max:1m": 49})
    assert (await answered(lambda: bus.epoch(WINDOWS))).last_sequence == before.last_sequence


async def test_a_stored_series_is_kept_for_its_window_and_some_minutes(bus: Bus, cluster: Cluster) -> None:
    """Then it expires: nobody else deletes the series of a metric that no policy uses any more."""
    world = World(bus)
    await cluster.has("a")
    await world.use("cpu:mean:1m", "cpu:mean:5m")
    await world.listed()
    for after in (60, 120):
        await cluster.measure("a", after, 5)
    async with running(worker(bus, store_seconds=0.1)):

        async def expire_later() -> bool:
            return await expiry(bus, "a.cpu.60.>") == "660" and await expiry(bus, "a.cpu.300.>") == "900"

        await polled(expire_later)


async def test_sources_that_compute_no_windows_bring_the_metric_itself(bus: Bus) -> None:
    world = World(bus)
    wanted = WantedMetrics(bus, default_stale_after=60, always=("load:max:5m",), computing=("prometheus",))
    async with running(wanted):
        await world.use("cpu:p95:5m")
        await world.use("disk:mean:5m", policy="own", source="windows")
        await world.use("net:mean:5m", policy="theirs", source="prometheus")
        await world.use("gpu:mean:5m", policy="adapter", source="custom-metrics")
        await world.listed()
        await wanted.wait_until_known()
        assert {source: set(wanted.of(source)) for source in ("custom-metrics", "prometheus", "windows")} == {
            "custom-metrics": {"load", "cpu", "disk", "gpu"},
            "prometheus": {"load:max:5m", "cpu:p95:5m", "disk", "net:mean:5m"},
            "windows": {"load:max:5m", "cpu:p95:5m", "disk:mean:5m"},
        }
        await world.use("load:max:5m", policy="theirs")
        await eventually(lambda: "load:max:5m" in wanted.namespaces(SOURCE))
        assert wanted.namespaces(SOURCE) == {
            "cpu:p95:5m": {"default"},
            "disk:mean:5m": {"default"},
            "load:max:5m": set(),  # the operator wants it
        }
