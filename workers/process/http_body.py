"""Responses of HTTP servers that may be hostile, and failed requests in words.

Bodies are read up to a limit that also holds after decompression. What a peer sends costs bounded work: of answers
before the final one (`100 Continue`) only a few are read, and a body in tiny pieces some hundred times a second.
"""

import asyncio
import os
import ssl

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage

MAX_ERROR_BYTES = 64 << 10
"""How much is read of the body of an error response."""


MAX_OWN_BYTES = 64 << 20
"""The largest response that is read of another process of this product."""


MAX_INFORMATIONAL = 8
"""The most informational answers (status 1xx) before the final one; a server sends one, or none."""

SMALL_BYTES = 1024
"""A piece of a body below this size is followed by a pause, in which further pieces come together."""

PAUSE_SECONDS = 0.005


class BoundedResponse(aiohttp.ClientResponse):
    """A response after at most `MAX_INFORMATIONAL` informational answers; else aiohttp reads them without end."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Reads the head. Raises ClientResponseError, and the errors of aiohttp."""
        protocol = connection.protocol
        assert protocol is not None
        read, informational = protocol.read, 0

        async def counted() -> tuple[RawResponseMessage, aiohttp.StreamReader]:
            nonlocal informational
            found = await read()
            informational += found[0].code in range(100, 200)
            if informational > MAX_INFORMATIONAL:
                text = f"more than {MAX_INFORMATIONAL} informational answers before the final one"
                raise aiohttp.ClientResponseError(self.request_info, self.history, status=found[0].code, message=text)
            return found

        protocol.read = counted  # type: ignore[method-assign]
        try:
            return await super().start(connection)
        finally:
            del protocol.read


class TooLargeError(Exception):
    """A body has more bytes than allowed; the rest was not read."""


async def whole_body(response: aiohttp.ClientResponse, *, max_bytes: int) -> bytes:
    """The whole body. Raises TooLargeError after `max_bytes`, and the errors of aiohttp."""
    body = await _read(response, max_bytes)
    if len(body) > max_bytes:
        raise TooLargeError(f"a response of more than {max_bytes} bytes")
    return body


async def body_start(response: aiohttp.ClientResponse, *, max_bytes: int = MAX_ERROR_BYTES) -> bytes:
    """The first `max_bytes` of a body. Raises the errors of aiohttp."""
    return (await _read(response, max_bytes))[:max_bytes]


def failed_request(error: BaseException) -> str:
    """Why a request failed. The text of aiohttp for a failed connection has options of its own, as `ssl:default`."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        from_system = cause.errno is not None and cause.errno > 0 and not isinstance(cause, ssl.SSLError)
        reason = os.strerror(cause.errno or 0) if from_system else cause.strerror or str(cause)
        return f"cannot connect to {error.host}:{error.port}: {reason}"
    return str(error) or type(error).__name__


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            response.close()  # nothing more is received, and the connection is not used again
            break
        if len(chunk) < SMALL_BYTES and not response.content.at_eof():
            await _let_pieces_come_together(response)
    return b"".join(chunks)


async def _let_pieces_come_together(response: aiohttp.ClientResponse) -> None:
    """Reads nothing for a moment: each piece wakes the event loop, and a peer can send 20,000 a second."""
    protocol = None if response.connection is None else response.connection.protocol
    if protocol is not None:
        protocol.pause_reading()
        try:
            await asyncio.sleep(PAUSE_SECONDS)
        finally:
            protocol.resume_reading()
