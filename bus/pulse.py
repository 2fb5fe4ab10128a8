"""Heartbeats of the server for one subscription: without them the subscription has ended (facts.md n36)."""

import asyncio
from typing import Any

from bus.errors import UnavailableError
from bus.link import BEAT_SECONDS, Link

HEARTBEAT_SECONDS = BEAT_SECONDS
"""How often an idle server sends a heartbeat; after two of these without a message the subscription has ended."""


class Pulse:
    """Watches one subscription with heartbeats. `what` names it in errors."""

    def __init__(self, link: Link, what: str) -> None:
        self._link = link
        self._what = what
        self._received = True
        self._missed = 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended.done()

    @property
    def failure(self) -> BaseException | None:
        """The error given to `end`, or None."""
        return self._ended.exception() if self._ended.done() else None

    def received(self) -> None:
        """Notes that a message was received."""
        self._received = True

    def end(self, error: Exception) -> None:
        """Makes `beat` raise `error`; only the first error counts."""
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # else asyncio logs an error that nobody awaited

    async def beat(self, *others: "asyncio.Future[Any]") -> None:
        """Waits for the next beat of the connection, or until one of the others is done.

        Raises UnavailableError if the connection is lost, or nothing was received for two heartbeats. Raises Exception
        the error given to `end`.
        """
        waiting: list[asyncio.Future[Any]] = [self._ended, self._link.next_beat(), *others]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            self._ended.result()
        if self._link.lost.is_set():
            raise UnavailableError("the connection was lost")
        if any(other.done() for other in others):
            return
        # Counted in beats, not in seconds: after a pause of this process the server gets time for a heartbeat. The
        # first one may come early: it counts as one with a message.
        self._missed = 0 if self._received else self._missed + 1
        self._received = False
        if self._missed >= 2:
            raise UnavailableError(f"{self._what}: heartbeats of the server are missing")
