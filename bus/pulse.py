"""Whether what a server sends by itself still comes: an end that nobody announces must be noticed too (n36)."""

import asyncio
from typing import Any

from bus.errors import UnavailableError
from bus.link import Link

HEARTBEAT_SECONDS = 0.5
"""How often an idle server says that it is there; after two of these without a word it has fallen silent."""


class Pulse:
    """The life of one subscription that the server promised heartbeats to."""

    def __init__(self, link: Link, what: str) -> None:
        self._link = link
        self._what = what
        self._heard = True
        self._silent = 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def ended(self) -> bool:
        """Whether it has been ended from this side."""
        return self._ended.done()

    def heard(self) -> None:
        """Something came."""
        self._heard = True

    def end(self, error: Exception) -> None:
        """It is over, and `beat` raises this; a later error than the first says nothing new."""
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # also seen where nobody waits any more

    async def beat(self, *others: "asyncio.Future[Any]") -> None:
        """Waits for one heartbeat's time, or until one of the others is done.

        Raises:
            UnavailableError: if the connection is lost, or nothing has come for two beats.
            Exception: what `end` was told.
        """
        lost = asyncio.ensure_future(self._link.lost.wait())
        waiting: list[asyncio.Future[Any]] = [self._ended, lost, *others]
        try:
            await asyncio.wait(waiting, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        if self._ended.done():
            self._ended.result()
        if self._link.lost.is_set():
            raise UnavailableError("the connection was lost")
        if any(other.done() for other in others):
            return
        # Counted in beats of our own: after a stall of this process one word is enough, not two of the past.
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._silent >= 2:
            raise UnavailableError(f"{self._what} has fallen silent")
