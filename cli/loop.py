"""Runs the event loop of a command until no task is left."""

import asyncio
import os
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
    return uvloop.run(_run_and_cancel_rest(body))


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
