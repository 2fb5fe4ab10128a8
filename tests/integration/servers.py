"""A real nats-server for one test, and its faults; calls and conditions that are repeated."""

import asyncio
import functools
import os
import shutil
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from bus.errors import UnavailableError
from bus.server import STORE_BYTES, EmbeddedServer
from bus.trying import STALE, Tries
from tas.values.backoff import Backoff
from tests.e2e.processes import free_ports

T = TypeVar("T")

QUICKEST_POLL, SLOWEST_POLL = 0.01, 0.1
"""Seconds between the polls of a short and of a long wait."""

LONGEST_REST = 1.0
"""The most seconds between two polls that take long themselves."""


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    threading.Thread(target=loop.run_forever, name="servers of tests", daemon=True).start()
    return loop


async def elsewhere(call: Coroutine[Any, Any, T]) -> T:
    """The result of `call` in a loop of its own: what it starts may live longer than the loop of the test."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, _loop()))


class Server:
    """A server whose address and store stay the same over restarts.

    Attributes:
        store: The folder with all its files.
        is_disturbed: Whether it has been stopped, paused or restarted, or somebody reads its log.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.is_disturbed = False
        (self._port,) = free_ports(1)  # no other test gets it while the server does not run
        self._running: EmbeddedServer | None = None
        self._ending = AsyncExitStack()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def log(self) -> Path:
        self.is_disturbed = True
        return self.store / "nats-server.log"

    @property
    def pid(self) -> int:
        assert self._running is not None, "no server runs"
        return self._running.pid

    async def start(self, **options: Any) -> None:
        settings = {"store_bytes": STORE_BYTES, **options}
        starting = EmbeddedServer.start(self.store, port=self._port, **settings)
        self._running = await elsewhere(self._ending.enter_async_context(starting))

    async def stop(self) -> None:
        """Ends it in an orderly way: clients are notified."""
        self.is_disturbed = True
        await elsewhere(self._ending.aclose())
        self._running = None

    async def kill(self) -> None:
        """Ends it by SIGKILL."""
        self._signal(signal.SIGKILL)
        assert self._running is not None
        await elsewhere(self._running.wait())
        await self.stop()

    def pause(self) -> None:
        """Stops it by SIGSTOP: it stays connected and answers nothing. On return every thread is stopped."""
        self._signal(signal.SIGSTOP)
        assert self._running is not None
        threads = Path(f"/proc/{self._running.pid}/task")
        until = time.monotonic() + 30
        while threads.exists() and not all(map(_is_stopped, threads.iterdir())):  # only Linux has them
            assert time.monotonic() < until, "the server does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def restart(self, *, wiped: bool = False, **options: Any) -> None:
        """Kills it and starts it again; `wiped`: with an empty store."""
        await self.kill()
        if wiped:
            self.wipe()
        await self.start(**options)

    def wipe(self) -> None:
        """Deletes its store, while it does not run."""
        assert self._running is None, "the server runs"
        shutil.rmtree(self.store)

    def _signal(self, number: int) -> None:
        self.is_disturbed = True
        os.kill(self.pid, number)


def _is_stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended
        return True


async def answered(call: Callable[[], Awaitable[T]], *, within: float = 60.0) -> T:
    """The result of `call`, repeated while the server is too busy to answer it in time; it must be harmless twice.

    A write that was not sent, since its read was too old, or whose key somebody else has written, is repeated as well:
    such a call reads the key itself.
    """
    again = (*STALE, UnavailableError)
    try:
        return await call()  # most calls are polls that are answered: less work than to prepare a repetition
    except again:
        # Without a connection a call fails at once, and the loop must run to reconnect.
        return await Tries(again, within=within, wait=Backoff(first=0.02, longest=0.02)).of(call)


async def all_answered(calls: Iterable[Callable[[], Awaitable[object]]], *, at_once: int = 50) -> None:
    """Waits for many calls, each `answered`, so few at a time that a busy server answers them within their limit."""
    slots = asyncio.Semaphore(at_once)

    async def one(call: Callable[[], Awaitable[object]]) -> None:
        async with slots:
            await answered(call)

    await asyncio.gather(*map(one, calls))


async def eventually(
    holds: Callable[[], bool | Awaitable[bool]], *, within: float = 120.0, every: float | None = None
) -> float:
    """Waits until `holds()` is true, and returns the seconds of the wait; fails after `within` seconds.

    `every`: the seconds between two polls. By default the next poll is after an eighth of the wait so far, and after
    three times as long as the last one took, since a poll costs processor time that other tests need.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        polled = loop.time()
        answer = holds()
        if not isinstance(answer, bool):
            answer = await answer
        waited, took = loop.time() - began, loop.time() - polled
        if answer:
            return waited
        assert waited < within, f"not true within {within:g} s: {holds}"
        rest = max(min(max(waited / 8, QUICKEST_POLL), SLOWEST_POLL), min(3 * took, LONGEST_REST))
        await asyncio.sleep(rest if every is None else every)
