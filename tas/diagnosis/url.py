"""The parts of a URL that decide where a request goes."""

import re
from typing import NamedTuple

_URL = re.compile(
    r"(?P<scheme>https?)://(?:[^@/?#]*@)?(?P<host>\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(?::(?P<port>[0-9]{1,5}))?(?=[/?#]|\Z)",
    re.IGNORECASE,
)


class Url(NamedTuple):
    """A URL without user, path and query. The host of an IPv6 address has no brackets."""

    scheme: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def url_of(text: str) -> Url | None:
    """The parts of an HTTP URL with a possible host and port; None for anything else."""
    found = _URL.match(text)
    if found is None:
        return None
    scheme = found["scheme"].lower()
    port = int(found["port"] or (443 if scheme == "https" else 80))
    return Url(scheme, found["host"].strip("[]").lower(), port) if 0 < port < 65536 else None
