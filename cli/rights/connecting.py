"""A short connection as one of the users of a folder."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bus.connection import Bus
from bus.rights.access import Access

CONNECT_SECONDS = 2.0
"""How long a user may take to connect, or to be refused."""


@asynccontextmanager
async def connected(address: str, access: Access) -> AsyncIterator[Bus]:
    """A connection, if it comes about in time; otherwise `last_error` says why not."""
    async with Bus.connect(address, name="tas-cli", streams=(), access=access) as bus:
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await bus.wait_connected()
        yield bus
