"""Work that several parts of a process need, done once, and only while somebody needs it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class SharedTask:
    """Runs `work`, which never returns, while at least one caller waits in `run`.

    An exception of `work` is a bug, and each of these callers gets it; the last one also if it was cancelled meanwhile.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._users = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def users(self) -> int:
        """How many callers wait in `run`."""
        return self._users

    async def settled(self) -> None:
        """Waits until work that everybody has left has ended."""
        while self._task is not None and self._task.cancelling():
            await asyncio.wait([self._task])
            self._forget(self._task)

    async def run(self) -> None:
        """Takes part until cancelled. The last one to leave ends the work, and waits for its end."""
        self._users += 1
        try:
            await self.settled()
            if self._task is None:
                self._task = asyncio.create_task(self._work())
            await asyncio.wait([self._task])
            self._task.result()
        finally:
            self._users -= 1
            if self._users == 0 and (task := self._task) is not None:
                task.cancel()
                await asyncio.wait([task])
                self._forget(task)
                if not task.cancelled():
                    task.result()

    def _forget(self, ended: "asyncio.Task[None]") -> None:
        if self._task is ended:
            self._task = None
