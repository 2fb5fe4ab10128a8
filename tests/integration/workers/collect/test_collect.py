"""The worker `collect` over a real nats-server, with sources that answer, fail, hang or refuse."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.buckets import LEASES, NODES, SOURCES, Bucket
from bus.connection import Bus
from bus.entry import RawEntry
from bus.errors import ConflictError
from bus.records.codec import encode
from bus.records.leases import LeaseRecord
from bus.records.nodes import encode_node_samples
from tas.samples.sample import Scrape
from tas.sources.result import RefusalReason, ResultBuilder, SourceResult
from tas.sources.state import LostNodes
from tas.sources.tables import Publish
from tas.values.quantity import parse_quantity
from tests.integration.servers import Server, answered, eventually
from tests.integration.tables import Nodes, put_tables
from tests.integration.workers.collecting import World, collecting, polled
from tests.integration.workers.running import entry_on, epoch_on, put, running
from workers.collect.sources.base import Source, SourceError
from workers.collect.worker import Collect
from workers.samples.metrics import SourceMetrics
from workers.samples.publisher import REPEAT_SECONDS
from workers.samples.source import Listener
from workers.samples.source_spec import SourceKind, SourceSpec

pytestmark = pytest.mark.usefixtures("long_limits")

LAST_SUCCESS = "tas_source_last_success_timestamp_seconds"
MISSING = "tas_source_metrics_missing"
LATE = "tas_source_polls_late_total"


class Fake:
    """A source with answers of the test."""

    def __init__(self, name: str = "fake", value: str = "1") -> None:
        self.name = name
        self.value = value
        self.measured: float | None = None
        self.asked: list[frozenset[str]] = []
        self.problem: Exception | None = None
        self.hangs = False
        self.without: frozenset[str] = frozenset()
        self.nodes: Sequence[str] = ("node-1",)
        self.add_more: Callable[[ResultBuilder], None] = lambda _: None

    async def read(self, metrics: frozenset[str]) -> SourceResult:
        self.asked.append(metrics)
        if self.hangs:
            await asyncio.Event().wait()
        if self.problem is not None:
            raise self.problem
        builder = ResultBuilder()
        for metric in sorted(metrics - self.without):
            for node in self.nodes:
                builder.add(node=node, metric=metric, value=self.value, measured=self.measured)
        self.add_more(builder)
        return builder.result()


class Written:
    """A listening source to which the test writes."""

    name = "written"

    def __init__(self) -> None:
        self.wanted: Callable[[], frozenset[str]] | None = None
        self.take: Callable[[SourceResult], Awaitable[None]] | None = None

    async def listen(
        self, metrics: Callable[[], frozenset[str]], take: Callable[[SourceResult], Awaitable[None]]
    ) -> None:
        self.wanted, self.take = metrics, take
        await asyncio.Event().wait()

    async def write(self, node: str, metric: str, value: str) -> None:
        await eventually(lambda: self.take is not None)
        assert self.take is not None
        builder = ResultBuilder()
        builder.add(node=node, metric=metric, value=value)
        take, result = self.take, builder.result()
        await answered(lambda: take(result))


def of_kind(source: Source | Listener, kind: SourceKind = SourceKind.CUSTOM_METRICS) -> SourceSpec:
    """The source as on a command line."""
    return SourceSpec(name=source.name, kind=kind)


@pytest.fixture
async def world(bus: Bus) -> World:
    world = World(bus)
    await world.listed()
    return world


async def test_the_values_of_a_source_are_published_every_period(bus: Bus, world: World) -> None:
    await world.use("load", "heat")
    fake = Fake(value="1.5")
    async with collecting(bus, fake) as registry:
        await world.has("node-1", "fake", {"load": 1.5, "heat": 1.5})
        fake.value = "2"
        await world.has("node-1", "fake", {"load": 2, "heat": 2})
        assert set(fake.asked) == {frozenset({"load", "heat"})}
        state = await world.problem("fake", "")
        assert {metric: each.nodes for metric, each in state.metrics.items()} == {"heat": 1, "load": 1}
        assert state.period == 0.1
        await eventually(lambda: registry.get_sample_value("tas_source_lease_held", {"source": "fake"}) == 1)
        assert registry.get_sample_value("tas_source_polls_total", {"source": "fake", "result": "all"})


async def test_metrics_that_are_always_wanted_are_polled_beside_those_of_policies(bus: Bus, world: World) -> None:
    fake = Fake()
    await world.use("load")
    await world.listed()
    async with collecting(bus, fake, always=["cpu:mean:5m", "load"]):
        await eventually(lambda: {"load", "cpu"} in fake.asked)  # `windows` computes the statistic


async def test_no_source_is_polled_before_the_list_of_policies_is_complete(bus: Bus) -> None:
    world, fake = World(bus), Fake()
    await world.use("load")
    collect = Collect(
        bus,
        {SourceSpec(name="fake", kind=SourceKind.CUSTOM_METRICS): fake},
        period=0.1,
        default_stale_after=120.0,
        metrics=SourceMetrics(CollectorRegistry()),
    )
    async with running(collect):
        await eventually(lambda: "no complete list" in (collect.unready() or ""))
        await world.use("heat", policy="q")
        await world.listed()
        await world.has("node-1", "fake", {"load": 1, "heat": 1})
    assert fake.asked[0] == {"load", "heat"}  # an earlier poll would not have had the second policy


async def test_a_value_without_a_time_is_as_old_as_the_request_for_it(bus: Bus, world: World) -> None:
    class Timed(Fake):
        began = 0.0

        async def read(self, metrics: frozenset[str]) -> SourceResult:
            self.began = self.began or time.time()
            return await super().read(metrics)

    await world.use("load")
    timed = Timed()
    async with collecting(bus, timed, period=3600):
        await world.has("node-1", "fake", {"load": 1})
        scrape = await world.scrape("node-1", "fake")
    assert scrape is not None
    assert scrape.measured <= timed.began
    assert len(timed.asked) == 1


async def test_a_replica_whose_lease_is_another_s_says_so(bus: Bus, world: World) -> None:
    await world.use("load")

    def holds(registry: CollectorRegistry) -> float | None:
        return registry.get_sample_value("tas_source_lease_held", {"source": "fake"})

    fake = Fake()
    async with collecting(bus, fake) as registry:
        await eventually(lambda: holds(registry) == 1)

        async def taken() -> bool:
            read_at = time.monotonic()
            entry = await bus.get(LEASES, "collect.fake")
            assert entry is not None
            value = encode(LeaseRecord(holder="another", token="t"))
            with suppress(ConflictError):
                await bus.put(LEASES, "collect.fake", value, revision=entry.revision, read_at=read_at)
                return True
            return False

        await eventually(taken)
        await eventually(lambda: holds(registry) == 0)


async def test_a_source_is_polled_only_for_metrics_of_policies(bus: Bus, world: World) -> None:
    fake = Fake()
    async with collecting(bus, fake, period=3600):

        async def idle() -> bool:
            state = await world.state("fake")
            return state is not None and not state.metrics

        await polled(idle)
        assert fake.asked == []
        await world.use("load")  # long before the end of the period
        await world.has("node-1", "fake", {"load": 1})
        await world.use("heat", policy="q")
        await world.has("node-1", "fake", {"load": 1, "heat": 1})
        await world.use("power", policy="r", source="somebody-else")
        await world.use("speed", policy="s", source="fake")
        await world.has("node-1", "fake", {"load": 1, "heat": 1, "speed": 1})
        for policy in ("p", "q", "s"):
            await world.use(policy=policy)
        await polled(idle)
        assert all("power" not in asked for asked in fake.asked)
        assert frozenset() not in fake.asked


@pytest.mark.parametrize("trouble", ["hangs", "is down", "raises a bug", "gives invalid times"])
async def test_a_failing_source_does_not_delay_others(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr("workers.collect.worker.POLL_TIMEOUT_SECONDS", 0.5)
    await world.use("load")
    good, bad = Fake("good"), Fake("bad")
    if trouble == "hangs":
        bad.hangs, problem = True, "no answer within 0.5 s"
    elif trouble == "is down":
        bad.problem, problem = SourceError("connection refused by a.example"), "connection refused"
    elif trouble == "raises a bug":
        bad.problem, problem = ZeroDivisionError("oh"), "a bug, see the log"
    else:
        bad.measured, problem = time.time() + 1000, "no fresh value of any metric that policies use"
    with capture_logs():  # to show the traceback of each poll would take most of the processor time
        async with collecting(bus, bad, good) as registry:
            await world.comes("node-1", "good")
            state = await world.problem("bad", problem)
            assert state.failures == state.polls
            assert state.last_success is None
            assert registry.get_sample_value(LAST_SUCCESS, {"source": "bad"}) == 0
            await eventually(lambda: registry.get_sample_value(MISSING, {"source": "bad"}) == 1)
            if trouble == "gives invalid times":
                await world.refuses("bad", "time", "load of node-1")
            before = len(good.asked)
            await eventually(lambda: len(good.asked) > before + 10)
            assert not (await world.problem("good", "")).problem
            assert await world.scrape("node-1", "bad") is None
            bad.hangs, bad.problem, bad.measured = False, None, None
            await world.comes("node-1", "bad")
            await world.problem("bad", "")


async def test_a_failing_source_is_asked_less_and_less_often(bus: Bus, world: World) -> None:
    await world.use("load")
    good, bad = Fake("good"), Fake("bad")
    bad.problem = SourceError("connection refused")
    async with collecting(bus, bad, good):
        await eventually(lambda: len(good.asked) > 40)
        assert 2 <= len(bad.asked) <= 20


async def test_retry_after_of_a_source_is_respected(bus: Bus, world: World) -> None:
    await world.use("load")
    fake, other = Fake(), Fake("other")
    fake.problem = SourceError("too many requests", retry_after=300)
    async with collecting(bus, fake, other):
        await world.problem("fake", "too many requests")
        before = len(other.asked)
        await world.use("heat", policy="q")  # not even for a new metric
        await eventually(lambda: len(other.asked) > before + 10)
        assert len(fake.asked) == 1


async def test_a_retry_after_of_days_is_cut_short(bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.collect.worker.MAX_RETRY_AFTER_SECONDS", 0.1)
    await world.use("load")
    fake = Fake()
    fake.problem = SourceError("too many requests", retry_after=1e6)
    async with collecting(bus, fake):
        await eventually(lambda: len(fake.asked) >= 2)


def _without(names: Sequence[str], builder: ResultBuilder) -> None:
    for name in names:
        builder.add_missing(name, "not here")


async def test_a_metric_that_another_source_brings_is_no_warning(bus: Bus, world: World) -> None:
    first, second = Fake("first"), Fake("second")
    for fake, missing in ((first, ("heat", "load")), (second, ("heat",))):
        fake.without = frozenset(missing)
        fake.add_more = partial(_without, missing)
    first.problem = SourceError("not yet")
    await world.use("heat", "load")
    with capture_logs() as logs:
        async with collecting(bus, first, second):
            await world.misses("second", "load", "")
            first.problem = None
            await world.misses("first", "load", "not here")

            def warned() -> set[tuple[str, str]]:
                return {(log["source"], log["metric"]) for log in logs if log["event"] == "source_metric_missing"}

            # Both metrics of `first` are missing since the same poll.
            await eventually(lambda: {("first", "heat"), ("second", "heat")} <= warned())
    assert warned() == {("first", "heat"), ("second", "heat")}


async def test_refused_and_missing_values_are_reported_and_the_rest_is_published(bus: Bus, world: World) -> None:
    await world.use("load", "heat", "power")
    fake = Fake()

    def add_more(builder: ResultBuilder) -> None:
        builder.add(node="node-1", metric="heat", value="7")
        builder.refuse(RefusalReason.NODE, "load of web", "describedObject.kind", "Pod", "must be Node")
        builder.add(node="node-1", metric="unasked", value="1")
        builder.add_missing("power", "unknown to all")

    fake.add_more, fake.without = add_more, frozenset({"power"})
    async with collecting(bus, fake) as registry:
        await world.has("node-1", "fake", {"load": 1})
        await world.refuses("fake", "duplicate", "heat of node-1")
        await world.refuses("fake", "node", "'Pod'")
        await world.misses("fake", "power", "unknown to all")
        await world.misses("fake", "heat", "no value accepted, as ")
        assert registry.get_sample_value("tas_source_values_refused_total", {"source": "fake", "reason": "duplicate"})
        assert registry.get_sample_value(MISSING, {"source": "fake"}) == 2


@pytest.mark.parametrize("publish", Publish)
async def test_a_value_that_jumps_for_one_scrape_and_a_blank_are_published_and_reported(
    bus: Bus, world: World, publish: Publish
) -> None:
    await world.use("load", "heat")
    fake = Fake(value="35")
    async with collecting(bus, fake, publish=publish) as registry:
        for value in ("35", "644245923", "34", "2147483632"):
            fake.value = value
            await world.has("node-1", "fake", {"load": float(value), "heat": float(value)})

        async def suspect() -> dict[str, int]:
            state = await world.state("fake")
            return {} if state is None else {why.value: each.count for why, each in state.suspect.items()}

        async def reported() -> bool:
            found = await suspect()
            return found.get("jump") == 2 and found.get("blank", 0) >= 2

        await eventually(reported)
        name = "tas_source_values_suspect_total"
        assert registry.get_sample_value(name, {"source": "fake", "reason": "jump"}) == 2
        assert (
            registry.get_sample_value("tas_source_values_refused_total", {"source": "fake", "reason": "value"}) is None
        )


async def test_samples_that_the_bus_does_not_store_are_no_success(bus: Bus, world: World) -> None:
    """The source answers well; its alert must come nevertheless, since nobody gets a fresh sample."""
    await world.use("load")
    fake = Fake()
    async with collecting(bus, fake, stale_after=0.5) as registry:

        def value(name: str) -> float:
            return registry.get_sample_value(name, {"source": "fake"}) or 0.0

        await eventually(lambda: value(LAST_SUCCESS) > 0)
        configs = [await answered(partial(bus.api, f"STREAM.INFO.{of}")) for of in ("TABLES", "SAMPLES")]
        for info in configs:
            smaller = info["config"] | {"max_msg_size": 1}
            await answered(partial(bus.api, f"STREAM.UPDATE.{smaller['name']}", smaller))
        lost = value("tas_source_polls_lost_total")
        await eventually(lambda: value("tas_source_polls_lost_total") > lost)  # so no earlier poll is on its way
        last_success = value(LAST_SUCCESS)
        await eventually(lambda: value(MISSING) == 1)
        await world.problem("fake", "the bus did not store the samples: tas.samples.node-1.fake")
        assert value(LAST_SUCCESS) == last_success
        for info in configs:
            await answered(partial(bus.api, f"STREAM.UPDATE.{info['config']['name']}", info["config"]))
        await eventually(lambda: value(LAST_SUCCESS) > last_success and value(MISSING) == 0)
        await world.problem("fake", "")


async def test_polls_longer_than_the_period_are_logged_and_never_overlap(bus: Bus, world: World) -> None:
    await world.use("load")

    class Slow(Fake):
        at_once = most_at_once = 0

        async def read(self, metrics: frozenset[str]) -> SourceResult:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await asyncio.sleep(0)
                return await super().read(metrics)
            finally:
                self.at_once -= 1

    fake = Slow()
    with capture_logs() as logs:
        async with collecting(bus, fake, period=1e-6) as registry:
            await eventually(lambda: (registry.get_sample_value(LATE, {"source": "fake"}) or 0) >= 3)
            fake.value = "7"
            await world.has("node-1", "fake", {"load": 7})
            await eventually(lambda: registry.get_sample_value("tas_source_lease_held", {"source": "fake"}) == 1)
    assert fake.most_at_once == 1
    late = [line for line in logs if line["event"] == "source_poll_late"]
    assert (late[0]["source"], late[0]["period"], late[0]["suppressed"]) == ("fake", 1e-6, 0)


async def test_a_source_says_how_far_it_is_behind_and_is_current_soon_after(bus: Bus, world: World) -> None:
    """While a poll is not finished, no other one begins."""
    await world.use("load")
    period = 0.5
    answers = asyncio.Event()
    answers.set()

    class Held(Fake):
        at_once = most_at_once = polls = 0

        async def read(self, metrics: frozenset[str]) -> SourceResult:
            self.polls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await answers.wait()
            finally:  # also at the time limit of a poll, on a busy machine
                self.at_once -= 1
            return await super().read(metrics)

    fake = Held()
    async with collecting(bus, fake, period=period) as registry:

        def behind() -> float:
            return registry.get_sample_value("tas_source_behind_seconds", {"source": "fake"}) or 0.0

        def overdue() -> float | None:
            return registry.get_sample_value("tas_source_overdue_seconds", {"source": "fake"})

        async def is_said(*, said: bool) -> bool:
            state = await world.state("fake")
            return state is not None and state.is_behind is said

        await world.has("node-1", "fake", {"load": 1})
        assert registry.get_sample_value("tas_source_metrics", {"source": "fake"}) == 1
        answers.clear()
        await eventually(lambda: behind() > 3 * period)
        # It is counted from the end of the last poll, and the time behind from its start.
        await eventually(lambda: (overdue() or 0.0) > period)
        await eventually(partial(is_said, said=True))
        fake.value = "7"
        began = fake.polls
        answers.set()
        await eventually(lambda: behind() <= period)
        assert fake.polls <= began + 2  # before the bus is asked: on a busy machine that takes longer than some polls
        await world.has("node-1", "fake", {"load": 7})
        await eventually(lambda: overdue() == 0.0)
        await eventually(partial(is_said, said=False))
    assert fake.most_at_once == 1


async def test_a_period_counts_from_the_start_of_a_poll(bus: Bus, world: World) -> None:
    await world.use("load")
    period, duration = 0.6, 0.3

    class Slow(Fake):
        def __init__(self) -> None:
            super().__init__()
            self.starts: list[float] = []

        async def read(self, metrics: frozenset[str]) -> SourceResult:
            self.starts.append(time.monotonic())
            await asyncio.sleep(duration)
            return await super().read(metrics)

    slow = Slow()
    async with collecting(bus, slow, period=period):
        # Counted from the end of a poll, two polls would never begin within the period and the duration.
        await eventually(lambda: any(after - before < period + duration for before, after in pairwise(slow.starts)))
    assert min(after - before for before, after in pairwise(slow.starts)) > duration


async def test_a_poll_within_the_period_is_not_late(bus: Bus, world: World) -> None:
    await world.use("load")
    async with collecting(bus, Fake(), period=3600) as registry:
        await world.has("node-1", "fake", {"load": 1})
        await world.problem("fake", "")
        assert registry.get_sample_value(LATE, {"source": "fake"}) == 0


async def test_recently_published_scrapes_are_not_repeated(bus: Bus, world: World) -> None:
    await world.use("load")
    fake = Fake()
    fake.measured = time.time()
    async with collecting(bus, fake):
        await world.has("node-1", "fake", {"load": 1})
        before, asked, began = await world.published(), len(fake.asked), time.monotonic()
        await eventually(lambda: len(fake.asked) > asked + 10)
        # Once in REPEAT_SECONDS: a slow machine takes long for these polls. One more may be on its way at the start.
        assert await world.published() <= before + 2 + (time.monotonic() - began) / REPEAT_SECONDS
        fake.value = "2"
        await world.has("node-1", "fake", {"load": 2})


async def test_the_state_is_written_when_it_changes_and_not_with_every_poll(bus: Bus, world: World) -> None:
    await world.use("load")
    fake = Fake()
    async with collecting(bus, fake):
        await world.misses("fake", "load", "")
        before = (await epoch_on(bus, SOURCES)).last_sequence
        asked = len(fake.asked)
        await eventually(lambda: len(fake.asked) > asked + 30)
        assert (await epoch_on(bus, SOURCES)).last_sequence <= before + 10


@pytest.mark.parametrize("publish", Publish)
async def test_a_source_that_lost_nodes_while_nobody_polled_it_says_so(
    bus: Bus, world: World, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gave before is in NODES, where `materialize` has put it."""
    monkeypatch.setattr("tas.sources.state.LOST_SECONDS", 0.1)
    await world.use("load")
    given = {f"node-{number}": {"load": "1", "unused": "1"} for number in (1, 2, 3)}
    await store(bus, given, "fake", publish)
    await store(bus, {"node-4": {"load": "1"}}, "other", publish)
    await store(bus, {"node-5": {"unused": "1"}}, "fake", publish)
    fake = Fake()
    async with collecting(bus, fake, publish=publish) as registry:

        async def lost() -> LostNodes | None:
            state = await world.state("fake")
            return None if state is None or not state.metrics["load"].nodes else state.lost

        def metrics() -> tuple[float | None, ...]:
            names = ("tas_source_nodes", "tas_source_nodes_lost")
            return tuple(registry.get_sample_value(name, {"source": "fake"}) for name in names)

        async def are_lost() -> bool:
            found = await lost()
            return found is not None and found.names == ("node-2", "node-3")

        await polled(are_lost)
        assert metrics() == (1, 2)
        fake.nodes = tuple(given)
        await eventually(lambda: metrics() == (3, 0))

        async def are_back() -> bool:
            return await lost() is None

        await polled(are_back)


async def test_sources_whose_leases_are_new_read_once_together_what_they_gave_before(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NODES is large, and a process that starts gets the leases of all its sources."""
    monkeypatch.setattr("tas.sources.state.LOST_SECONDS", 0.1)
    monkeypatch.setattr("workers.collect.worker.GATHER_SECONDS", 3.0)  # a busy machine has the third lease late
    await world.use("load")
    names = ("one", "two", "three")
    for name in names:
        await store(bus, {f"node-of-{name}": {"load": "1", "unused": "1"}}, name, Publish.TABLES)
    reads: list[Bucket] = []
    read = Bus.entries

    async def counted(bus: Bus, bucket: Bucket, keys: Collection[str]) -> list[RawEntry]:
        reads.append(bucket)
        return await read(bus, bucket, keys)

    monkeypatch.setattr(Bus, "entries", counted)
    async with collecting(bus, *(Fake(name) for name in names)):
        for name in names:

            async def is_known(name: str = name) -> bool:
                state = await world.state(name)
                return state is not None and state.lost is not None and state.lost.names == (f"node-of-{name}",)

            await polled(is_known)
    assert reads.count(NODES) == 1


async def store(bus: Bus, nodes: Nodes, source: str, publish: Publish) -> None:
    """Stores values of a minute ago as `materialize` does."""
    if publish is Publish.TABLES:
        await put_tables(bus, nodes, source=source, ago=60.0, sequence=len(nodes))
        return
    for node, values in nodes.items():
        metrics = {name: parse_quantity(value) for name, value in values.items()}
        at = time.time() - 60
        scrape = Scrape(source=source, measured=at, arrived=at, sequence=1, metrics=metrics)
        await put(bus, NODES, f"{node}.metrics", encode_node_samples((scrape,)))


async def test_after_a_wipe_of_the_bus_samples_and_state_are_written_again(
    server: Server, bus: Bus, world: World
) -> None:
    await world.use("load")
    fake = Fake()
    async with collecting(bus, fake):
        await world.has("node-1", "fake", {"load": 1})
        await server.restart(wiped=True)
        await bus.wait_connected()

        async def published_again() -> bool:
            return await world.values("node-1", "fake") == {"load": 1}

        # Nobody has listed policies since the wipe, so the metrics that were known before it count.
        await polled(published_again)


async def test_a_listening_replica_publishes_and_writes_the_state(bus: Bus, world: World) -> None:
    await world.use("load")
    first, second = Written(), Written()
    async with collecting(bus, first), collecting(bus, second):
        await first.write("node-1", "load", "3")
        await world.has("node-1", "written", {"load": 3})
        assert first.wanted is not None
        assert first.wanted() == {"load"}
        await second.write("node-2", "load", "4")
        await second.write("node-2", "unasked", "4")
        await world.has("node-2", "written", {"load": 4})
        await world.misses("written", "load", "")
        state = await world.state("written")
        assert state is not None
        assert state.period is None
        assert await entry_on(bus, LEASES, "collect.written") is None


async def test_a_listening_source_without_fresh_samples_fires_the_alert(bus: Bus, world: World) -> None:
    """As if the exporter had ended, and Prometheus had not: requests still come, without metrics of policies."""
    await world.use("load")
    written = Written()
    async with collecting(bus, written, stale_after=0.5) as registry:
        await written.write("node-1", "load", "3")
        last_success = registry.get_sample_value(LAST_SUCCESS, {"source": "written"})
        assert last_success
        await eventually(lambda: registry.get_sample_value(MISSING, {"source": "written"}) == 1)
        await written.write("node-1", "another", "3")
        assert registry.get_sample_value(LAST_SUCCESS, {"source": "written"}) == last_success
        await world.misses("written", "load", "no fresh sample: the newest is older than 0.5 s")
        await written.write("node-1", "load", "3")
        assert (registry.get_sample_value(LAST_SUCCESS, {"source": "written"}) or 0) > last_success


async def test_a_listening_replica_that_received_nothing_leaves_the_state_of_another(
    bus: Bus, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.use("load")
    first, second = Written(), Written()
    monkeypatch.setattr("workers.samples.source.process_identity", lambda: "first")
    async with collecting(bus, first, kind=SourceKind.REMOTE_WRITE):
        await first.write("node-1", "load", "3")
        await world.misses("written", "load", "")
        monkeypatch.setattr("workers.samples.source.process_identity", lambda: "second")
        idle = Collect(
            bus,
            {of_kind(second): second},
            period=0.1,
            default_stale_after=120.0,
            metrics=SourceMetrics(CollectorRegistry()),
        )
        (receiving,) = idle._runs
        async with running(idle):
            await eventually(lambda: receiving._states._written is not None)  # it has looked whether to write
            state = await world.state("written")
            assert state is not None
            assert (state.holder, state.polls) == ("first", 1)
            await second.write("node-2", "load", "4")

            async def of_the_second() -> bool:
                state = await world.state("written")
                return state is not None and (state.holder, state.polls) == ("second", 1)

            await eventually(of_the_second)
