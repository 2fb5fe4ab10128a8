"""What workers wait for."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def together(*parts: Coroutine[Any, Any, object]) -> None:
    """Runs all until they end, or until cancelled. An error of one ends the others; it is raised in a group."""
    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part)


async def set_within(event: asyncio.Event, seconds: float | None) -> None:
    """Returns when the event is set, or after so many seconds; None: without a limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
