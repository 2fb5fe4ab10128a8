"""How many messages a stream dropped before they were delivered."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.buckets import EVENTS
from bus.connection import Bus
from bus.deliveries import Deliveries


@pytest.mark.parametrize(
    ("created", "first", "missed"),
    [("now", 10, [4]), ("now", 3, []), ("now", 10**15, [14]), ("later", 10, []), ("later", 10**15, [])],
    ids=["dropped", "of other subjects", "all dropped", "another stream", "another stream without those of before"],
)
async def test_only_what_the_same_stream_has_dropped_counts(created: str, first: int, missed: list[int]) -> None:
    async def api(_: str) -> dict[str, Any]:
        return {"created": created, "state": {"first_seq": first}}

    found: list[int] = []
    bus = cast("Bus", SimpleNamespace(api=api))
    deliveries = Deliveries(
        bus, EVENTS, "d", ["_1"], lambda _: None, filter_subject=">", capacity=1, on_missed=found.append
    )
    deliveries._epoch, deliveries._delivered = "now", 5
    await deliveries._count_missed(until=20)
    assert found == missed
