"""`/api/v1/query` of the extender, for clients of Prometheus: the values from which the scheduler is answered."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import parse_qsl

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from tas.errors import InvalidInputError
from tas.extender.instant_query import (
    PARAMETERS,
    SUBJECT,
    answer_instant_query,
    error_of_instant_query,
    parse_instant_query,
)
from tas.view.view import View

PATH = "/api/v1/query"

FORM = "application/x-www-form-urlencoded"
MAX_BODY_BYTES = 8190
"""Limit of a body, as of the line of a request: each parameter is short."""

BODY_SECONDS = 5.0
"""How long a body may take to arrive."""

MAX_SHARE = 0.1
"""Limit of the time that answers take from the event loop, which also answers the scheduler."""

MAX_WAITING = 10
"""Limit of the queries that wait for their turn."""


class _RefusedError(Exception):
    """A query gets this status instead of an answer."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class InstantQueryHandler:
    """Answers queries one after another, so that all of them together take at most `MAX_SHARE` of the time.

    `unready` returns why queries are refused with 503, or None.
    """

    def __init__(
        self,
        view: View,
        *,
        unready: Callable[[], str | None],
        registry: CollectorRegistry,
        body_seconds: float = BODY_SECONDS,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._view = view
        self._unready = unready
        self._body_seconds = body_seconds
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._free_at = 0.0
        self._count = Counter("tas_extender_queries", "Answers of /api/v1/query.", ["code"], registry=registry)
        for status in (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE):
            self._count.labels(str(int(status)))  # from the start on, so that a rate is never without its zero

    def routes(self) -> list[web.RouteDef]:
        """The routes, for the health port."""
        return [web.get(PATH, self._handle, allow_head=False), web.post(PATH, self._handle)]

    async def _handle(self, request: web.Request) -> web.Response:
        status, body = HTTPStatus.OK, b""
        try:
            body = await self._answer(request)
        except InvalidInputError as error:
            status, body = HTTPStatus.BAD_REQUEST, error_of_instant_query("bad_data", str(error))
        except _RefusedError as error:
            kind = "unavailable" if error.status == HTTPStatus.SERVICE_UNAVAILABLE else "bad_data"
            status, body = error.status, error_of_instant_query(kind, str(error))
        self._count.labels(str(int(status))).inc()
        response = web.Response(body=body, status=status, content_type="application/json")
        if not request.content.is_eof():
            response.force_close()  # the rest of the body is not read
        return response

    async def _answer(self, request: web.Request) -> bytes:
        """The answer to a valid query. Raises InvalidInputError or _RefusedError."""
        query = parse_instant_query(parse_parameters(request.query_string, await self._body(request)), self._clock())
        if (reason := self._unready()) is not None:
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        if self._waiting >= MAX_WAITING:
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"{self._waiting} queries wait already")
        self._waiting += 1
        try:
            async with self._turn:
                await self._sleep(self._free_at - time.monotonic())
                began = time.monotonic()
                try:
                    return answer_instant_query(self._view, query, self._clock())
                finally:
                    ended = time.monotonic()
                    self._free_at = ended + (ended - began) * (1 / MAX_SHARE - 1)
        finally:
            self._waiting -= 1

    async def _body(self, request: web.Request) -> bytes:
        """The body of a POST, empty for a GET. Raises _RefusedError."""
        if request.method == "GET":
            return b""
        if request.content_type != FORM or "Content-Encoding" in request.headers:
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {FORM}, without an encoding")
        body = b""
        try:
            async with asyncio.timeout(self._body_seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        text = f"the body has more than {MAX_BODY_BYTES} bytes"
                        raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        except TimeoutError:
            text = f"the body has not arrived within {self._body_seconds:g} s"
            raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, text) from None
        return body


def parse_parameters(query_string: str, body: bytes) -> dict[str, str]:
    """The parameters of a request, in its URL or its body. Raises InvalidInputError if one comes twice."""
    parameters: dict[str, str] = {}
    try:
        pairs = [
            pair
            for text in (query_string, body.decode())
            for pair in parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=2 * len(PARAMETERS))
        ]
    except ValueError as error:
        raise InvalidInputError(SUBJECT, "parameters", body, f"cannot be read: {error}") from None
    for name, value in pairs:
        if name in parameters:
            raise InvalidInputError(SUBJECT, name, value, "must be given once")
        parameters[name] = value
    return parameters
