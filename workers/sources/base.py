"""What a source of telemetry is to `workers.collect`: something to ask each period, or something that is written to.

A source knows its own protocol and nothing else: no bus, no lease, no policy. It is told which metrics policies use,
and gives a `tas.sources.reading.Batch`. When it is asked, for how long it may take, what is published and what its
state says is `collect`'s.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar, runtime_checkable
from urllib.parse import unquote, urlsplit

from tas.errors import without_password
from tas.names import is_source_name
from tas.sources.reading import Batch
from workers.runtime import Address


class SourceError(Exception):
    """A source gave nothing at all, for a reason that a person can read. `retry_after`: seconds it asked to be left."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


LARGE_BYTES = 64 << 10
"""From here on an answer is read beside the event loop: of 500 nodes it has 60 to 100 kB."""

T = TypeVar("T")


class Reader:
    """Reads a source's answers as they come: a small one at once, a large one beside the event loop.

    Of 15,000 nodes that takes a tenth of a second, in which an extender of the same process answers and leases are
    renewed. Large ones take turns: several threads at once would leave the event loop no time either.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, decode: Callable[[], T], *, size: int) -> T:
        """What `decode` returns or raises. `size` is that of its answer, in bytes."""
        if size < LARGE_BYTES:
            return decode()
        async with self._turn:
            return await asyncio.to_thread(decode)


class Source(Protocol):
    """A source that is asked. One `read` at a time, from one task."""

    @property
    def name(self) -> str:
        """What its samples say they are from, and what a rule may name; `[a-z0-9-]+`."""
        ...

    async def read(self, metrics: frozenset[str]) -> Batch:
        """The present values of `metrics` (never empty), under these names, of all nodes.

        A metric that alone cannot be had goes into `missing`. May be cancelled at any point when it takes too long.

        Raises:
            SourceError: if nothing could be had. Anything else is a bug, told as such, and asked again.
        """
        ...


@runtime_checkable
class Listener(Protocol):
    """A source that is written to. Every replica listens: who is written to publishes."""

    @property
    def name(self) -> str:
        """As of a `Source`."""
        ...

    async def listen(self, metrics: Callable[[], frozenset[str]], take: Callable[[Batch], Awaitable[None]]) -> None:
        """Listens until cancelled, and hands in what it gets.

        `metrics()` are those that policies use now: others need not be handed in. `take` returns when all is
        published, and raises bus.errors.BusError if it is not: then whoever wrote is to write again. What could not
        even be read is handed in as a batch of refusals.

        Raises:
            StartError: if it cannot be listened at all.
        """
        ...


class SourceKind(StrEnum):
    """The kinds of sources, as on the command line."""

    CUSTOM_METRICS = "custom-metrics"
    METRICS_SERVER = "metrics-server"
    PROMETHEUS = "prometheus"
    REMOTE_WRITE = "remote-write"


OF_KUBERNETES = frozenset({SourceKind.CUSTOM_METRICS, SourceKind.METRICS_SERVER})
"""Those that are asked through the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """One source as a user named it: `[NAME:]KIND[=ADDRESS]`.

    `address` is a URL to ask, or HOST:PORT to listen on; empty for the kinds that the API server serves. As text it is
    without a password.
    """

    name: str
    kind: SourceKind
    address: str = ""

    def __str__(self) -> str:
        prefix = "" if self.name == self.kind else f"{self.name}:"
        return f"{prefix}{self.kind}" + (f"={without_password(self.address)}" if self.address else "")


def parse_sources(text: str) -> tuple[SourceSpec, ...]:
    """The sources of a text such as `custom-metrics,prometheus=http://a:9090,edge:prometheus=http://b:9090`.

    A source without a name is called by its kind; the second of a kind, by its place in the text, `prometheus-2`.

    Raises:
        ValueError: saying which of them cannot be, and why.
    """
    specs: list[SourceSpec] = []
    unnamed: dict[SourceKind, int] = {}
    for part in text.split(","):
        name, kind, address = _parts(part.strip())
        if not name:
            unnamed[kind] = unnamed.get(kind, 0) + 1
            name = kind.value if unnamed[kind] == 1 else f"{kind.value}-{unnamed[kind]}"
        for other in specs:
            if other.name == name:
                raise ValueError(f"two sources are called {name}: put a name before one of them, as in edge:{kind}")
            if (other.kind, other.address) == (kind, address):
                raise ValueError(f"{without_password(part.strip())} is given twice")
        specs.append(SourceSpec(name=name, kind=kind, address=address))
    return tuple(specs)


def _parts(text: str) -> tuple[str, SourceKind, str]:
    """Name (empty if none is given), kind and address of one source."""
    head, equals, address = text.partition("=")
    name, colon, word = head.rpartition(":")
    text = without_password(text)  # from here on it is only told
    if colon and not is_source_name(name):
        raise ValueError(f"{text}: the name before the colon must be of a-z, 0-9 and -, at most 63")
    try:
        kind = SourceKind(word)
    except ValueError:
        raise ValueError(f"{text!r}: must be one of {', '.join(SourceKind)}") from None
    if kind is SourceKind.PROMETHEUS:
        if not _is_url(address):
            raise ValueError(f"{text}: needs a URL, as in {kind}=http://prometheus:9090")
    elif kind is SourceKind.REMOTE_WRITE:
        try:
            Address.parse(address)
        except ValueError as error:
            raise ValueError(f"{text}: needs an address to listen on, as in {kind}=127.0.0.1:9090: {error}") from None
    elif equals:
        raise ValueError(f"{text}: takes no address: it is asked through the API server")
    return name, kind, address


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        named = ":" not in unquote(parts.username or "")  # RFC 7617
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and named
    except ValueError:
        return False
