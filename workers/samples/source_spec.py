"""A source in the form of the command line."""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

from tas.errors import without_password
from tas.values.names import is_source_name
from workers.http.address import Address


class SourceKind(StrEnum):
    """The kinds of sources, as on the command line."""

    CUSTOM_METRICS = "custom-metrics"
    METRICS_SERVER = "metrics-server"
    PROMETHEUS = "prometheus"
    REMOTE_WRITE = "remote-write"


OF_KUBERNETES = frozenset({SourceKind.CUSTOM_METRICS, SourceKind.METRICS_SERVER})
"""The kinds that are polled through the API server."""

COMPUTING = frozenset({SourceKind.PROMETHEUS})
"""The kinds that compute statistics of windows themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """A source on the command line: `[NAME:]KIND[=ADDRESS]`.

    `address` is a URL to poll, or HOST:PORT to listen on; empty for the kinds of the API server. `str()` omits the
    password.
    """

    name: str
    kind: SourceKind
    address: str = ""

    def __str__(self) -> str:
        prefix = "" if self.name == self.kind else f"{self.name}:"
        return f"{prefix}{self.kind}" + (f"={without_password(self.address)}" if self.address else "")


def parse_sources(text: str) -> tuple[SourceSpec, ...]:
    """The sources of a text such as `custom-metrics,prometheus=http://a:9090,edge:prometheus=http://b:9090`.

    A source without a name gets the name of its kind; the second of a kind gets a number: `prometheus-2`. Raises
    ValueError naming the invalid source and the reason.
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
    name, colon, kind_text = head.rpartition(":")
    text = without_password(text)  # from here on used in messages only
    if colon and not is_source_name(name):
        raise ValueError(f"{text}: the name before the colon must be of a-z, 0-9 and -, at most 63")
    try:
        kind = SourceKind(kind_text)
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
        raise ValueError(f"{text}: takes no address: it is polled through the API server")
    return name, kind, address


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        named = ":" not in unquote(parts.username or "")  # RFC 7617
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and named
    except ValueError:
        return False
