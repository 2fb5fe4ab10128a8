"""The records of refused labels on a bus that refuses one of them."""

import asyncio
from typing import Any, cast

import pytest

from bus.connection import Bus
from bus.errors import RefusedError
from tas.enforcing.memory import DeclinedChange
from tas.enforcing.refusals import Refusals
from tas.policy.policy import LABEL_PREFIX
from workers.reconcile import refusal_records
from workers.reconcile.refusal_records import RefusalRecords

CHECKS = 5


class Kind:
    """Counts how often all records are asked for; one of no policy is no key of a bucket."""

    def __init__(self) -> None:
        self.listed = 0

    async def entries(self, _bus: Bus) -> list[Any]:
        self.listed += 1
        return []

    async def get(self, _bus: Bus, name: str) -> None:
        assert name == ""
        raise RefusedError("no key of a bucket")


async def test_a_record_that_the_bus_always_refuses_has_all_others_compared_no_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, checks, done = Kind(), 0, asyncio.Event()

    async def tick(_seconds: float) -> None:
        nonlocal checks
        checks += 1
        if checks > CHECKS:
            done.set()
        await asyncio.sleep(0)

    monkeypatch.setattr(refusal_records, "tick", tick)
    refusals = Refusals()
    refusals.begin([])
    refusals.set("a", {f"{LABEL_PREFIX}odd": DeclinedChange("violating", "why")})
    records = RefusalRecords(cast("Bus", None), refusals, cast("Any", kind), is_active=lambda: True)
    running = asyncio.create_task(records.run())
    await done.wait()
    running.cancel()
    await asyncio.wait((running,))
    assert kind.listed == 1
