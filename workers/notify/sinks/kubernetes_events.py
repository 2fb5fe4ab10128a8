"""Kubernetes Events on nodes and policies, shown by `kubectl describe`: a bounded number, however many nodes change."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.events import EventMessage
from bus.kinds import POLICY_RECORDS
from bus.lease import process_identity
from tas.notifying.config import KubernetesEventsConfig
from tas.notifying.digest import Digest
from tas.notifying.event_series import CreateEvent, EventSeries, Occurrence, PatchSeries
from tas.notifying.node_events import NodeEvents
from tas.notifying.notices import notice_of
from tas.notifying.occurrences import EventPolicy, needs_policies, occurrence_on_node, occurrences_on_policies
from tas.notifying.outbox import BACKOFF, Delivery, Outbox
from tas.policy.policy import PolicyKey
from tas.values.duration import parse_duration
from tas.verdict.ownership import LABEL_STRATEGIES
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import (
    ConflictError,
    InvalidError,
    KubernetesError,
    NotFoundError,
    RejectedError,
    ThrottledError,
)
from workers.kubernetes.resources import SERIES_EVENTS
from workers.notify.sinks.base import LOG_SECONDS, Inbox, SinkMetrics
from workers.process.logs import ThrottledLog

log = structlog.get_logger("notify")

CAPACITY = 4096
"""The most events that the sink holds; the others wait on the bus."""

LANES = 4
"""How many requests are under way at once."""

SERIES_SECONDS = 30.0
"""How often the series are checked."""

FIELD_MANAGER = "tas-notify"


@dataclass(slots=True, eq=False)
class _Work:
    """A write, with the occurrence that it is about and the sequences of the events behind it."""

    write: CreateEvent | PatchSeries
    what: Occurrence | None
    sequences: tuple[int, ...] = ()


class KubernetesEventsSink:
    """Writes an Event for changes of nodes, while these are few, and one for each group of changes of a policy."""

    shared = True

    def __init__(
        self, bus: Bus, client: KubernetesClient, name: str, config: KubernetesEventsConfig, *, metrics: SinkMetrics
    ) -> None:
        self.name = name
        self._bus = bus
        self._client = client
        self._config = config
        self._metrics = metrics
        self._log = ThrottledLog(log, seconds=LOG_SECONDS, sink=name)

    async def run(self) -> None:
        """Writes until cancelled."""
        wait, interval = parse_duration(self._config.wait), parse_duration(self._config.interval)
        self._series = EventSeries(process_identity())
        self._of_nodes = NodeEvents()
        self._outbox: Outbox[_Work] = Outbox(lanes=LANES)
        self._digest: Digest[tuple[int, str]] = Digest(wait=wait, interval=interval, capacity=CAPACITY // 2)
        self._open: Counter[int] = Counter()  # writes that an event still waits for, by sequence
        self._done: list[int] = []
        self._inbox = Inbox(
            self._bus,
            self.name,
            self._config,
            self._metrics,
            self._add,
            capacity=CAPACITY,
            gathers=max(wait, interval),
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._inbox.run())
            tasks.create_task(self._check_series())
            while True:
                due_at = self._digest.due_at()
                if due_at is not None and due_at <= _now():
                    await self._add_groups()
                done, self._done = self._done, []
                await self._inbox.finish(done)
                for delivery in self._outbox.due(_now()):
                    tasks.create_task(self._deliver(delivery))
                times = [each for each in (self._digest.due_at(), self._outbox.next_due()) if each is not None]
                await self._inbox.wait(min(times, default=None))

    def _add(self, message: EventMessage) -> None:
        notice = notice_of(message.event)
        self._open[message.sequence] = 1  # until the end of this method
        grouped = notice is not None and (notice.policy is not None or bool(notice.freeze))
        if notice is not None and grouped:
            self._open[message.sequence] += 1
            self._digest.add(notice, (message.sequence, message.event.id), _now())
        what = None if notice is None else occurrence_on_node(notice, identity=message.event.id)
        if what is not None and notice is not None:
            if not grouped or self._of_nodes.admits(notice, _now()):
                self._open[message.sequence] += 1
                self._record(what, (message.sequence,))
            else:
                self._metrics.events.labels(self.name, "grouped").inc()
        self._finish([message.sequence])

    async def _add_groups(self) -> None:
        """Records what is due about policies."""
        groups, held = self._digest.take(_now())
        policies = await self._policies() if any(map(needs_policies, groups)) else {}
        # One write stands for all events of the message: they are acknowledged when the last write is done.
        sequences = tuple(sequence for sequence, _ in held)
        found = [
            what for group in groups for what in occurrences_on_policies(group, policies=policies, identity=held[0][1])
        ]
        self._open.update(dict.fromkeys(sequences, len(found)))
        for what in found:
            self._record(what, sequences)
        self._finish(sequences)

    async def _policies(self) -> dict[PolicyKey, EventPolicy]:
        """The stored policies that the settings admit. Waits for the bus."""
        while True:
            try:
                entries = await POLICY_RECORDS.entries(self._bus)
            except BusError as error:
                self._log.warning("policies_unknown", error=str(error))
                await asyncio.sleep(BACKOFF.first)
                continue
            return {
                entry.key: EventPolicy(record.uid, not record.policy.strategies.keys().isdisjoint(LABEL_STRATEGIES))
                for entry in entries
                if self._config.policies is None or str(entry.key) in self._config.policies
                if (record := entry.readable()) is not None
            }

    def _record(self, what: Occurrence, sequences: tuple[int, ...]) -> None:
        write = self._series.record(what, time.time())
        if write is None:  # counted in its series
            self._finish(sequences)
        else:
            self._outbox.add(_Work(write, what, sequences), lane=what.key)

    def _finish(self, sequences: Iterable[int]) -> None:
        """One write of each of these events is done."""
        for sequence in sequences:
            self._open[sequence] -= 1
            if self._open[sequence] <= 0:
                del self._open[sequence]
                self._done.append(sequence)
        self._inbox.wake.set()

    async def _check_series(self) -> None:
        while True:
            await asyncio.sleep(SERIES_SECONDS)
            for write in self._series.due(time.time()):
                self._outbox.add(_Work(write, None), lane=(write.namespace, write.name))
            self._inbox.wake.set()

    async def _deliver(self, delivery: Delivery[_Work]) -> None:
        try:
            await self._write(delivery)
        finally:
            self._inbox.wake.set()

    async def _write(self, delivery: Delivery[_Work]) -> None:
        work, outcome = delivery.item, "delivered"
        try:
            await self._send(work)
        except (NotFoundError, InvalidError, RejectedError) as error:
            # The namespace or the series is gone, or the API server will never accept the object.
            if isinstance(work.write, PatchSeries) and isinstance(error, NotFoundError) and work.what is not None:
                self._series.forget(work.what)
                work.write = self._series.record(work.what, time.time()) or work.write
                self._outbox.again(delivery)
                return
            outcome = "gone" if isinstance(error, NotFoundError) else "dead"
            self._log.warning("event_refused", error=str(error))
        except KubernetesError as error:
            retry_after = error.retry_after if isinstance(error, ThrottledError) else 0.0
            self._metrics.events.labels(self.name, "retried").inc()
            self._log.warning("sink_failed", error=str(error), attempts=delivery.attempts + 1)
            self._outbox.failed(delivery, _now(), retry_after=retry_after)
            return
        self._metrics.events.labels(self.name, outcome).inc(max(1, len(work.sequences)))
        self._outbox.accepted(delivery, _now())
        self._finish(work.sequences)

    async def _send(self, work: _Work) -> None:
        """Sends the write. Raises KubernetesError."""
        code = "none"
        try:
            if isinstance(work.write, CreateEvent):
                try:
                    await self._client.create(SERIES_EVENTS, work.write.body, namespace=work.write.namespace)
                except ConflictError:
                    code = "409"  # it was created before, and only the acknowledgement of the event was lost
                    return
            else:
                await self._client.merge_patch(
                    SERIES_EVENTS,
                    work.write.name,
                    work.write.body,
                    namespace=work.write.namespace,
                    field_manager=FIELD_MANAGER,
                )
            code = "200"
        except KubernetesError as error:
            code = str(error.code or "none")
            raise
        finally:
            self._metrics.requests.labels(self.name, code).inc()


def _now() -> float:
    return asyncio.get_running_loop().time()
