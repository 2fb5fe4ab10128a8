"""CloudEvents 1.0 over HTTP, one signed request for each event, in order for each object.

In structured mode, since a signature covers the body and no header: so no event can be sent as one of another type.
"""

import asyncio
import time
from pathlib import Path

import structlog

from bus.connection import Bus
from bus.dead_letters import DeadLetter, publish_dead_letter
from bus.errors import BusError
from bus.events import EventMessage
from tas.events import cloudevents
from tas.events.event import Event
from tas.notifying.config import CloudEventsConfig
from tas.notifying.outbox import BACKOFF, Delivery, Outbox
from tas.notifying.signature import SecretError, parse_secrets, signature_headers, webhook_id
from tas.values.backoff import Backoff
from workers.http.client import HttpConfigError, read_secret
from workers.notify.poster import Answer, Poster
from workers.notify.sinks.base import LOG_SECONDS, Inbox, SinkMetrics
from workers.process.logs import ThrottledLog

log = structlog.get_logger("notify")

CAPACITY = 1024
"""The most events that one sink holds; the others wait on the bus."""

LANES = 8
"""How many requests are under way at once."""


class CloudEventsSink:
    """Sends each event until the sink accepts it. An event that the sink refuses becomes a dead letter."""

    shared = True

    def __init__(
        self,
        bus: Bus,
        name: str,
        config: CloudEventsConfig,
        *,
        folder: Path,
        metrics: SinkMetrics,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.name = name
        self._bus = bus
        self._config = config
        self._folder = folder
        self._metrics = metrics
        self._backoff = backoff
        self._poster = Poster(config, sink=name, folder=folder, requests=metrics.requests, url=config.url)
        self._log = ThrottledLog(log, seconds=LOG_SECONDS, sink=name)

    async def run(self) -> None:
        """Sends until cancelled."""
        self._outbox: Outbox[EventMessage] = Outbox(lanes=LANES, backoff=self._backoff)
        self._inbox = Inbox(self._bus, self.name, self._config, self._metrics, self._add, capacity=CAPACITY)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._inbox.run())
                while True:
                    await self._inbox.finish()  # what the settings do not admit
                    for delivery in self._outbox.due(_now()):
                        tasks.create_task(self._deliver(delivery))
                    await self._inbox.wait(self._outbox.next_due())
        finally:
            await self._poster.close()

    def _add(self, message: EventMessage) -> None:
        self._outbox.add(message, lane=message.subject)

    async def _deliver(self, delivery: Delivery[EventMessage]) -> None:
        try:
            answer = await self._send(delivery.item.event)
            await self._settle(delivery, answer)
        finally:
            self._inbox.wake.set()

    async def _settle(self, delivery: Delivery[EventMessage], answer: Answer) -> None:
        if answer.accepted:
            self._outbox.accepted(delivery, _now())
            self._metrics.events.labels(self.name, "delivered").inc()
        elif (answer.refused or self._outbox.is_hopeless(delivery)) and await self._bury(delivery, answer.problem):
            self._outbox.refused(delivery)
        else:
            self._outbox.failed(delivery, _now(), retry_after=answer.retry_after)
            self._metrics.events.labels(self.name, "retried").inc()
            event_id = delivery.item.event.id
            self._log.warning("sink_failed", error=answer.problem, event_id=event_id, attempts=delivery.attempts)
            return
        await self._inbox.finish([delivery.item.sequence])

    async def _bury(self, delivery: Delivery[EventMessage], problem: str) -> bool:
        """Stores a dead letter; returns False if the bus does not accept it now."""
        event, attempts = delivery.item.event, delivery.attempts + 1
        letter = DeadLetter(f"notify-{self.name}", problem, attempts, delivery.item.sequence)
        try:
            await publish_dead_letter(self._bus, letter, cloudevents.headers(event), cloudevents.body(event))
        except BusError as error:
            self._log.warning("dead_letter_not_stored", event_id=event.id, error=str(error))
            return False
        self._metrics.events.labels(self.name, "dead").inc()
        self._log.error("event_dead_lettered", event_id=event.id, error=problem, attempts=attempts)
        return True

    async def _send(self, event: Event) -> Answer:
        body = cloudevents.structured(event)
        headers = {"Content-Type": cloudevents.STRUCTURED_TYPE}
        if self._config.secret_file is not None:
            try:
                text = await asyncio.to_thread(read_secret, self._folder, self._config.secret_file)
                secrets = parse_secrets(text)
            except (HttpConfigError, SecretError) as error:
                return Answer(problem=f"{self._config.secret_file}: {error}")
            headers |= signature_headers(secrets, identity=webhook_id(event), now=time.time(), body=body)
        return await self._poster.post(body, headers)


def _now() -> float:
    return asyncio.get_running_loop().time()
