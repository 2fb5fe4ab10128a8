"""Collect: brings onto the bus what sources of telemetry say of the metrics that policies use.

Each source has its own task, its own lease and its own limit of time, so that one which is slow, down or lying costs
no other a beat. Of several replicas one asks a source, and the others stand by; a source that is written to is
listened for by all of them. What becomes of a source stands in SOURCES.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.connection import Bus
from bus.errors import BusError
from bus.lease import Lease
from tas.sources.reading import Batch, timely
from tas.sources.state import Account
from workers.logs import Throttle
from workers.runtime import WorkerError
from workers.sample_publisher import SamplePublisher
from workers.source_states import SourceStates
from workers.sources.base import Listener, Source, SourceError, SourceSpec
from workers.wanted_metrics import WantedMetrics

log = structlog.get_logger("collect")

LEASE_SECONDS = 5
"""How long after a holder's sudden end another asks its sources."""

READ_SECONDS = 10.0
"""How long one look may take, all its questions together."""

LONGEST_PAUSE_SECONDS = 10.0
"""The longest wait after failures in a row, unless the period is longer or the source asks for more."""

LONGEST_RETRY_AFTER_SECONDS = 300.0
"""A source that asks to be left alone for longer is asked after so long nevertheless."""

LEAST_PAUSE_SECONDS = 0.1
"""Between two looks, also where the first took longer than the period or policies change all the time."""

TELL_SECONDS = 1.0
"""How often is looked whether a source's state has something new to say."""

IDLE_SECONDS = 3600.0
"""How long nothing is asked where no policy uses a metric: until one does."""


class SourceMetrics:
    """What is told of sources at `/metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.looks = Counter(
            "tas_source_looks",
            "Looks at a source, by whether they gave all, some or none.",
            ["source", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            "tas_source_seconds", "How long a source takes to answer.", ["source"], registry=registry
        )
        self.messages = Counter("tas_source_messages", "Scrapes published on SAMPLES.", ["source"], registry=registry)
        self.lost = Counter(
            "tas_source_looks_lost", "Looks whose values could not all be published.", ["source"], registry=registry
        )
        self.late = Counter(
            "tas_source_looks_late",
            "Looks that took longer than the period, publishing included.",
            ["source"],
            registry=registry,
        )
        self.refused = Counter(
            "tas_source_values_refused",
            "Values of answers that cannot be used.",
            ["source", "reason"],
            registry=registry,
        )
        self.missing = Gauge(
            "tas_source_metrics_missing",
            "Metrics of policies of which the last look gave nothing.",
            ["source"],
            registry=registry,
        )
        self.held = Gauge(
            "tas_source_held",
            "1 while this replica has the source, 0 while it stands by.",
            ["source"],
            registry=registry,
        )
        self.last_success = Gauge(
            "tas_source_last_success_timestamp_seconds",
            "When a look last gave something.",
            ["source"],
            registry=registry,
        )


class Collect:
    """The worker: runs all its sources until cancelled."""

    name = "collect"

    def __init__(
        self,
        bus: Bus,
        sources: Mapping[SourceSpec, Source | Listener],
        *,
        period: float,
        registry: CollectorRegistry,
    ) -> None:
        """`period` is how often each source is asked, in seconds."""
        self._wanted = WantedMetrics(bus)
        metrics = SourceMetrics(registry)
        self._runs: list[_Asked | _Heard] = [
            _Heard(bus, spec, source, self._wanted, metrics)
            if isinstance(source, Listener)
            else _Asked(bus, spec, source, self._wanted, metrics, period=period)
            for spec, source in sources.items()
        ]

    def unready(self) -> str | None:
        """Why it does not know yet what to ask for. What sources answer makes nobody unready."""
        return self._wanted.unready()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._wanted.run())
            for each in self._runs:
                tasks.create_task(each.run(), name=f"source {each.name}")


class _Kept:
    """What is kept of any source, asked or heard: its account, and what is said of it."""

    def __init__(
        self, bus: Bus, spec: SourceSpec, wanted: WantedMetrics, metrics: SourceMetrics, *, period: float | None
    ) -> None:
        self.name = spec.name
        self._bus = bus
        self._kind = spec.kind.value
        self._wanted = wanted
        self._metrics = metrics
        self._period = period
        self._holder = f"{socket.gethostname()}-{os.getpid()}"
        self._publisher = SamplePublisher(bus, spec.name)
        self._lines = Throttle()
        self._begin()
        metrics.held.labels(self.name).set(0)
        metrics.missing.labels(self.name).set(0)
        for result in ("all", "some", "none"):
            metrics.looks.labels(self.name, result)

    def _begin(self) -> None:
        """A new account: from now on this replica has the source."""
        self._account = Account(kind=self._kind, holder=self._holder, period=self._period, now=time.time())
        self._states = SourceStates(self._bus, self.name)

    async def _take(self, batch: Batch, metrics: frozenset[str], *, asked: float) -> None:
        """Publishes what a look gave of `metrics`. Raises BusError."""
        batch = timely(batch, now=time.time())
        readings = tuple(reading for reading in batch.readings if reading.metric in metrics)
        published = 0
        try:
            self._metrics.messages.labels(self.name).inc(await self._publisher.publish(readings, asked=asked))
            published = len(readings)
        except BusError as error:
            self._metrics.lost.labels(self.name).inc()
            self._warn("source_samples_lost", "", error=str(error))
            raise
        finally:
            self._note(batch, published)

    def _note(self, batch: Batch, published: int) -> None:
        now = time.time()
        missing_before = dict(self._account.missing)
        if self._account.problem:
            log.info("source_answers", source=self.name)
        self._account.took(batch, published=published, now=now)
        missing = self._account.missing
        for metric in sorted(missing):
            if missing[metric] != missing_before.get(metric):
                self._warn("source_metric_missing", metric, metric=metric, reason=missing[metric])
        for why, refusal in batch.refusals.items():
            self._metrics.refused.labels(self.name, why.value).inc(refusal.count)
            self._warn("source_values_refused", why, reason=why.value, count=refusal.count, example=refusal.example)
        self._metrics.looks.labels(self.name, "some" if missing or batch.refusals else "all").inc()
        self._metrics.missing.labels(self.name).set(len(missing))
        self._metrics.last_success.labels(self.name).set(now)

    def _fail(self, problem: str) -> None:
        """A look that gave nothing."""
        if problem != self._account.problem:
            self._warn("source_failed", problem, error=problem)
        self._account.failed(problem, now=time.time())
        self._metrics.looks.labels(self.name, "none").inc()

    def _warn(self, event: str, key: str, **fields: object) -> None:
        held_back = self._lines.admit((event, key), time.monotonic())
        if held_back is not None:
            log.warning(event, source=self.name, alike_before=held_back, **fields)


class _Asked(_Kept):
    """A source that is asked each period, by the replica that holds its lease."""

    def __init__(
        self,
        bus: Bus,
        spec: SourceSpec,
        source: Source,
        wanted: WantedMetrics,
        metrics: SourceMetrics,
        *,
        period: float,
    ) -> None:
        super().__init__(bus, spec, wanted, metrics, period=period)
        self._source = source
        self._every = period
        metrics.late.labels(self.name)
        self._lease = Lease(bus, f"collect.{spec.name}", self._holder, ttl_seconds=LEASE_SECONDS)

    async def run(self) -> None:
        """Asks while it holds the lease, and stands by else."""
        await self._wanted.known()
        held = self._metrics.held.labels(self.name)
        while True:
            try:
                async with self._lease.hold():
                    held.set(1)
                    self._begin()
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._ask())
                        tasks.create_task(self._tell())
            except BusError as error:
                log.info("source_lease_lost", source=self.name, error=str(error))
            finally:
                held.set(0)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began = loop.time()
            version = self._wanted.version
            metrics = self._wanted.of(self.name)
            self._account.want(metrics)
            least, pause = LEAST_PAUSE_SECONDS, IDLE_SECONDS
            if metrics:
                try:
                    await self._look(metrics)
                    failures, pause = 0, self._every
                    self._check_period(loop.time() - began)
                except SourceError as error:
                    self._fail(str(error))
                    failures += 1
                    pause = min(self._every * 2 ** min(failures, 20), max(self._every, LONGEST_PAUSE_SECONDS))
                    least = max(least, min(error.retry_after, LONGEST_RETRY_AFTER_SECONDS))
            await asyncio.sleep(least)
            await self._wanted.change(after=version, seconds=began + pause - loop.time())

    async def _look(self, metrics: frozenset[str]) -> None:
        """Raises SourceError; what the bus does not take is told already, and the next look is worth more."""
        asked = time.time()
        try:
            with self._metrics.seconds.labels(self.name).time():
                async with asyncio.timeout(READ_SECONDS):
                    batch = await self._source.read(metrics)
        except TimeoutError as error:
            raise SourceError(f"no answer within {READ_SECONDS:g} s") from error
        except SourceError:
            raise
        except Exception as error:  # a bug in one source must not end the others
            log.exception("source_bug", source=self.name)
            raise SourceError(f"a bug, see the log: {error!r}") from error
        try:
            await self._take(batch, metrics, asked=asked)
        except BusError:
            return

    def _check_period(self, seconds: float) -> None:
        """Tells of a look that took so long that the next one is late. Looks never overlap: they come less often."""
        if seconds > self._every:
            self._metrics.late.labels(self.name).inc()
            self._warn("source_late", "", seconds=round(seconds, 3), period=self._every)

    async def _tell(self) -> None:
        while True:
            await self._states.write(self._account.state(now=time.time()))
            await asyncio.sleep(TELL_SECONDS)


class _Heard(_Kept):
    """A source that is written to: every replica listens, and who is written to publishes."""

    def __init__(
        self, bus: Bus, spec: SourceSpec, listener: Listener, wanted: WantedMetrics, metrics: SourceMetrics
    ) -> None:
        super().__init__(bus, spec, wanted, metrics, period=None)
        self._listener = listener
        self._told_looks = 0

    async def run(self) -> None:
        """Listens until cancelled. Raises WorkerError if it cannot be listened."""
        await self._wanted.known()
        self._metrics.held.labels(self.name).set(1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._tell())

    async def _listen(self) -> None:
        while True:
            try:
                await self._listener.listen(self._metrics_wanted, self._hear)
                self._fail("a bug: it has ceased to listen")
            except WorkerError:
                raise
            except Exception as error:  # a bug in one source must not end the others
                log.exception("source_bug", source=self.name)
                self._fail(f"a bug, see the log: {error!r}")
            await asyncio.sleep(LONGEST_PAUSE_SECONDS)

    def _metrics_wanted(self) -> frozenset[str]:
        return self._wanted.of(self.name)

    async def _hear(self, batch: Batch) -> None:
        await self._take(batch, self._metrics_wanted(), asked=time.time())

    async def _tell(self) -> None:
        while True:
            self._account.want(self._metrics_wanted())
            state = self._account.state(now=time.time())
            # Who was not written to leaves the word to who was.
            await self._states.write(state, give_way=state.looks == self._told_looks)
            self._told_looks = state.looks
            await asyncio.sleep(TELL_SECONDS)
