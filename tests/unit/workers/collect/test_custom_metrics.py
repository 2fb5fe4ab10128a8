"""How long a metric that times out is skipped, and what is said of one without a slot."""

from contextlib import AsyncExitStack
from itertools import pairwise
from typing import cast

import pytest

from workers.collect.sources import custom_metrics
from workers.collect.sources.custom_metrics import MAX_CONCURRENT, PAUSE_SECONDS, CustomMetrics, _Failure, _Skipped
from workers.kubernetes.client import KubernetesClient


def test_the_pause_doubles_with_each_timeout_up_to_the_longest() -> None:
    first, longest = PAUSE_SECONDS
    skipped: list[_Skipped] = []
    for _ in range(10):
        skipped.append(_Skipped("slow", 100.0, skipped[-1] if skipped else None))
    pauses = [each.until - 100.0 for each in skipped]
    assert pauses[0] == first
    assert all(later == min(2 * earlier, longest) for earlier, later in pairwise(pauses))
    assert pauses[-1] == longest == 60.0


async def test_a_metric_that_gets_no_slot_had_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_metrics, "TURN_SECONDS", 0.001)
    source = CustomMetrics("custom-metrics", cast("KubernetesClient", None))
    async with AsyncExitStack() as slots:
        for number in range(MAX_CONCURRENT):
            await slots.enter_async_context(source._turns.slot(f"other_{number}"))
        failure = await source._read_one("load", "v1beta2")
    assert isinstance(failure, _Failure)
    assert source._missing([failure], set()).without_turn == {"load"}
