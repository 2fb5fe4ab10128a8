"""POST requests to one URL of a sink: one attempt each, bounded in time and in what is read of the answer."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
from prometheus_client import Counter

from tas.errors import line_of, shortened, without_password
from tas.notifying.config import HttpSinkConfig, is_sink_url
from workers.http.body import body_start, failed_request
from workers.http.client import HttpClient, HttpConfigError, read_secret

MAX_ANSWER = 4 << 10
"""How many bytes are read of an answer; they are only for messages."""

MAX_RETRY_AFTER = 120.0
"""The longest wait that a `Retry-After` can ask for, in seconds: twice that of a sink that fails without it.

With ten minutes, a sink that accepts one event after each wait would stay below the alert `TasSinkBehind` for ever."""

MAX_DIGITS = 100
"""A longer number in a `Retry-After` is no number of seconds."""

_ABOUT_THE_BODY = frozenset({400, 413, 415, 422})


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an attempt. `status` is 0 without a response; `problem` is empty if the body was accepted."""

    status: int = 0
    problem: str = ""
    retry_after: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether the body was accepted."""
        return not self.problem

    @property
    def refused(self) -> bool:
        """Whether the sink works, and will refuse this body again."""
        return self.status in _ABOUT_THE_BODY

    @property
    def code(self) -> str:
        """The status for a metric."""
        return str(self.status or "none")


class Poster:
    """Sends bodies to the URL `url`, or to the URL in the file `url_file`, which is read again when it changes.

    A redirection is not followed: another host must not get the events, the password or the token.
    """

    def __init__(
        self,
        config: HttpSinkConfig,
        *,
        sink: str,
        folder: Path,
        requests: Counter,
        url: str | None = None,
        url_file: str | None = None,
    ) -> None:
        """Exactly one of `url` and `url_file` is given; `folder` is that of the settings.

        `requests` counts the attempts by sink and by the status of their answer.
        """
        self._config = config
        self._sink = sink
        self._folder = folder
        self._requests = requests
        self._url = url or ""
        self._url_file = url_file
        self._client: HttpClient | None = None
        self._lock = asyncio.Lock()

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """One attempt. An error is an answer, too."""
        answer = await self._attempt(body, headers)
        self._requests.labels(self._sink, answer.code).inc()
        return answer

    async def _attempt(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                async with self._lock:
                    session = await self._session()
                return await self._post(session, body, headers)
        except TimeoutError:
            return Answer(problem=f"no answer within {self._config.timeout}")
        except (HttpConfigError, aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(problem=line_of(failed_request(error)))

    async def close(self) -> None:
        """Closes all connections."""
        if self._client is not None:
            await self._client.close()

    async def _session(self) -> aiohttp.ClientSession:
        if self._url_file is not None:
            url = await asyncio.to_thread(read_secret, self._folder, self._url_file)
            if not is_sink_url(url):
                raise HttpConfigError(f"{self._url_file}: holds no URL such as https://HOST/PATH")
            if url != self._url:
                await self.close()
                self._url, self._client = url, None
        if self._client is None:
            self._client = HttpClient(self._url, folder=self._folder, user_agent=f"tas-on-nats/{self._sink}")
        return await self._client.session(self._config)

    async def _post(self, session: aiohttp.ClientSession, body: bytes, headers: Mapping[str, str]) -> Answer:
        tls = self._config.tls_config
        async with session.post(
            self._url,
            data=body,
            headers=headers,
            allow_redirects=False,
            server_hostname=tls.server_name if tls else None,
        ) as response:
            status = response.status
            if 200 <= status < 300:
                return Answer(status=status)  # the body is not read, however long it is
            text = line_of((await body_start(response, max_bytes=MAX_ANSWER)).decode(errors="replace").strip(), 200)
            if 300 <= status < 400:
                host = urlsplit(without_password(response.headers.get("Location", ""))).netloc
                reason = f"redirects to {shortened(host) if host else 'another path'}, which is not followed"
            else:
                reason = text or (response.reason or "no reason given")
            return Answer(
                status=status,
                problem=f"{reason} ({status})",
                retry_after=_seconds(response.headers.get("Retry-After", "")) if status in (429, 503) else 0.0,
            )


def _seconds(text: str) -> float:
    """The seconds of a header `Retry-After`; 0 for a date or anything else."""
    return min(float(text), MAX_RETRY_AFTER) if text.isascii() and text.isdigit() and len(text) < MAX_DIGITS else 0.0
