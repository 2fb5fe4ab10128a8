"""Events: publishes each transition of verdicts, labels, policies and sources as a public event.

One replica publishes, the others are on standby. A session begins with what was last announced, and follows what the
bus says now; any error ends the session, and the next one begins in the same way. So a replica can be killed at any
line: what it has published is announced, and what it has not is still a difference.
"""

import asyncio
import time
from collections.abc import Iterator
from math import inf

import structlog
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.errors import BusError
from bus.interruptions import Interruptions
from bus.lease import Lease
from tas.events.event import SOURCE
from tas.values.backoff import Backoff
from workers.events.metrics import Metrics
from workers.events.session import Session

log = structlog.get_logger("events")

LEASE = "events"

RETRY = Backoff(first=0.1, longest=2.0)
"""The waits after sessions that failed."""

STABLE_SECONDS = 5.0
"""After a session that lasted this long, the next one begins without a wait."""


class EventPublisher:
    """The worker. Its only state is what the bus says."""

    name = "events"

    def __init__(self, bus: Bus, *, registry: CollectorRegistry, source: str = SOURCE) -> None:
        """`source`: the attribute of the events."""
        self._bus = bus
        self._source = source
        self._metrics = Metrics(registry)
        self._session: Session | None = None
        self._began = inf
        self._failure = ""
        self._was_connected = False
        self._lease = Lease(bus, LEASE)
        self._interruptions = Interruptions(log, "events_interrupted")
        self._metrics.behind.set_function(lambda: 0.0 if self._session is None else float(self._session.behind))

    def unready(self) -> str | None:
        """Why transitions may not be published yet; a replica on standby is ready."""
        if not self._was_connected:
            return "not connected to the bus yet"
        return None if self._session is None else self._session.unready()

    def concerns(self) -> Iterator[str]:
        """Why the last session failed, until one works: a replica without one looks as if it were on standby.

        Or until another replica has the lease.
        """
        if self._failure and self._lease.was_last and not self._works:
            yield f"it publishes no events, since its last session failed: {self._failure}"

    @property
    def _works(self) -> bool:
        """Whether there is a session that publishes, and does not fail at once."""
        if self._session is None or self._session.unready() is not None:
            return False
        return time.monotonic() - self._began > STABLE_SECONDS

    async def run(self) -> None:
        """Publishes while this replica has the lease, until cancelled."""
        failures = 0
        while True:
            await self._bus.wait_connected()
            self._was_connected = True
            self._began = inf  # the wait for the lease is no time of a session
            try:
                async with self._lease.hold():
                    await self._publish()
            except* BusError as group:
                error = _first(group)
                self._failure = str(error)
                self._interruptions.note(error)
            failures = 0 if time.monotonic() - self._began > STABLE_SECONDS else failures + 1
            await asyncio.sleep(RETRY.after(failures) if failures else 0)

    async def _publish(self) -> None:
        self._began = time.monotonic()
        try:
            self._session = await Session.begin(self._bus, self._metrics, source=self._source)
            await self._session.run()
        finally:
            self._session = None


def _first(group: BaseExceptionGroup[BusError]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
