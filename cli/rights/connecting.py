"""A short connection as one of the users of a folder."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from bus.connection import Bus
from bus.errors import BusError
from bus.rights.access import Access, is_refused
from bus.trying import Tries, is_late

CONNECT_SECONDS = 3.0
"""How long a command tries to connect as a user, if nobody listens at the address."""

SLOW_SECONDS = 10.0
"""How long it tries if somebody listens and does not answer: on a busy machine TLS takes seconds."""

TRIES = Tries(is_late, times=3)
"""So often a server is asked that does not answer in time, each time on a new connection: a busy server loses some."""

T = TypeVar("T")

POLL_SECONDS = 0.05
"""How often it is checked whether the server has refused the user."""


@asynccontextmanager
async def connected(address: str, access: Access) -> AsyncIterator[Bus]:
    """A connection, if it comes about in time; otherwise `last_error` says why not."""
    clock = asyncio.get_running_loop().time
    async with Bus.connect(address, name="tas-cli", streams=(), access=access) as bus:
        began = clock()
        while not bus.connected and not is_refused(bus.last_error):  # a refusal is no event
            if clock() - began >= (SLOW_SECONDS if bus.is_slow else CONNECT_SECONDS):
                break
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
