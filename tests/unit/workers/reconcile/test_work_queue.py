"""The queue of keys that must be reconciled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest

from tas.values.backoff import Backoff
from tas.view.deadlines import Deadlines
from tests.integration.servers import eventually
from workers.reconcile import work_queue
from workers.reconcile.work_queue import RequeueError, WorkQueue

Handle = Callable[[str], Awaitable[float | None]]


@asynccontextmanager
async def running(handle: Handle, *, max_concurrent: int = 4) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(handle, max_concurrent=max_concurrent)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_key_that_is_added_often_is_handled_once() -> None:
    handled: list[str] = []

    async def handle(key: str) -> None:
        handled.append(key)

    async with running(handle) as queue:
        for _ in range(10):
            queue.add("a")
        queue.add("b")
        await eventually(lambda: len(queue) == 0)
    assert handled == ["a", "b"]


async def test_a_key_added_while_it_is_handled_is_handled_again_and_never_twice_at_once() -> None:
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
        queue.add("a")
        await eventually(lambda: busy == ["a"])
        queue.add("a")
        queue.add("a")
        go_on.set()
        await eventually(lambda: len(queue) == 0)
    assert handled == ["a", "a"]


@pytest.mark.parametrize("order", [1, -1], ids=["sooner-first", "later-first"])
@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "busy"])
async def test_of_several_times_of_a_key_the_earliest_counts(order: int, busy: bool) -> None:
    handled = 0
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_: str) -> float:
        nonlocal handled
        begun.set()
        await go_on.wait()
        handled += 1
        return 600.0

    async with running(handle) as queue:
        if busy:
            queue.add("a")
            await begun.wait()
        for after in (0.0, 600.0)[::order]:
            queue.add("a", after=after)
        go_on.set()
        await eventually(lambda: handled == 1 + busy)
        assert len(queue) == 1  # the turn that the handler returned


async def test_a_forgotten_key_is_not_handled_again() -> None:
    handled: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(key: str) -> None:
        begun.set()
        await go_on.wait()
        handled.append(key)

    async with running(handle) as queue:
        queue.add("a")
        await begun.wait()
        queue.add("a")
        queue.forget("a")
        go_on.set()
        await eventually(lambda: len(queue) == 0)
    assert handled == ["a"]


async def test_a_forgotten_key_loses_its_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a node that is deleted and created again."""
    monkeypatch.setattr(work_queue, "RETRY", Backoff(first=600.0, longest=600.0))
    times = 0

    async def handle(_: str) -> None:
        nonlocal times
        times += 1
        raise RequeueError("not now")

    async with running(handle) as queue:
        queue.add("a")
        await eventually(lambda: times == 1)
        queue.forget("a")
        queue.add("a")
        await eventually(lambda: times == 2)


async def test_a_key_added_while_others_are_handled_waits_for_the_limit() -> None:
    busy = 0
    most = 0
    go_on = asyncio.Event()

    async def handle(_: str) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await go_on.wait()
        busy -= 1

    async with running(handle, max_concurrent=3) as queue:
        queue.add("first")
        await eventually(lambda: busy == 1)
        for number in range(5):
            queue.add(str(number))
        await eventually(lambda: busy >= 3)
        go_on.set()
        await eventually(lambda: len(queue) == 0)
    assert most == 3


async def test_at_most_max_concurrent_keys_are_handled_at_once_and_none_is_lost() -> None:
    most = now = 0
    handled: set[str] = set()

    async def handle(key: str) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        handled.add(key)

    async with running(handle, max_concurrent=3) as queue:
        for number in range(20):
            queue.add(str(number))
        await eventually(lambda: len(handled) == 20)
    assert most == 3


async def test_many_keys_are_each_taken_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for 15,000 nodes: a queue that takes all due keys at each turn is busy for minutes."""
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
            queue.add(key)
        await eventually(lambda: len(queue) == 0)
    assert handled == keys
    assert taken == len(keys)


async def test_a_failed_key_waits_longer_each_time_also_if_it_is_added_again() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def handle(_: str) -> None:
        times.append(loop.time())
        if len(times) < 4:
            raise RequeueError("not now")

    async with running(handle) as queue:
        queue.add("a")
        await eventually(lambda: len(times) == 1)
        for _ in range(5):
            queue.add("a")
        await eventually(lambda: len(times) == 4 and len(queue) == 0 and queue.failing == 0)
    first, second, third = (later - earlier for earlier, later in pairwise(times))
    assert first >= 0.05
    assert second >= 0.1
    assert third >= 0.2


async def test_a_pause_delays_all_keys() -> None:
    loop = asyncio.get_running_loop()
    handled: dict[str, float] = {}

    async def handle(key: str) -> None:
        if key == "throttled" and key not in handled:
            handled[key] = loop.time()
            raise RequeueError("too much", pause=0.3)
        handled.setdefault(key, loop.time())

    async with running(handle) as queue:
        queue.add("throttled")
        await eventually(lambda: "throttled" in handled)
        queue.add("b")
        await eventually(lambda: "b" in handled)
    assert handled["b"] - handled["throttled"] >= 0.3


async def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    loop = asyncio.get_running_loop()
    handled: dict[str, float] = {}
    throttled = asyncio.Event()

    async def handle(key: str) -> None:
        if key in handled:
            return
        if key == "short":
            await throttled.wait()
        handled[key] = loop.time()
        if key == "long":
            throttled.set()
            raise RequeueError("too much", pause=0.3)
        if key == "short":
            raise RequeueError("not now")

    async with running(handle) as queue:
        queue.add("short")
        queue.add("long")
        await eventually(lambda: handled.keys() == {"short", "long"})
        queue.add("b")
        await eventually(lambda: "b" in handled)
    assert handled["b"] - handled["long"] >= 0.3


@pytest.mark.parametrize("fails", [False, True])
async def test_a_key_that_is_forgotten_while_it_is_handled_is_not_handled_again(fails: bool) -> None:
    handling, forgotten, times = asyncio.Event(), asyncio.Event(), 0

    async def handle(_: str) -> float:
        nonlocal times
        times += 1
        handling.set()
        await forgotten.wait()
        if fails:
            raise RequeueError("not now")
        return 0.0

    async with running(handle) as queue:
        queue.add("a")
        await handling.wait()
        queue.forget("a")
        forgotten.set()
        await eventually(lambda: len(queue) == 0)
        assert (times, queue.failing) == (1, 0)
        queue.add("a")
        await eventually(lambda: times > 1)


async def test_a_key_is_handled_again_after_the_returned_time_until_forgotten() -> None:
    times = 0

    async def handle(_: str) -> float:
        nonlocal times
        times += 1
        return 0.01

    async with running(handle) as queue:
        queue.add("a")
        await eventually(lambda: times >= 3)
        queue.forget("a")
        await eventually(lambda: len(queue) == 0)


async def test_a_bug_ends_the_queue() -> None:
    async def handle(_: str) -> None:
        raise ValueError("a bug")

    queue = WorkQueue(handle, max_concurrent=1)
    queue.add("a")
    with pytest.raises(ExceptionGroup) as raised:
        await queue.run()
    assert raised.group_contains(ValueError)


async def test_keys_that_take_too_long_together_are_handled_fewer_at_once_and_more_again_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_queue, "RETRY", Backoff(first=0.001, longest=0.001))
    busy, most, failed, limit = 0, 0, 0, 2
    handled: list[str] = []

    async def handle(key: str) -> None:
        nonlocal busy, most, failed
        busy += 1
        most = max(most, busy)
        is_too_slow = busy > limit
        await asyncio.sleep(0.001)
        busy -= 1
        if is_too_slow:
            failed += 1
            raise RequeueError("too slow", too_slow=True)
        handled.append(key)

    async with running(handle, max_concurrent=16) as queue:
        for number in range(64):
            queue.add(f"a{number}")
        await eventually(lambda: len(queue) == 0)
        assert failed < 200
        most, limit = 0, 16
        for number in range(64):
            queue.add(f"b{number}")
        await eventually(lambda: len(queue) == 0)
    assert (len(set(handled)), most) == (128, 16)


async def test_a_key_fails_after_more_than_one_failure_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 changes a second, of which one in 20 conflicts, some key has always failed once: no alert is to see it."""
    monkeypatch.setattr(work_queue, "RETRY", Backoff(first=0.001, longest=0.001))
    seen: list[int] = []

    async def handle(_: str) -> None:
        seen.append(queue.failing)
        if len(seen) in (1, 2, 4):
            raise RequeueError("conflict")
        if len(seen) == 3:
            queue.add("a")

    async with running(handle) as queue:
        queue.add("a")
        await eventually(lambda: len(seen) == 5 and len(queue) == 0)
        assert seen == [0, 0, 1, 0, 0]
        assert queue.failing == 0


async def test_only_keys_that_fail_again_are_a_concern_until_they_succeed() -> None:
    """A conflict of two replicas is gone at the next attempt; an API server that refuses is not."""
    refusing = True

    async def handle(key: str) -> None:
        if refusing and key != "well":
            raise RequeueError(f"{key} is forbidden")

    async with running(handle) as queue:
        queue.add("well")
        queue.add("node-2")
        await eventually(lambda: queue.failing == 1)
        queue.add("node-1")
        await eventually(lambda: list(queue.concerns("node")) != [])
        await eventually(
            lambda: list(queue.concerns("node")) == ["2 nodes cannot be written, as node-1: node-1 is forbidden"]
        )
        refusing = False
        await eventually(lambda: list(queue.concerns("node")) == [])
