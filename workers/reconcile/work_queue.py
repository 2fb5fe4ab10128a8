"""A work queue: keys to be reconciled now or later, each by one task at a time, and again after a failure.

The queue holds only keys: the handler compares current and desired state when it handles a key. So a key that is added
ten times is handled once, and a failure loses nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import Gauge

from tas.values.backoff import Backoff
from tas.values.nouns import counted
from tas.view.deadlines import Deadlines

RETRY = Backoff(first=0.1, longest=5.0)
"""The waits after failures of a key."""

LOST_SECONDS = 1.0
"""The pause after a key could not be handled without a connection to the bus: until then the others cannot either."""


class RequeueError(Exception):
    """Raised by a handler to have the key handled again. The handler logs the cause, if necessary.

    `pause` stops the whole queue for so many seconds, for example when the API server throttles. `too_slow` means that
    the key took too long: then the queue handles half as many keys at once.
    """

    def __init__(self, message: str, *, pause: float = 0.0, too_slow: bool = False) -> None:
        super().__init__(message)
        self.pause = pause
        self.too_slow = too_slow


class WorkQueue:
    """Handles keys until cancelled.

    `handle` returns the seconds after which the key is added again (None: never), and raises RequeueError after a
    failure; any other error is a bug and ends `run`. A key that failed is not handled before its backoff has ended,
    even if it is added meanwhile. At most `max_concurrent` keys are handled at once: fewer after keys that took too
    long, and one more after each success.
    """

    def __init__(self, handle: Callable[[str], Awaitable[float | None]], *, max_concurrent: int) -> None:
        self._handle = handle
        self._max_concurrent = max_concurrent
        self._at_once = max_concurrent
        self._due: Deadlines[str] = Deadlines()
        self._busy: dict[str, float | None] = {}  # the time of the next turn, if the key was added meanwhile
        self._forgotten: set[str] = set()  # while they were handled
        self._failures: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._not_before: dict[str, float] = {}
        self._paused_until = 0.0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """The number of keys that wait or are being handled."""
        return len(self._due) + len(self._busy)

    @property
    def failing(self) -> int:
        """The number of keys that failed more than once in a row: one conflict is nothing."""
        return len(self._failing())

    def export(self, pending: Gauge, failing: Gauge) -> None:
        """Has the gauges show how many keys wait, and how many fail."""
        pending.set_function(lambda: len(self))
        failing.set_function(lambda: self.failing)

    def concerns(self, noun: str) -> Iterator[str]:
        """A sentence about the keys that fail, each a `noun`."""
        if failing := self._failing():
            first = min(failing)
            yield f"{counted(len(failing), noun)} cannot be written, as {first}: {self._reasons[first]}"

    def add(self, key: str, *, after: float = 0.0) -> None:
        """Adds a key, to be handled after so many seconds or earlier."""
        when = asyncio.get_running_loop().time() + after
        if key in self._busy:
            added = self._busy[key]
            self._busy[key] = when if added is None else min(added, when)
            return
        self._set(key, when)

    def forget(self, key: str) -> None:
        """Removes the key and its backoff. If it is being handled, it is not handled again for the result of that."""
        self._due.discard(key)
        self._end_failures(key)
        if key in self._busy:
            self._busy[key] = None
            self._forgotten.add(key)

    async def run(self) -> None:
        """Handles keys until cancelled; then cancels the running handlers."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._until_due(loop)
                # Only as many as can run: it costs much to take all due keys and put the rest back.
                for key in self._due.pop_due(loop.time(), limit=self._at_once - len(self._busy)):
                    self._busy[key] = None
                    tasks.create_task(self._handle_key(key), name=key)

    async def _until_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits until a key is due and can be handled."""
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

    async def _handle_key(self, key: str) -> None:
        loop = asyncio.get_running_loop()
        retry_at: float | None = None
        try:
            after = await self._handle(key)
            retry_at = None if after is None else loop.time() + after
            self._end_failures(key)
            self._at_once = min(self._max_concurrent, self._at_once + 1)
        except RequeueError as error:
            retry_at = self._failed(key, error, loop.time())
        finally:
            added = self._busy.pop(key)
            self._changed.set()
        if key in self._forgotten:
            self._forgotten.discard(key)
            self._end_failures(key)
            retry_at = None
        times = [when for when in (retry_at, added) if when is not None]
        if times:
            self._set(key, min(times))

    def _failing(self) -> list[str]:
        return [key for key, count in self._failures.items() if count > 1]

    def _end_failures(self, key: str) -> None:
        self._failures.pop(key, None)
        self._reasons.pop(key, None)
        self._not_before.pop(key, None)

    def _failed(self, key: str, error: RequeueError, now: float) -> float:
        self._failures[key] = self._failures.get(key, 0) + 1
        self._reasons[key] = str(error)
        self._paused_until = max(self._paused_until, now + error.pause)
        if error.too_slow:
            self._at_once = max(1, self._at_once // 2)
        self._not_before[key] = now + RETRY.after(self._failures[key])
        return self._not_before[key]

    def _set(self, key: str, when: float) -> None:
        when = max(when, self._not_before.get(key, 0.0))
        due = self._due.when(key)
        if due is None or when < due:
            self._due.set(key, when)
        self._changed.set()
