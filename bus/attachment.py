"""An attachment to a feed or a consumer, made again whenever it fails."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from bus.connection import Bus
from bus.errors import BusError
from tas.values.backoff import Backoff

RETRY = Backoff(first=0.1, longest=1.0)
"""The waits after failures to attach."""

STABLE_SECONDS = 2.0
"""After an attachment that lasted this long, the next one is made without a wait."""


async def keep_attached(
    bus: Bus, stream: str, attach: Callable[[], Awaitable[None]], *, on_failure: Callable[[BusError], None]
) -> NoReturn:
    """Calls `attach` whenever there is a connection and the stream, again after each end, until cancelled.

    `on_failure` gets the BusError with which it ended; any other exception is a bug and is raised.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        await bus.wait_usable(stream)
        started = loop.time()
        try:
            await attach()
        except BusError as error:
            on_failure(error)
        if loop.time() - started > STABLE_SECONDS:
            failures = 0
        else:
            failures += 1
            await asyncio.sleep(RETRY.after(failures))
