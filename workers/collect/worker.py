"""Collect: publishes the values that sources have of the metrics in policies.

Each source has its own task, lease and time limit, so that a slow, failed or faulty source does not affect the others.
The replica that holds a source's lease polls it; the others are on standby. All replicas listen for a source that
writes to `collect`. SOURCES has the state of each source.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from bus.connection import Bus
from bus.errors import BusError
from bus.lease import Lease, process_identity
from tas.sources.new_names import MAX_NAMES, MAX_NEW_NAMES, NewNames
from tas.sources.nodes import NodeNames, any_node
from tas.sources.result import RefusalCount, Sample, SourceResult, SuspectReason, with_suspect, with_valid_times
from tas.sources.state import LostNodes, PollResult, SourceState, SourceTracker
from tas.sources.tables import Publish
from tas.values.backoff import Backoff
from workers.collect.given_before import GivenBefore
from workers.collect.known_nodes import KnownNodes
from workers.collect.sources.base import Listener, Source, SourceError
from workers.process.errors import WorkerError
from workers.process.logs import ThrottledLog
from workers.samples.gathered_publisher import GatheredPublisher
from workers.samples.publisher import SamplePublisher
from workers.samples.source_spec import COMPUTING, SourceSpec
from workers.samples.source_states import SourceStates
from workers.samples.wanted_metrics import WantedMetrics

log = structlog.get_logger("collect")

POLL_TIMEOUT_SECONDS = 10.0
"""Time limit of a poll, with all its requests."""

MAX_PAUSE_SECONDS = 10.0
"""The longest pause after repeated failures, unless the period or the source's `Retry-After` is longer."""

MAX_RETRY_AFTER_SECONDS = 300.0
"""The longest `Retry-After` that is respected."""

MIN_PAUSE_SECONDS = 0.1
"""The shortest pause between two polls, also after a late poll or while policies change all the time."""

STATE_CHECK_SECONDS = 1.0
"""How often the state of a source is checked for changes to write."""

MAX_MISSING_LOGGED = 8
"""For how many missing metrics of a source a line is logged every ten seconds; one more line counts all others."""

IDLE_SECONDS = 3600.0
"""The pause while no policy uses a metric; a policy change ends it."""


class SourceMetrics:
    """Metrics of sources, of all workers of a process that have one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, labelnames=["source"], registry=registry)
        gauge = partial(Gauge, labelnames=["source"], registry=registry)
        self.polls = counter(
            "tas_source_polls",
            "Polls of a source, by whether they gave all, some or none of the metrics.",
            labelnames=["source", "result"],
        )
        self.seconds = Histogram(
            "tas_source_poll_seconds",
            "Seconds that a source takes to answer.",
            labelnames=["source"],
            registry=registry,
        )
        self.messages = counter("tas_source_messages", "Messages published on SAMPLES and TABLES.")
        self.lost = counter("tas_source_polls_lost", "Polls whose values could not all be published.")
        self.behind = gauge(
            "tas_source_behind_seconds",
            "By how many seconds the newest published values of a source are older than its period; 0 on standby.",
        )
        self.overdue = gauge(
            "tas_source_overdue_seconds",
            "For how long a fresh sample of any metric of policies is overdue; 0 on standby, or if none is wanted.",
        )
        self.value_age = gauge(
            "tas_source_value_age_seconds",
            "Seconds since the newest value was measured that was published; NaN on standby, or if none is wanted.",
        )
        self.nodes = gauge(
            "tas_source_nodes",
            "Nodes with a fresh sample of the metric of policies of which the source has lost the most nodes.",
        )
        self.nodes_lost = gauge(
            "tas_source_nodes_lost",
            "Nodes that had a fresh sample of this metric from the source within an hour, and have none now.",
        )
        self.wanted = gauge(
            "tas_source_metrics", "Metrics that policies use from the source; 0 on standby, or until it is polled."
        )
        self.late = counter("tas_source_polls_late", "Polls that took longer than the period, with publishing.")
        self.refused = counter(
            "tas_source_values_refused", "Values in responses that were refused.", labelnames=["source", "reason"]
        )
        self.suspect = counter(
            "tas_source_values_suspect", "Accepted values that may be none.", labelnames=["source", "reason"]
        )
        self.missing = gauge(
            "tas_source_metrics_missing",
            "Metrics of policies without a fresh sample from the source; windows not yet covered do not count.",
        )
        self.ended = gauge("tas_source_samples_ended", "Fresh samples whose series has ended, by a stale marker.")
        self.lease_held = gauge(
            "tas_source_lease_held", "1 while this replica has the source, 0 while it is on standby."
        )
        self.last_success = gauge(
            "tas_source_last_success_timestamp_seconds", "When a fresh sample last came; 0 if never."
        )


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


class Send(Protocol):
    """Publishes samples; returns the number of messages, once the bus has stored them. Raises BusError."""

    async def __call__(self, samples: Sequence[Sample], *, requested_at: float) -> int:  # noqa: D102 - that of the class
        ...


class Wanted(Protocol):
    """The metrics that are wanted from a source."""

    def of(self, source: str) -> Mapping[str, float]:
        """The metrics, each with the seconds after which its samples are stale."""
        ...

    async def wait_until_known(self) -> None:
        """Waits until they are known."""
        ...


class _CollectedSource:
    """A source with its publisher, its state and its metrics; base of polled and receiving sources.

    Attributes:
        others: The other sources of this process.
        tolerances: Returns the tolerance of each metric that has one, as it is configured now.
        nodes: Returns the nodes that are known now.
        new_names: Bounds the names of nodes while not all are known; None: that of a source of this product.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        wanted: Wanted,
        metrics: SourceMetrics,
        *,
        kind: str,
        period: float | None,
        publish: Publish = Publish.NODES,
    ) -> None:
        self.name = name
        self._bus = bus
        self._kind = kind
        self._wanted = wanted
        self._metrics = metrics
        self._period = period
        self._holder = process_identity()
        self._publisher = SamplePublisher(bus, name, form=publish)
        self._send: Send = self._publisher.publish
        self._throttled = ThrottledLog(log, source=name)
        self._missing_log = ThrottledLog(log, keys=MAX_MISSING_LOGGED, source=name)
        self.others: Sequence[_CollectedSource] = ()
        self.tolerances: Callable[[], Awaitable[Mapping[str, float]]] | None = None
        self.nodes: Callable[[], NodeNames] = any_node
        self.new_names: NewNames | None = None
        self._start_tracking()
        metrics.lease_held.labels(self.name).set(0)
        for reason in SuspectReason:
            metrics.suspect.labels(self.name, reason.value)
        metrics.missing.labels(self.name).set(0)
        metrics.ended.labels(self.name).set(0)
        metrics.last_success.labels(self.name).set(0)

    def _start_tracking(self) -> None:
        """Starts a new state: from now on this replica has the source."""
        self._tracker = SourceTracker(kind=self._kind, holder=self._holder, period=self._period, now=time.time())
        self._states = SourceStates(self._bus, self.name)
        self._nodes_found: tuple[int, LostNodes | None] = (0, None)  # at the last check
        self._missing: Mapping[str, str] = {}
        self._missing_logged: dict[str, str] = {}

    async def _publish(self, result: SourceResult, metrics: Collection[str], *, requested_at: float) -> None:
        """Publishes the values of `metrics` in a result. Raises BusError."""
        result = with_valid_times(result, now=time.time())
        if self.new_names is not None and not self.nodes().is_complete:
            result = self.new_names.admit(result, time.time())
        samples = tuple(sample for sample in result.samples if sample.metric in metrics)
        try:
            messages = await self._send(samples, requested_at=requested_at)
        except BusError as error:
            self._metrics.lost.labels(self.name).inc()
            self._throttled.warning("source_samples_lost", error=str(error))
            self._record_failure(f"the bus did not store the samples: {error}")
            raise
        self._metrics.messages.labels(self.name).inc(messages)
        self._record_result(with_suspect(result, self._take_jumps()), len(samples))

    def _take_jumps(self) -> Mapping[SuspectReason, RefusalCount]:
        """The values that the publisher found suspect since the last call."""
        return self._publisher.take_suspect()

    def _record_result(self, result: SourceResult, published: int) -> None:
        now = time.time()
        problem_before = self._tracker.problem
        poll_result = self._tracker.record_result(result, published=published, now=now)
        for why, refusal in result.refusals.items():
            self._metrics.refused.labels(self.name, why.value).inc(refusal.count)
            self._throttled.warning(
                "source_values_refused", why, reason=why.value, count=refusal.count, example=refusal.example
            )
        for reason, suspect in result.suspect.items():
            self._metrics.suspect.labels(self.name, reason.value).inc(suspect.count)
            self._throttled.warning(
                "source_values_suspect", reason, reason=reason.value, count=suspect.count, example=suspect.example
            )
        if poll_result is not PollResult.NONE:
            self._metrics.last_success.labels(self.name).set(now)
        self._count_poll(poll_result)
        self._log_problem(problem_before)

    def _record_failure(self, problem: str) -> None:
        """Records a poll without an answer, or whose samples the bus did not store."""
        problem_before = self._tracker.problem
        self._tracker.record_failure(problem, now=time.time())
        self._count_poll(PollResult.NONE)
        self._log_problem(problem_before)

    def _count_poll(self, result: PollResult) -> None:
        """Counts a poll; nothing for a source that is not polled."""

    def _log_problem(self, before: str) -> None:
        problem = self._tracker.problem
        if problem and problem != before:
            self._throttled.warning("source_failed", problem, error=problem)
        elif before and not problem:
            log.info("source_recovered", source=self.name)

    async def _current_state(self) -> SourceState:
        """The state now. Logs and counts the metrics without a fresh sample: they may have become stale since."""
        if self.tolerances is not None:
            self._tracker.set_tolerances(await self.tolerances())
        now = time.time()
        self._nodes_found = self._tracker.nodes(now, self.nodes().exists)
        state = self._tracker.state(now=now, without_tables=self._publisher.without_tables, lost=self._nodes_found[1])
        missing = {metric: each.missing for metric, each in state.metrics.items() if each.missing and not each.warming}
        self._log_missing(missing)
        self._missing = missing
        self._metrics.missing.labels(self.name).set(
            sum(not (each.nodes or each.warming) for each in state.metrics.values())
        )
        self._metrics.ended.labels(self.name).set(sum(each.ended for each in state.metrics.values()))
        return state

    def _log_missing(self, missing: Mapping[str, str]) -> None:
        """Logs metrics that were missing at the last check, too, and that no other source of this process brings.

        At the start, the first values of another source may come a moment later.
        """
        self._missing_logged = {
            metric: self._missing_logged[metric] for metric in missing.keys() & self._missing_logged
        }
        steady = {metric: why for metric, why in missing.items() if metric in self._missing}
        due = {metric: why for metric, why in steady.items() if self._missing_logged.get(metric) != why}
        brought = {metric for other in self.others for metric in other.brought()} if due else set()
        for metric in sorted(due.keys() - brought):
            self._missing_log.warning("source_metric_missing", metric, metric=metric, reason=due[metric])
            self._missing_logged[metric] = due[metric]

    def state(self) -> SourceState:
        """The state now."""
        return self._tracker.state(now=time.time())

    def overdue(self) -> float:
        """For how many seconds a fresh sample is overdue."""
        return self._tracker.overdue(time.time())

    def value_age(self) -> float:
        """Seconds since the newest published value was measured; NaN without one."""
        return self._tracker.value_age(time.time())

    def wanted(self) -> float:
        """How many metrics policies use from this source."""
        return float(self._tracker.wanted)

    def nodes_with_samples(self) -> float:
        """How many nodes have a fresh sample from this source."""
        return float(self._nodes_found[0])

    def lost_nodes(self) -> float:
        """How many nodes had one within the hour, and have none now."""
        lost = self._nodes_found[1]
        return 0.0 if lost is None else float(lost.count)

    def brought(self) -> frozenset[str]:
        """The metrics of which this source brings fresh samples to this process."""
        metrics = self.state().metrics
        return frozenset(metric for metric, each in metrics.items() if each.nodes)


class _PolledSource(_CollectedSource):
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
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._remember())
                        tasks.create_task(self._poll_periodically())
                        tasks.create_task(self._write_states())
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


class ReceivingSource(_CollectedSource):
    """A source that writes to `collect`: every replica listens, and publishes what it receives."""

    def __init__(
        self,
        bus: Bus,
        listener: Listener,
        wanted: Wanted,
        metrics: SourceMetrics,
        *,
        kind: str,
        publish: Publish,
    ) -> None:
        super().__init__(bus, listener.name, wanted, metrics, kind=kind, period=None, publish=publish)
        self._listener = listener
        self._publishes_tables = publish is Publish.TABLES
        if self._publishes_tables:
            self._send = GatheredPublisher(self._publisher).publish
        self._written_polls = 0

    async def run(self) -> None:
        """Listens until cancelled. Raises WorkerError if it cannot listen."""
        await self._wanted.wait_until_known()
        self._metrics.lease_held.labels(self.name).set(1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._write_states())

    async def _listen(self) -> None:
        while True:
            try:
                await self._listener.listen(self._metrics_wanted, self._receive)
                self._record_failure("a bug: it has stopped listening")
            except WorkerError:
                raise
            except Exception as error:  # a bug in one source must not end the others
                log.exception("source_internal_error", source=self.name)
                self._record_failure(f"a bug, see the log: {error!r}")
            await asyncio.sleep(MAX_PAUSE_SECONDS)

    def _metrics_wanted(self) -> frozenset[str]:
        return frozenset(self._wanted.of(self.name))

    def _take_jumps(self) -> Mapping[SuspectReason, RefusalCount]:
        """As of each source; by node, a request may have other metrics than the one before: its store finds jumps."""
        found = super()._take_jumps()
        return found if self._publishes_tables else {}

    async def _receive(self, result: SourceResult) -> None:
        metrics = self._wanted.of(self.name)
        self._tracker.set_metrics(metrics, now=time.time())
        await self._publish(result, metrics, requested_at=time.time())

    async def _write_states(self) -> None:
        while True:
            self._tracker.set_metrics(self._wanted.of(self.name), now=time.time())
            state = await self._current_state()
            # A replica that received nothing does not overwrite the state of another replica.
            await self._states.write(state, keep_other_holder=state.polls == self._written_polls)
            self._written_polls = state.polls
            await asyncio.sleep(STATE_CHECK_SECONDS)
