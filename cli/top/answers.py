"""The last answers of the extender, for the live view: from the extender's health port."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from bus.records.codec import UNREADABLE
from workers.http.body import MAX_OWN_BYTES, TooLargeError, failed_request, whole_body

INTERVAL_SECONDS = 1.0


async def answers_at(url: str) -> AsyncIterator[Sequence[Mapping[str, Any]] | str]:
    """The answers each second, oldest first, or why they cannot be read. `url` is `/answers` of the port."""
    timeout = aiohttp.ClientTimeout(total=INTERVAL_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            try:
                async with session.get(url) as response:
                    yield msgspec.json.decode(await whole_body(response, max_bytes=MAX_OWN_BYTES))
            except (aiohttp.ClientError, TimeoutError, TooLargeError, *UNREADABLE) as error:
                yield f"{url}: {failed_request(error)}"
            await asyncio.sleep(INTERVAL_SECONDS)
