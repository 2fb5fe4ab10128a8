"""Responses of HTTP servers that may be hostile, and failed requests in words.

Bodies are read up to a limit that also holds after decompression. `workers.http.protocol` has the other bounds.
"""

import os
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from bus.records.codec import UNREADABLE
from workers.http.protocol import MAX_HEAD_BYTES, BoundedProtocol

MAX_ERROR_BYTES = 64 << 10
"""How much is read of the body of an error response."""


MAX_OWN_BYTES = 64 << 20
"""The largest response that is read of another process of this product."""

BYTES_ON_THE_WAY = 2
"""So many bytes may arrive for each byte of a body, with the sizes of chunks."""


class TooLargeError(Exception):
    """A body has more bytes than allowed; the rest was not read."""


READ_ERRORS = (aiohttp.ClientError, TimeoutError, TooLargeError, *UNREADABLE)
"""The errors of `read_json`."""


async def read_json(
    url: str,
    kind: Any,
    *,
    seconds: float,
    max_bytes: int = MAX_OWN_BYTES,
    any_status: bool = False,
    query: Mapping[str, str] | None = None,
) -> Any:
    """What a process of this machine or of this product answers, as `kind`. Raises one of `READ_ERRORS`.

    An answer with another status than 2xx is an error, unless `any_status`.
    """
    timeout = aiohttp.ClientTimeout(total=seconds)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, params=query, raise_for_status=not any_status) as response,
    ):
        return msgspec.json.decode(await whole_body(response, max_bytes=max_bytes), type=kind)


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
    protocol = None if response.connection is None else response.connection.protocol
    if isinstance(protocol, BoundedProtocol):
        protocol.allow_body(BYTES_ON_THE_WAY * most + MAX_HEAD_BYTES)
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            response.close()  # nothing more is received, and the connection is not used again
            break
    return b"".join(chunks)
