"""Collect: publishes the values that sources have of the metrics in policies.

Each source has its own task, lease and time limit, so that a slow, failed or faulty source does not affect the others.
The replica that holds a source's lease polls it; the others are on standby. All replicas listen for a source that
writes to `collect`. SOURCES has the state of each source.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

import structlog

from bus.buckets import NODES
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import NODE_SAMPLES, NODE_TABLES
from bus.lease import Lease
from bus.record_kind import Entry, read_entries
from bus.records.nodes import StoredSamples
from tas.samples.table import Table, TableKey
from tas.sources.new_names import MAX_NAMES, MAX_NEW_NAMES, NewNames
from tas.sources.nodes import any_node
from tas.sources.state import PollResult
from tas.sources.tables import Publish
from tas.values.backoff import Backoff
from workers.collect.known_nodes import KnownNodes
from workers.collect.sources.base import Source, SourceError
from workers.process.tasks import together
from workers.samples.metrics import SourceMetrics
from workers.samples.source import MAX_PAUSE_SECONDS, STATE_CHECK_SECONDS, CollectedSource, Listener, ReceivingSource
from workers.samples.source_spec import COMPUTING, SourceSpec
from workers.samples.wanted_metrics import WantedMetrics

AT_ONCE = 100
"""So many records, or one column of a table, are handled in one piece: the event loop has other work."""

GATHER_SECONDS = 0.5
"""So long a read waits for other sources: a process that starts gets the leases of all its sources at once."""

Given = dict[str, dict[str, float]]
"""By metric, when the newest value of each node was measured, in seconds since 1970."""


class GivenBefore:
    """Reads NODES once for all sources that ask within `GATHER_SECONDS`, and never twice at a time: NODES is large."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._asked: dict[str, Collection[str]] = {}
        self._next: asyncio.Task[Mapping[str, Given]] | None = None
        self._reading = asyncio.Lock()

    async def of(self, source: str, metrics: Collection[str]) -> Given:
        """What a source gave of `metrics`. Raises UnavailableError."""
        self._asked[source] = metrics
        if self._next is None:
            self._next = asyncio.create_task(self._read())
            self._next.add_done_callback(_take_exception)
        return (await asyncio.shield(self._next))[source]

    async def _read(self) -> Mapping[str, Given]:
        await asyncio.sleep(GATHER_SECONDS)
        async with self._reading:
            asked, self._asked, self._next = self._asked, {}, None
            return await _given(self._bus, asked)


async def _given(bus: Bus, asked: Mapping[str, Collection[str]]) -> Mapping[str, Given]:
    single: list[Entry[str, StoredSamples]] = []
    tables: list[Entry[TableKey, Table]] = []
    await read_entries(bus, NODES, NODE_SAMPLES.to(single.append), NODE_TABLES.to(tables.append))
    found: dict[str, Given] = {source: {} for source in asked}
    for number, stored in enumerate(single):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
        record = stored.readable()
        for scrape in () if record is None else record.samples:
            for metric in scrape.metrics.keys() & asked.get(scrape.source, ()):
                _note(found[scrape.source], metric, stored.key, scrape.time)
    for entry in tables:
        table = entry.readable() if entry.key.source in asked else None
        if table is None:
            continue
        for metric in table.columns.keys() & asked[entry.key.source]:
            await asyncio.sleep(0)
            column = table.columns[metric]
            for node, value, reading in zip(table.nodes, column.values, column.readings, strict=True):
                if value is not None:
                    _note(found[entry.key.source], metric, node, reading.time)
    return found


def _note(found: Given, metric: str, node: str, time: float) -> None:
    times = found.setdefault(metric, {})
    times[node] = max(time, times.get(node, time))


def _take_exception(task: "asyncio.Task[Mapping[str, Given]]") -> None:
    """Takes the exception of a read for which nobody waits any more."""
    if not task.cancelled():
        task.exception()


log = structlog.get_logger("collect")

POLL_TIMEOUT_SECONDS = 10.0
"""Time limit of a poll, with all its requests."""

MAX_RETRY_AFTER_SECONDS = 300.0
"""The longest `Retry-After` that is respected."""

MIN_PAUSE_SECONDS = 0.1
"""The shortest pause between two polls, also after a late poll or while policies change all the time."""

IDLE_SECONDS = 3600.0
"""The pause while no policy uses a metric; a policy change ends it."""


class Collect:
    """The worker: collects from all its sources until cancelled."""

    name = "collect"

    def __init__(
        self,
        bus: Bus,
        sources: Mapping[SourceSpec, Source | Listener],
        *,
        period: float,
        default_stale_after: float,
        metrics: SourceMetrics,
        always: Collection[str] = (),
        publish: Publish = Publish.TABLES,
        tolerances: Callable[[], Awaitable[Mapping[str, float]]] | None = None,
        nodes: KnownNodes | None = None,
    ) -> None:
        """In seconds: the time between polls of a source, and the age of a stale sample without `staleAfter`.

        The metrics `always` are collected, too, although no policy uses them. Samples of polls are published in the
        form `publish`; what is received, by node: a request has a few rows of each part, with times of their own, and
        as tables it took three times the processor time. `tolerances` returns that of each metric that has one.
        `nodes` are those that the sources ask for.
        """
        computing = [spec.name for spec in sources if spec.kind in COMPUTING]
        self._nodes = nodes
        self._wanted = WantedMetrics(bus, default_stale_after=default_stale_after, always=always, computing=computing)
        before = GivenBefore(bus)
        self._runs: list[_PolledSource | ReceivingSource] = [
            ReceivingSource(bus, source, self._wanted, metrics, kind=spec.kind.value, publish=Publish.NODES)
            if isinstance(source, Listener)
            else _PolledSource(bus, spec, source, self._wanted, metrics, before=before, period=period, publish=publish)
            for spec, source in sources.items()
        ]
        for run in self._runs:
            metrics.overdue.labels(run.name).set_function(run.overdue)
            metrics.value_age.labels(run.name).set_function(run.value_age)
            metrics.wanted.labels(run.name).set_function(run.wanted)
            metrics.nodes.labels(run.name).set_function(run.nodes_with_samples)
            metrics.nodes_lost.labels(run.name).set_function(run.lost_nodes)
            run.others = [other for other in self._runs if other is not run]
            run.tolerances = tolerances
            run.nodes = any_node if nodes is None else nodes.current
            most_new = MAX_NEW_NAMES if isinstance(run, ReceivingSource) else MAX_NAMES
            run.new_names = NewNames(most_new=most_new, most=MAX_NAMES)

    def unready(self) -> str | None:
        """Why the metrics of policies are not known yet. Failing sources do not change readiness."""
        return self._wanted.unready()

    def behind(self) -> Mapping[str, float]:
        """By how many seconds each source is behind that this replica polls, and that is behind by a whole period."""
        states = ((run.name, run.state()) for run in self._runs)
        return {name: state.behind for name, state in states if state.is_behind}

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wanted.run())
            if self._nodes is not None:
                tasks.create_task(self._nodes.run())
                await self._nodes.wait_until_read()
            for run in self._runs:
                tasks.create_task(run.run(), name=f"source {run.name}")


class _PolledSource(CollectedSource):
    """A source that the lease holder polls every period."""

    def __init__(
        self,
        bus: Bus,
        spec: SourceSpec,
        source: Source,
        wanted: WantedMetrics,
        metrics: SourceMetrics,
        *,
        before: GivenBefore,
        period: float,
        publish: Publish,
    ) -> None:
        super().__init__(bus, spec.name, wanted, metrics, kind=spec.kind.value, period=period, publish=publish)
        self._source = source
        self._before = before
        self._policies = wanted
        self._poll_period = period
        self._retry = Backoff(first=2 * period, longest=max(period, MAX_PAUSE_SECONDS))
        metrics.late.labels(self.name)
        metrics.behind.labels(self.name).set_function(lambda: self._tracker.behind(time.time()))
        for result in PollResult:
            metrics.polls.labels(self.name, result.value)
        self._lease = Lease(bus, f"collect.{spec.name}")

    async def run(self) -> None:
        """Polls while it holds the lease, and is on standby otherwise."""
        await self._wanted.wait_until_known()
        lease_held = self._metrics.lease_held.labels(self.name)
        while True:
            try:
                async with self._lease.hold():
                    lease_held.set(1)
                    self._start_tracking()
                    await together(self._remember(), self._poll_periodically(), self._write_states())
            except BusError as error:
                log.info("source_lease_lost", source=self.name, error=str(error))
            finally:
                self._start_tracking()
                lease_held.set(0)
                self._metrics.missing.labels(self.name).set(0)

    def _count_poll(self, result: PollResult) -> None:
        self._metrics.polls.labels(self.name, result.value).inc()

    async def _remember(self) -> None:
        """Learns from the bus which nodes the source gave to another replica, or before a restart."""
        try:
            given = await self._before.of(self.name, self._wanted.of(self.name))
        except BusError as error:  # what it loses from now on it knows
            log.debug("source_nodes_not_remembered", source=self.name, error=str(error))
            return
        self._tracker.remember(given)

    async def _poll_periodically(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started = loop.time()
            version = self._policies.version
            metrics = self._wanted.of(self.name)
            self._tracker.set_metrics(metrics, now=time.time())
            min_pause, pause = MIN_PAUSE_SECONDS, IDLE_SECONDS
            if metrics:
                try:
                    await self._poll(frozenset(metrics))
                    failures, pause = 0, self._poll_period
                    self._check_period(loop.time() - started)
                except SourceError as error:
                    self._record_failure(str(error))
                    failures += 1
                    pause = max(self._poll_period, self._retry.after(failures))
                    min_pause = max(min_pause, min(error.retry_after, MAX_RETRY_AFTER_SECONDS))
            await asyncio.sleep(min_pause)
            await self._policies.wait_for_change(after=version, seconds=started + pause - loop.time())

    async def _poll(self, metrics: frozenset[str]) -> None:
        """Polls once and publishes. Raises SourceError; publish errors are already logged, and are not retried."""
        requested_at = time.time()
        self._tracker.begin_poll(requested_at)
        try:
            with self._metrics.seconds.labels(self.name).time():
                async with asyncio.timeout(POLL_TIMEOUT_SECONDS):
                    result = await self._source.read(metrics)
        except TimeoutError as error:
            raise SourceError(f"no answer within {POLL_TIMEOUT_SECONDS:g} s") from error
        except SourceError:
            raise
        except Exception as error:  # a bug in one source must not end the others
            log.exception("source_internal_error", source=self.name)
            raise SourceError(f"a bug, see the log: {error!r}") from error
        try:
            await self._publish(result, metrics, requested_at=requested_at)
        except BusError:
            return
        self._tracker.end_poll(requested_at)

    def _check_period(self, seconds: float) -> None:
        """Logs a poll that took longer than the period. Polls never overlap: the period is stretched to their time."""
        if seconds > self._poll_period:
            self._metrics.late.labels(self.name).inc()
            self._throttled.warning("source_poll_late", seconds=round(seconds, 3), period=self._poll_period)

    async def _write_states(self) -> None:
        while True:
            await self._states.write(await self._current_state())
            await asyncio.sleep(STATE_CHECK_SECONDS)
