"""Addresses of hosts for HTTP clients, looked up beside all other look-ups of the process.

The event loop looks up names in very few threads. While the name servers do not answer, two names of sinks would hold
these threads, and every other look-up of the process would wait for them, also that of the bus.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class LoneResolver(AbstractResolver):
    """Looks up each name in a thread of its own, which does not keep the process from ending.

    A connector of aiohttp asks for one name once at a time, so there is at most one thread for each name.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host. Raises OSError."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Any]] = loop.create_future()

        def settle(setter: Callable[[Any], None], value: object) -> None:
            def set_value() -> None:
                if not found.done():
                    setter(value)

            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(set_value)

        def look_up() -> None:
            try:
                answer = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            except (OSError, UnicodeError) as error:
                settle(found.set_exception, error if isinstance(error, OSError) else OSError(str(error)))
            else:
                settle(found.set_result, answer)

        threading.Thread(target=look_up, name="look-up", daemon=True).start()
        return [
            ResolveResult(
                hostname=host,
                host=_address(sockaddr),
                port=sockaddr[1],
                family=found_family,
                proto=proto,
                flags=_NUMERIC,
            )
            for found_family, _, proto, _, sockaddr in await found
        ]

    async def close(self) -> None:
        """Nothing is open."""


def _address(sockaddr: tuple[Any, ...]) -> str:
    """The address as text; that of a link of IPv6 with the scope."""
    host = str(sockaddr[0])
    has_scope = len(sockaddr) == 4 and sockaddr[3] and "%" not in host
    return f"{host}%{sockaddr[3]}" if has_scope else host
