"""Prometheus, or anything that answers its HTTP API: one instant query for each metric."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import aiohttp

from tas.sources.config import HttpConfig
from tas.sources.prometheus import AnswerError, of_one_look, query_of, read_answer
from tas.sources.reading import Batch, Gathering, Refused, combined
from tas.sources.series import LOOKBACK, Mappings
from workers.sources.base import Reader, SourceError
from workers.sources.config import ConfigFile
from workers.sources.http import HttpClient

QUERY_SECONDS = 5.0
"""How long all queries together may take; Prometheus is told, and gives each up by then as well."""

QUERIES_AT_ONCE = 8
"""Prometheus itself evaluates 20 at once by default, for all who ask."""

MAX_ANSWER_BYTES = 32 << 20
"""The largest answer: 15,000 nodes take 5 MB."""

_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class _FailedError(Exception):
    """One query was in vain. `unreadable`: something answered that is no Prometheus."""

    def __init__(self, message: str, *, unreadable: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.unreadable = unreadable
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """What all queries of one look share."""

    session: aiohttp.ClientSession
    server_name: str | None
    mappings: Mappings
    turns: asyncio.Semaphore


class Prometheus:
    """The source: asks the server at `url`, in which a name and a password may stand.

    Attributes:
        name: As of every source.
    """

    def __init__(self, name: str, url: str, config: ConfigFile, *, query_seconds: float = QUERY_SECONDS) -> None:
        self.name = name
        self._config = config
        self._query_seconds = query_seconds
        self._reader = Reader()
        self._http = HttpClient(url, folder=config.folder, user_agent=f"tas-on-nats/{name}")

    async def read(self, metrics: frozenset[str]) -> Batch:
        """As of every source. Raises SourceError if no query was answered."""
        config = await self._config.current()
        http = config.http.get(self.name, HttpConfig())
        asking = _Asking(
            session=await self._http.session(http),
            server_name=http.tls_config.server_name if http.tls_config else None,
            mappings=config.mappings,
            turns=asyncio.Semaphore(QUERIES_AT_ONCE),
        )
        asked = sorted(metrics)
        outcomes = await asyncio.gather(*(self._ask(asking, metric) for metric in asked))
        return await asyncio.to_thread(_told, dict(zip(asked, outcomes, strict=True)), within=self._query_seconds)

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.close()

    async def _ask(self, asking: _Asking, metric: str) -> Batch | _FailedError:
        mapping = asking.mappings.of(metric)
        query = {
            "query": query_of(metric, mapping),
            "timeout": f"{self._query_seconds:g}s",
            "lookback_delta": f"{LOOKBACK:g}s",
        }
        url = f"{self._http.url}/api/v1/query"
        try:
            # The wait for a turn counts as well, so that all questions together take no longer.
            async with (
                asyncio.timeout(self._query_seconds),
                asking.turns,
                asking.session.get(url, params=query, server_hostname=asking.server_name) as response,
            ):
                body = await _body(response)
            read = partial(read_answer, metric, mapping, body, status=response.status)
            return await self._reader.read(read, size=len(body))
        except TimeoutError:
            return _FailedError(f"{self._http.url}: no answer within {self._query_seconds:g} s")
        except (aiohttp.ClientError, ValueError) as error:
            return _FailedError(f"{self._http.url}: {error or type(error).__name__}")
        except AnswerError as error:
            busy = response.status in _BUSY
            retry_after = _seconds(response.headers.get("Retry-After", "")) if busy else 0.0
            return _FailedError(
                f"{self._http.url}: {error}", unreadable=error.unreadable and not busy, retry_after=retry_after
            )


def _told(outcomes: Mapping[str, Batch | _FailedError], *, within: float) -> Batch:
    """What the answers say together. Raises SourceError if there is none."""
    failures = {metric: outcome for metric, outcome in outcomes.items() if isinstance(outcome, _FailedError)}
    if len(failures) == len(outcomes):
        first = next(iter(failures.values()))
        raise SourceError(str(first), retry_after=max(failure.retry_after for failure in failures.values()))
    gathering = Gathering()
    for metric, failure in failures.items():
        gathering.miss(metric, str(failure))
        if failure.unreadable:
            gathering.refuse(Refused.SHAPE, metric, "answer", "unreadable", str(failure))
    batches = (outcome for outcome in outcomes.values() if isinstance(outcome, Batch))
    return combined([*of_one_look(batches, within=within), gathering.batch()])


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises ValueError if it is larger than any answer."""
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
    return b"".join(chunks)


def _seconds(text: str) -> float:
    """What `Retry-After` asks for, where it asks for seconds."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
