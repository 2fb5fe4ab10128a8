"""The removal of nodes that have left from the records of breakers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from tas.enforcing.brake import BrakeSettings
from workers.labels.brake_loop import BrakeLoop

TURNS = 1000


class Records:
    """Two breakers. After the first write the policies are unknown, as at the beginning of an epoch of POLICIES."""

    breakers = ("p", "q")

    def __init__(self) -> None:
        self.ready = True
        self.replaced: list[str] = []

    async def replace(self, key: str, _change: object) -> None:
        self.replaced.append(key)
        self.ready = False


async def test_no_record_is_tidied_once_the_policies_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breaker that has tripped may have no nodes: without its policy its record would be deleted, and the freeze."""
    monkeypatch.setattr("workers.labels.brake_loop.TIDY_SECONDS", 0.0)
    records = Records()
    other: Any = SimpleNamespace(held=True)
    loop = BrakeLoop(
        Bus("nats://127.0.0.1:1", name="test", streams=(), replicas=1),  # it never connects
        BrakeSettings(),
        registry=CollectorRegistry(),
        lease=other,
        nodes=other,
        inputs=other,
        is_ready=lambda: records.ready,
        on_change=lambda: None,
    )
    monkeypatch.setattr(loop, "_records", records)
    tidying = asyncio.create_task(loop._tidy())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    tidying.cancel()
    assert records.replaced == ["p"]
