"""One call for all who wait for its result.

A read that begins after a question is an answer to it, and so to all questions that were asked before it began. So
while one read goes on, all who ask meanwhile share the next one: a thousand nodes in flight cost two reads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class NextCall(Generic[T]):
    """Calls `call` again and again, never twice at the same time."""

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The result of a call that begins after this question. Raises as `call` does."""
        if self._next is None:
            self._next = asyncio.create_task(self._begin(self._running))
            self._next.add_done_callback(_take_exception)
        return await asyncio.shield(self._next)

    async def _begin(self, before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait([before])
            del before  # else the traceback of an error would keep the call before, its error, the call before that, …
        self._running, self._next = self._next, None
        return await self._call()


def _take_exception(task: "asyncio.Task[T]") -> None:
    """Takes the exception of a call for which nobody waits any more."""
    if not task.cancelled():
        task.exception()
