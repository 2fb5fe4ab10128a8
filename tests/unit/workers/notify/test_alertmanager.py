"""Which alerts go on after a change of the epoch, and which metrics after a change of the settings."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.events import EventMessage
from tas.events.data import EpochChanged, EventData
from tas.notifying.alerts import CONFIRM_SECONDS
from tas.notifying.config import AlertmanagerConfig
from tests.integration.servers import eventually
from tests.unit.tas.notifying.making import event, notice, started
from workers.notify.sinks.alertmanager import AlertmanagerSink
from workers.notify.sinks.base import Sink, SinkMetrics
from workers.notify.worker import Notify


def nowhere() -> Bus:
    """A bus that sends nothing."""
    return Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1)


def alertmanager(metrics: SinkMetrics) -> AlertmanagerSink:
    config = AlertmanagerConfig(urls=("http://127.0.0.1:1",))
    return AlertmanagerSink(nowhere(), "alerts", config, folder=Path(), metrics=metrics)


@pytest.mark.parametrize(
    ("previous", "firing"), [("1", 2), ("", 1)], ids=["only the verdicts were lost", "all was lost"]
)
async def test_an_alert_ends_unconfirmed_only_if_nobody_knows_any_more_what_was_announced(
    previous: str, firing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = alertmanager(SinkMetrics(CollectorRegistry()))
    monkeypatch.setattr("time.time", lambda: 2000.0)
    documents: list[EventData] = [EpochChanged(epoch="1"), started("node-1"), started("node-2")]
    documents += [EpochChanged(epoch="2", previous=previous), started("node-1")]
    for sequence, data in enumerate(documents, 1):
        sink._record(EventMessage("", sequence, 2000.0, event(data)))
    sink._book.forget(2000.0 + CONFIRM_SECONDS + 1)
    assert sink._book.firing == firing


class OtherSink:
    """A sink of another type, with the same name."""

    name, shared = "alerts", False

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_a_sink_of_another_type_has_no_metric_of_the_one_before() -> None:
    registry, changes = CollectorRegistry(), asyncio.Queue[Sequence[Sink]]()
    metrics = SinkMetrics(registry)
    first = alertmanager(metrics)

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"sink": "alerts"})

    notify = Notify(nowhere(), [first], metrics=metrics, changed=changes.get)
    running = asyncio.create_task(notify.run())
    await eventually(lambda: value("tas_notify_alerts") == 0.0)
    first._book.record(notice(started("node-1")), 2000.0)
    first._senders[0].changed.set()
    await eventually(lambda: (value("tas_notify_lag_seconds") or 0.0) > 0.0)  # nobody accepts the alert
    changes.put_nowait([OtherSink()])
    await eventually(lambda: value("tas_notify_alerts") is None and value("tas_notify_lag_seconds") == 0.0)
    assert metrics._lags == {}
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
