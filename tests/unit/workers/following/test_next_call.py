"""One call for all who wait: nobody gets the result of a call that had begun before the question."""

import asyncio
import gc
from contextlib import suppress
from weakref import ref

import pytest

from workers.following.next_call import NextCall


class Calls:
    """Calls that end when they are told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.ends = asyncio.Semaphore(0)

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        await self.ends.acquire()
        if number == 2:
            raise ValueError("the second call")
        return number


class NotConnectedError(Exception):
    """As the bus raises it."""


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_asks_during_a_call_shares_the_next_one() -> None:
    calls = Calls()
    call = NextCall(calls)
    first = asyncio.gather(*(call() for _ in range(3)))
    await turns()
    later = asyncio.gather(*(call() for _ in range(1000)), return_exceptions=True)
    await turns()
    assert calls.begun == 1
    calls.ends.release()
    assert await first == [1, 1, 1]
    await turns()
    assert calls.begun == 2
    last = asyncio.gather(call(), call())
    calls.ends.release()
    assert {str(each) for each in await later} == {"the second call"}
    calls.ends.release()
    assert list(await last) == [3, 3]


async def test_who_does_not_wait_any_more_ends_no_call_of_the_others() -> None:
    calls = Calls()
    call = NextCall(calls)
    one, other = asyncio.ensure_future(call()), asyncio.ensure_future(call())
    await turns()
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    calls.ends.release()
    assert await other == 1


async def test_calls_that_fail_keep_nothing_of_the_calls_before_them() -> None:
    """While there is no connection, each call fails, and an error has the frames of all who waited for the call."""
    errors: list[ref[NotConnectedError]] = []

    async def fail() -> None:
        error = NotConnectedError()
        errors.append(ref(error))
        raise error

    call = NextCall(fail)
    for _ in range(10):
        with suppress(NotConnectedError):
            await call()
    gc.collect()
    assert [error() is not None for error in errors] == [False] * 9 + [True]
