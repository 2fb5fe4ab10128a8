"""The interface of a source that `collect` polls every period.

A source knows no bus, lease or policy. A `Source` gets the names of the metrics that policies use, and returns a
`tas.sources.result.SourceResult`. `collect` decides when to poll, sets the time limit, publishes the samples and writes
the state.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from itertools import count
from typing import Protocol, TypeVar

from tas.sources.result import SourceResult


class SourceError(Exception):
    """A source gave no value at all; the message is for a person. `retry_after`: the requested delay in seconds."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


LARGE_BYTES = 64 << 10
"""Responses of this size or more are decoded in a thread: a response for 500 nodes has 60 to 100 kB."""

T = TypeVar("T")


class Reader:
    """Decodes responses of a source: small ones at once, large ones in a thread.

    Decoding 15,000 nodes takes a tenth of a second, in which an extender of the same process answers and leases are
    renewed. Only one large response is decoded at a time: several threads would block the event loop too.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def read(self, decode: Callable[[], T], *, size: int, begins: Callable[[], object] = lambda: None) -> T:
        """The result of `decode`, for a response of `size` bytes. Raises the errors of `decode`.

        `begins` is called when its turn has come.
        """
        if size < LARGE_BYTES:
            return decode()
        async with self._lock:
            begins()
            return await asyncio.to_thread(decode)


class Turns:
    """Whose turn it is: if one poll cannot read all metrics, those come first that have waited longest.

    Metrics whose last request had no answer in time have half of the slots at most, so that the others go on.
    """

    def __init__(self, slots: int) -> None:
        """At most `slots` metrics are requested at the same time."""
        self._last: dict[str, int] = {}
        self._count = count(1)
        self._slow: set[str] = set()
        self._slots = asyncio.Semaphore(slots)
        self._slots_of_slow = asyncio.Semaphore((slots + 1) // 2)

    def order(self, metrics: frozenset[str], skipped: Collection[str] = ()) -> list[str]:
        """The metrics in the order of their turns, without those that are skipped. Others are forgotten."""
        self._last = {metric: turn for metric, turn in self._last.items() if metric in metrics}
        self._slow &= metrics
        return sorted(metrics.difference(skipped), key=lambda metric: (self._last.get(metric, 0), metric))

    @asynccontextmanager
    async def slot(self, metric: str) -> AsyncIterator[None]:
        """A slot, in which the metric may be requested."""
        async with self._slots_of_slow if metric in self._slow else nullcontext(), self._slots:
            yield

    def had(self, metric: str, *, in_time: bool = True) -> None:
        """Notes that a metric has had its turn, and whether an answer came in time."""
        self._last[metric] = next(self._count)
        if in_time:
            self._slow.discard(metric)
        else:
            self._slow.add(metric)


class Source(Protocol):
    """A source that is polled. One `read` at a time, from one task."""

    @property
    def name(self) -> str:
        """The source of its samples, which a rule may name; `[a-z0-9-]+`."""
        ...

    async def read(self, metrics: frozenset[str]) -> SourceResult:
        """The current values of `metrics` (never empty), under these names, of all nodes.

        If only some metrics fail, they are in `missing`. May be cancelled at any point at the time limit. Raises
        SourceError if no value could be read. Any other error is a bug, logged as such, and the poll is retried.
        """
        ...
