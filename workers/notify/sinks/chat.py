"""A chat: one message for all that happened within some seconds."""

import asyncio
from pathlib import Path

import structlog

from bus.connection import Bus
from bus.events import EventMessage
from tas.notifying.chat import chat_body
from tas.notifying.config import ChatConfig
from tas.notifying.digest import Digest
from tas.notifying.notices import notice_of
from tas.notifying.outbox import BACKOFF
from tas.values.backoff import Backoff
from tas.values.duration import parse_duration
from workers.notify.poster import Poster
from workers.notify.sinks.base import LOG_SECONDS, Inbox, SinkMetrics
from workers.process.logs import ThrottledLog

log = structlog.get_logger("notify")

CAPACITY = 16384
"""The most events of one message; with so many, the message is sent at once."""


class ChatSink:
    """Sends a message until the chat accepts it; what happens meanwhile is in the next message."""

    shared = True

    def __init__(
        self,
        bus: Bus,
        name: str,
        config: ChatConfig,
        *,
        folder: Path,
        metrics: SinkMetrics,
        backoff: Backoff = BACKOFF,
        cluster: str = "",
    ) -> None:
        """`cluster`: the name of the cluster, the first line of every message."""
        self.name = name
        self._bus = bus
        self._config = config
        self._metrics = metrics
        self._backoff = backoff
        self._cluster = cluster
        self._poster = Poster(
            config, sink=name, folder=folder, requests=metrics.requests, url=config.url, url_file=config.url_file
        )
        self._log = ThrottledLog(log, seconds=LOG_SECONDS, sink=name)

    async def run(self) -> None:
        """Sends until cancelled."""
        wait, interval = parse_duration(self._config.wait), parse_duration(self._config.interval)
        self._digest: Digest[int] = Digest(wait=wait, interval=interval, capacity=CAPACITY)
        self._inbox = Inbox(
            self._bus,
            self.name,
            self._config,
            self._metrics,
            self._add,
            capacity=CAPACITY,
            gathers=max(wait, interval),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._inbox.run())
                while True:
                    await self._inbox.finish()
                    due_at = self._digest.due_at()
                    if due_at is not None and due_at <= _now():
                        await self._send()
                    else:
                        await self._inbox.wait(due_at)
        finally:
            await self._poster.close()

    def _add(self, message: EventMessage) -> None:
        notice = notice_of(message.event)
        if notice is None:
            self._inbox.skip(message.sequence)
        else:
            self._digest.add(notice, message.sequence, _now())

    async def _send(self) -> None:
        groups, sequences = self._digest.take(_now())
        body = chat_body(groups, field=self._config.field, cluster=self._cluster)
        failures = 0
        while True:
            answer = await self._poster.post(body, {"Content-Type": "application/json"})
            if answer.accepted:
                break
            failures += 1
            self._metrics.events.labels(self.name, "retried").inc(len(sequences))
            self._log.warning("sink_failed", error=answer.problem, events=len(sequences), attempts=failures)
            await asyncio.sleep(max(self._backoff.after(failures), answer.retry_after))
        self._metrics.events.labels(self.name, "delivered").inc(len(sequences))
        await self._inbox.finish(sequences)


def _now() -> float:
    return asyncio.get_running_loop().time()
