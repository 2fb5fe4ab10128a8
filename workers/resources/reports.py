"""Announces which nodes offer `telemetry/scheduling`: the only public event that no record on the bus can tell."""

import asyncio
import time

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.events import Expected, last_events, last_of, publish_events
from bus.subjects import event_subject
from tas.enforcing.node_resource import RESOURCE
from tas.events.data import ResourcePatched
from tas.events.event import Cause, event_of
from tas.values.backoff import Backoff
from workers.process.logs import ThrottledLog

log = structlog.get_logger("resources")

BATCH = 256
RETRY = Backoff(first=0.1, longest=5.0)
"""The waits after attempts that failed."""


class ResourceEvents:
    """The nodes that offer the resource and are not announced yet."""

    def __init__(self, bus: Bus, *, source: str) -> None:
        self._bus = bus
        self._source = source
        self._noted: dict[str, ResourcePatched] = {}
        self._due: dict[str, bool] = {}
        self._wake = asyncio.Event()
        self._throttled = ThrottledLog(log)

    def note(self, node: str, uid: str, count: int, *, is_listed: bool = False) -> None:
        """Notes that the API server shows the resource on a node; `is_listed`: in a list, so perhaps for long."""
        data = ResourcePatched(node=node, node_uid=uid, resource=RESOURCE, count=count)
        if self._noted.get(node) != data:
            self._noted[node] = data
            self._due[node] = is_listed
            self._wake.set()

    def forget(self, node: str) -> None:
        """Forgets a deleted node."""
        self._noted.pop(node, None)
        self._due.pop(node, None)

    async def run(self) -> None:
        """Announces until cancelled."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._announce()
                failures = 0
            except BusError as error:
                failures += 1
                self._throttled.warning("resource_not_announced", error=str(error))
                await asyncio.sleep(RETRY.after(failures))
                self._wake.set()

    async def _announce(self) -> None:
        """Announces what is due, if it differs from what was announced last. Raises BusError."""
        found = {message.subject: message.event for message in await last_events(self._bus, "resource")}
        while self._due:
            due = {node: self._noted[node] for node in list(self._due)[:BATCH]}
            # The copy of the last events may be late, and knows no sequence of an event that the stream has discarded.
            stored = {each.subject: each for each in await last_of(self._bus, list(map(event_subject, due.values())))}
            last = found | {subject: each.event for subject, each in stored.items()}
            expected: list[Expected] = []
            for node, data in due.items():
                subject = event_subject(data)
                if subject not in last or last[subject].data != data:
                    # The same id for every replica: a node of this uid is announced once.
                    cause, is_listed = Cause(data.node_uid, data.count), self._due.get(node, False)
                    event = event_of(data, cause, time=time.time(), resync=is_listed, source=self._source)
                    expected.append(Expected(event, stored[subject].sequence if subject in stored else 0))
            for outcome in await publish_events(self._bus, expected) if expected else ():
                if isinstance(outcome, BusError):
                    raise outcome  # also a conflict: then another replica was first, and the next attempt reads it
            for node, data in due.items():
                if self._noted.get(node, data) is data:
                    self._due.pop(node, None)
