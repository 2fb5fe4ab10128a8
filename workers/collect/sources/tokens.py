"""The file with the tokens of senders, reloaded when it changes.

An invalid change is logged, and the last valid tokens stay in use.
"""

import asyncio
import time
from pathlib import Path

import structlog

from tas.sources.bearer_tokens import parse_tokens
from workers.process.errors import StartError
from workers.process.logs import ThrottledLog

log = structlog.get_logger("collect")

CHECK_SECONDS = 1.0
"""How often the file is read, on use."""

SETTLE_SECONDS = 0.1
"""So long other tokens must stay in the file until they count: a sender that is refused meanwhile never sends again."""

MAX_BYTES = 64 << 10
"""The largest file."""


class TokenFile:
    """The current tokens of a file."""

    def __init__(self, path: Path) -> None:
        """Reads the file for the first time. Raises StartError."""
        self._path = path
        self._checked_at = time.monotonic()
        self._lock = asyncio.Lock()
        self._throttled = ThrottledLog(log)
        try:
            self._tokens = self._read()
        except ValueError as error:
            raise StartError(f"--remote-write-token {path}: {error}") from error

    async def current(self) -> frozenset[bytes]:
        """The tokens that are valid now."""
        if time.monotonic() - self._checked_at >= CHECK_SECONDS:
            async with self._lock:
                if time.monotonic() - self._checked_at >= CHECK_SECONDS:
                    await self._check()
                    self._checked_at = time.monotonic()
        return self._tokens

    async def _check(self) -> None:
        try:
            tokens = await asyncio.to_thread(self._read)
            if tokens != self._tokens:
                await asyncio.sleep(SETTLE_SECONDS)
                if await asyncio.to_thread(self._read) != tokens:
                    return  # the file is being written, and is read again by the next check
        except ValueError as error:
            problem = str(error)
            self._throttled.error(
                "tokens_not_loaded", problem, file=str(self._path), error=problem, in_force="the last valid ones"
            )
            return
        if tokens != self._tokens:
            self._tokens = tokens
            log.info("tokens_loaded", file=str(self._path), tokens=len(tokens))

    def _read(self) -> frozenset[bytes]:
        """Blocks. Raises ValueError."""
        try:
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ValueError(error.strerror or str(error)) from error
        if len(text) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes: holds no tokens")
        return parse_tokens(text)
