"""Notices changes of a directory, as the operating system reports them.

Only this lives here, apart from the worker, since a watch ends whenever the directory is deleted or replaced. What the
directory contains is read elsewhere (`policy_files`).
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from watchfiles import awatch

MISSING_SECONDS = 1.0
"""How often a missing directory is checked."""

QUIET_MILLISECONDS = 50
"""A change is reported after so long without further changes: a file is often written in several steps."""

BUSY_MILLISECONDS = 500
"""The longest time that the report of a change waits for the end of further changes."""


class DirectoryChanges:
    """Calls `on_change` after each change below a directory, and when a watch of it begins or ends.

    `on_failure` gets the reason why there is no watch: the directory is missing, the system's limit of watches is
    reached, or a file name is not valid text.
    """

    def __init__(self, directory: Path, *, on_change: Callable[[], None], on_failure: Callable[[str], None]) -> None:
        self._directory = directory
        self._on_change = on_change
        self._on_failure = on_failure

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self._follow_one_directory()
            except* (OSError, RuntimeError) as errors:
                self._on_failure("; ".join(str(error) for error in errors.exceptions))
                await asyncio.sleep(MISSING_SECONDS)
            self._on_change()

    async def _follow_one_directory(self) -> None:
        """Returns when the watched directory was replaced by another one. Raises OSError, RuntimeError."""
        watched = await asyncio.to_thread(_identity, self._directory)
        started = False
        changes = awatch(
            self._directory,
            watch_filter=None,
            step=QUIET_MILLISECONDS,
            debounce=BUSY_MILLISECONDS,
            rust_timeout=int(MISSING_SECONDS * 1000),
            yield_on_timeout=True,
        )
        async with aclosing(changes):
            async for changed in changes:
                # The first iteration shows that the watch works: its user must find the changes before that.
                if changed or not started:
                    self._on_change()
                started = True
                if await asyncio.to_thread(_identity, self._directory) != watched:
                    return


def _identity(directory: Path) -> tuple[int, int]:
    """Device and inode, which differ after the directory was replaced. Raises OSError."""
    status = directory.stat()
    return (status.st_dev, status.st_ino)
