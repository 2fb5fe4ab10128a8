"""What the alerts about connections to the bus read, for each connection of the process."""

import time
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge


class BusConnection(Protocol):
    """What is shown of a connection; its words are those of `bus.connection.Bus`."""

    @property
    def name(self) -> str:
        """The value of the label `connection`."""
        ...

    @property
    def connected(self) -> bool:
        """Whether a server is connected now."""
        ...

    @property
    def unavailable(self) -> bool:
        """Whether a stream gave no answer."""
        ...

    @property
    def refusing(self) -> bool:
        """Whether the bus refuses something."""
        ...

    @property
    def credentials_expire(self) -> float:
        """In seconds since 1970; infinite if never."""
        ...


class BusMetrics:
    """The metrics `tas_bus_…`. Without a connection only `tas_bus_connected` says so: one fault, one alert."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["connection"], registry=registry)

        self._connected = gauge("tas_bus_connected", "1 while a connection to the bus is open, else 0.")
        self._unavailable = gauge(
            "tas_bus_unavailable", "1 while a connection to the bus is open, and a stream gives no answer, else 0."
        )
        self._credentials = gauge(
            "tas_bus_credentials_remaining_seconds",
            "Seconds until the credentials or the certificate of a connection to the bus expire; +Inf: never.",
        )
        self._refusing = gauge(
            "tas_bus_refusing",
            "1 while a connection is open and the bus refuses a stream, consumer, lease, room in a bucket, a write or "
            "new credentials, else 0.",
        )

    def add(self, bus: BusConnection) -> None:
        """Shows a connection from now on."""
        self._connected.labels(bus.name).set_function(lambda: float(bus.connected))
        self._unavailable.labels(bus.name).set_function(lambda: float(bus.connected and bus.unavailable))
        self._credentials.labels(bus.name).set_function(lambda: bus.credentials_expire - time.time())
        self._refusing.labels(bus.name).set_function(lambda: float(bus.connected and bus.refusing))
