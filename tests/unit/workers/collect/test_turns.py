"""The order of metrics of which one poll cannot read all."""

import asyncio
from contextlib import AsyncExitStack

from workers.collect.sources.base import Turns

METRICS = frozenset({"a", "b", "c", "d", "e", "f", "g"})


def test_of_more_metrics_than_three_polls_can_read_each_has_its_turn() -> None:
    turns = Turns(8)
    read: list[str] = []
    for _ in range(7):
        for metric in turns.order(METRICS)[:2]:
            turns.had(metric)
            read.append(metric)
    assert read == [*"abcdefg"] * 2


def test_a_new_metric_comes_first_and_a_skipped_one_keeps_its_place() -> None:
    turns = Turns(8)
    for metric in turns.order(frozenset("abc")):
        turns.had(metric)
    assert turns.order(frozenset("abcd"), skipped={"a"}) == [*"dbc"]
    assert turns.order(frozenset("abcd")) == [*"dabc"]
    assert turns.order(frozenset("cd")) == [*"dc"]
    assert turns.order(frozenset("abc")) == [*"abc"], "of a metric that is no longer asked for something is kept"


async def test_metrics_without_an_answer_in_time_have_half_of_the_slots_until_one_comes() -> None:
    turns = Turns(4)
    slow = [f"slow_{number}" for number in range(4)]
    turns.order(frozenset({*slow, "quick"}))
    for metric in slow:
        turns.had(metric, in_time=False)
    requested: list[str] = []

    async def request(metric: str) -> None:
        async with turns.slot(metric):
            requested.append(metric)
            await asyncio.Event().wait()

    async with AsyncExitStack() as ended:
        for metric in (*slow, "quick"):
            task = asyncio.create_task(request(metric))
            ended.callback(task.cancel)
        await asyncio.sleep(0)
        assert requested == ["slow_0", "slow_1", "quick"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    turns.had("slow_0")
    async with AsyncExitStack() as slots:
        for metric in slow[:3]:  # one of them is no longer slow
            await slots.enter_async_context(turns.slot(metric))
