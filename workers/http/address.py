"""An address to listen on."""

from dataclasses import dataclass
from ipaddress import ip_address

_NEAR = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 is any free one, and an empty host is every interface, of IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine, or this pod, can reach the address."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def near(self) -> "Address":
        """Where a program on the same machine reaches what listens here."""
        return Address(_NEAR.get(self.host, self.host), self.port)

    @classmethod
    def parse(cls, text: str) -> "Address":
        """The address of `127.0.0.1:9001`, `[::1]:9001` or `:9001` (an empty host). Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("expected HOST:PORT with a port from 0 to 65535")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address must be in brackets: [::1]:9001")
        if any(character.isspace() or character == "/" for character in host):
            raise ValueError("expected HOST:PORT, not a URL")
        return cls(host, int(port))
