"""Prometheus, or any server with its HTTP API: one instant query for each metric."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import aiohttp

from tas.errors import shortened, without_password
from tas.sources.nodes import NodeNames, any_node
from tas.sources.prometheus import AnswerError, mapping_of, query_of, read_answer, with_common_times
from tas.sources.result import RefusalReason, ResultBuilder, SourceResult, combined
from tas.sources.series import LOOKBACK, Mappings, MetricMapping
from tas.values.http_config import HttpConfig
from workers.collect.sources.base import Reader, SourceError, Turns
from workers.collect.sources.config import ConfigFile
from workers.http.body import TooLargeError, body_start, failed_request, whole_body
from workers.http.client import HttpClient, HttpConfigError

QUERY_SECONDS = 5.0
"""Time limit of all queries together, also sent to Prometheus as the timeout of each query.

At its end one answer may be in the middle of its reading, which goes on: half of the limit of a poll is left for it.
"""

MAX_CONCURRENT_QUERIES = 8
"""Prometheus itself evaluates 20 queries at once by default, of all clients. So many answers are in memory at most."""

MAX_ANSWER_BYTES = 16 << 20
"""The largest response: 15,000 nodes take 5 MB."""

_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class _FailedError(Exception):
    """A query failed.

    `waits`: for lack of time alone. `slow`: no answer came in time. `unreadable`: the response is not of a Prometheus
    API.
    """

    def __init__(
        self,
        message: str,
        *,
        waits: bool = False,
        slow: bool = False,
        unreadable: bool = False,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.waits = waits
        self.slow = slow
        self.unreadable = unreadable
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class _Poll:
    """The shared state of the queries of a poll.

    Attributes:
        ends: When no answer is waited for any more, by the clock of the event loop.
    """

    session: aiohttp.ClientSession
    server_name: str | None
    mappings: Mappings
    nodes: NodeNames
    ends: float


class Prometheus:
    """The source: queries the server at `url`, which may contain a user name and a password.

    Attributes:
        name: As for every source.
    """

    def __init__(
        self,
        name: str,
        url: str,
        config: ConfigFile,
        *,
        query_seconds: float = QUERY_SECONDS,
        nodes: Callable[[], NodeNames] = any_node,
    ) -> None:
        self.name = name
        self._config = config
        self._query_seconds = query_seconds
        self._nodes = nodes
        self._reader = Reader()
        self._turns = Turns(MAX_CONCURRENT_QUERIES)
        self._http = HttpClient(url, folder=config.folder, user_agent=f"tas-on-nats/{name}")

    async def read(self, metrics: frozenset[str]) -> SourceResult:
        """As for every source. Raises SourceError if no query succeeded."""
        config = await self._config.current()
        http = config.http.get(self.name, HttpConfig())
        try:
            session = await self._http.session(http)
        except HttpConfigError as error:
            raise SourceError(str(error)) from error
        poll = _Poll(
            session=session,
            server_name=http.tls_config.server_name if http.tls_config else None,
            mappings=config.mappings,
            nodes=self._nodes(),
            ends=asyncio.get_running_loop().time() + self._query_seconds,
        )
        requested = self._turns.order(metrics)
        outcomes = await asyncio.gather(*(self._ask_for(poll, metric) for metric in requested))
        return await asyncio.to_thread(
            _result_of, dict(zip(requested, outcomes, strict=True)), within=self._query_seconds
        )

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.close()

    async def _ask_for(self, poll: _Poll, metric: str) -> SourceResult | _FailedError:
        found: SourceResult | _FailedError
        try:
            found = await self._query(poll, metric, mapping_of(poll.mappings, metric))
        except AnswerError as error:
            found = _FailedError(str(error))
        except _FailedError as error:
            found = error
        if isinstance(found, SourceResult) or not found.waits:
            self._turns.had(metric, in_time=isinstance(found, SourceResult) or not found.slow)
        return found

    async def _query(self, poll: _Poll, metric: str, mapping: MetricMapping) -> SourceResult:
        """Raises _FailedError."""
        query = {
            "query": query_of(metric, mapping),
            "timeout": f"{self._query_seconds:g}s",
            "lookback_delta": f"{LOOKBACK:g}s",
        }
        url = f"{self._http.url}/api/v1/query"
        waits = True
        try:
            # The time limit includes the wait for a slot, so that it holds for all queries together.
            async with asyncio.timeout_at(poll.ends) as limit, self._turns.slot(metric):
                waits = poll.ends - asyncio.get_running_loop().time() < self._query_seconds / 2
                async with poll.session.get(
                    url, params=query, server_hostname=poll.server_name, allow_redirects=False
                ) as response:
                    if 300 <= response.status < 400:
                        raise _FailedError(f"{self._http.url}: {_redirect(response)}")
                    if response.status >= 400:
                        body = await body_start(response)
                    else:
                        body = await whole_body(response, max_bytes=MAX_ANSWER_BYTES)
                read = partial(read_answer, metric, mapping, body, status=response.status, nodes=poll.nodes)
                waits = True
                return await self._reader.read(read, size=len(body), begins=partial(limit.reschedule, None))
        except TimeoutError as error:
            why = f"{self._http.url}: no answer within {self._query_seconds:g} s"
            if waits:
                why = f"not read within {self._query_seconds:g} s: other metrics came first; first in the next poll"
            raise _FailedError(why, waits=waits, slow=not waits) from error
        except TooLargeError as error:
            raise _FailedError(f"{self._http.url}: {error}: {_asked(query)}") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise _FailedError(f"{self._http.url}: {failed_request(error)}") from error
        except AnswerError as error:
            busy = response.status in _BUSY
            retry_after = _seconds(response.headers.get("Retry-After", "")) if busy else 0.0
            raise _FailedError(
                f"{self._http.url}: {error}", unreadable=error.unreadable and not busy, retry_after=retry_after
            ) from error


def _result_of(outcomes: Mapping[str, SourceResult | _FailedError], *, within: float) -> SourceResult:
    """The combined result of all queries. Raises SourceError if all failed."""
    failures = {metric: outcome for metric, outcome in outcomes.items() if isinstance(outcome, _FailedError)}
    if len(failures) == len(outcomes):
        first = next(iter(failures.values()))
        raise SourceError(str(first), retry_after=max(failure.retry_after for failure in failures.values()))
    builder = ResultBuilder()
    for metric, failure in failures.items():
        builder.add_missing(metric, str(failure), without_turn=failure.waits)
        if failure.unreadable:
            builder.refuse(RefusalReason.SHAPE, metric, "answer", "unreadable", str(failure))
    results = (outcome for outcome in outcomes.values() if isinstance(outcome, SourceResult))
    return combined([*with_common_times(results, within=within), builder.result()])


def _asked(query: Mapping[str, str]) -> str:
    return f"query {shortened(query['query'], 200)}"


def _redirect(response: aiohttp.ClientResponse) -> str:
    """The error of a redirection. It is not followed: another server must not get the password or the token."""
    location = shortened(without_password(response.headers.get("Location", "")), 200)
    return f"redirects to {location} ({response.status}), which is not followed: configure the final address"


def _seconds(text: str) -> float:
    """The seconds in `Retry-After`; 0 for any other value."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
