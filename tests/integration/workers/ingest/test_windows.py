"""Statistics of windows, from samples on a real nats-server to samples."""

import asyncio
import re
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

import workers.ingest.windows
from bus.buckets import NODES, SYNCED
from bus.connection import Bus
from bus.errors import RefusedError
from bus.kinds import WINDOW_SERIES
from bus.records.codec import encode
from bus.records.nodes import NodeFacts
from bus.records.synced import Synced
from bus.scrapes import publish_scrape
from bus.stream_reader import Batch, StreamReader
from bus.subjects import node_facts_key
from tas.samples.sample import Scrape
from tas.values.quantity import NANO, Quantity
from tas.windows.admission import MAX_NAMES
from tas.windows.table import WindowTable
from tests.integration.servers import eventually
from tests.integration.workers.collecting import World, polled
from tests.integration.workers.running import epoch_on, put, running
from workers.ingest.collect import SourceMetrics
from workers.ingest.wanted_metrics import WantedMetrics
from workers.ingest.windows import Windows, _is_as_far

SOURCE = "windows"


class Cluster:
    """Publishes values with times before and after the begin of the test."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.start = (time.time() - 130) // 6 * 6  # the begin of a slot of each window

    async def measure(self, node: str, after: float, value: float, metric: str = "cpu") -> None:
        at = self.start + after
        values = {metric: Quantity(round(value * NANO)), "other": Quantity(NANO)}
        await publish_scrape(
            self.bus, node, Scrape(source="program", measured=at, arrived=at, sequence=0, metrics=values)
        )

    async def has(self, *nodes: str) -> None:
        """Tells the bus that Kubernetes has exactly these nodes."""
        for node in nodes:
            facts = NodeFacts(uid=f"uid-{node}", labels={}, created=datetime.now(UTC))
            await put(self.bus, NODES, node_facts_key(node), encode(facts))
        epoch = await epoch_on(self.bus, NODES)
        synced = Synced(epoch=epoch.created, count=len(nodes), time=datetime.now(UTC), writer="test", cluster=True)
        await put(self.bus, NODES, SYNCED, encode(synced))


@pytest.fixture
def cluster(bus: Bus) -> Cluster:
    return Cluster(bus)


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


class Readers:
    """Counts the readers that a worker makes. Those after the first, of the past, begin and end when events are set."""

    def __init__(self) -> None:
        self.count = 0
        self.begin, self.end = asyncio.Event(), asyncio.Event()

    def make(self, *arguments: Any) -> StreamReader:
        self.count += 1
        return StreamReader(*arguments) if self.count == 1 else HeldReader(self, *arguments)


class HeldReader(StreamReader):
    """A reader that is slow to begin, and to end."""

    def __init__(self, events: Readers, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._events = events

    async def batches(self) -> AsyncGenerator[Batch, None]:
        await self._events.begin.wait()
        try:
            async with aclosing(super().batches()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            await self._events.end.wait()


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Readers:
    readers = Readers()
    monkeypatch.setattr(workers.ingest.windows, "StreamReader", readers.make)
    return readers


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
        await world.has("a", SOURCE, {"cpu:max:3m": 4})
        assert 2 <= readers.count <= 3 + (time.monotonic() - began) / workers.ingest.windows.FILL_SECONDS


async def test_a_namespace_that_wants_too_much_takes_nothing_from_others(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.ingest.windows, "WindowTable", partial(WindowTable, max_room=25))
    monkeypatch.setattr(workers.ingest.windows, "CHECK_SECONDS", 0.1)
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
            refused = {name for name, why in missing.items() if why == workers.ingest.windows.NO_PLACE}
            # The two that gave their place to the other namespace have fresh values for a while.
            return set(hostile) - first <= refused <= set(hostile)

        await polled(are_refused)


async def _are(values: Callable[[], Awaitable[set[str]]], count: int) -> bool:
    return len(await values()) == count


@pytest.mark.parametrize(
    ("read", "other", "behind", "is_as_far"),
    [
        (10, 10, 0, True),
        (10, 10, 500, True),  # a flood: there is always more to come
        (10, 11, 0, False),
        (10, None, 3, True),
        (None, None, 0, True),
        (None, None, 3, False),
    ],
)
def test_a_reader_is_as_far_as_another_one(
    read: int | None, other: int | None, behind: int, *, is_as_far: bool
) -> None:
    assert _is_as_far(read, other, behind=behind) is is_as_far


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
        await eventually(lambda: shown() is not None)


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
    await bus.api("STREAM.PURGE.SAMPLES", {})
    await put(bus, NODES, node_facts_key("b"), encode(NodeFacts(uid="new", labels={}, created=datetime.now(UTC))))
    async with running(worker(bus)):
        for node in ("a", "b"):
            await cluster.measure(node, 120, 8)
        await world.has("a", SOURCE, {"cpu:mean:1m": 4, "cpu:p90:1m": 7, "cpu:ewma:1m": 5.571428571})
        assert await world.scrape("b", SOURCE) is None


async def test_a_series_ends_after_its_window_and_with_its_node(
    bus: Bus, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.ingest.windows, "CHECK_SECONDS", 0.1)
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
        await put(bus, NODES, node_facts_key("b"), None)
        await eventually(lambda: series() == 1)
        await eventually(lambda: stored() == {"c"})  # else they would grow with every node that ever was


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
