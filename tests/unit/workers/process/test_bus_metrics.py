"""The metrics of connections, on which critical alerts rely: the alerts themselves are played in `make nightly`."""

import math
import time
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from workers.process.bus_metrics import BusMetrics


@dataclass
class Connection:
    name: str = "tas-labels"
    connected: bool = True
    unavailable: bool = False
    refusing: bool = False
    credentials_expire: float = math.inf


class Shown:
    def __init__(self, *connections: Connection) -> None:
        self._registry = CollectorRegistry()
        metrics = BusMetrics(self._registry)
        for each in connections:
            metrics.add(each)

    def value(self, metric: str, connection: str = "tas-labels") -> float | None:
        return self._registry.get_sample_value(f"tas_bus_{metric}", {"connection": connection})


@pytest.mark.parametrize("problem", ["unavailable", "refusing"])
def test_a_problem_is_shown_while_a_connection_is_open(problem: str) -> None:
    bus = Connection()
    shown = Shown(bus)
    assert (shown.value("connected"), shown.value(problem)) == (1, 0)
    setattr(bus, problem, True)
    assert (shown.value("connected"), shown.value(problem)) == (1, 1)
    bus.connected = False
    assert (shown.value("connected"), shown.value(problem)) == (0, 0)


def test_the_rest_of_the_time_of_credentials_falls_and_is_below_0_once_they_have_expired() -> None:
    bus = Connection()
    shown = Shown(bus)
    assert shown.value("credentials_remaining_seconds") == math.inf
    for seconds in (86_400.0, -86_400.0):
        before = time.time()
        bus.credentials_expire = before + seconds
        found = shown.value("credentials_remaining_seconds")
        assert found is not None
        assert seconds - (time.time() - before) <= found <= seconds


def test_each_connection_has_its_own_series() -> None:
    shown = Shown(Connection("tas-all"), Connection("tas-all-watches", connected=False))
    assert (shown.value("connected", "tas-all"), shown.value("connected", "tas-all-watches")) == (1, 0)
