"""A short connection as one of the users of a folder."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bus.connection import Bus
from bus.rights.access import Access, is_refused

CONNECT_SECONDS = 10.0
"""How long a user may take to connect, if the server does not refuse the user: on a busy machine TLS takes seconds."""

POLL_SECONDS = 0.05
"""How often it is checked whether the server has refused the user."""


@asynccontextmanager
async def connected(address: str, access: Access) -> AsyncIterator[Bus]:
    """A connection, if it comes about in time; otherwise `last_error` says why not."""
    async with Bus.connect(address, name="tas-cli", streams=(), access=access) as bus:
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                while not bus.connected and not is_refused(bus.last_error):  # noqa: ASYNC110 - a refusal is no event
                    await asyncio.sleep(POLL_SECONDS)
        yield bus
