"""Runs the event loop of a command until no task is left."""

import asyncio
import os
import socket
import sys
from collections.abc import Coroutine
from typing import Any

import structlog
import uvloop

log = structlog.get_logger("tas")

LEFTOVER_ATTEMPTS = 20
"""How often a remaining task is cancelled at the end, every 0.1 s."""


def run_to_end(body: Coroutine[Any, Any, int]) -> int:
    """Runs `body` on a new uvloop, and returns its exit code when no task is left.

    asyncio cancels each remaining task once, but Python 3.11's `wait_for` and some libraries swallow one cancellation:
    so tasks are cancelled several times. If a task swallows all of them, for example in an extension, the process exits
    at once.
    """
    return uvloop.run(_run_and_cancel_rest(body), loop_factory=Loop)


class Loop(uvloop.Loop):
    """A uvloop on which a connection over a given socket closes the socket's file descriptor only once.

    aiohttp connects a socket and gives it to the loop. If the other side resets the connection at once, uvloop closes
    the descriptor, but the socket keeps its number and closes this number later. By then it may belong to another
    connection. libuv then ends the process by `abort()` without a word (https://github.com/libuv/libuv/issues/5130).
    This happened when an API server was restarted. uvloop 0.23 mends only a connection that is cancelled
    (https://github.com/MagicStack/uvloop/issues/738).
    """

    async def create_connection(self, *args: Any, sock: socket.socket | None = None, **options: Any) -> Any:
        """As in asyncio. Given `sock`, the loop owns its descriptor from now on, also if this fails."""
        if sock is None:
            return await super().create_connection(*args, **options)
        try:
            return await super().create_connection(*args, sock=sock, **options)
        finally:
            sock.detach()


async def _run_and_cancel_rest(body: Coroutine[Any, Any, int]) -> int:
    try:
        code = await body
    finally:
        remaining = await _cancel_tasks()
    if remaining:
        log.error("tasks_not_ended", tasks=sorted(task.get_name() for task in remaining))
        sys.stdout.flush()
        os._exit(code)
    return code


async def _cancel_tasks() -> set[asyncio.Task[Any]]:
    """Cancels every other task several times, and returns the tasks that do not end."""
    remaining: set[asyncio.Task[Any]] = set()
    for _ in range(LEFTOVER_ATTEMPTS):
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        if not remaining:
            break
        for task in remaining:
            task.cancel()
        await asyncio.wait(remaining, timeout=0.1)
    return {task for task in remaining if not task.done()}
