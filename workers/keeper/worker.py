"""The keeper of a closed bus: the only process that may create the streams and buckets, also after they were lost."""

import asyncio

from bus.connection import Bus

CHECK_SECONDS = 5.0
"""How often it is checked whether a stream is missing although the connection was never lost."""


class Keeper:
    """The worker. Its connection creates what is missing; other processes wait for this."""

    name = "keeper"

    def __init__(self, bus: Bus, *, check_seconds: float = CHECK_SECONDS) -> None:
        self._bus = bus
        self._check_seconds = check_seconds
        self._was_ready = False

    def unready(self) -> str | None:
        """Why the streams were never complete, and as this version needs them.

        Like every worker it stays ready when the bus is lost: in `run all` an extender that still answers would leave
        its Service with it.
        """
        if self._was_ready:
            return None
        if not self._bus.connected:
            return self._bus.last_error or "not connected to the bus"
        if self._bus.streams_problem is not None:
            return str(self._bus.streams_problem)
        self._was_ready = True
        return None

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._check_seconds)
            self._bus.check_streams()
