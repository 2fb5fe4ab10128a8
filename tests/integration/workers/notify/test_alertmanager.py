"""Alerts in a real Alertmanager: they fire, are sent again, end, and survive a restart and a wipe of the bus."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from tas.events.data import EpochChanged
from tas.notifying.config import AlertmanagerConfig
from tests.e2e.processes import free_ports
from tests.integration.servers import Server, eventually
from tests.integration.workers.notify.test_notify import World
from tests.integration.workers.running import running
from tests.unit.tas.notifying.making import ended, started
from workers.notify.sinks.alertmanager import AlertmanagerSink
from workers.notify.sinks.base import SinkMetrics
from workers.notify.worker import Notify

BINARY = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")

pytestmark = pytest.mark.skipif(
    BINARY is None, reason="no Alertmanager: install the Debian package prometheus-alertmanager"
)

CONFIG = """
route: {receiver: none, group_by: [alertname]}
receivers: [{name: none}]
"""


class Alertmanager:
    """A real Alertmanager that notifies nobody."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def alerts(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire, by node."""
        async with self._session.get(f"{self.url}/api/v2/alerts") as response:
            return {alert["labels"]["node"]: alert for alert in await response.json()}

    async def fires(self, *nodes: str) -> dict[str, dict[str, Any]]:
        """Waits until exactly the alerts of these nodes fire."""
        found: dict[str, dict[str, Any]] = {}

        async def fires_now() -> bool:
            nonlocal found
            found = await self.alerts()
            return set(found) == set(nodes)

        await eventually(fires_now)
        return found

    async def is_ready(self) -> bool:
        try:
            async with self._session.get(f"{self.url}/-/ready") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False


@pytest.fixture
async def alertmanager(tmp_path: Path) -> AsyncIterator[Alertmanager]:
    (port,) = free_ports(1)
    (tmp_path / "alertmanager.yml").write_text(CONFIG)
    assert BINARY is not None
    process = await asyncio.create_subprocess_exec(
        BINARY,
        f"--config.file={tmp_path / 'alertmanager.yml'}",
        f"--storage.path={tmp_path / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            server = Alertmanager(f"http://127.0.0.1:{port}", session)
            await eventually(server.is_ready)
            yield server
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def alerting(bus: Bus, *urls: str, resend: str = "1s") -> AsyncIterator[CollectorRegistry]:
    """Runs `notify` with these Alertmanagers."""
    registry = CollectorRegistry()
    metrics = SinkMetrics(registry)
    config = AlertmanagerConfig(urls=urls, resend=resend, labels={"team": "platform"})
    sink = AlertmanagerSink(bus, "alerts", config, folder=Path(), metrics=metrics, cluster="test")
    async with running(Notify(bus, [sink], metrics=metrics)):
        yield registry


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def test_alerts_fire_and_end_also_over_a_restart_and_a_wipe_of_the_bus(
    server: Server, bus: Bus, alertmanager: Alertmanager, tmp_path: Path
) -> None:
    world = World(bus, tmp_path)
    await world.publish(EpochChanged(epoch="1"))
    (first, *_) = await world.publish(started("node-1"), started("node-2"), started("node-3"), started("node-4"))
    async with alerting(bus, "http://127.0.0.1:9", alertmanager.url) as registry:
        before = await alertmanager.fires("node-1", "node-2", "node-3", "node-4")
        assert before["node-1"]["labels"] == {
            "alertname": "TasNodeViolatesPolicy",
            "cluster": "test",
            "namespace": "default",
            "node": "node-1",
            "policy": "demo",
            "severity": "warning",
            "strategy": "dontschedule",
            "team": "platform",
        }
        assert abs(seconds(before["node-1"]["startsAt"]) - first.time) < 0.01
        await world.publish(ended("node-4"))
        await alertmanager.fires("node-1", "node-2", "node-3")
        # The other Alertmanager does not exist: that delays nothing, and is counted.
        labels = {"sink": "alerts", "code": "none"}
        await eventually(lambda: (registry.get_sample_value("tas_notify_requests_total", labels) or 0) >= 1)
        await eventually(lambda: (registry.get_sample_value("tas_notify_lag_seconds", {"sink": "alerts"}) or 0) > 0)
    await world.publish(ended("node-3"))  # while no replica runs
    async with alerting(bus, alertmanager.url):
        after = await alertmanager.fires("node-1", "node-2")
        assert after["node-1"]["startsAt"] == before["node-1"]["startsAt"]
        await server.restart(wiped=True)
        await bus.wait_connected()
        await world.publish(EpochChanged(epoch="2"))
        await world.publish(started("node-1"))  # announced again; node-2 is not, so far
        # Sent again: else Alertmanager would end each alert after four seconds.
        until = seconds(after["node-2"]["endsAt"])
        await eventually(lambda: time.time() > until + 1)
        wiped = await alertmanager.fires("node-1", "node-2")
        assert wiped["node-1"]["startsAt"] == before["node-1"]["startsAt"]
        await world.publish(ended("node-1"))
        await alertmanager.fires("node-2")
