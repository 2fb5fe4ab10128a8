"""A short connection as one of the users of a folder."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from bus.connection import Bus
from bus.errors import BusError
from bus.rights.access import Access, is_refused
from bus.trying import Tries, is_late

CONNECT_SECONDS = 10.0
"""How long a user may take to connect, if the server does not refuse the user: on a busy machine TLS takes seconds."""

TRIES = Tries(is_late, times=3)
"""So often a server is asked that does not answer in time, each time on a new connection: a busy server loses some."""

T = TypeVar("T")

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


async def asked(address: str, access: Access, question: Callable[[Bus], Awaitable[T]]) -> T:
    """The answer to `question` on a connection of its own. Raises BusError: without a connection its reason."""

    async def once() -> T:
        async with connected(address, access) as bus:
            if not bus.connected:
                raise BusError(bus.last_error)  # it has tried long enough
            return await question(bus)

    return await TRIES.of(once)
