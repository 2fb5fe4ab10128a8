"""Work that is done while somebody needs it."""

import asyncio
from contextlib import suppress

import pytest

from bus.shared_task import SharedTask


class Work:
    """Counts its beginnings and ends; it ends slowly, once `may_end` is set."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.fails = asyncio.Event()

    async def run(self) -> None:
        assert self.begun == self.ended, "two at a time"
        self.begun += 1
        try:
            await self.fails.wait()
            raise ZeroDivisionError
        finally:
            await self.may_end.wait()
            self.ended += 1


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_it_runs_once_and_ends_with_the_last_one() -> None:
    work = Work()
    shared = SharedTask(work.run)
    first, second = (asyncio.create_task(shared.run()) for _ in range(2))
    await some_turns()
    assert (work.begun, work.ended, shared.users) == (1, 0, 2)
    await end(first)
    assert work.ended == 0
    await end(second)
    assert (work.ended, shared.users) == (1, 0)


async def test_who_comes_while_it_ends_begins_it_again_afterwards() -> None:
    work = Work()
    shared = SharedTask(work.run)
    first = asyncio.create_task(shared.run())
    await some_turns()
    work.may_end.clear()
    first.cancel()
    await some_turns()
    second = asyncio.create_task(shared.run())
    await some_turns()
    assert (work.begun, work.ended) == (1, 0)
    work.may_end.set()
    await some_turns()
    assert (work.begun, work.ended) == (2, 1)
    await end(second)
    assert work.ended == 2


async def test_all_get_its_exception_and_who_comes_later_begins_it_again() -> None:
    work = Work()
    shared = SharedTask(work.run)
    tasks = [asyncio.create_task(shared.run()) for _ in range(2)]
    await some_turns()
    work.fails.set()
    for task in tasks:
        with pytest.raises(ZeroDivisionError):
            await task
    work.fails.clear()
    later = asyncio.create_task(shared.run())
    await some_turns()
    assert work.begun == 2
    assert not later.done()
    await end(later)


async def test_its_exception_is_not_lost_if_the_last_one_is_cancelled_at_that_moment() -> None:
    work = Work()
    shared = SharedTask(work.run)
    last = asyncio.create_task(shared.run())
    await some_turns()
    work.fails.set()
    await asyncio.sleep(0)  # it has failed, and nobody has been told yet
    last.cancel()
    with pytest.raises(ZeroDivisionError):
        await last
