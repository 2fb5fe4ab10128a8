"""The keeper of a closed bus: the only process that may create the streams and buckets, also after they were lost."""

import asyncio

import structlog

from bus.connection import Bus

log = structlog.get_logger("keeper")

CHECK_SECONDS = 5.0
"""How often it is checked whether a stream is missing although the connection was never lost."""


class Keeper:
    """The worker. Its connection creates what is missing; other processes wait for this."""

    name = "keeper"

    def __init__(self, bus: Bus, *, check_seconds: float = CHECK_SECONDS) -> None:
        self._bus = bus
        self._check_seconds = check_seconds

    def unready(self) -> str | None:
        """Why streams are missing, or differ from what this version needs."""
        if not self._bus.connected:
            return self._bus.last_error or "not connected to the bus"
        return None if self._bus.problem is None else str(self._bus.problem)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._check_seconds)
            self._bus.check_streams()
