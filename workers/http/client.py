"""HTTP sessions for one server, with TLS and credentials of its configuration, renewed when they change."""

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from tas.values.http_config import Authorization, BasicAuth, HttpConfig, TlsConfig
from workers.http.protocol import BoundedConnector

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


CONNECT_SECONDS = 3.0
"""Time limit of connecting."""

MAX_SECRET = 64 << 10
"""The largest file that holds a password or a token."""

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class HttpConfigError(Exception):
    """A file of the HTTP settings cannot be used; the message names the file."""


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session: a new session is made when any of them changes."""

    tls: TlsConfig | None
    files: tuple[tuple[str, int, int], ...]
    secret: str


class HttpClient:
    """The HTTP client of a source or a sink. Certificates and secrets are read again when their files change.

    Attributes:
        url: The server's URL without user name and password, for logs.
    """

    def __init__(self, url: str, *, folder: Path, user_agent: str) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        self.url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._url_credentials = None
        if parts.username is not None:
            self._url_credentials = BasicAuth(username=unquote(parts.username), password=unquote(parts.password or ""))
        self._folder = folder
        self._user_agent = user_agent
        self._trust_env = host not in _LOOPBACK
        self._settings: _Settings | None = None
        self._session: aiohttp.ClientSession | None = None

    async def session(self, config: HttpConfig) -> aiohttp.ClientSession:
        """The current session. Not for concurrent use.

        Raises HttpConfigError if a file of the configuration cannot be used.
        """
        try:
            settings = await asyncio.to_thread(self._read_settings, config)
            if self._session is None or settings != self._settings:
                is_tls = settings.tls is not None or self.url.startswith("https:")
                tls = await asyncio.to_thread(self._tls, settings.tls or TlsConfig()) if is_tls else True
                await self.close()
                self._session = self._new_session(settings, tls)
                self._settings = settings
        except (OSError, ValueError) as error:
            raise HttpConfigError(_error_text(error)) from error
        return self._session

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _new_session(self, settings: _Settings, tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:  # noqa: FBT001
        headers = {"User-Agent": self._user_agent, "Accept": "application/json"}
        if settings.secret:
            headers["Authorization"] = settings.secret
        return aiohttp.ClientSession(
            connector=BoundedConnector(ssl=tls, resolver=LoneResolver()),
            cookie_jar=aiohttp.DummyCookieJar(),  # what a server sets would be kept, and sent with each request
            headers=headers,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS),
            trust_env=self._trust_env,
        )

    def _read_settings(self, config: HttpConfig) -> _Settings:
        """The current settings. Blocks. Raises OSError, ValueError."""
        tls = config.tls_config
        files = () if tls is None else tuple(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
        statuses = tuple((file, (self._folder / file).stat()) for file in files)
        return _Settings(
            tls=tls,
            files=tuple((file, status.st_ino, status.st_mtime_ns) for file, status in statuses),
            secret=self._secret(config),
        )

    def _secret(self, config: HttpConfig) -> str:
        """The header `Authorization`, or an empty string."""
        if config.authorization is not None:
            return self._authorization(config.authorization)
        basic = config.basic_auth or self._url_credentials
        if basic is None:
            return ""
        password = basic.password if basic.password_file is None else self._read(basic.password_file)
        return "Basic " + base64.b64encode(f"{basic.username}:{password}".encode()).decode()

    def _authorization(self, config: Authorization) -> str:
        file = config.credentials_file
        return f"{config.type} {config.credentials if file is None else self._read(file)}"

    def _read(self, file: str) -> str:
        return _secret_in(self._folder, file)

    def _tls(self, config: TlsConfig) -> ssl.SSLContext:
        cafile = None if config.ca_file is None else str(self._folder / config.ca_file)
        try:
            context = ssl.create_default_context(cafile=cafile)
        except ssl.SSLError as error:
            raise ValueError(f"{config.ca_file}: must have certificates in PEM: {error.reason or error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # with TLS 1.2 a server may ask for handshakes without end
        if config.cert_file is not None:
            cert, key = self._folder / config.cert_file, self._folder / (config.key_file or "")
            try:
                context.load_cert_chain(cert, key, password=lambda: "")  # else OpenSSL asks on the terminal
            except OSError as error:
                what = f"{config.cert_file} and {config.key_file}"
                reason = getattr(error, "reason", None) or error.strerror
                raise ValueError(f"{what}: must be a certificate and its unencrypted key in PEM: {reason}") from error
        if config.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def read_secret(folder: Path, file: str) -> str:
    """The text of a file that holds a password, a token or a URL. Blocks. Raises HttpConfigError."""
    try:
        return _secret_in(folder, file)
    except (OSError, ValueError) as error:
        raise HttpConfigError(_error_text(error)) from error


def _secret_in(folder: Path, file: str) -> str:
    with (folder / file).open("rb") as opened:
        text = opened.read(MAX_SECRET + 1).decode().strip()
    if len(text) > MAX_SECRET or not text.isprintable():
        raise ValueError(f"{file}: holds no password or token")
    return text


def _error_text(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
