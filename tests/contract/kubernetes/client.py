"""A plain client over HTTP or HTTPS, which returns every answer as received."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

T = TypeVar("T")
Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
"""The header `Accept` of kubectl."""


async def until(probe: Callable[[], Awaitable[T | None]], what: str, *, timeout: float = 120.0) -> T:
    """Calls `probe` until its result is true, and returns it; TimeoutError with `what` after `timeout` seconds."""
    last: T | None = None
    try:
        async with asyncio.timeout(timeout):
            while True:
                if last := await probe():
                    return last
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise TimeoutError(f"{what}: not within {timeout:g} s, last answer {last!r}") from error


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; `body` is decoded JSON, or text if the body is not JSON."""

    status: int
    headers: Any
    body: Any

    def ok(self) -> Any:
        """The body of a success."""
        assert 200 <= self.status < 300, (self.status, self.body)
        return self.body

    def failed(self, code: int, reason: str) -> str:
        """The message of a Status with this code and reason."""
        assert self.status == code, (self.status, self.body)
        assert (self.body["kind"], self.body["apiVersion"], self.body["status"]) == ("Status", "v1", "Failure")
        assert (self.body["code"], self.body["reason"]) == (code, reason)
        return str(self.body["message"])


class Stream:
    """The events of a watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self, *, timeout: float = 60.0) -> Object:
        """The next event; EOFError if the stream has ended, TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            line = await self._response.content.readline()
        if not line:
            raise EOFError
        event: Object = json.loads(line)
        return event

    async def about(self, stored: Object) -> tuple[str, Object]:
        """The type and the object of the next event of this object."""
        while True:
            event = await self.next()
            if event["object"]["metadata"].get("uid") == stored["metadata"]["uid"]:
                return event["type"], event["object"]

    async def rest(self) -> list[Object]:
        """All events until the stream ends."""
        events = []
        while True:
            try:
                events.append(await self.next())
            except EOFError:
                return events


class Client:
    """Requests to one server, by path."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def get(self, path: str, *, accept: str = "application/json", **query: str | int) -> Answer:
        """GET."""
        return await self._call("GET", path, accept=accept, query=query)

    async def create(self, path: str, body: object, **query: str) -> Answer:
        """POST of JSON."""
        return await self._call("POST", path, body, query=query)

    async def patch(self, path: str, body: object, *, content_type: str = MERGE_PATCH, **query: str) -> Answer:
        """PATCH; text is sent unchanged, other values as JSON."""
        return await self._call("PATCH", path, body, content_type=content_type, query=query)

    async def delete(self, path: str, body: object = None) -> Answer:
        """DELETE."""
        return await self._call("DELETE", path, body)

    async def put(self, path: str, body: object) -> Answer:
        """PUT of JSON."""
        return await self._call("PUT", path, body)

    async def version(self, path: str) -> str:
        """The version of the list at this path."""
        return str((await self.get(path)).ok()["metadata"]["resourceVersion"])

    @asynccontextmanager
    async def watch(self, path: str, *, accept: str = "application/json", **query: str | int) -> AsyncIterator[Stream]:
        """A watch, which ends with the body."""
        async with self._session.get(
            f"{self._url}{path}", params={"watch": "true", **query}, headers={"Accept": accept}
        ) as response:
            assert response.status == 200, await response.text()
            try:
                yield Stream(response)
            finally:
                # Closing a TLS connection would wait for the server's close_notify, beyond the end of the test.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    async def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        query: dict[str, Any] | None = None,
    ) -> Answer:
        headers = {"Content-Type": content_type, "Accept": accept, "User-Agent": "suite/1"}
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        async with self._session.request(
            method, f"{self._url}{path}", data=data, headers=headers, params=query
        ) as response:
            text = await response.text()
        try:
            return Answer(response.status, response.headers, json.loads(text))
        except ValueError:
            return Answer(response.status, response.headers, text)
