"""Alerts for Alertmanager, sent again while they fire.

What fires is what was last announced about each object, so a replica that starts reads that (ANNOUNCED) and needs no
position of its own. Every replica sends all alerts, and Alertmanager drops repetitions: without the bus, too, an alert
that fires is sent again.
"""

import asyncio
import time
from contextlib import aclosing
from pathlib import Path

import structlog

from bus.buckets import ANNOUNCED
from bus.connection import Bus
from bus.events import ALL_EVENTS, EventMessage, decoded
from bus.stream_reader import FROM_START, StreamReader
from tas.errors import line_of
from tas.events.data import EpochChanged, Unknown
from tas.notifying.alerts import AlertBook, Resends, alert_batches, alerts_body
from tas.notifying.config import AlertmanagerConfig, admits
from tas.notifying.notices import notice_of
from tas.notifying.outbox import BACKOFF
from workers.notify.poster import Poster
from workers.notify.sinks.base import LOG_SECONDS, SinkMetrics
from workers.process.logs import ThrottledLog

log = structlog.get_logger("notify")

GATHER_SECONDS = 0.5
"""How long changes are gathered before they are sent together."""

FORGET_SECONDS = 60.0
"""How often ended alerts are forgotten."""

_PATH = "/api/v2/alerts"


class AlertmanagerSink:
    """Sends every alert to each Alertmanager of the settings, each at its own pace."""

    shared = False

    def __init__(
        self,
        bus: Bus,
        name: str,
        config: AlertmanagerConfig,
        *,
        folder: Path,
        metrics: SinkMetrics,
        cluster: str = "",
    ) -> None:
        """`cluster`: the name of the cluster, a label of every alert."""
        self.name = name
        self._bus = bus
        self._config = config
        self._metrics = metrics
        self._book = AlertBook(({"cluster": cluster} if cluster else {}) | dict(config.labels))
        self._senders = [
            _Sender(
                self._book,
                Poster(config, sink=name, folder=folder, requests=metrics.requests, url=url.rstrip("/") + _PATH),
                name,
                config,
                metrics,
            )
            for url in config.urls
        ]
        self._log = ThrottledLog(log, seconds=LOG_SECONDS, sink=name)
        self._epoch = ""

    async def run(self) -> None:
        """Sends until cancelled."""
        # Not when it is built: if the file is refused for another sink, this one never runs, and the old one goes on.
        self._metrics.set_lag(self.name, lambda: max(sender.failing_seconds for sender in self._senders))
        self._metrics.alerts.labels(self.name).set_function(lambda: float(self._book.firing))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forget())
            for sender in self._senders:
                tasks.create_task(sender.run())
            await self._follow()

    async def _follow(self) -> None:
        reader = StreamReader(self._bus, ANNOUNCED, FROM_START, filters=(ALL_EVENTS,))
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                found, invalid = decoded(batch.messages)
                for error in invalid:
                    self._metrics.events.labels(self.name, "invalid").inc()
                    self._log.warning("event_unreadable", error=str(error))
                for message in found:
                    self._record(message)
                for sender in self._senders:
                    sender.changed.set()

    def _record(self, message: EventMessage) -> None:
        event = message.event
        if isinstance(event.data, EpochChanged) and event.data.epoch != self._epoch:
            # A publisher that knows the epoch before still knows what it has announced, and does not repeat it.
            if self._epoch and event.data.previous != self._epoch:
                self._book.unconfirm(time.time())
            self._epoch = event.data.epoch
        if isinstance(event.data, Unknown):
            self._metrics.events.labels(self.name, "unknown").inc()
            self._log.warning("event_type_unknown", type=line_of(event.type))
        elif admits(self._config, event) and (notice := notice_of(event)) is not None:
            self._book.record(notice, event.time)

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            self._book.forget(time.time())
            for sender in self._senders:
                sender.resends.forget(self._book)


class _Sender:
    """Sends the alerts to one Alertmanager."""

    def __init__(
        self, book: AlertBook, poster: Poster, name: str, config: AlertmanagerConfig, metrics: SinkMetrics
    ) -> None:
        self.changed = asyncio.Event()
        self.resends = Resends(config.resend_seconds)
        self._book = book
        self._poster = poster
        self._name = name
        self._config = config
        self._metrics = metrics
        self._failing_since: float | None = None
        self._log = ThrottledLog(log, seconds=LOG_SECONDS, sink=name)

    @property
    def failing_seconds(self) -> float:
        """For how long this Alertmanager has accepted nothing; 0 if it works."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    async def run(self) -> None:
        """Sends until cancelled."""
        failures = 0
        try:
            while True:
                problem = await self._send_due()
                failures = failures + 1 if problem else 0
                if not failures:
                    self._failing_since = None
                elif self._failing_since is None:
                    self._failing_since = time.monotonic()
                if failures:
                    self._log.warning("sink_failed", error=problem, attempts=failures)
                    await asyncio.sleep(BACKOFF.after(failures))
                else:
                    await self._wait()
        finally:
            await self._poster.close()

    async def _send_due(self) -> str:
        """Sends what is due; returns what is wrong, or an empty text."""
        now = time.time()
        for batch in alert_batches(self.resends.due(self._book, now)):
            body = alerts_body((alert for _, alert in batch), now=now, resend=self._config.resend_seconds)
            answer = await self._poster.post(body, {"Content-Type": "application/json"})
            if not answer.accepted and not answer.refused:
                self._metrics.events.labels(self._name, "retried").inc(len(batch))
                return answer.problem
            if answer.refused:  # Alertmanager keeps the valid alerts of the request; the next resend tries all again
                self._log.error("alerts_refused", error=answer.problem, alerts=len(batch))
            self._metrics.events.labels(self._name, "dead" if answer.refused else "delivered").inc(len(batch))
            self.resends.sent(batch, now)
        return ""

    async def _wait(self) -> None:
        """Waits until something is due."""
        now = time.time()
        due = self.resends.next_due(self._book)
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                await self.changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(GATHER_SECONDS)
        self.changed.clear()
