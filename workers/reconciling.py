"""Keys to be put right, each by one task at a time: as soon as it is noted, at a time, or again after a failure.

What is to be done is not in the queue: whoever handles a key looks at what is so by then. So a key that is noted ten
times is handled once, and nothing is lost if a failure comes between.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from tas.deadlines import Deadlines

RETRY_SECONDS = (0.1, 5.0)
"""The first and the longest wait after a failure; each is shortened by up to a half at random."""


class RetryError(Exception):
    """The key is to be handled again: what went wrong is the cause, told already or not worth telling.

    `pause` keeps all keys back for so many seconds, as when too much is asked.
    """

    def __init__(self, message: str, *, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class Reconciling:
    """Handles keys until cancelled.

    `handle` returns after how many seconds it wants to see the key again (None: not by itself), and raises RetryError
    where it could not do its work; anything else that it raises is a bug and ends `run`. A key that fails is not
    handled before its wait is over, however often it is noted meanwhile.
    """

    def __init__(self, handle: Callable[[str], Awaitable[float | None]], *, at_once: int) -> None:
        self._handle = handle
        self._at_once = at_once
        self._due: Deadlines[str] = Deadlines()
        self._busy: dict[str, float | None] = {}  # to when it is to be looked at again, if it was noted meanwhile
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._paused_until = 0.0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """How many keys are to be handled, or are being handled."""
        return len(self._due) + len(self._busy)

    @property
    def failing(self) -> int:
        """How many keys failed when they were last handled."""
        return len(self._failures)

    def note(self, key: str, *, after: float = 0.0) -> None:
        """The key is to be handled in so many seconds at the latest."""
        when = asyncio.get_running_loop().time() + after
        if key in self._busy:
            noted = self._busy[key]
            self._busy[key] = when if noted is None else min(noted, when)
            return
        self._set(key, when)

    def forget(self, key: str) -> None:
        """The key is no more: it is not handled by itself any more, until it is noted again."""
        self._due.discard(key)
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        if key in self._busy:
            self._busy[key] = None

    async def run(self) -> None:
        """Handles what is noted. What is in hand when it is cancelled is cancelled too."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._until_due(loop)
                # No more than there is room for: to take all and put them back costs more than to handle them.
                for key in self._due.pop_due(loop.time(), limit=self._at_once - len(self._busy)):
                    self._busy[key] = None
                    tasks.create_task(self._one(key), name=key)

    async def _until_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits until a key is due and there is room for it."""
        while True:
            self._changed.clear()
            next_due = self._due.next()
            wait: float | None = None
            if next_due is not None and len(self._busy) < self._at_once:
                wait = max(next_due, self._paused_until) - loop.time()
                if wait <= 0:
                    return
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _one(self, key: str) -> None:
        loop = asyncio.get_running_loop()
        again: float | None = None
        try:
            after = await self._handle(key)
            again = None if after is None else loop.time() + after
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
        except RetryError as error:
            again = self._failed(key, error, loop.time())
        finally:
            noted = self._busy.pop(key)
            self._changed.set()
        times = [when for when in (again, noted) if when is not None]
        if times:
            self._set(key, min(times))

    def _failed(self, key: str, error: RetryError, now: float) -> float:
        first, longest = RETRY_SECONDS
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        wait: float = min(first * 2 ** min(failures, 20), longest) * random.uniform(0.5, 1)  # noqa: S311 - spreads them
        self._paused_until = max(self._paused_until, now + error.pause)
        self._not_before[key] = now + wait
        return now + wait

    def _set(self, key: str, when: float) -> None:
        when = max(when, self._not_before.get(key, 0.0))
        standing = self._due.when(key)
        if standing is None or when < standing:
            self._due.set(key, when)
        self._changed.set()
