"""Stalls of the event loop, logged by a separate thread: code that runs without awaiting blocks everything else.

A call into C that holds the interpreter's lock blocks this thread too: such a stall is not logged.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

log = structlog.get_logger("runtime")

CHECK_SECONDS = 1.0
"""How often the thread checks that the loop runs."""

STALL_CHECKS = 3
"""How many checks in a row the loop must miss. Counted instead of seconds: a paused process misses only one check."""

_LIBRARY = Path(threading.__file__).parent


@asynccontextmanager
async def stalls_logged(on_stall: Callable[[], None], *, check_seconds: float = CHECK_SECONDS) -> AsyncIterator[None]:
    """Logs stalls of the running loop within the body. `on_stall` is called in the thread for each logged stall."""
    loop, loop_thread, ended = asyncio.get_running_loop(), threading.get_ident(), threading.Event()

    def watch() -> None:
        turned = threading.Event()
        turned.set()
        missed = 0
        while not ended.wait(check_seconds):
            if turned.is_set():
                if missed >= STALL_CHECKS:
                    log.info("event_loop_resumed", seconds=missed * check_seconds)
                missed = 0
                turned.clear()
                loop.call_soon_threadsafe(turned.set)
                continue
            missed += 1
            if missed == STALL_CHECKS:
                _log_stall(loop, loop_thread, missed * check_seconds)
                on_stall()

    thread = threading.Thread(target=watch, name="stalls", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _log_stall(loop: asyncio.AbstractEventLoop, thread: int, seconds: float) -> None:
    task = asyncio.current_task(loop)
    name = None if task is None else task.get_name()
    stack = traceback.extract_stack(sys._current_frames()[thread])
    line = next((line for line in reversed(stack) if not _is_library(Path(line.filename))), stack[-1])
    at = f"{Path(line.filename).name}:{line.lineno} in {line.name}"
    log.error(
        "event_loop_stalled", seconds=seconds, task=name, at=at, stack="".join(traceback.format_list(stack[-10:]))
    )


def _is_library(path: Path) -> bool:
    return path.is_relative_to(_LIBRARY) and "site-packages" not in path.parts
