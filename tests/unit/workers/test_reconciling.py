"""The queue of keys that are to be put right."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest

from tas.deadlines import Deadlines
from tests.integration.servers import eventually
from workers.reconciling import Reconciling, RetryError

Handle = Callable[[str], Awaitable[float | None]]


@asynccontextmanager
async def running(handle: Handle, *, at_once: int = 4) -> AsyncIterator[Reconciling]:
    queue = Reconciling(handle, at_once=at_once)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_key_that_is_noted_often_is_handled_once() -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        handled.append(key)

    async with running(handle) as queue:
        for _ in range(10):
            queue.note("a")
        queue.note("b")
        await eventually(lambda: len(queue) == 0)
    assert handled == ["a", "b"]


async def test_a_key_noted_while_it_is_handled_is_handled_again_and_never_twice_at_once() -> None:
    busy: list[str] = []
    handled: list[str] = []
    go_on = asyncio.Event()

    async def handle(key: str) -> None:
        assert key not in busy
        busy.append(key)
        await go_on.wait()
        busy.remove(key)
        handled.append(key)

    async with running(handle) as queue:
        queue.note("a")
        await eventually(lambda: busy == ["a"])
        queue.note("a")
        queue.note("a")
        go_on.set()
        await eventually(lambda: len(queue) == 0)
    assert handled == ["a", "a"]


async def test_no_more_than_so_many_are_handled_at_once_and_none_is_forgotten() -> None:
    most = now = 0
    handled: set[str] = set()

    async def handle(key: str) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        handled.add(key)

    async with running(handle, at_once=3) as queue:
        for number in range(20):
            queue.note(str(number))
        await eventually(lambda: len(handled) == 20)
    assert most == 3


async def test_many_keys_at_once_are_each_taken_once_and_in_the_order_in_which_they_were_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when 15,000 nodes are to be judged: who takes all that is due with each turn is busy for minutes."""
    keys = [f"node-{number}" for number in range(2000)]
    taken, handled = 0, []
    take = Deadlines.pop_due

    def counted(due: Deadlines[str], now: float, *, limit: float) -> list[str]:
        nonlocal taken
        popped = take(due, now, limit=limit)
        taken += len(popped)
        return popped

    async def handle(key: str) -> None:
        handled.append(key)
        await asyncio.sleep(0)

    monkeypatch.setattr(Deadlines, "pop_due", counted)
    async with running(handle) as queue:
        for key in keys:
            queue.note(key)
        await eventually(lambda: len(queue) == 0)
    assert handled == keys
    assert taken == len(keys)


async def test_a_failure_is_tried_again_later_each_time_and_a_note_does_not_hasten_it() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def handle(_: str) -> None:
        times.append(loop.time())
        if len(times) < 4:
            raise RetryError("not now")

    async with running(handle) as queue:
        queue.note("a")
        await eventually(lambda: queue.failing == 1)
        for _ in range(5):
            queue.note("a")
        await eventually(lambda: len(times) == 4 and len(queue) == 0 and queue.failing == 0)
    first, second, third = (later - earlier for earlier, later in pairwise(times))
    assert first >= 0.05
    assert second >= 0.1
    assert third >= 0.2


async def test_a_pause_holds_all_keys_back() -> None:
    loop = asyncio.get_running_loop()
    handled: dict[str, float] = {}

    async def handle(key: str) -> None:
        if key == "throttled" and key not in handled:
            handled[key] = loop.time()
            raise RetryError("too much", pause=0.3)
        handled.setdefault(key, loop.time())

    async with running(handle) as queue:
        queue.note("throttled")
        await eventually(lambda: queue.failing == 1)
        queue.note("b")
        await eventually(lambda: "b" in handled)
    assert handled["b"] - handled["throttled"] >= 0.3


async def test_a_key_may_ask_to_be_seen_again_and_is_seen_no_more_once_forgotten() -> None:
    times = 0

    async def handle(_: str) -> float:
        nonlocal times
        times += 1
        return 0.01

    async with running(handle) as queue:
        queue.note("a")
        await eventually(lambda: times >= 3)
        queue.forget("a")
        await eventually(lambda: len(queue) == 0)


async def test_a_bug_ends_it() -> None:
    async def handle(_: str) -> None:
        raise ValueError("a bug")

    queue = Reconciling(handle, at_once=1)
    queue.note("a")
    with pytest.raises(ExceptionGroup) as raised:
        await queue.run()
    assert raised.group_contains(ValueError)
