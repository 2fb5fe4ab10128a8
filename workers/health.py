"""The health port, told by a thread of its own, so that a process whose event loop stands still can say so.

What is told is made on the loop of the workers, as ever; only who listens is another. Code that runs without awaiting
(an extension that spins, a bug of ours) holds up everything on that loop, and a health server there would be the last
to tell. A call into C that holds the interpreter's lock holds up this thread too: then nobody answers.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import msgspec
import structlog
from aiohttp import web

log = structlog.get_logger("health")

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CHECK_SECONDS = 0.5
"""How often the loop is asked whether it turns."""

_LIBRARY = Path(threading.__file__).parent

STALL_CHECKS = 6
"""How many checks in a row it must miss. Checks are counted and not seconds: a process that was paused missed one."""


class Stall(msgspec.Struct, frozen=True):
    """What holds up a loop: for how long at least, the name of the task, and the line that runs."""

    seconds: float
    task: str | None
    at: str | None


@asynccontextmanager
async def told_apart(
    routes: Iterable[web.RouteDef],
    listening: Callable[[web.Application], AbstractAsyncContextManager[T]],
    *,
    on_stall: Callable[[], None] = lambda: None,
    check_seconds: float = CHECK_SECONDS,
) -> AsyncIterator[T]:
    """Serves `routes` within the body from a thread of its own, and yields what `listening` yields there.

    Handlers run on the loop of who calls this. While that loop stands still, every route gets 503 and what holds it up.

    Args:
        routes: What is told.
        listening: Serves an app within its body. What it raises is raised here.
        on_stall: Called in the other thread each time the loop begins to stand still.
        check_seconds: How often the loop is asked whether it turns.
    """
    teller = _Teller(routes, listening, on_stall=on_stall, check_seconds=check_seconds)
    thread = threading.Thread(target=teller.run, name="health", daemon=True)
    thread.start()
    try:
        yield await asyncio.wrap_future(teller.started)
    finally:
        teller.stop()
        await asyncio.wrap_future(teller.ended)


class _Teller(Generic[T]):
    """What runs in the thread."""

    def __init__(
        self,
        routes: Iterable[web.RouteDef],
        listening: Callable[[web.Application], AbstractAsyncContextManager[T]],
        *,
        on_stall: Callable[[], None],
        check_seconds: float,
    ) -> None:
        self.started: Future[T] = Future()
        self.ended: Future[None] = Future()
        self._routes = routes
        self._listening = listening
        self._on_stall = on_stall
        self._check_seconds = check_seconds
        self._watched = asyncio.get_running_loop()
        self._watched_thread = threading.get_ident()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._stalled = asyncio.Event()
        self._stall: Stall | None = None
        self._turned = True

    def run(self) -> None:
        """The thread's life."""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - whoever waits in the other thread is told
            if self.started.done():
                self.ended.set_exception(error)
            else:
                self.started.set_exception(error)
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        """Asks the thread to end; called from outside of it."""
        with suppress(RuntimeError):  # it has ended by itself, and its loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        app = web.Application()
        for route in self._routes:
            app.add_routes([web.RouteDef(route.method, route.path, partial(self._answer, route.handler), route.kwargs)])
        async with self._listening(app) as where:
            self.started.set_result(where)
            watch = asyncio.create_task(self._watch())
            try:
                await self._stop.wait()
            finally:
                watch.cancel()

    async def _answer(self, handler: Handler, request: web.Request) -> web.StreamResponse:
        """The handler's answer, unless its loop stands still before it is there."""
        if not self._stalled.is_set():
            answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(handler(request)), self._watched))
            stalled = asyncio.create_task(self._stalled.wait())
            either: set[asyncio.Future[Any]] = {answer, stalled}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    return answer.result()
            finally:
                stalled.cancel()
        body = {"ok": False, "ended": [], "stalled": self._stall}
        return web.Response(body=msgspec.json.encode(body) + b"\n", status=503, content_type="application/json")

    async def _watch(self) -> None:
        """Asks the loop again and again whether it turns."""
        missed = 0
        while True:
            if self._turned:
                self._turned = False
                self._watched.call_soon_threadsafe(self._note_turn)
            await asyncio.sleep(self._check_seconds)
            if self._turned:
                if self._stalled.is_set():
                    log.info("event_loop_turns_again", seconds=missed * self._check_seconds)
                missed = 0
                self._stalled.clear()
                continue
            missed += 1
            if missed >= STALL_CHECKS:
                self._tell(missed * self._check_seconds)

    def _note_turn(self) -> None:
        self._turned = True

    def _tell(self, seconds: float) -> None:
        task = asyncio.current_task(self._watched)
        frame = sys._current_frames().get(self._watched_thread)
        self._stall = Stall(
            seconds, None if task is None else task.get_name(), None if frame is None else _place(frame)
        )
        if not self._stalled.is_set():
            self._stalled.set()
            self._on_stall()
            stack = None if frame is None else "".join(traceback.format_stack(frame, limit=10))
            log.error("event_loop_stalled", seconds=seconds, task=self._stall.task, at=self._stall.at, stack=stack)


async def _awaited(answer: Awaitable[web.StreamResponse]) -> web.StreamResponse:
    return await answer


def _place(innermost: FrameType) -> str:
    """The line that runs, outside of the standard library: `extension.py:12 in filter`."""
    frame: FrameType | None = innermost
    while frame is not None and _is_library(Path(frame.f_code.co_filename)):
        frame = frame.f_back
    frame = frame or innermost
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_library(path: Path) -> bool:
    return path.is_relative_to(_LIBRARY) and "site-packages" not in path.parts
