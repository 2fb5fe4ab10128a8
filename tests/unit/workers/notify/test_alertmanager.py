"""Which alerts go on after a change of the epoch."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.events import EventMessage
from tas.events.data import EpochChanged, EventData
from tas.notifying.alerts import CONFIRM_SECONDS
from tas.notifying.config import AlertmanagerConfig
from tests.unit.tas.notifying.making import event, started
from workers.notify.sinks.alertmanager import AlertmanagerSink
from workers.notify.sinks.base import SinkMetrics


@pytest.mark.parametrize(
    ("previous", "firing"), [("1", 2), ("", 1)], ids=["only the verdicts were lost", "all was lost"]
)
async def test_an_alert_ends_unconfirmed_only_if_nobody_knows_any_more_what_was_announced(
    previous: str, firing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)  # sends nothing
    config = AlertmanagerConfig(urls=("http://127.0.0.1:1",))
    metrics = SinkMetrics(CollectorRegistry())
    sink = AlertmanagerSink(bus, "alerts", config, folder=Path(), metrics=metrics)
    monkeypatch.setattr("time.time", lambda: 2000.0)
    documents: list[EventData] = [EpochChanged(epoch="1"), started("node-1"), started("node-2")]
    documents += [EpochChanged(epoch="2", previous=previous), started("node-1")]
    for sequence, data in enumerate(documents, 1):
        sink._record(EventMessage("", sequence, 2000.0, event(data)))
    sink._book.forget(2000.0 + CONFIRM_SECONDS + 1)
    assert sink._book.firing == firing
