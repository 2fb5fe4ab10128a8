"""A short connection as one of the users of a folder."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from bus.connection import Bus
from bus.errors import NobodyListensError, UnavailableError
from bus.rights.access import Access, is_refused

CONNECT_SECONDS = 10.0
"""How long a user may take to connect, if the server does not refuse the user: on a busy machine TLS takes seconds."""

TRIES = 3
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
    for left in reversed(range(TRIES)):
        async with connected(address, access) as bus:
            if not bus.connected:
                raise UnavailableError(bus.last_error)
            try:
                return await question(bus)
            except UnavailableError as error:
                if not left or error.code is not None or isinstance(error, NobodyListensError):
                    raise
    raise AssertionError("each try returns or raises")
