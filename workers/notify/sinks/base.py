"""What all sinks share: the interface, the metrics, and the durable consumer of a sink that gets every event once."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import EVENTS, SINK_CONSUMERS
from bus.connection import Bus
from bus.deliveries import Deliveries, Message
from bus.events import ALL_EVENTS, EventMessage, decoded
from tas.errors import line_of
from tas.events.data import Unknown
from tas.notifying.config import SinkConfig, admits
from workers.process.logs import ThrottledLog

log = structlog.get_logger("notify")

LOG_SECONDS = 60.0
"""How often a sink that fails says the same in the log."""


LATE_SECONDS = 30.0
"""A sink that has accepted nothing for longer does not just start again."""


class Sink(Protocol):
    """A place to which events go. A sink that fails affects no other sink, and nothing upstream."""

    @property
    def name(self) -> str:
        """As in the settings."""
        ...

    @property
    def shared(self) -> bool:
        """Whether one replica at a time runs the sink; else all replicas do."""
        ...

    async def run(self) -> None:
        """Works until cancelled."""
        ...


class SinkMetrics:
    """The metrics of all sinks of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["sink", *labels], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["sink"], registry=registry)

        self._lags: dict[str, Callable[[], float]] = {}
        self.events = counter(
            "tas_notify_events",
            "Events by what became of them: delivered, retried, dead (given up), gone (with their namespace), invalid "
            "(unreadable on the bus), unknown (of a type or version that is not known here, and not handed on), "
            "grouped (of a node, and only in the Event of its policy).",
            "outcome",
        )
        self.requests = counter("tas_notify_requests", "Requests to a sink by HTTP status; none: no response.", "code")
        self.missed = counter(
            "tas_notify_missed", "Messages of EVENTS that the stream dropped before this sink could read them."
        )
        self.held = gauge("tas_notify_held", "Events that this replica holds and the sink has not accepted yet.")
        self.behind = gauge("tas_notify_behind", "Events that wait on the bus behind those that are held.")
        self.lag = gauge(
            "tas_notify_lag_seconds",
            "Age of the oldest event that the sink has not accepted, less the time to gather; of Alertmanager: for how "
            "long one has failed.",
        )
        self.alerts = gauge("tas_notify_alerts", "Alerts that fire.")
        self.sinks_readable = Gauge(
            "tas_notify_sinks_readable", "1 while the file of --sinks can be read, else 0.", registry=registry
        )
        self.sinks_readable.set(1)
        self.lease_held = gauge(
            "tas_notify_lease_held", "1 while this replica runs the sink, 0 while it is on standby."
        )

    def set_lag(self, sink: str, lag: Callable[[], float]) -> None:
        """Sets what gives the lag of a sink in seconds, for the metric and for `late`."""
        self._lags[sink] = lag
        self.lag.labels(sink).set_function(lag)

    def late(self) -> dict[str, float]:
        """The sinks that have not accepted an event for longer than `LATE_SECONDS`, and for how many seconds."""
        lags = {sink: lag() for sink, lag in self._lags.items()}
        return {sink: seconds for sink, seconds in sorted(lags.items()) if seconds > LATE_SECONDS}

    def start(self, sink: str) -> None:
        """The series of a sink with their zeros, so that a rate is never without them."""
        for outcome in ("delivered", "retried", "dead", "gone", "invalid", "unknown", "grouped"):
            self.events.labels(sink, outcome)
        self.missed.labels(sink)
        for gauge in (self.held, self.behind, self.lag):
            gauge.labels(sink)

    def stop(self, sink: str) -> None:
        """A sink has ended: what it holds and how late it is has no meaning any more. Its counters stay."""
        self._lags.pop(sink, None)
        for gauge in (self.held, self.behind, self.lag, self.alerts, self.lease_held):
            with suppress(KeyError):
                gauge.remove(sink)


class Inbox:
    """The events of one sink, from its own durable consumer. `wake` is set when events have arrived."""

    def __init__(
        self,
        bus: Bus,
        name: str,
        config: SinkConfig,
        metrics: SinkMetrics,
        take: Callable[[EventMessage], None],
        *,
        capacity: int,
        gathers: float = 0.0,
    ) -> None:
        """`take` gets each event that the sink's settings admit; `finish` acknowledges it later.

        `gathers`: the seconds that the sink waits on purpose before it sends an event; they are no lag.
        """
        self.wake = asyncio.Event()
        self._name = name
        self._config = config
        self._metrics = metrics
        self._give = take
        self._gathers = gathers
        self._messages: dict[int, Message] = {}
        self._not_wanted: list[Message] = []
        self._log = ThrottledLog(log, seconds=LOG_SECONDS, sink=name)
        self._deliveries = Deliveries(
            bus,
            EVENTS,
            f"notify-{name}",
            SINK_CONSUMERS,
            self._take,
            filter_subject=ALL_EVENTS,
            capacity=capacity,
            on_missed=self._missed,
        )
        metrics.held.labels(name).set_function(lambda: float(len(self._deliveries)))
        metrics.behind.labels(name).set_function(lambda: float(self._deliveries.behind))
        metrics.set_lag(name, self._lag)

    async def run(self) -> None:
        """Receives until cancelled."""
        await self._deliveries.run()

    async def finish(self, sequences: Iterable[int] = ()) -> None:
        """Acknowledges events, and those that the settings do not admit."""
        done, self._not_wanted = self._not_wanted, []
        done += [message for sequence in sequences if (message := self._messages.pop(sequence, None)) is not None]
        await self._deliveries.finish(done)

    def skip(self, sequence: int) -> None:
        """The sink does not want this event: the next `finish` acknowledges it."""
        if (message := self._messages.pop(sequence, None)) is not None:
            self._not_wanted.append(message)

    async def wait(self, until: float | None) -> None:
        """Waits for events or until a time of the event loop's clock; None: without a limit."""
        try:
            async with asyncio.timeout_at(until):
                await self.wake.wait()
        except TimeoutError:
            pass
        self.wake.clear()

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            found, invalid = decoded([message])
            for error in invalid:
                self._metrics.events.labels(self._name, "invalid").inc()
                self._log.warning("event_unreadable", subject=message.subject, error=str(error))
            if found and admits(self._config, found[0].event):
                self._messages[message.sequence] = message.receipt
                self._give(found[0])
                continue
            self._not_wanted.append(message.receipt)
            if found and isinstance(found[0].event.data, Unknown):
                self._metrics.events.labels(self._name, "unknown").inc()
                self._log.warning("event_type_unknown", type=line_of(found[0].event.type))
        self.wake.set()

    def _missed(self, count: int) -> None:
        self._metrics.missed.labels(self._name).inc(count)
        self._log.warning("events_missed", messages=count)

    def _lag(self) -> float:
        oldest = self._deliveries.oldest()
        return 0.0 if oldest is None else max(0.0, time.time() - oldest - self._gathers)
