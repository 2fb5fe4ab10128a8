"""What every source of samples has: its publisher, its state on the bus and its metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.lease import process_identity
from tas.sources.new_names import NewNames
from tas.sources.nodes import NodeNames, any_node
from tas.sources.result import RefusalCount, Sample, SourceResult, SuspectReason, with_suspect, with_valid_times
from tas.sources.state import LostNodes, PollResult, SourceState, SourceTracker
from tas.sources.tables import Publish
from workers.process.errors import WorkerError
from workers.process.logs import ThrottledLog
from workers.process.tasks import together
from workers.samples.metrics import SourceMetrics
from workers.samples.publisher import GatheredPublisher, SamplePublisher
from workers.samples.source_states import SourceStates

log = structlog.get_logger("samples")

MAX_PAUSE_SECONDS = 10.0
"""The longest pause after repeated failures, unless the period or the source's `Retry-After` is longer."""

STATE_CHECK_SECONDS = 1.0
"""How often the state of a source is checked for changes to write."""

MAX_MISSING_LOGGED = 8
"""For how many missing metrics of a source a line is logged every ten seconds; one more line counts all others."""


@runtime_checkable
class Listener(Protocol):
    """A source that writes to `collect`. Every replica listens, and publishes what it receives."""

    @property
    def name(self) -> str:
        """As for a `Source`."""
        ...

    async def listen(
        self, metrics: Callable[[], frozenset[str]], publish: Callable[[SourceResult], Awaitable[None]]
    ) -> None:
        """Listens until cancelled, and publishes received values.

        `metrics()` returns the metrics that policies use now: others need not be published. `publish` returns when all
        samples are published, and raises bus.errors.BusError otherwise: then the sender must send again. An invalid
        request is passed to `publish` as a result with refusals only. Raises StartError if it cannot listen.
        """
        ...


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


class CollectedSource:
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
        self.others: Sequence[CollectedSource] = ()
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


class ReceivingSource(CollectedSource):
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
        await together(self._listen(), self._write_states())

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
