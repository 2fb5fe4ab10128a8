"""The smallest source: publishes this machine's own telemetry, once a second, on the documented subject.

A source like this can be written in any language: a message on `tas.samples.<node>.<source>` with a few values in JSON
(`docs/how-to/publish.md`). The rest of the product does not depend on this module.
"""

import asyncio
import os
import time

import psutil
import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.connection import Bus
from bus.errors import BusError, NobodyListensError
from bus.scrapes import publish_scrape
from tas.samples.sample import Scrape
from tas.values.quantity import NANO, Quantity
from workers.process.logs import ThrottledLog

log = structlog.get_logger("machine")

SOURCE = "machine"

NO_STREAM = "SAMPLES is missing, or nats-server has no JetStream; on a closed bus tas run keeper creates SAMPLES"
"""What it means that nobody listens. On a closed bus this process may not ask, so its connection does not say it."""


def read_metrics() -> dict[str, Quantity]:
    """This machine's current metrics. `cpu_percent` is the mean since the last call in this process."""
    memory = psutil.virtual_memory()
    disk = psutil.disk_usage("/")
    return {
        "memory_available_bytes": Quantity(memory.available * NANO),
        "memory_used_percent": _rounded(memory.percent),
        "load1": _rounded(os.getloadavg()[0]),
        "cpu_percent": _rounded(psutil.cpu_percent()),
        "disk_free_bytes": Quantity(disk.free * NANO),
        "disk_used_percent": _rounded(disk.percent),
    }


def _rounded(value: float) -> Quantity:
    """`value` with two decimal places: more digits would be noise."""
    return Quantity(round(value * 100) * (NANO // 100))


class Machine:
    """The worker: publishes `read_metrics()` of `node` every `period` seconds."""

    name = "machine"

    def __init__(self, bus: Bus, *, node: str, period: float, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._node = node
        self._period = period
        self._failure: str | None = "nothing published yet"
        self._throttled = ThrottledLog(log)
        self._published = Counter("tas_machine_scrapes", "Scrapes of this machine published.", registry=registry)
        self._lost = Counter("tas_machine_scrapes_lost", "Scrapes that could not be published.", registry=registry)

    def unready(self) -> str | None:
        """Why the last scrape was not published."""
        return self._failure

    async def run(self) -> None:
        """Publishes until cancelled. A scrape that cannot be published is dropped: the next one is newer."""
        psutil.cpu_percent()  # the first call returns no mean: it only starts the measurement
        loop = asyncio.get_running_loop()
        due = loop.time()
        log.info("machine_started", node=self._node, period_seconds=self._period)
        while True:
            due = max(due + self._period, loop.time())
            await asyncio.sleep(due - loop.time())
            await self._publish()

    async def _publish(self) -> None:
        now = time.time()
        scrape = Scrape(source=SOURCE, measured=now, arrived=now, sequence=0, metrics=read_metrics())
        try:
            await publish_scrape(self._bus, self._node, scrape)
        except BusError as error:
            reason = f"{error}: {NO_STREAM}" if isinstance(error, NobodyListensError) else str(error)
            self._failure = reason
            self._lost.inc()
            self._throttled.warning("scrape_lost", node=self._node, error=reason)
        else:
            self._failure = None
            self._published.inc()
