"""The smallest source: this machine's own telemetry, once a second, on the documented subject.

Anyone can write one like it in any language: a message on `tas.samples.<node>.<source>` with a few values in JSON
(`docs/bus.md`). Nothing here is known to the rest of the product.
"""

import asyncio
import os
import re
import socket
import time

import psutil
import structlog
from prometheus_client import CollectorRegistry, Counter

from bus.buckets import SAMPLES
from bus.connection import Bus
from bus.errors import BusError
from bus.messages import encode_samples
from bus.subjects import samples_subject
from tas.names import is_subdomain
from tas.quantity import NANO, Quantity
from tas.sample import Scrape
from workers.logs import Throttle

log = structlog.get_logger("machine")

SOURCE = "machine"


def node_name(hostname: str) -> str:
    """`hostname` made a name that a node may have: lower case, and `-` for what no node's name holds."""
    labels = (re.sub(r"[^a-z0-9-]+", "-", label).strip("-") for label in hostname.lower().split("."))
    name = ".".join(label for label in labels if label)[:253].rstrip("-.")
    return name if is_subdomain(name) else "localhost"


def own_node_name() -> str:
    """The name of this machine as a node."""
    return node_name(socket.gethostname())


def read_metrics() -> dict[str, Quantity]:
    """This machine's telemetry now. `cpu_percent` is the mean since the last call in this process."""
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
    """`value` to two places: more digits would only be noise."""
    return Quantity(round(value * 100) * (NANO // 100))


class Machine:
    """The worker: publishes `read_metrics()` of `node` every `period` seconds."""

    name = "machine"

    def __init__(self, bus: Bus, *, node: str, period: float, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._node = node
        self._period = period
        self._failure: str | None = "nothing published yet"
        self._failures = Throttle()
        self._published = Counter("tas_machine_scrapes", "Scrapes of this machine published.", registry=registry)
        self._lost = Counter("tas_machine_scrapes_lost", "Scrapes that could not be published.", registry=registry)

    def unready(self) -> str | None:
        """Why the last scrape was not published."""
        return self._failure

    async def run(self) -> None:
        """Publishes until cancelled. What cannot be published is lost: the next scrape is worth more."""
        psutil.cpu_percent()  # the first call has no time before it to tell of
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
            await self._bus.publish(SAMPLES, samples_subject(self._node, SOURCE), encode_samples(scrape))
        except BusError as error:
            self._failure = str(error)
            self._lost.inc()
            held_back = self._failures.admit("publish", time.monotonic())
            if held_back is not None:
                log.warning("scrape_lost", node=self._node, error=str(error), alike_before=held_back)
        else:
            self._failure = None
            self._published.inc()
